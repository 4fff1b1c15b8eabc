//! Mistakes in what a spec says of `zero`: one message each, with its line and a way out.

use super::support::shardc;
use super::{Job, spec};

#[test]
fn specs_that_cut_nothing_right() {
    let on = |mesh: &str, lines: &str| spec("gpt2", mesh, 1, &format!("{lines}\n"));
    let cases = [
        ("axis", on("dp=2 tp=2", "zero stage=1 axis=tp"), "job.shard:8", "`tp`, which does not split the batch"),
        ("split", on("dp=2", "shard \"*.c_fc.weight\" [-, dp]\nzero stage=1 axis=dp"), "job.shard:8", "`dp` splits"),
        (
            "shared",
            on("dp=2", "zero stage=1 axis=dp on=\"*.wte\"\nzero stage=3 axis=dp on=\"*.lm_head\""),
            "job.shard:8",
            "two things about \"model.lm_head.weight\"",
        ),
        (
            "inner",
            on("dp=2", "zero stage=3 axis=dp on=\"*.h.0.mlp\"\nzero stage=1 axis=dp on=\"*.h.0\""),
            "job.shard:8",
            "two things about \"model.transformer.h.0.mlp.c_fc.weight\" and 3 more",
        ),
        ("twice", on("dp=2", "zero stage=1 axis=dp\nzero stage=2 axis=dp"), "job.shard:8", "`zero` is given twice"),
        ("absent", on("dp=2", "zero stage=1 axis=dp on=\"*.h.9\""), "job.shard:7", "`*.h.9`"),
        ("stage", on("dp=2", "zero stage=4 axis=dp"), "job.shard:7", "`stage` cannot be `4`"),
        ("batch", on("dp=3", "zero stage=1 axis=dp"), "job.shard:2", "does not divide by 3"),
        (
            "eps",
            on("dp=3", "zero stage=1 axis=dp").replace("batch 8", "batch 9").replace("eps=1e-8", "eps=1e-50"),
            "job.shard:7",
            "divides the zeros that fill them up by eps=1e-50",
        ),
    ];
    for (name, spec, place, words) in cases {
        Job::new(&format!("mistake-{name}"), "gpt2", &spec).refused(place, words);
    }
}

/// The table is read by the head, too, which has no line of its own.
#[test]
fn a_line_for_a_part_goes_before_the_one_for_all() {
    let lines = "zero stage=1 axis=dp\nzero stage=3 axis=dp on=\"*.wte\"\n";
    let job = Job::new("part", "gpt2", &spec("gpt2", "dp=2", 1, lines));
    job.compiled();
    let report = job.inspected();
    let sharding = |name: &str| {
        let mut buffers = report["programs"][0]["buffers"].as_array().unwrap().iter();
        buffers.find(|buffer| buffer["name"] == name).unwrap()["sharding"].clone()
    };
    assert_eq!(sharding("model.lm_head.weight"), "flat(dp)");
    assert_eq!(sharding("model.transformer.wpe.weight"), "");
    assert_eq!(sharding("model.transformer.wpe.weight.m"), "flat(dp)");
}

/// What a refusal over `device memory=` names is compiled as it stands, beside the other lines.
#[test]
fn what_would_fit_keeps_the_rules_of_other_lines() {
    let cases = [
        ("dp=2 pp=2", 2, "pipeline axis=pp schedule=zb-h1\n", 1_900_000),
        ("dp=2 pp=2", 2, "pipeline axis=pp schedule=interleaved(chunks=2)\n", 2_147_097),
        ("dp=2", 1, "zero stage=1 axis=dp on=\"*.h.0\"\n", 1_997_228),
        ("dp=2", 1, "zero stage=2 axis=dp\n", 3_000_000),
    ];
    let mut fitting = 0;
    for (i, (mesh, microbatches, lines, limit)) in cases.into_iter().enumerate() {
        let text = format!("{}device memory={limit}B\n", spec("gpt2", mesh, microbatches, lines));
        let job = Job::new(&format!("fits-{i}"), "gpt2", &text);
        let err = shardc(&job.here, &["compile", &job.model, "--spec", "job.shard", "-o", "plan"]).expect(1).err;
        let (_, help) = err.split_once("would fit: ").expect(&err);
        for change in help.split("; or ") {
            let lines = change.split('`').skip(1).step_by(2).filter(|line| line.contains('='));
            let mut own: Vec<String> = text.lines().map(str::to_string).collect();
            for line in lines {
                let kind = line.split(' ').next().unwrap();
                own.retain(|old| !old.starts_with(&format!("{kind} ")) || old.contains("on="));
                own.push(line.to_string());
            }
            let job = Job::new(&format!("fits-{i}-again"), "gpt2", &(own.join("\n") + "\n"));
            job.compiled();
            fitting += 1;
        }
    }
    assert!(fitting >= 5, "{fitting} specs would fit");
}

/// What cannot be cut is said, not refused.
#[test]
fn sgd_has_nothing_to_cut_at_stage_1() {
    let spec = "mesh dp=2\nbatch 8\nloss cross_entropy logits=logits labels=y\noptimizer sgd lr=0.1\ndata axis=dp\n";
    let compiled =
        |stage: u64| Job::new(&format!("sgd-{stage}"), "gpt2", &format!("{spec}zero stage={stage} axis=dp\n")).compiled();
    let words = "zero          stage 1 over dp: nothing is cut, as the optimizer has no moments";
    assert!(compiled(1).contains(words), "{}", compiled(1));
    assert!(compiled(3).contains("zero          stage 3 over dp; 0.00 % of the shares is padding"), "{}", compiled(3));
}
