//! The command line, from outside: what it promises, and what it says to those who err.

mod support;

use serde_json::Value;
use shardc_executor::data::{read_npz, write_npz};
use shardc_executor::tensor::Tensor;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Ran, command, example, folder, ran, shardc};

const SPEC: &str = "batch 64\nloss cross_entropy logits=logits labels=y\noptimizer sgd lr=0.1 momentum=0.9\n";

fn write(folder: &Path, name: &str, contents: impl AsRef<[u8]>) -> String {
    fs::write(folder.join(name), contents).expect("a file can be written");
    name.to_string()
}

/// The lines of a metrics file without their times.
fn metrics(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("metrics");
    let mut lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("a line of JSON")).collect();
    for line in &mut lines {
        let line = line.as_object_mut().expect("an object");
        for time in ["seconds", "samples_per_second"] {
            assert!(line.remove(time).is_some_and(|v| v.as_f64().is_some_and(|v| v > 0.0)), "{line:?} has its {time}");
        }
    }
    lines
}

/// Trains the digits for `steps` under a copy of `spec`; gives what it printed and the metrics.
fn train(here: &Path, source: &[&str], steps: &str, name: &str) -> (Ran, Vec<Value>) {
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
fn arrays(path: &str) -> BTreeMap<String, Tensor> {
    read_npz(fs::File::open(path).expect("a file")).expect("arrays")
}

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
    assert!(ran.out.ends_with(" over 1 label of 1 sample\n"), "{}", ran.out);
    let ran = shardc(&here, &[&["check"], &job[..], &["--replay"]].concat()).expect(0);
    assert!(ran.out.starts_with("batch 1: 1 rank against one\n"), "{}", ran.out);
    assert!(
        ran.out.contains("batch 1: the replay of 1 rank in one thread has the same bits: 2 outputs, 6 gradients, "),
        "{}",
        ran.out
    );
    let small =
        write(&here, "small.shard", "batch 1\nloss cross_entropy labels=y\noptimizer adamw lr=0.1\ndevice memory=100KiB\n");
    let ran = shardc(&here, &["compile", &model, "--spec", &small, "-o", "p"]).expect(1);
    assert!(ran.err.contains("optimizer state is the largest part: "), "{}", ran.err);
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
    let text = shardc(&here, &["inspect", "p", "--rank", "3"]).expect(0).out;
    let first = text.lines().next().expect("a header");
    assert!(first.starts_with("plan @") && first.contains("device 3/4 (dp=1 tp=1)") && first.contains("peak"), "{first}");
    let call = text.lines().find(|l| l.contains("(dp2-tp2.shard:12)")).expect("the call that the spec's line 12 asks for");
    for part in
        ["comm", "all_reduce sum tp {2,3}", "f32[32, 128]", "F0", "16 KiB", "for \"fc2.weight\" {-, tp} (dp2-tp2.shard:12)"]
    {
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
        let over = |axis: &str| calls.iter().find(|c| c["axis"] == axis).expect("calls over the axis");
        // The activations [32, 128] and a part of the norm over tp; every gradient and the loss
        // over dp. Two ranks send what they have.
        assert_eq!(
            (&over("tp")["kind"], &over("tp")["bytes_sent"]),
            (&Value::from("all_reduce"), &Value::from(32 * 128 * 4 + 8))
        );
        let padding = over("dp")["bytes_sent"].as_u64().expect("a number") - parameters - 4;
        assert!(padding < 6 * 64, "{padding} bytes of padding");
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
    assert_eq!(text.matches("for each of 2 micro-batches").count(), 1);
    assert!(text.contains("2 micro-batches  peak"));
    let verified = shardc(&here, &["verify", "p"]).expect(0).out;
    let proven = ["train: proven on 2 ranks", "reference: proven on 1 rank", "eval: proven on 2 ranks", "`train.shir`"];
    assert!(proven.iter().all(|words| verified.contains(words)), "{verified}");
}

#[test]
fn compile_can_stop_dump_and_verify() {
    let here = folder("passes");
    let job = ["compile", &example("digits/model.onnx"), "--spec", &example("digits/dp2-tp2.shard")];
    let stopped = shardc(&here, &[&job[..], &["--stop-after", "propagate", "--verify-each"]].concat()).expect(0);
    assert!(stopped.out.starts_with("graph @") && stopped.out.contains("phase annotated"), "{}", stopped.out);
    // What stops before a pass does not hear its refusal.
    let spec = write(&here, "idle.shard", format!("mesh tp=2\nshard \"fc1.weight\" [3*tp, -]\n{SPEC}"));
    let job_with_idle = ["compile", &example("digits/model.onnx"), "--spec", &spec];
    shardc(&here, &[&job_with_idle[..], &["--stop-after", "differentiate"]].concat()).expect(0);
    shardc(&here, &[&job_with_idle[..], &["--stop-after", "propagate"]].concat()).expect(1);
    let spec = write(&here, "evaluation.shard", "bind batch=2\n");
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

/// A mistake: its arguments, the exit code, and what the message says.
struct Mistake<'a> {
    arguments: Vec<&'a str>,
    code: i32,
    says: &'a [&'a str],
}

