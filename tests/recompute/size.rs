//! What ranks hold and send where activations are computed again, by formulas.

use super::{Job, again, job, spec};
use serde_json::Value;

fn number(report: &Value, what: &str) -> u64 {
    report["ranks"].as_array().unwrap().iter().map(|rank| rank[what].as_u64().unwrap()).max().unwrap()
}

fn inspected(job: &Job) -> Value {
    job.compiled();
    job.inspected()
}

/// The tasks of a plan and their FLOPs.
fn flops(report: &Value) -> u64 {
    let programs = report["programs"].as_array().unwrap().iter();
    programs.flat_map(|program| program["tasks"].as_array().unwrap()).map(|task| task["flops"].as_u64().unwrap()).sum()
}

/// Each of gpt2's blocks keeps its border, and while the backward pass is in one all that it has is
/// there: less than a block more than the borders. Without recomputation all blocks are.
#[test]
fn only_borders_and_one_block_are_held() {
    let mesh = ("dp=1", 1, "");
    let [kept, selective, scopes] =
        ["", "recompute selective\n", "recompute \"*.h.*\"\n"].map(|lines| inspected(&job("gpt2", mesh, lines)));
    let held = |report: &Value| number(report, "activation_bytes");
    // Eight samples of 32 tokens in 64 channels.
    let border = 8 * 32 * 64 * 4;
    let block = (held(&kept) - held(&scopes)) / 3 + border;
    assert!(held(&scopes) <= 4 * border + block + 5 * border, "{} for blocks of {block}", held(&scopes));
    assert!(held(&scopes) < held(&selective) && held(&selective) < held(&kept));
    // Blocks forwards are below a third of a step, whose backward pass is twice its forward one.
    let more = flops(&scopes) as f64 / flops(&kept) as f64;
    assert!(more > 1.1 && more < 1.34, "{more}");
    let cheap = flops(&selective) as f64 / flops(&kept) as f64;
    assert!(cheap > 1.0 && cheap < 1.1, "{cheap}");
}

/// Everything that is computed again runs where gradients are computed, with the spec's line, and
/// what nobody asked for is not.
#[test]
fn steps_say_why_they_are_there() {
    for mesh in [("dp=1", 1, ""), ("tp=2", 2, "replicate axis=tp\n"), ("pp=2", 4, "pipeline axis=pp schedule=zb-h1\n")] {
        let job = job("gpt2", mesh, "recompute \"*.h.1\"\n");
        let report = inspected(&job);
        let text = std::fs::read_to_string(job.here.join("job.shard")).unwrap();
        let line = 1 + text.lines().position(|line| line.starts_with("recompute")).unwrap() as u64;
        let steps = again(&report);
        assert!(steps.len() > 10, "{mesh:?}");
        for (task, step) in steps {
            assert!(task.starts_with(['B', 'W']), "{task} {step}");
            assert_eq!(step["spec_line"].as_u64(), Some(line), "{step}");
            assert!(step["scope"].as_str().unwrap().contains(".h.1"), "{step}");
        }
    }
}

/// The bytes that a rank sends of each kind, and of what.
fn sent(mesh: (&str, u64, &str), lines: &str) -> Vec<(String, u64)> {
    let report = inspected(&job("gpt2", mesh, lines));
    let of = |call: &Value| (format!("{} {}", call["kind"], call["carries"]), call["bytes_sent"].as_u64().unwrap());
    report["ranks"][0]["communication"].as_array().unwrap().iter().map(of).collect()
}

/// The sums over ranks inside a block are sent once more; those at its end are not, as nothing in
/// it reads them, nor are messages between stages.
#[test]
fn communication_inside_a_block_is_repeated() {
    let scopes = "recompute \"*.h.*\"\n";
    let mesh = ("pp=2", 2, "pipeline axis=pp\n");
    assert_eq!(sent(mesh, ""), sent(mesh, scopes));
    let mesh = ("tp=2", 1, "replicate axis=tp\n");
    let total = |lines: &str| sent(mesh, lines).iter().map(|(_, bytes)| bytes).sum::<u64>();
    // Of the two sums of each of four blocks, the first is read inside: eight samples of 32 tokens
    // in 64 channels, of which a ring sends 2 (k - 1) / k.
    assert_eq!(total(scopes) - total(""), 4 * 8 * 32 * 64 * 4);
    assert_eq!(total("recompute selective\n"), total(""));
}

/// A parameter that ranks share out is gathered once for each task that reads it: what only the
/// forward pass read, a bias, is now read by both.
#[test]
fn parameters_are_gathered_once_for_both_uses() {
    for microbatches in [1, 2] {
        let mesh = ("dp=2", microbatches, "zero stage=3 axis=dp\n");
        let gathered = |lines: &str| {
            let all = sent(mesh, lines).into_iter().filter(|(what, _)| what.contains("parameters"));
            all.map(|(_, bytes)| bytes).sum::<u64>()
        };
        // Half of 218,496 elements from each of two ranks, forwards and backwards.
        let (before, after, most) = (gathered(""), gathered("recompute \"*.h.*\"\n"), microbatches * 2 * 218_496 * 4 / 2);
        assert!(before < after && after <= most, "{before} {after} {most}");
    }
}

/// A budget is kept, and is no more work than it must be: the less memory, the more work.
#[test]
fn budgets_are_kept() {
    for mesh in [("dp=1", 1, ""), ("dp=2 pp=2", 4, "pipeline axis=pp\nzero stage=1 axis=dp\n")] {
        let [kept, least] = ["", "recompute \"*.h.*\"\n"].map(|lines| inspected(&job("gpt2", mesh, lines)));
        let (most, fewest) = (number(&kept, "peak_bytes"), number(&least, "peak_bytes"));
        let mut before = flops(&kept);
        for part in 0..=4 {
            let budget = most - (most - fewest) * part / 4;
            let report = inspected(&job("gpt2", mesh, &format!("recompute budget={budget}B\n")));
            assert!(number(&report, "peak_bytes") <= budget, "{mesh:?} {budget}");
            assert!(flops(&report) >= before, "{mesh:?} {budget}");
            before = flops(&report);
        }
        assert!(before > flops(&kept) && before <= flops(&least));
    }
}

/// One line beside the other is one thing, and outermost scopes are units.
#[test]
fn nested_scopes_are_one_unit() {
    let held = |lines: &str| {
        let job = Job::new(&format!("nested-{}", lines.len()), "gpt2", &spec("gpt2", "dp=1", 1, lines));
        let report = inspected(&job);
        (number(&report, "activation_bytes"), flops(&report))
    };
    let blocks = held("recompute \"*.h.*\"\n");
    assert_eq!(blocks, held("recompute \"*.h.*\"\nrecompute \"*.mlp\"\n"));
    assert_eq!(blocks, held("recompute \"*.h.0\"\nrecompute \"*.h.1\"\nrecompute \"*.h.2\"\nrecompute \"*.h.3\"\n"));
    let one = held("recompute \"*.h\"\n");
    assert!(one.0 > blocks.0, "all blocks as one unit hold all of them at once: {one:?} {blocks:?}");
}
