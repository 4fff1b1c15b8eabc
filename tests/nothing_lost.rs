//! A user's work is not lost: files that a command would overwrite, models of a training that goes
//! wrong, plans and weights of a run that is killed.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod support;

use prost::Message;
use shardc::replace::write_folder;
use shardc_executor::data::{read_npz, write_npz};
use shardc_executor::tensor::Tensor;
use shardc_testkit::onnx::{floats, initializer, input, keep_beside, model, node, output};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Ran, command, example, folder, ran, shardc};
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

const SPEC: &str = "batch 64\nloss cross_entropy logits=logits labels=y\noptimizer sgd lr=0.1\n";

/// A folder with a copy of the job of digits: `model.onnx`, `job.shard`, `data.npz`.
fn digits(name: &str) -> std::path::PathBuf {
    let here = folder(name);
    fs::copy(example("digits/model.onnx"), here.join("model.onnx")).unwrap();
    fs::copy(example("digits/train.npz"), here.join("data.npz")).unwrap();
    fs::write(here.join("job.shard"), SPEC).unwrap();
    here
}

const JOB: [&str; 5] = ["model.onnx", "--spec", "job.shard", "--data", "data.npz"];

fn train(here: &Path, more: &[&str]) -> Ran {
    shardc(here, &[&["train"], &JOB[..], more].concat())
}

/// Every file of a folder and what it holds, as far as two levels down.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        match entry.path().is_dir() {
            true => found.extend(contents(&entry.path()).into_iter().map(|(file, bytes)| (format!("{name}/{file}"), bytes))),
            false => drop(found.insert(name, fs::read(entry.path()).unwrap_or_default())),
        }
    }
    found
}

