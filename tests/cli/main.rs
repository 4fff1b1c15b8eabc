//! The command line, from outside: what it promises, and what it says to those who err.

mod bench;
mod endings;
mod listings;
mod mistakes;
mod profiles;
#[path = "../support/mod.rs"]
mod support;

use crate::mistakes::{all_told, mistake};
use serde_json::Value;
use shardc_executor::data::{read_npz, write_npz};
use shardc_executor::tensor::Tensor;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use support::{Ran, example, folder, shardc};

pub(crate) const SPEC: &str = "batch 64\nloss cross_entropy logits=logits labels=y\noptimizer sgd lr=0.1 momentum=0.9\n";

pub(crate) fn write(folder: &Path, name: &str, contents: impl AsRef<[u8]>) -> String {
    fs::write(folder.join(name), contents).expect("a file can be written");
    name.to_string()
}

/// The lines of a metrics file without their times.
pub(crate) fn metrics(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("metrics");
    let mut lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("a line of JSON")).collect();
    for line in &mut lines {
        let line = line.as_object_mut().expect("an object");
        for time in ["seconds", "samples_per_second", "share_of_peak"] {
            assert!(line.remove(time).is_some_and(|v| v.as_f64().is_some_and(|v| v > 0.0)), "{line:?} has its {time}");
        }
    }
    lines
}

/// Trains the digits for `steps` under a copy of `spec`; gives what it printed and the metrics.
pub(crate) fn train(here: &Path, source: &[&str], steps: &str, name: &str) -> (Ran, Vec<Value>) {
    let data = example("digits/train.npz");
    let arguments = [&["train"], source, &["--data", &data, "--steps", steps, "--threads", "4", "--metrics", name]].concat();
    let ran = shardc(here, &arguments).expect(0);
    (ran, metrics(&here.join(name)))
}

#[test]
fn a_plan_directory_is_all_that_training_needs() {
    let here = folder("plan-alone");
    fs::create_dir(here.join("job")).expect("a folder");
    for (from, to) in [("model.onnx", "job/model.onnx"), ("dp2-tp2.shard", "job/job.shard")] {
        fs::copy(example(&format!("digits/{from}")), here.join(to)).expect("a copy");
    }
    let source = ["job/model.onnx", "--spec", "job/job.shard"];
    let (_, direct) = train(&here, &[&source[..], &["--export", "direct.onnx"]].concat(), "40", "direct.jsonl");
    let (_, again) = train(&here, &source, "40", "again.jsonl");
    assert_eq!(direct, again, "two runs give the same bits");
    shardc(&here, &[&["compile"], &source[..], &["-o", "plan"]].concat()).expect(0);
    fs::remove_dir_all(here.join("job")).expect("the job is gone");
    let (_, planned) = train(&here, &["plan", "--export", "planned.onnx"], "40", "planned.jsonl");
    assert_eq!(direct, planned, "the plan gives the same bits");
    let read = |name: &str| fs::read(here.join(name)).expect("an exported model");
    assert_eq!(read("direct.onnx"), read("planned.onnx"));
    assert_eq!(direct.len(), 40);
    let keys: Vec<&str> = direct[0].as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys, ["grad_norm", "loss", "lr", "step"]);
    let loss = |line: &Value| line["loss"].as_f64().expect("a number");
    assert!(loss(&direct[39]) < 0.9 * loss(&direct[0]), "training helps");
}

#[test]
fn seeds_and_shuffling_change_the_run() {
    let here = folder("seeds");
    let spec = write(&here, "init.shard", format!("{SPEC}init \"*\" auto\nseed 7\n"));
    let model = example("digits/model.onnx");
    let source = [&model, "--spec", &spec];
    let (_, spec_seed) = train(&here, &source, "3", "a.jsonl");
    let (_, same_seed) = train(&here, &[&source[..], &["--seed", "7"]].concat(), "3", "b.jsonl");
    let (_, other_seed) = train(&here, &[&source[..], &["--seed", "8"]].concat(), "3", "c.jsonl");
    let (_, shuffled) = train(&here, &[&source[..], &["--shuffle"]].concat(), "3", "d.jsonl");
    assert_eq!(spec_seed, same_seed);
    assert_ne!(spec_seed, other_seed);
    assert_ne!(spec_seed, shuffled);
}

