//! The exported model runs in ONNX Runtime and gives the outputs of `eval --outputs`. Skips where
//! Python has no onnxruntime; `SHARDC_PYTHON` names another Python.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn shardc(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_shardc")).args(arguments).output().expect("shardc runs");
    assert!(output.status.success(), "{arguments:?}\n{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn agrees(model: &str, data: &str, batch: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("tests/models").join(model);
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("ort-{model}"));
    fs::create_dir_all(&scratch).expect("a scratch folder");
    let path = |p: &Path| p.to_str().expect("paths are UTF-8").to_string();
    let (original, data) = (path(&folder.join("model.onnx")), path(&folder.join(data)));
    let [spec, exported, outputs] = ["job.shard", "trained.onnx", "outputs.npz"].map(|f| path(&scratch.join(f)));
    let text =
        format!("mesh dp=2\nbatch {batch}\nloss cross_entropy logits=logits labels=y\noptimizer adamw lr=1e-3\ndata axis=dp\n");
    fs::write(&spec, text).expect("the spec is written");
    shardc(&["train", &original, "--spec", &spec, "--data", &data, "--steps", "4", "--export", &exported]);
    shardc(&["eval", &exported, "--spec", &spec, "--data", &data, "--outputs", &outputs]);
    let python = std::env::var("SHARDC_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let script = path(&root.join("tests/onnx_runtime.py"));
    let Ok(run) = Command::new(python).args([&script, &exported, &original, &data, &outputs, &batch.to_string()]).output() else {
        println!("skipped: no Python");
        return;
    };
    let said = String::from_utf8_lossy(&run.stdout);
    println!("{model}: {said}");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    if said.starts_with("skip") {
        return;
    }
    let worst: f64 = said.split_whitespace().nth(2).and_then(|w| w.parse().ok()).expect("the script prints a number");
    assert!(worst <= 1e-4, "{said}");
}

#[test]
fn mlp() {
    agrees("mlp", "data.npz", "32");
}

#[test]
fn batch_normalisation() {
    agrees("batchnorm", "../mlp/data.npz", "32");
}

#[test]
fn gpt2() {
    agrees("gpt2", "data.npz", "8");
}

#[test]
fn gpt2_folded() {
    agrees("gpt2-folded", "data.npz", "8");
}

#[test]
fn llama() {
    agrees("llama", "data.npz", "8");
}