#[test]
fn no_output_overwrites_an_input_or_another_output() {
    let here = digits("overwrite");
    shardc(&here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "p"]).expect(0);
    fs::create_dir(here.join("arrays")).unwrap();
    fs::write(here.join("arrays/x.npy"), "an array").unwrap();
    fs::create_dir(here.join("shards")).unwrap();
    fs::copy(here.join("data.npz"), here.join("shards/1.npz")).unwrap();
    fs::copy(here.join("model.onnx"), here.join("copy.onnx")).unwrap();
    symlink("model.onnx", here.join("link.onnx")).unwrap();
    symlink("later", here.join("to-later")).unwrap();
    fs::hard_link(here.join("data.npz"), here.join("hard.npz")).unwrap();
    fs::hard_link(here.join("p/weights.safetensors"), here.join("hard.weights")).unwrap();
    let before = contents(&here);
    let direct = |more: &[&'static str]| [&["train"], &JOB[..], more].concat();
    let planned = |more: &[&'static str]| [&["train", "p", "--data", "data.npz"], more].concat();
    let cases = [
        (direct(&["--metrics", "model.onnx"]), "`--metrics` would overwrite the model, `model.onnx`"),
        (direct(&["--export", "model.onnx"]), "`--export` would overwrite the model, `model.onnx`"),
        (direct(&["--export", "../overwrite/./model.onnx"]), "`--export` would overwrite the model"),
        (direct(&["--export", "link.onnx"]), "`--export` would overwrite the model"),
        (direct(&["--metrics", "job.shard"]), "`--metrics` would overwrite the spec, `job.shard`"),
        (direct(&["--metrics", "hard.npz"]), "`--metrics` would overwrite the data, `data.npz`"),
        (direct(&["--metrics", "later", "--export", "./later"]), "`--export` would overwrite what `--metrics` writes"),
        (direct(&["--metrics", "to-later", "--export", "later"]), "`--export` would overwrite what `--metrics` writes"),
        (direct(&["--checkpoint", "later", "--export", "later"]), "`--checkpoint` would overwrite what `--export` writes"),
        (planned(&["--export", "p/model.onnx"]), "`--export` would overwrite a file of the plan, `p/model.onnx`"),
        (planned(&["--export", "model.onnx"]), "`--export` would overwrite `model.onnx`, which the plan was compiled from"),
        (planned(&["--export", "copy.onnx"]), "`--export` would overwrite `model.onnx`, which the plan was compiled from"),
        (planned(&["--metrics", "job.shard"]), "`--metrics` would overwrite `job.shard`, which the plan was compiled from"),
        (planned(&["--metrics", "hard.weights"]), "`--metrics` would overwrite a file of the plan, `p/weights.safetensors`"),
        (
            vec!["train", "p", "--data", "arrays", "--metrics", "arrays/x.npy"],
            "`--metrics` would overwrite an array of the data, `arrays/x.npy`",
        ),
        ([&["eval"], &JOB[..], &["--outputs", "data.npz"]].concat(), "`--outputs` would overwrite the data"),
        (
            planned(&["--data", "shards", "--export", "shards/1.npz"]),
            "`--export` would overwrite a file of the data, `shards/1.npz`",
        ),
        (planned(&["--data", "shards/1.npz", "--export", "shards/1.npz"]), "`--export` would overwrite the data, `shards/1.npz`"),
        ([&["eval"], &JOB[..], &["--outputs", "link.onnx"]].concat(), "`--outputs` would overwrite the model"),
        (vec!["inspect", "p", "-o", "p/job.shard"], "`--output` would overwrite a file of the plan"),
        (
            vec!["compile", "p/model.onnx", "--spec", "job.shard", "-o", "p", "--no-weights"],
            "`--output` would overwrite the model, `p/model.onnx`",
        ),
    ];
    for (arguments, says) in cases {
        let ran = shardc(&here, &arguments).expect(1);
        assert!(ran.err.contains(says) && ran.err.contains("help: choose another name"), "{arguments:?}: {}", ran.err);
        assert_eq!(ran.err.matches("error:").count(), 1, "{arguments:?}: {}", ran.err);
        assert!(ran.took < Duration::from_secs(2), "{arguments:?} took {:?}", ran.took);
        assert!(contents(&here) == before, "{arguments:?}");
    }
    // Outputs that overwrite nothing are fine: one device for two, files beside those of a plan.
    train(&here, &["--steps", "1", "--metrics", "/dev/null", "--export", "/dev/null"]).expect(0);
    for _ in 0..2 {
        let arguments = ["train", "p", "--data", "data.npz", "--steps", "1", "--metrics", "p/m.jsonl", "--export", "p/t.onnx"];
        shardc(&here, &arguments).expect(0);
    }
}

#[test]
fn compiling_again_replaces_the_files_of_the_plan_only() {
    let here = digits("recompile");
    let compile = ["compile", "model.onnx", "--spec", "job.shard", "-o", "p"];
    shardc(&here, &compile).expect(0);
    fs::create_dir(here.join("p/results")).unwrap();
    for (name, text) in [("notes.txt", "years of work"), ("results/run.jsonl", "{}"), (".hidden", "too")] {
        fs::write(here.join("p").join(name), text).unwrap();
    }
    fs::write(here.join("job.shard"), SPEC.replace("sgd", "adam")).unwrap();
    shardc(&here, &compile).expect(0);
    let plan = contents(&here.join("p"));
    for (name, text) in [("notes.txt", "years of work"), ("results/run.jsonl", "{}"), (".hidden", "too")] {
        assert_eq!(plan[name], text.as_bytes(), "{name}");
    }
    assert!(String::from_utf8_lossy(&plan["job.shard"]).contains("adam"));
    shardc(&here, &["verify", "p"]).expect(0);
    // A plan that trains nothing has fewer files, and none of the older plan stays.
    fs::write(here.join("job.shard"), "batch 64\n").unwrap();
    shardc(&here, &[&compile[..], &["--no-weights"]].concat()).expect(0);
    assert!(!here.join("p/train.plan").exists() && !here.join("p/weights.safetensors").exists());
    // A file of the user's under a name that the next plan needs.
    fs::write(here.join("p/weights.safetensors"), "mine").unwrap();
    let before = contents(&here);
    let ran = shardc(&here, &compile).expect(1);
    assert!(ran.err.contains("p/weights.safetensors") && ran.err.contains("help: move it away"), "{}", ran.err);
    assert!(contents(&here) == before);
    let left: Vec<String> = before.into_keys().filter(|name| name.starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_folder_may_be_named_in_any_way() {
    let here = digits("dots");
    for to in ["p/.", "p/", "./p/./", "deep/q/."] {
        shardc(&here, &["compile", "model.onnx", "--spec", "job.shard", "-o", to]).expect(0);
        shardc(&here, &["verify", to]).expect(0);
    }
    let ran = shardc(&here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "p/.."]).expect(1);
    assert!(ran.err.contains("names no folder of its own"), "{}", ran.err);
}

#[test]
fn what_a_killed_run_left_blocks_nothing_and_goes() {
    let here = digits("left-overs");
    let compile = ["compile", "model.onnx", "--spec", "job.shard", "-o", "p"];
    shardc(&here, &compile).expect(0);
    // Half of a new plan, and an older one whose place was taken already, with a file of the
    // user's.
    for pid in 1..1000 {
        fs::create_dir(here.join(format!(".p.new-{pid}"))).unwrap();
    }
    fs::write(here.join(".p.new-7/train.plan"), "half").unwrap();
    fs::create_dir(here.join(".p.old-8")).unwrap();
    fs::write(here.join(".p.old-8/manifest.json"), "{}").unwrap();
    fs::write(here.join(".p.old-8/notes.txt"), "years of work").unwrap();
    // Not what a run leaves.
    fs::create_dir(here.join(".p.new-er")).unwrap();
    fs::write(here.join(".p.new-5/thesis.tex"), "more work").unwrap();
    shardc(&here, &compile).expect(0);
    shardc(&here, &["verify", "p"]).expect(0);
    assert_eq!(fs::read_to_string(here.join("p/notes.txt")).unwrap(), "years of work");
    let mut left: Vec<String> = fs::read_dir(&here).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.retain(|name| name.starts_with('.'));
    left.sort();
    assert_eq!(left, [".p.new-5", ".p.new-er"]);
    // Killed between the two renames: the plan of before is the plan.
    fs::rename(here.join("p"), here.join(".p.old-9")).unwrap();
    fs::write(here.join("job.shard"), SPEC.replace("sgd", "adam")).unwrap();
    shardc(&here, &compile).expect(0);
    assert!(here.join("p/notes.txt").exists() && !here.join(".p.old-9").exists());
    // The same of files.
    fs::write(here.join(".t.onnx.new-77"), "half").unwrap();
    train(&here, &["--steps", "1", "--export", "t.onnx"]).expect(0);
    assert!(!here.join(".t.onnx.new-77").exists());
}

/// Where what others have put into the older folder cannot be moved, here because something has
/// its name in the new one, nothing is changed.
#[test]
fn what_cannot_be_moved_keeps_the_older_folder() {
    let here = folder("kept-folder");
    let put = |file: &str, bytes: &str| {
        let path = here.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let write = |fill: &dyn Fn(&Path)| {
        let filled = |new: &Path| {
            fill(new);
            Ok(())
        };
        write_folder(&here.join("p"), &["own"], filled, |error| error.to_string())
    };
    for (file, bytes) in [("p/own", "older"), ("p/a.txt", "a"), ("p/kept/thesis.tex", "years of work"), ("p/z/z.txt", "z")] {
        put(file, bytes);
    }
    let before = contents(&here.join("p"));
    let error = write(&|new| {
        fs::write(new.join("own"), "newer").unwrap();
        fs::create_dir(new.join("kept")).unwrap();
        fs::write(new.join("kept/other"), "other").unwrap();
    })
    .unwrap_err();
    assert!(error.contains("`kept` is in it, and cannot be moved"), "{error}");
    assert_eq!(contents(&here.join("p")), before);
    write(&|new| fs::write(new.join("own"), "newer").unwrap()).unwrap();
    let after = contents(&here.join("p"));
    assert_eq!(after["own"], b"newer");
    assert_eq!(after.len(), before.len());
    assert!(before.iter().all(|(file, bytes)| file == "own" || after[file] == *bytes), "{after:?}");
}

#[test]
fn a_run_that_still_writes_is_left_alone() {
    let here = digits("still-writes");
    fs::create_dir(here.join(".p.new-7")).unwrap();
    let other = fs::File::open(&here).unwrap();
    other.try_lock_shared().unwrap();
    shardc(&here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "p"]).expect(0);
    assert!(here.join(".p.new-7").exists());
    drop(other);
    shardc(&here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "p"]).expect(0);
    assert!(!here.join(".p.new-7").exists());
}

#[test]
fn numbers_that_are_not_finite_end_training_and_keep_the_export() {
    let here = digits("diverged");
    train(&here, &["--steps", "2", "--export", "t.onnx"]).expect(0);
    let good = fs::read(here.join("t.onnx")).unwrap();
    shardc(&here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "good"]).expect(0);
    for (mesh, lines) in
        [("", "batch 64"), ("mesh dp=2 tp=2\ndata axis=dp\nshard \"fc1.weight\" [tp, -]\n", "batch 64 microbatches=2")]
    {
        let text = SPEC.replace("batch 64", lines).replace("lr=0.1", "lr=1e30");
        fs::write(here.join("job.shard"), format!("{mesh}{text}")).unwrap();
        let ran = train(&here, &["--steps", "50", "--metrics", "m.jsonl", "--export", "t.onnx"]).expect(1);
        let err = &ran.err;
        assert!(err.contains(" is not a finite number at step 2, which ends training"), "{err}");
        assert!(err.contains("model.onnx: value \"") && err.contains(", on rank 0") && err.contains("`%"), "{err}");
        assert!(err.contains("help: nothing is exported; a lower `lr`"), "{err}");
        assert!(err.contains(", in `fc2`: `%") && err.contains("it read\n      %_relu1_Relu_output_0  f32  0.0000 to "), "{err}");
        assert!(fs::read(here.join("t.onnx")).unwrap() == good, "the good export is still there");
        let metrics = fs::read_to_string(here.join("m.jsonl")).unwrap();
        assert!(metrics.lines().count() == 2 && metrics.lines().last().unwrap().contains("\"grad_norm\":null"), "{metrics}");
        shardc(&here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "p"]).expect(0);
        let ran = shardc(&here, &["train", "p", "--data", "data.npz", "--steps", "9", "--export", "t.onnx"]).expect(1);
        assert!(ran.err.contains("p/model.onnx: value \"") && ran.err.contains("at step 2"), "{}", ran.err);
    }
    // The last update is too large; no loss tells of it.
    fs::write(here.join("job.shard"), SPEC.replace("lr=0.1", "lr=1e40")).unwrap();
    let ran = train(&here, &["--steps", "1", "--export", "t.onnx"]).expect(1);
    assert!(ran.err.contains("training has made `") && ran.err.contains("nothing is exported"), "{}", ran.err);
    assert!(fs::read(here.join("t.onnx")).unwrap() == good);
}