#[test]
fn evaluation_counts_every_sample_once() {
    let here = folder("evaluation");
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    let spec = write(&here, "job.shard", SPEC);
    let (_, lines) = train(&here, &[&model, "--spec", &spec], "1", "m.jsonl");
    // The first 64 samples, and then a file of 100 that does not fill two batches.
    let arrays = arrays(&data);
    let cut = |n: u64| -> BTreeMap<String, Tensor> {
        let cut = |t: &Tensor| {
            let row = t.bytes.len() / t.shape[0] as usize;
            let mut shape = t.shape.clone();
            shape[0] = n;
            Tensor { dtype: t.dtype, shape, bytes: t.bytes[..row * n as usize].to_vec() }
        };
        arrays.iter().map(|(name, t)| (name.clone(), cut(t))).collect()
    };
    let eval = |n: u64, spec: &str, outputs: &str| -> (Value, BTreeMap<String, Tensor>) {
        let file = here.join(format!("{n}.npz"));
        write_npz(&file, &cut(n)).expect("data is written");
        let file = file.to_string_lossy().into_owned();
        let arguments = ["eval", &model, "--spec", spec, "--data", &file, "--json", "--outputs", outputs];
        let ran = shardc(&here, &arguments).expect(0);
        (serde_json::from_str(&ran.out).expect("JSON"), self::arrays(&here.join(outputs).to_string_lossy()))
    };
    let (first, _) = eval(64, &spec, "64-out.npz");
    let difference = first["loss"].as_f64().expect("a loss") - lines[0]["loss"].as_f64().expect("a loss");
    assert!(difference.abs() < 1e-6, "{first} is the loss before the first update");
    assert_eq!(first["labels"], 64);
    let (all, outputs) = eval(100, &spec, "100-out.npz");
    let small = write(&here, "small.shard", SPEC.replace("batch 64", "batch 20"));
    let (parts, other_outputs) = eval(100, &small, "100-small.npz");
    assert_eq!((&all["labels"], &parts["labels"]), (&Value::from(100), &Value::from(100)));
    let difference = all["loss"].as_f64().expect("a loss") - parts["loss"].as_f64().expect("a loss");
    assert!(difference.abs() < 1e-6, "{all} and {parts}");
    assert_eq!(outputs["logits"].shape, [100, 10]);
    for (a, b) in outputs["logits"].to_f32().iter().zip(other_outputs["logits"].to_f32()) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
    let four = write(&here, "four.shard", format!("mesh dp=4\n{SPEC}data axis=dp\n"));
    let (ranks, _) = eval(100, &four, "100-four.npz");
    let difference = all["loss"].as_f64().expect("a loss") - ranks["loss"].as_f64().expect("a loss");
    assert!(difference.abs() < 1e-6 && ranks["labels"] == 100, "{all} and {ranks}");
    let no_loss = write(&here, "no-loss.shard", "batch 64\n");
    let (nothing, outputs) = eval(100, &no_loss, "100-none.npz");
    assert_eq!(nothing, serde_json::json!({"loss": null, "labels": null}));
    assert_eq!(outputs["logits"].shape, [100, 10]);
}

/// The arrays of a `.npz`.
pub(crate) fn arrays(path: &str) -> BTreeMap<String, Tensor> {
    read_npz(fs::File::open(path).expect("a file")).expect("arrays")
}

#[test]
fn check_compares_a_plan_with_its_reference() {
    let here = folder("check");
    let data = example("digits/train.npz");
    shardc(&here, &["compile", &example("digits/model.onnx"), "--spec", &example("digits/dp2-tp2.shard"), "-o", "p"]).expect(0);
    let ran = shardc(&here, &["check", "p", "--data", &data, "--batches", "99999999999"]).expect(1);
    assert!(ran.err.contains(" batches, not 99999999999") && ran.err.contains("help: "), "{}", ran.err);
    let ran = shardc(&here, &["check", "p", "--data", &data, "--batches", "2", "--replay"]).expect(0);
    assert!(
        ran.out.starts_with("batch 1: 4 ranks against one")
            && ran.out.contains("batch 2: 4 ranks against one")
            && ran.out.contains("gradient of \"fc1.weight\""),
        "{}",
        ran.out
    );
    let replayed = "batch 2: the replay of 4 ranks in one thread has the same bits: 2 outputs, 6 gradients, ";
    assert!(ran.out.contains(replayed) && ran.out.contains(" states after the step; "), "{}", ran.out);
    assert!(ran.out.ends_with("the plan computes what its reference computes\n"), "{}", ran.out);
}

