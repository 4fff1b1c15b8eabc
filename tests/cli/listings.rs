//! The output of `compile`, `inspect` and `ops`.

use crate::support::{example, folder, shardc};
use crate::{SPEC, write};
use serde_json::Value;
use shardc_executor::data::write_npz;
use shardc_executor::tensor::Tensor;
use std::fs;
use std::path::Path;

#[test]
fn one_of_a_kind_is_told_as_one() {
    let here = folder("one");
    let model = example("digits/model.onnx");
    let (x, y) = (Tensor::from_f32(&[1, 1, 8, 8], &[0.5; 64]), Tensor::from_i64(&[1], &[3]));
    write_npz(&here.join("one.npz"), &[("x".to_string(), x), ("y".to_string(), y)].into()).expect("data is written");
    let spec = write(&here, "job.shard", "batch 1\nloss cross_entropy labels=y\noptimizer adamw lr=0.1\n");
    let job = [&model, "--spec", &spec, "--data", "one.npz"];
    let ran = shardc(&here, &[&["train"], &job[..], &["--steps", "2", "--export", "t.onnx"]].concat()).expect(0);
    assert!(ran.err.contains("note: the data has 1 sample, 1 step a pass; it will be used again\n"), "{}", ran.err);
    let ran = shardc(&here, &[&["eval"], &job[..]].concat()).expect(0);
    assert!(ran.out.contains(" over 1 label of 1 sample\naccuracy  "), "{}", ran.out);
    let ran = shardc(&here, &[&["check"], &job[..], &["--replay"]].concat()).expect(0);
    assert!(ran.out.starts_with("batch 1: 1 rank against one, the 10 worst of 24 gradients and states\n"), "{}", ran.out);
    assert!(
        ran.out.contains("batch 1: the replay of 1 rank in one thread has the same bits: 2 outputs, 6 gradients, "),
        "{}",
        ran.out
    );
}

/// The specs that the refusal names are compiled: they need what it says, and fit.
#[test]
fn what_does_not_fit_is_told_what_does() {
    let here = folder("fits");
    let refused = |lines: &str, parts: &[&str]| {
        let spec = write(&here, "small.shard", format!("loss cross_entropy labels=y\noptimizer adamw lr=0.1\n{lines}"));
        let ran = shardc(&here, &["compile", &example("digits/model.onnx"), "--spec", &spec, "-o", "p"]).expect(1);
        for part in parts {
            assert!(ran.err.contains(part), "`{part}` in\n{}", ran.err);
        }
        ran.err
    };
    let most = "optimizer 204 KiB, gradients 102 KiB, parameters 102 KiB";
    let err =
        refused("mesh dp=2\ndata axis=dp\nbatch 64\ndevice memory=420KiB\n", &["on each rank, the device has 420 KiB", most]);
    let (_, help) = err.split_once("these would fit: ").expect("help");
    let mut fitting = 0;
    for change in help.trim().split("; or ") {
        let (lines, bytes) = change.split_once(" with ").expect("what it needs");
        let line = |kind: &str, otherwise: &str| {
            let own = lines.split('`').find(|line| line.starts_with(kind));
            own.unwrap_or(otherwise).to_string() + "\n"
        };
        let text = ["mesh ", "batch ", "zero "].iter().zip(["mesh dp=2", "batch 64", ""]).map(|(kind, old)| line(kind, old));
        let text = text.collect::<String>()
            + "data axis=dp\nloss cross_entropy labels=y\noptimizer adamw lr=0.1\ndevice memory=420KiB\n";
        let spec = write(&here, "fits.shard", &text);
        let ran = shardc(&here, &["compile", &example("digits/model.onnx"), "--spec", &spec, "-o", "p"]).expect(0);
        assert!(ran.out.contains(&format!("{bytes} on each rank")), "{change}: {}", ran.out);
        fitting += 1;
    }
    assert_eq!(fitting, 2);
    refused("batch 64\ndevice memory=300KiB\n", &["`mesh dp=", "`data axis=dp`", "`zero stage=3 axis=dp`"]);
    refused("batch 64\ndevice memory=10KiB\n", &["nothing fits: `mesh dp=64`", "is the least that was found, ", "`tensor`"]);
}