/// `y = x · a` with numbers of one's own.
fn product(here: &Path, x: &[f32], a: f32) {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 2]);
    initializer(&mut m, floats("a", &[2, 2], &[a; 4]));
    node(&mut m, "MatMul", "x a", "y", vec![]);
    output(&mut m, "y");
    fs::write(here.join("model.onnx"), m.encode_to_vec()).unwrap();
    let rows = x.len() as u64 / 2;
    let arrays = [("x", Tensor::from_f32(&[rows, 2], x)), ("t", Tensor::from_f32(&[rows, 2], &vec![0.0; x.len()]))];
    write_npz(&here.join("data.npz"), &arrays.map(|(name, t)| (name.to_string(), t)).into()).unwrap();
}

#[test]
fn a_loss_that_overflows_with_finite_gradients_ends_training_too() {
    let here = folder("overflow");
    product(&here, &[1e10; 8], 1e10);
    fs::write(here.join("job.shard"), "batch 4\nloss mse prediction=y labels=t\noptimizer sgd lr=1e-30\n").unwrap();
    let ran = train(&here, &["--steps", "3", "--export", "t.onnx"]).expect(1);
    assert!(ran.err.contains("the loss is not a finite number at step 1"), "{}", ran.err);
    assert!(ran.err.contains("the first value with inf, on rank 0"), "{}", ran.err);
    assert!(ran.err.contains("f32  2.000e20 to 2.000e20"), "what it read is told: {}", ran.err);
    assert!(!here.join("t.onnx").exists());
}