/// Neither when ranks meet nor how long a sender waits changes a bit.
#[test]
fn pauses_change_nothing() {
    let here = folder("delays");
    let source = [&example("digits/model.onnx"), "--spec", &example("digits/dp2-tp2.shard")];
    let (_, calm) = train(&here, &[&source[..], &["--export", "calm.onnx"]].concat(), "3", "calm.jsonl");
    for seed in ["1", "2"] {
        let delays = ["--delays", "2", "--delay-seed", seed, "--strict", "--export", "delayed.onnx"];
        let (_, delayed) = train(&here, &[&source[..], &delays].concat(), "3", "delayed.jsonl");
        assert_eq!(calm, delayed);
        let read = |name: &str| fs::read(here.join(name)).expect("an exported model");
        assert!(read("calm.onnx") == read("delayed.onnx"));
    }
    shardc(&here, &["check", source[0], source[1], source[2], "--data", &example("digits/train.npz"), "--delays", "1"]).expect(0);
    shardc(&here, &["train", source[0], source[1], source[2], "--data", "none", "--delay-seed", "1"]).expect(2);
}

#[test]
fn a_plan_without_weights_does_all_but_train() {
    let here = folder("no-weights");
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    shardc(&here, &["compile", &model, "--spec", &example("digits/one.shard"), "-o", "p", "--no-weights"]).expect(0);
    assert!(!here.join("p/weights.safetensors").exists());
    shardc(&here, &["inspect", "p"]).expect(0);
    shardc(&here, &["verify", "p"]).expect(0);
    all_told(&here, vec![mistake(&["train", "p", "--data", &data, "--steps", "1"], 1, &["no weights", "init"])]);
    let spec = write(&here, "init.shard", format!("{SPEC}init \"*\" auto\n"));
    shardc(&here, &["compile", &model, "--spec", &spec, "-o", "q", "--no-weights"]).expect(0);
    let ran = shardc(&here, &["train", "q", "--data", &data, "--steps", "2", "--export", "q.onnx"]).expect(0);
    assert!(ran.err.contains("2 steps"), "{}", ran.err);
    shardc(&here, &["eval", "q.onnx", "--spec", &spec.replace("init", "job"), "--data", &data]).expect(1);
    let spec = write(&here, "job.shard", SPEC);
    shardc(&here, &["eval", "q.onnx", "--spec", &spec, "--data", &data]).expect(0);
}

#[test]
fn what_fills_no_batch_runs_at_its_own_size() {
    let here = folder("own-size");
    let models = format!("{}/tests/models/losses", env!("CARGO_MANIFEST_DIR"));
    let (model, data) = (format!("{models}/own-rms.onnx"), format!("{models}/data.npz"));
    let spec = write(&here, "job.shard", "batch 12\nloss output=loss\noptimizer sgd lr=0.1\n");
    shardc(&here, &["compile", &model, "--spec", &spec, "-o", "p"]).expect(0);
    // 80 samples are six batches and eight samples more; a loss of the model's own cannot leave out
    // what would fill them up.
    let from_model = shardc(&here, &["eval", &model, "--spec", &spec, "--data", &data, "--json"]).expect(0).out;
    let from_plan = shardc(&here, &["eval", "p", "--data", &data, "--json"]).expect(0).out;
    assert_eq!(from_model, from_plan);
    assert!(from_model.contains("\"labels\":80"), "{from_model}");
    // The samples of one batch say the same in any number of ranks.
    let four = write(&here, "four.shard", "mesh dp=4\nbatch 12\nloss output=loss\ndata axis=dp\n");
    let of_ranks = shardc(&here, &["eval", &model, "--spec", &four, "--data", &data, "--json"]).expect(0).out;
    let loss = |text: &str| serde_json::from_str::<Value>(text).expect("JSON")["loss"].as_f64().expect("a loss");
    assert!((loss(&from_model) - loss(&of_ranks)).abs() < 1e-6, "{from_model} and {of_ranks}");
}
