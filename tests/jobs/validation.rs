//! Validation while a model trains: its numbers are those of `shardc eval`, the best checkpoint
//! stays, and a run that gets no better ends.

use crate::support::{command, example, folder, ran};
use serde_json::Value;
use shardc_executor::data::{read_npz, write_npz};
use shardc_executor::tensor::Tensor;
use std::fs;
use std::path::Path;

const SPEC: &str =
    "mesh dp=2\ndata axis=dp\nbatch 64\nloss cross_entropy logits=logits labels=y\noptimizer adamw lr=0.01 weight_decay=0\n";

/// The metrics of a run with validations.
fn train(here: &Path, more: &[&str]) -> Vec<Value> {
    fs::write(here.join("job.shard"), SPEC).unwrap();
    run(here, &["train"], more)
}

/// That of the job `job.shard` under a command.
fn run(here: &Path, train: &[&str], more: &[&str]) -> Vec<Value> {
    let (model, data, test) = (example("digits/model.onnx"), example("digits/train.npz"), example("digits/test.npz"));
    let job = [&model, "--spec", "job.shard", "--data", &data, "--shuffle", "--validate", &test, "--metrics", "m.jsonl"];
    ran(command(here, &[train, &job[..], more].concat()).output().unwrap(), Default::default()).expect(0);
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
    assert!(last["share_of_peak"].as_f64().unwrap() > 0.0 && last.get("tokens_per_second").is_none(), "{last}");
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
    // A run that keeps no best leaves the one of a run before it.
    let until = (last + 16).to_string();
    train(&here, &["--steps", &until, "--checkpoint", "c", "--keep", "1", "--resume"]);
    assert_eq!(steps_of(&here.join("c")), [best, last + 16]);
}

/// A run that keeps no best leaves the one that there was, though it was also one of the latest.
#[test]
fn a_later_run_leaves_the_best_checkpoint() {
    let here = folder("validation-later");
    let every = ["--every", "40", "--checkpoint", "c", "--keep"];
    train(&here, &[&every[..], &["3", "--keep-best", "--steps", "80"]].concat());
    assert_eq!(steps_of(&here.join("c")), [40, 80]);
    train(&here, &[&every[..], &["1", "--resume", "--steps", "200"]].concat());
    assert_eq!(steps_of(&here.join("c")), [80, 200]);
}

/// Which validation was the best, and how many have come since, goes on with training.
#[test]
fn patience_goes_on_from_a_checkpoint() {
    let whole = folder("validation-whole");
    let all = ["--epochs", "60", "--every", "40", "--checkpoint", "c", "--keep", "1", "--keep-best"];
    let wanted = train(&whole, &[&all[..], &["--patience", "6"]].concat());
    let end = wanted.len() as u64;
    for behind in [40, 160] {
        let cut = folder("validation-cut");
        let stop = (end - behind).to_string();
        let until = ["--steps", &stop, "--every", "40", "--checkpoint", "c", "--keep", "1", "--keep-best"];
        train(&cut, &until);
        let lines = train(&cut, &[&all[..], &["--patience", "6", "--resume"]].concat());
        assert_eq!(validated(&lines), validated(&wanted));
        assert_eq!(steps_of(&cut.join("c")), steps_of(&whole.join("c")), "stopped {behind} steps before the end");
    }
}

/// Whatever mesh trains, and whether ranks are threads or processes.
#[test]
#[cfg(target_os = "linux")]
fn processes_validate_as_threads_do() {
    let meshes = [
        ("dp", "mesh dp=2\ndata axis=dp\n"),
        ("zero", "mesh dp=2\ndata axis=dp\nzero axis=dp stage=3\n"),
        ("pp", "mesh pp=2\npipeline axis=pp\n"),
        ("half", "mesh dp=2\ndata axis=dp\nprecision compute=bf16\n"),
    ];
    for (name, mesh) in meshes {
        let here = folder(&format!("validation-processes-{name}"));
        let rest = SPEC.split_once("batch").unwrap().1;
        fs::write(here.join("job.shard"), format!("{mesh}batch{rest}")).unwrap();
        let more = ["--steps", "20", "--every", "8", "--keep-best", "--checkpoint"];
        let threads = run(&here, &["train"], &[&more[..], &["threads"]].concat());
        let processes = run(&here, &["launch", "-n", "2", "--", "train"], &[&more[..], &["processes"]].concat());
        assert_eq!(validated(&threads).len(), 3);
        assert_eq!(validated(&threads), validated(&processes), "{name}");
        let manifest = |of: &str| fs::read(here.join(of).join("step-00000020/manifest.json")).unwrap();
        assert!(manifest("threads") == manifest("processes"), "{name}");
    }
}

#[test]
fn samples_of_a_validation_are_spread_evenly() {
    let here = folder("validation-samples");
    let lines = train(&here, &["--steps", "4", "--validate-samples", "100", "--export", "t.onnx"]);
    let arrays = read_npz(fs::File::open(example("digits/test.npz")).unwrap()).unwrap();
    let spread = |array: &Tensor| {
        let (samples, size) = (array.shape[0] as usize, array.bytes.len() / array.shape[0] as usize);
        let rows = (0..100).flat_map(|i| array.bytes[i * samples / 100 * size..][..size].to_vec());
        Tensor { shape: [&[100], &array.shape[1..]].concat(), bytes: rows.collect(), ..array.clone() }
    };
    let spread = arrays.iter().map(|(name, array)| (name.clone(), spread(array))).collect();
    write_npz(&here.join("some.npz"), &spread).unwrap();
    let told = command(&here, &["eval", "t.onnx", "--spec", "job.shard", "--data", "some.npz", "--json"]).output().unwrap();
    let score: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(lines.last().unwrap()["validation_loss"], score["loss"]);
}