#[test]
fn a_batch_without_labels_is_no_divergence() {
    let here = digits("no-labels");
    let mut arrays = read_npz(fs::File::open(here.join("data.npz")).unwrap()).unwrap();
    let mut labels = arrays["y"].to_i64();
    labels[..64].fill(-100);
    let shape = arrays["y"].shape.clone();
    arrays.insert("y".to_string(), Tensor::from_i64(&shape, &labels));
    write_npz(&here.join("data.npz"), &arrays).unwrap();
    fs::write(here.join("job.shard"), SPEC.replace("labels=y", "labels=y ignore_index=-100")).unwrap();
    let ran = train(&here, &["--steps", "3", "--export", "t.onnx"]).expect(0);
    assert!(ran.err.contains("note: no label of step 1 counts") && here.join("t.onnx").exists(), "{}", ran.err);
}

#[cfg(target_os = "linux")]
#[test]
fn metrics_that_cannot_be_written_do_not_cost_the_training() {
    let here = digits("full-metrics");
    let ran = train(&here, &["--steps", "5", "--metrics", "/dev/full", "--export", "t.onnx"]).expect(3);
    assert_eq!(ran.err.matches("warning: cannot write metrics to `/dev/full` from step 1 on").count(), 1, "{}", ran.err);
    assert!(ran.err.contains("5 steps in") && ran.err.contains("model in `t.onnx`"), "{}", ran.err);
    assert!(!ran.err.contains("metrics in"), "{}", ran.err);
    assert!(ran.err.trim_end().ends_with("(os error 28)") && ran.err.contains("failure of the machine: cannot write metrics"));
    train(&here, &["--steps", "5", "--export", "u.onnx"]).expect(0);
    assert_eq!(fs::read(here.join("t.onnx")).unwrap(), fs::read(here.join("u.onnx")).unwrap());
}

