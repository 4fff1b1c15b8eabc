//! Every loss, optimizer and schedule against PyTorch: ten steps, and an evaluation whose last
//! batch is not full, on one rank and on several. `tests/models/losses` holds a net from [N, 3, 4,
//! 4] to [N, 5, 4, 4], the same with losses of its own, and for each case the lines of the spec,
//! what PyTorch computed in f64, and how many labels count.

use crate::support::{folder, shardc};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Differences of f32 from f64: of losses absolute, of norms relative.
const TOLERANCE: f64 = 1e-6;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/losses")
}

fn gold() -> Value {
    serde_json::from_str(&fs::read_to_string(models().join("gold.json")).expect("the truth")).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// The model of a case.
fn model(case: &str) -> String {
    let file = if case.starts_with("own-") { format!("{case}.onnx") } else { "model.onnx".to_string() };
    models().join(file).to_string_lossy().into_owned()
}

#[test]
fn losses_optimizers_and_schedules_are_those_of_pytorch() {
    let here = folder("losses");
    let data = models().join("data.npz").to_string_lossy().into_owned();
    let gold = gold();
    let cases = gold.as_object().expect("cases");
    assert!(cases.len() >= 20);
    for (name, truth) in cases {
        let lines = truth["spec"].as_str().expect("a spec");
        let prefix = if name.starts_with("own-") { "m." } else { "" };
        let split =
            format!("shard \"{prefix}a.weight\" [tp, -]\nshard \"{prefix}a.bias\" [tp]\nshard \"{prefix}b.weight\" [-, tp]\n");
        for (mesh, microbatches, shard) in [("dp=1 tp=1", 1, ""), ("dp=2 tp=1", 4, ""), ("dp=2 tp=2", 2, split.as_str())] {
            let spec =
                |batch: u64| format!("mesh {mesh}\nbatch {batch} microbatches={microbatches}\ndata axis=dp\n{lines}{shard}");
            let at = format!("{name} on {mesh} in {microbatches} micro-batches");
            fs::write(here.join("job.shard"), spec(8)).expect("a spec");
            let arguments = ["train", &model(name), "--spec", "job.shard", "--data", &data, "--steps", "10", "--threads", "2"];
            let arguments = [&arguments[..], &["--metrics", "m.jsonl", "--export", "trained.onnx"]].concat();
            shardc(&here, &arguments).expect(0);
            let metrics = fs::read_to_string(here.join("m.jsonl")).expect("metrics");
            assert_eq!(metrics.lines().count(), 10);
            for (step, line) in metrics.lines().enumerate() {
                let line: Value = serde_json::from_str(line).expect("JSON");
                let (loss, norm) = (number(&line["loss"]), number(&line["grad_norm"]));
                let (true_loss, true_norm) = (number(&truth["loss"][step]), number(&truth["grad_norm"][step]));
                assert!((loss - true_loss).abs() < TOLERANCE, "{at}: loss {loss} at step {step}, PyTorch {true_loss}");
                assert!((norm / true_norm - 1.0).abs() < TOLERANCE, "{at}: norm {norm} at step {step}, PyTorch {true_norm}");
            }
            // 80 samples in batches of 12, or of 24 where micro-batches and ranks ask for more.
            let batch = if microbatches == 4 { 24 } else { 12 };
            if name == "own-rms" && batch != 12 {
                // The only loss that depends on how samples are cut into batches.
                continue;
            }
            fs::write(here.join("eval.shard"), spec(batch)).expect("a spec");
            let ran = shardc(&here, &["eval", "trained.onnx", "--spec", "eval.shard", "--data", &data, "--json"]).expect(0);
            let result: Value = serde_json::from_str(&ran.out).expect("JSON");
            let (loss, expected) = (number(&result["loss"]), number(&truth["eval"]));
            assert!((loss - expected).abs() < TOLERANCE, "{at}: evaluation gives {loss}, PyTorch {expected}");
            assert_eq!(result["labels"], truth["labels"], "{at}");
        }
    }
}

#[test]
fn a_batch_without_a_label_that_counts_moves_nothing() {
    let here = folder("all-ignored");
    let ignored = "class_axis=1 ignore_index=7\noptimizer sgd lr=0.1\n";
    // No label of the data is 7, so all of a model of eight classes would count; here all labels
    // are made to be ignored.
    let arrays = shardc_executor::data::read_npz(fs::File::open(models().join("data.npz")).expect("data")).expect("arrays");
    let y = &arrays["y"];
    let sevens = shardc_executor::tensor::Tensor::from_i64(&y.shape, &vec![7; y.elements() as usize]);
    let data = [("x".to_string(), arrays["x"].clone()), ("y".to_string(), sevens)].into();
    shardc_executor::data::write_npz(&here.join("data.npz"), &data).expect("data is written");
    fs::write(here.join("job.shard"), format!("batch 8\nloss cross_entropy labels=y {ignored}")).expect("a spec");
    let job = [&model("cross_entropy"), "--spec", "job.shard", "--data", "data.npz"];
    let train = [&["train"], &job[..], &["--steps", "2", "--metrics", "m.jsonl", "--export", "e.onnx"]].concat();
    let ran = shardc(&here, &train).expect(0);
    assert!(ran.err.contains("no label of step 1 counts"), "{}", ran.err);
    let metrics = fs::read_to_string(here.join("m.jsonl")).expect("metrics");
    for line in metrics.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!((&line["loss"], number(&line["grad_norm"])), (&Value::Null, 0.0), "as PyTorch's: nan, and gradients of 0");
    }
    let ran = shardc(&here, &[&["eval"], &job[..], &["--json"]].concat()).expect(0);
    assert_eq!(ran.out, "{\"loss\":null,\"labels\":0}\n");
    let ran = shardc(&here, &[&["eval"], &job[..]].concat()).expect(0);
    assert!(ran.out.starts_with("no loss: none of the labels of 80 samples counts"), "{}", ran.out);
}