#[test]
fn inspect_shows_steps_memory_and_messages() {
    let here = folder("inspect");
    let arguments = ["compile", &example("digits/model.onnx"), "--spec", &example("digits/dp2-tp2.shard"), "-o", "p"];
    let summary = shardc(&here, &arguments).expect(0);
    for part in
        ["ranks        4 (dp=2 tp=2)", "batch        64 samples", "parameters   26,122", "trained (6)", "a step from each rank"]
    {
        assert!(summary.out.contains(part), "`{part}` in\n{}", summary.out);
    }
    let text = shardc(&here, &["inspect", "p", "--rank", "3", "--width", "240"]).expect(0).out;
    let first = text.lines().next().expect("a header");
    assert!(first.starts_with("plan @") && first.contains("device 3/4 (dp=1 tp=1)") && first.contains("peak"), "{first}");
    let call = text.lines().find(|l| l.contains("(dp2-tp2.shard:12)")).expect("the call that the spec's line 12 asks for");
    for part in ["comm", "all_reduce sum tp {2,3}", "f32[32, 128]", "16 KiB", "for \"fc2.weight\" {-, tp} (dp2-tp2.shard:12)"] {
        assert!(call.contains(part), "`{part}` in `{call}`");
    }
    shardc(&here, &["inspect", "p", "--format", "json", "-o", "p.json"]).expect(0);
    let json: Value = serde_json::from_str(&fs::read_to_string(here.join("p.json")).expect("a file")).expect("JSON");
    assert_eq!(json["world_size"], 4);
    assert_eq!(json["mesh"], serde_json::json!({"dp": 2, "tp": 2}));
    assert_eq!(json["plan_hash"].as_str().map(str::len), Some(64));
    let ranks = json["ranks"].as_array().expect("ranks");
    assert_eq!(ranks.len(), 4);
    assert_eq!(ranks[3]["coordinates"], serde_json::json!({"dp": 1, "tp": 1}));
    // fc1 and fc2 are halved, fc2's bias and fc3 are whole: [64, 64] + [64] + [128, 64] + [128] +
    // [10, 128] + [10] numbers.
    let parameters = 4 * (64 * 64 + 64 + 128 * 64 + 128 + 10 * 128 + 10);
    for rank in ranks {
        for part in ["parameter_bytes", "gradient_bytes", "optimizer_bytes"] {
            assert_eq!(rank[part], parameters, "{part}");
        }
        let bytes = |part: &str| rank[part].as_u64().expect("a number");
        assert!(bytes("activation_bytes") > 0 && bytes("peak_bytes") > bytes("activation_bytes") + 3 * parameters);
        let calls = rank["communication"].as_array().expect("calls");
        // The activations [32, 128] and a part of the norm over tp; every gradient and the loss
        // over dp. Two ranks send what they have, and no call could do with less.
        let sent = |axis: &str, carries: &str, bytes: u64| {
            let call = calls.iter().find(|c| c["axis"] == axis && c["carries"] == carries).expect("such a call");
            assert_eq!((&call["kind"], &call["bytes_sent"]), (&Value::from("all_reduce"), &Value::from(bytes)), "{call}");
            assert_eq!(call["least_bytes"], bytes, "{call}");
        };
        sent("tp", "activations", 32 * 128 * 4);
        sent("tp", "norm", 8);
        sent("dp", "gradients", parameters);
        sent("dp", "loss", 4);
        assert_eq!(calls.len(), 4);
    }
    let one = shardc(&here, &["inspect", "p", "--format", "json", "--rank", "2"]).expect(0);
    let one: Value = serde_json::from_str(&one.out).expect("JSON");
    assert_eq!(one["ranks"].as_array().map(Vec::len), Some(1));
    assert_eq!(one["ranks"][0], ranks[2]);
}