/// Starts a training without an end, and sends `signal` once it has begun.
fn stopped(here: &Path, signal: &str) -> Ran {
    let arguments = [&["train"], &JOB[..], &["--steps", "100000000", "--metrics", "m.jsonl", "--export", "t.onnx"]].concat();
    let start = Instant::now();
    let child = command(here, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while fs::metadata(here.join("m.jsonl")).map_or(0, |m| m.len()) == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "training begins");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    ran(child.wait_with_output().unwrap(), start.elapsed())
}

#[test]
fn what_asks_a_process_to_end_gets_the_export() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let here = digits(&format!("signal{signal}"));
        let ran = stopped(&here, signal).expect(code);
        assert!(ran.err.contains("stopped after") && ran.err.contains("model in `t.onnx`"), "{}", ran.err);
        shardc(&here, &["eval", "t.onnx", "--spec", "job.shard", "--data", "data.npz"]).expect(0);
    }
}

/// The model of digits with its weights in `model.onnx.data`.
fn with_external_weights(here: &Path) {
    let mut model = pb::ModelProto::decode(&fs::read(here.join("model.onnx")).unwrap()[..]).unwrap();
    fs::write(here.join("model.onnx.data"), keep_beside(&mut model, "model.onnx.data")).unwrap();
    fs::write(here.join("model.onnx"), model.encode_to_vec()).unwrap();
}

