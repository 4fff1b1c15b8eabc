//! Users' mistakes: one message each, exit code 1 or 2.

use crate::support::{example, folder, shardc};
use crate::{SPEC, arrays, write};
use shardc_executor::data::write_npz;
use shardc_executor::tensor::Tensor;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A mistake: its arguments, the exit code, and what the message says.
pub(crate) struct Mistake<'a> {
    arguments: Vec<&'a str>,
    code: i32,
    says: &'a [&'a str],
}

pub(crate) fn mistake<'a>(arguments: &[&'a str], code: i32, says: &'a [&'a str]) -> Mistake<'a> {
    Mistake { arguments: arguments.to_vec(), code, says }
}

/// Runs each; an answer must come at once, on standard error, without a panic.
pub(crate) fn all_told(here: &Path, mistakes: Vec<Mistake<'_>>) {
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
            mistake(&["inspect", &good], 1, &["this is a file, and no plan directory", "shardc compile"]),
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
        ("mesh dp=2\nrecompute \"fc9\"\n", &["fc9", "job.shard:"]),
        ("precision compute=bf16 loss_scale=dynamic\n", &["`loss_scale` is for `compute=f16`", "job.shard:1"]),
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