#[test]
fn micro_batches_are_one_loop_in_a_listing() {
    let here = folder("loop");
    shardc(&here, &["compile", &example("tiny-gpt/model.onnx"), "--spec", &example("tiny-gpt/dp2.shard"), "-o", "p"]).expect(0);
    let text = shardc(&here, &["inspect", "p"]).expect(0).out;
    let loops = text.lines().filter(|line| line.contains(", for each of 2 micro-batches: "));
    assert_eq!(loops.map(|line| &line[..4]).collect::<Vec<_>>(), ["  F0", "  B0"]);
    assert!(text.contains("2 micro-batches  peak"));
    // The call for the gradients waits for the last of them, and a reader of their sums for it.
    let lines: Vec<&str> = text.lines().collect();
    let call = lines.iter().position(|line| line.contains(" gradients (dp2.shard:")).expect("a call");
    let number = |line: usize| lines[line].split_whitespace().next().expect("a number");
    let before = number(call - 1).rsplit('-').next().expect("a number");
    assert!(lines[call].ends_with(&format!("  after {before}")), "{}", lines[call]);
    let waits = format!("  after {}", number(call));
    assert!(lines[call..].iter().any(|line| line.ends_with(&waits)), "nothing waits for the call");
    let verified = shardc(&here, &["verify", "p"]).expect(0).out;
    let proven = ["train: proven on 2 ranks", "eval: proven on 2 ranks", "`train.shir.gz`"];
    assert!(proven.iter().all(|words| verified.contains(words)), "{verified}");
}

#[test]
fn compile_can_stop_dump_and_verify() {
    let here = folder("passes");
    let job = ["compile", &example("digits/model.onnx"), "--spec", &example("digits/dp2-tp2.shard")];
    let stopped = shardc(&here, &[&job[..], &["--stop-after", "propagate", "--verify-each"]].concat()).expect(0);
    assert!(stopped.out.starts_with("graph @") && stopped.out.contains("phase annotated"), "{}", stopped.out);
    // A run that stops before a pass does not hear its refusal.
    let spec = write(&here, "idle.shard", format!("mesh tp=2\nshard \"fc1.weight\" [3*tp, -]\n{SPEC}"));
    let job_with_idle = ["compile", &example("digits/model.onnx"), "--spec", &spec];
    shardc(&here, &[&job_with_idle[..], &["--stop-after", "differentiate"]].concat()).expect(0);
    shardc(&here, &[&job_with_idle[..], &["--stop-after", "propagate"]].concat()).expect(1);
    let spec = write(&here, "evaluation.shard", "bind batch=2\n");
    let told = shardc(&here, &["compile", &example("digits/model.onnx"), "--spec", &spec, "-o", "evaluates"]).expect(0).out;
    assert!(told.contains("evaluation: the spec has no `loss`"), "{told}");
    let evaluation = ["compile", &example("digits/model.onnx"), "--spec", &spec, "--stop-after"];
    let ran = shardc(&here, &[&evaluation[..], &["differentiate"]].concat()).expect(2);
    assert!(ran.err.contains("asks for no training"), "{}", ran.err);
    shardc(&here, &[&job[..], &["-o", "p", "--dump", "d", "--verify-each"]].concat()).expect(0);
    for mode in ["train", "eval"] {
        let files: Vec<_> = fs::read_dir(here.join("d").join(mode)).expect("dumps").collect();
        assert!(files.len() > 4, "{} dumps", files.len());
        for file in files {
            let text = fs::read_to_string(file.expect("an entry").path()).expect("a text");
            let graph = shardc_ir::text::parse(&text).expect("a dump can be read");
            assert_eq!(shardc_ir::text::print(&graph), text);
        }
    }
}

#[test]
fn ops_prints_the_table() {
    let ran = shardc(Path::new("."), &["ops"]).expect(0);
    let contract = ran.out.lines().find(|l| l.starts_with("contract ")).expect("contract is an op");
    assert!(contract.contains("ab,bc->ac"), "{contract}");
}