fn weights_of(here: &Path, model: &str) -> Vec<String> {
    let files = fs::read_dir(here).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = files.filter(|name| name.starts_with(&format!("{model}.")) && name.ends_with(".data")).collect();
    found.sort();
    found
}

#[test]
fn weights_beside_a_model_are_never_overwritten() {
    let here = digits("external");
    with_external_weights(&here);
    let original = contents(&here);
    let ran = train(&here, &["--metrics", "model.onnx.data"]).expect(1);
    assert!(ran.err.contains("`--metrics` would overwrite the weights of the model"), "{}", ran.err);
    let eval = |model: &str| -> String {
        shardc(&here, &["eval", model, "--spec", "job.shard", "--data", "data.npz", "--json"]).expect(0).out
    };
    let untrained = eval("model.onnx");
    // An export that would be called like the file of weights.
    let ran = train(&here, &["--steps", "1", "--export", "model.onnx.data"]).expect(1);
    assert!(ran.err.contains("`--export` would overwrite the weights of the model"), "{}", ran.err);
    let ran = train(&here, &["--steps", "20", "--export", "t.onnx"]).expect(0);
    let first = weights_of(&here, "t.onnx");
    assert!(first.len() == 1 && ran.err.contains(&format!("model in `t.onnx` and `{}`", first[0])), "{first:?}: {}", ran.err);
    let (trained, model) = (eval("t.onnx"), fs::read(here.join("t.onnx")).unwrap());
    assert_ne!(untrained, trained);
    // The same training gives the same bytes, whatever is there.
    train(&here, &["--steps", "20", "--export", "t.onnx"]).expect(0);
    assert!(fs::read(here.join("t.onnx")).unwrap() == model && weights_of(&here, "t.onnx") == first);
    // Weights that another model names stay, others of an older export go.
    fs::copy(here.join("t.onnx"), here.join("best.onnx")).unwrap();
    train(&here, &["--steps", "30", "--export", "t.onnx"]).expect(0);
    let both = weights_of(&here, "t.onnx");
    assert!(both.len() == 2 && both.contains(&first[0]), "{both:?}");
    assert_eq!(eval("best.onnx"), trained);
    train(&here, &["--steps", "40", "--export", "t.onnx"]).expect(0);
    let last = weights_of(&here, "t.onnx");
    assert!(last.len() == 2 && last.contains(&first[0]) && last != both, "{last:?}");
    // A crash between data and model: the data of an export is there, the model is the old one.
    let now = eval("t.onnx");
    let old = contents(&here);
    train(&here, &["--steps", "50", "--export", "t.onnx"]).expect(0);
    fs::write(here.join("t.onnx"), &old["t.onnx"]).unwrap();
    for (name, bytes) in old.iter().filter(|(name, _)| name.starts_with("t.onnx.")) {
        fs::write(here.join(name), bytes).unwrap();
    }
    assert_eq!(eval("t.onnx"), now);
    // Training goes on from an export, under another name and in place of the model before.
    let ran =
        shardc(&here, &["train", "t.onnx", "--spec", "job.shard", "--data", "data.npz", "--steps", "1", "--export", "t.onnx"]);
    assert!(ran.expect(1).err.contains("`--export` would overwrite the model"));
    let more = ["train", "t.onnx", "--spec", "job.shard", "--data", "data.npz", "--steps", "1", "--export", "model.onnx"];
    shardc(&here, &more).expect(0);
    assert_eq!(eval("t.onnx"), now);
    assert_eq!(fs::read(here.join("model.onnx.data")).unwrap(), original["model.onnx.data"]);
}