fn mistake<'a>(arguments: &[&'a str], code: i32, says: &'a [&'a str]) -> Mistake<'a> {
    Mistake { arguments: arguments.to_vec(), code, says }
}

/// Runs each; an answer must come at once, on standard error, without a panic.
fn all_told(here: &Path, mistakes: Vec<Mistake<'_>>) {
    for Mistake { arguments, code, says } in mistakes {
        let ran = shardc(here, &arguments).expect(code);
        assert_eq!(ran.out, "", "{arguments:?}");
        assert!(!ran.err.contains("panicked"), "{arguments:?}: {}", ran.err);
        for part in says {
            assert!(ran.err.contains(part), "{arguments:?} should say `{part}`:\n{}", ran.err);
        }
        assert!(ran.took < Duration::from_secs(5), "{arguments:?} took {:?}", ran.took);
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    let here = folder("usage");
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    let spec = write(&here, "job.shard", SPEC);
    fs::create_dir(here.join("empty")).expect("a folder");
    let trained = ["train", &model, "--spec", &spec, "--data", &data];
    let with = |more: &[&'static str]| -> Vec<String> { trained.iter().chain(more).map(|a| a.to_string()).collect() };
    for (arguments, says) in
        [(with(&["--threads", "0"]), "--threads"), (with(&["--steps", "many"]), "--steps"), (with(&["--speed"]), "--speed")]
    {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        all_told(&here, vec![mistake(&arguments, 2, &[says])]);
    }
    all_told(
        &here,
        vec![
            mistake(&[], 2, &["Usage"]),
            mistake(&["fly"], 2, &["fly"]),
            mistake(&["train", &model, "--data", &data], 2, &["--spec"]),
            mistake(&["train", &model, "--spec", &spec], 2, &["--data"]),
            mistake(&["train", "empty", "--spec", &spec, "--data", &data], 2, &["has its own spec"]),
            mistake(&["compile", &model, "--spec", &spec], 2, &["--output"]),
            mistake(&["inspect", "empty", "--format", "pdf"], 2, &["text, json"]),
            mistake(&["inspect", "empty", "--program", "test"], 2, &["train, reference, eval"]),
        ],
    );
    assert!(!here.join("p").exists());
}

#[test]
fn wrong_models_are_told() {
    let here = folder("models");
    let (good, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    let spec = write(&here, "job.shard", SPEC);
    let bytes = fs::read(&good).expect("the model");
    let empty = write(&here, "empty.onnx", "");
    let text = write(&here, "text.onnx", "this is no model\n".repeat(100));
    let half = write(&here, "half.onnx", &bytes[..bytes.len() / 2]);
    fs::create_dir(here.join("folder.onnx")).expect("a folder");
    all_told(
        &here,
        vec![
            mistake(&["train", "missing.onnx", "--spec", &spec, "--data", &data], 1, &["cannot read", "missing.onnx"]),
            mistake(&["train", &empty, "--spec", &spec, "--data", &data], 1, &["empty.onnx"]),
            mistake(&["train", &text, "--spec", &spec, "--data", &data], 1, &["not an ONNX model", "text.onnx"]),
            mistake(&["train", &half, "--spec", &spec, "--data", &data], 1, &["half.onnx"]),
            mistake(&["compile", "folder.onnx", "--spec", &spec, "-o", "p"], 1, &["folder.onnx"]),
            mistake(&["inspect", &good], 1, &["no plan directory"]),
            mistake(&["verify", "nowhere"], 1, &["no plan directory", "shardc compile"]),
        ],
    );
    assert!(!here.join("p").exists());
}

#[test]
fn wrong_specs_are_told() {
    let here = folder("specs");
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    // (the spec, what the message says); every message points into the file.
    let specs: &[(&str, &[&str])] = &[
        ("", &["a `batch` line", "a `loss` line", "an `optimizer` line"]),
        ("bach 64\n", &["bach", "job.shard:1:1"]),
        ("batch 0\n", &["job.shard:1"]),
        ("batch 64 microbatches=3\n", &["job.shard:1"]),
        ("mesh dp=0\n", &["job.shard:1"]),
        ("mesh dp=2 dp=2\n", &["job.shard:1"]),
        ("loss cross_entropy logits=logit labels=y\noptimizer sgd lr=0.1\nbatch 64\n", &["logit", "`logits`", "job.shard:1"]),
        ("loss hinge labels=y\noptimizer sgd lr=0.1\nbatch 64\n", &["hinge"]),
        ("optimizer sgd lr=fast\n", &["fast", "job.shard:1"]),
        ("optimizer sgd lr=0.1 speed=3\n", &["speed"]),
        ("clip norm=0\n", &["job.shard:1"]),
        ("mesh tp=3\nshard \"fc1.weight\" [tp, -]\n", &["128", "job.shard:"]),
        ("mesh tp=2\nshard \"fc1.wait\" [tp, -]\n", &["fc1.wait", "fc1.weight"]),
        ("mesh tp=2\nshard \"fc1.weight\" [tp]\n", &["2 dimensions", "job.shard:"]),
        ("mesh tp=2\nshard \"fc1.weight\" [dp, -]\n", &["dp"]),
        ("freeze \"fc9*\"\n", &["fc9*", "job.shard:"]),
        ("mesh dp=2\nzero stage=1 axis=dp\n", &["not built yet", "job.shard:"]),
        ("precision compute=bf16\n", &["not built yet", "job.shard:1"]),
        ("mesh dp=3\ndata axis=dp\n", &["64", "job.shard"]),
    ];
    for (text, says) in specs {
        let complete = match text.contains("loss") || text.is_empty() {
            true => text.to_string(),
            false => format!(
                "{text}{}",
                SPEC.lines().filter(|l| !text.contains(&l[..5])).map(|l| format!("{l}\n")).collect::<String>()
            ),
        };
        let spec = write(&here, "job.shard", complete);
        all_told(&here, vec![mistake(&["train", &model, "--spec", &spec, "--data", &data], 1, says)]);
    }
    let binary = write(&here, "binary.shard", [0xff, 0xfe, 0x00]);
    all_told(
        &here,
        vec![
            mistake(&["compile", &model, "--spec", &binary, "-o", "p"], 1, &["UTF-8", "binary.shard"]),
            mistake(&["compile", &model, "--spec", "none.shard", "-o", "p"], 1, &["cannot read", "none.shard"]),
        ],
    );
    // All errors of a file come together.
    let spec = write(&here, "job.shard", "bach 64\noptimizer sgd lr=fast\nclip norm=0\n");
    let ran = shardc(&here, &["compile", &model, "--spec", &spec, "-o", "p"]).expect(1);
    assert!(ran.err.matches("error:").count() >= 3, "{}", ran.err);
    assert!(!here.join("p").exists());
}

#[test]
fn wrong_data_is_told() {
    let here = folder("data");
    let model = example("digits/model.onnx");
    let spec = write(&here, "job.shard", SPEC);
    let arrays = arrays(&example("digits/train.npz"));
    let (x, y) = (&arrays["x"], &arrays["y"]);
    let npz = |name: &str, entries: &[(&str, Tensor)]| -> String {
        let arrays = entries.iter().map(|(name, t)| (name.to_string(), t.clone())).collect();
        write_npz(&here.join(name), &arrays).expect("data is written");
        name.to_string()
    };
    let mut labels = y.to_i64();
    labels[17] = 10;
    let beyond = Tensor::from_i64(&y.shape, &labels);
    let rows = x.shape[0];
    let narrow = Tensor::from_f32(&[rows, 2], &vec![0.0; rows as usize * 2]);
    let few = |t: &Tensor| Tensor {
        dtype: t.dtype,
        shape: [&[3], &t.shape[1..]].concat(),
        bytes: t.bytes[..t.bytes.len() / rows as usize * 3].to_vec(),
    };
    let cases: Vec<(String, &[&str])> = vec![
        ("none.npz".into(), &["none.npz"]),
        (write(&here, "garbage.npz", "garbage"), &["garbage.npz"]),
        (write(&here, "data.csv", "1,2,3\n"), &["data.csv"]),
        (npz("names.npz", &[("X", x.clone()), ("y", y.clone())]), &["`x`", "`X`"]),
        (npz("labels.npz", &[("x", x.clone())]), &["`y`"]),
        (npz("types.npz", &[("x", x.clone()), ("y", Tensor::from_f32(&y.shape, &vec![0.0; rows as usize]))]), &["`y`", "astype"]),
        (npz("shapes.npz", &[("x", narrow), ("y", y.clone())]), &["`x`", "shape"]),
        (npz("range.npz", &[("x", x.clone()), ("y", beyond)]), &["`y`", "10"]),
        (npz("counts.npz", &[("x", x.clone()), ("y", few(y))]), &["samples"]),
        (npz("few.npz", &[("x", few(x)), ("y", few(y))]), &["3 samples", "64", "job.shard:1:1"]),
        (write(&here, "words.txt", "words are no drawings"), &["words.txt"]),
    ];
    for (data, says) in &cases {
        all_told(&here, vec![mistake(&["train", &model, "--spec", &spec, "--data", data], 1, says)]);
    }
    // Files that cannot be written are refused before training.
    let data = example("digits/train.npz");
    all_told(
        &here,
        vec![
            mistake(&["train", &model, "--spec", &spec, "--data", &data, "--export", "no/where.onnx"], 1, &["no/where.onnx"]),
            mistake(&["train", &model, "--spec", &spec, "--data", &data, "--metrics", "no/where.jsonl"], 1, &["no/where.jsonl"]),
            mistake(&["eval", &model, "--spec", &spec, "--data", &data, "--outputs", "no/where.npz"], 1, &["no/where.npz"]),
            mistake(&["check", &model, "--spec", &spec, "--data", "none.npz"], 1, &["none.npz"]),
        ],
    );
}

#[test]
fn only_plan_directories_are_replaced() {
    let here = folder("replace");
    let (model, spec) = (example("digits/model.onnx"), example("digits/one.shard"));
    fs::create_dir(here.join("papers")).expect("a folder");
    write(&here, "papers/thesis.tex", "years of work");
    write(&here, "file", "a file");
    let onto = |to: &'static str| ["compile", &model, "--spec", &spec, "-o", to].map(str::to_string);
    for (to, says) in
        [("papers", "no plan directory"), ("file", "no folder"), (".", "no folder of its own"), ("file/p", "file/p")]
    {
        let arguments = onto(to);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        all_told(&here, vec![mistake(&arguments, 1, &[says])]);
    }
    assert_eq!(fs::read_to_string(here.join("papers/thesis.tex")).expect("still there"), "years of work");
    fs::create_dir(here.join("empty")).expect("a folder");
    for to in ["empty", "empty", "deep/in/folders"] {
        let arguments = onto(to);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        shardc(&here, &arguments).expect(0);
        shardc(&here, &["verify", to]).expect(0);
    }
    let left: Vec<_> = fs::read_dir(&here).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
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
fn the_first_ctrl_c_finishes_the_step() {
    let here = folder("ctrl-c");
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    let spec = write(&here, "job.shard", SPEC);
    let arguments =
        ["train", &model, "--spec", &spec, "--data", &data, "--steps", "100000000", "--metrics", "m.jsonl", "--export", "t.onnx"];
    let start = Instant::now();
    let child = command(&here, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    while fs::metadata(here.join("m.jsonl")).map_or(0, |m| m.len()) == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "training begins");
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("a signal can be sent");
    assert!(sent.success());
    let ran = ran(child.wait_with_output().expect("it ends"), start.elapsed()).expect(130);
    assert!(ran.err.contains("stopped after") && ran.err.contains("t.onnx"), "{}", ran.err);
    assert!(!metrics(&here.join("m.jsonl")).is_empty());
    shardc(&here, &["eval", "t.onnx", "--spec", &spec, "--data", &data]).expect(0);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let here = folder("pipe");
    let mut child = command(&here, &["ops"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(said, "");
}

#[cfg(target_os = "linux")]
#[test]
fn endless_files_are_no_files() {
    let here = folder("endless");
    let (model, spec) = (example("tiny-gpt/model.onnx"), example("tiny-gpt/one.shard"));
    for name in ["z.txt", "z.bin", "z.npz", "z.safetensors", "z.shard", "folder/tokens.npy"] {
        fs::create_dir_all(here.join("folder")).expect("the folder is there");
        std::os::unix::fs::symlink("/dev/zero", here.join(name)).expect("links are possible");
        let data = if name.ends_with("npy") { "folder" } else { name };
        let (spec, data) = if name == "z.shard" { (name, "z.txt") } else { (&*spec, data) };
        let mut arguments = vec!["train", &model, "--spec", spec, "--data", data];
        if data == "z.txt" || data == "z.bin" {
            arguments.extend(["--context", "64"]);
        }
        let ran = shardc(&here, &arguments).expect(1);
        assert!(ran.err.contains("it is not a file"), "{name}: {}", ran.err);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_the_machines_failure() {
    let here = folder("full");
    let (model, data, spec) = (example("digits/model.onnx"), example("digits/train.npz"), example("digits/one.shard"));
    shardc(&here, &["compile", &model, "--spec", &spec, "-o", "p"]).expect(0);
    let ran = shardc(&here, &["inspect", "p", "-o", "/dev/full"]).expect(3);
    assert!(ran.err.contains("/dev/full"), "{}", ran.err);
    let ran = shardc(&here, &["train", "p", "--data", &data, "--steps", "2", "--metrics", "/dev/full"]).expect(3);
    assert!(ran.err.contains("metrics to `/dev/full`"), "{}", ran.err);
    let ran = shardc(&here, &["train", "p", "--data", &data, "--steps", "2", "--export", "/dev/full"]).expect(3);
    assert!(ran.err.contains("cannot write `/dev/full`"), "{}", ran.err);
    let ran = shardc(&here, &["eval", "p", "--data", &data, "--outputs", "/dev/full"]).expect(3);
    assert!(ran.err.contains("cannot write `/dev/full`"), "{}", ran.err);
    assert!(!fs::metadata("/dev/full").expect("it is still there").is_file());
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
