//! Validation while a model trains: its numbers are those of `shardc eval`, the best checkpoint
//! stays, and a run that gets no better ends.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use support::{command, example, folder, ran};

const SPEC: &str =
    "mesh dp=2\ndata axis=dp\nbatch 64\nloss cross_entropy logits=logits labels=y\noptimizer adamw lr=0.01 weight_decay=0\n";

/// The metrics of a run with validations.
fn train(here: &Path, more: &[&str]) -> Vec<Value> {
    fs::write(here.join("job.shard"), SPEC).unwrap();
    let (model, data, test) = (example("digits/model.onnx"), example("digits/train.npz"), example("digits/test.npz"));
    let job = ["train", &model, "--spec", "job.shard", "--data", &data, "--shuffle", "--validate", &test, "--metrics", "m.jsonl"];
    ran(command(here, &[&job[..], more].concat()).output().unwrap(), Default::default()).expect(0);
    let text = fs::read_to_string(here.join("m.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The steps done, and the loss, of each validation.
fn validated(lines: &[Value]) -> Vec<(u64, f64)> {
    let of = |line: &Value| Some((line["step"].as_u64()? + 1, line["validation_loss"].as_f64()?));
    lines.iter().filter_map(of).collect()
}

fn steps_of(checkpoints: &Path) -> Vec<u64> {
    let names = fs::read_dir(checkpoints).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<u64> = names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

#[test]
fn a_validation_is_an_evaluation() {
    let here = folder("validation-eval");
    let lines = train(&here, &["--steps", "22", "--validate-every", "8", "--export", "t.onnx", "--tensorboard", "curves"]);
    assert_eq!(validated(&lines).iter().map(|(step, _)| *step).collect::<Vec<_>>(), [8, 16, 22]);
    let test = example("digits/test.npz");
    let told = command(&here, &["eval", "t.onnx", "--spec", "job.shard", "--data", &test, "--json"]).output().unwrap();
    let score: Value = serde_json::from_slice(&told.stdout).unwrap();
    let last = lines.last().unwrap();
    assert_eq!((&last["validation_loss"], &last["validation_accuracy"]), (&score["loss"], &score["accuracy"]));
    assert!(score["accuracy"].as_f64().unwrap() > 0.5, "{score}");
    let events = fs::read_dir(here.join("curves")).unwrap().next().unwrap().unwrap().path();
    let events = fs::read(events).unwrap();
    assert!(events.windows(15).any(|bytes| bytes == b"validation/loss"));
}

/// Small training data are learned by heart, so the loss on others grows again.
#[test]
fn the_best_checkpoint_stays_and_patience_ends() {
    let here = folder("validation-best");
    let more = ["--epochs", "60", "--every", "40", "--checkpoint", "c", "--keep", "1", "--keep-best", "--patience", "6"];
    let lines = train(&here, &more);
    let validated = validated(&lines);
    let best = validated.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
    let last = validated.last().unwrap().0;
    assert_eq!(lines.len() as u64, last, "it ends with a validation");
    assert!(last < 60 * 32, "{validated:?}");
    assert_eq!((last - best) / 40, 6, "{validated:?}");
    assert_eq!(steps_of(&here.join("c")), [best, last]);
}
