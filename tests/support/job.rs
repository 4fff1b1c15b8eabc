//! Jobs of the gold models, as people run them.
#![allow(dead_code, reason = "each test crate uses some of what is here")]

use super::support::{folder, home, shardc};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

const ADAMW: &str = "optimizer adamw lr=1e-3 beta1=0.9 beta2=0.95 eps=1e-8 weight_decay=0.1 decay=matrices\n";
const SGD: &str = "optimizer sgd lr=0.05 momentum=0.9 weight_decay=1e-2 decay=matrices\n";

/// A folder of `tests/models`.
fn models(name: &str) -> PathBuf {
    home().join("tests/models").join(name)
}

/// The spec of a job on a mesh, with `lines` of its own. The axes `dp` and `fsdp` split the batch,
/// `tp` the model.
pub fn spec(model: &str, mesh: &str, microbatches: u64, lines: &str) -> String {
    let (batch, optimizer) = match model {
        "mlp" => (32, SGD.to_string()),
        "inception" | "resnet" => (16, SGD.to_string()),
        "vit" => (8, ADAMW.to_string()),
        _ => (8, format!("{ADAMW}clip norm=1.0\n")),
    };
    let has = |axis: &str| mesh.split(' ').any(|own| own.starts_with(&format!("{axis}=")));
    let data = match (has("dp"), has("fsdp")) {
        (true, true) => "data axis=(dp,fsdp)\n",
        (true, false) => "data axis=dp\n",
        (false, true) => "data axis=fsdp\n",
        (false, false) => "",
    };
    let tensor = if has("tp") { "tensor axis=tp\n" } else { "" };
    format!(
        "mesh {mesh}\nbatch {batch} microbatches={microbatches}\nloss cross_entropy logits=logits labels=y\n{optimizer}{data}{tensor}{lines}"
    )
}

/// A job in a folder of its own.
pub struct Job {
    pub here: PathBuf,
    pub model: String,
    pub data: String,
}

impl Job {
    pub fn new(name: &str, model: &str, spec: &str) -> Job {
        let here = folder(&format!("{}-{name}", env!("CARGO_CRATE_NAME")));
        fs::write(here.join("job.shard"), spec).unwrap();
        let file = |file: &str| models(model).join(file).to_str().unwrap().to_string();
        Job { here, model: file("model.onnx"), data: file("data.npz") }
    }

    /// Trains, and gives the metrics of each step and the bytes of the export.
    pub fn trained(&self, steps: u64, flags: &[&str]) -> (Vec<Value>, Vec<u8>) {
        let steps = steps.to_string();
        let job = ["train", &self.model, "--spec", "job.shard", "--data", &self.data, "--steps", &steps];
        let outputs = ["--metrics", "metrics.jsonl", "--export", "trained.onnx"];
        shardc(&self.here, &[&job[..], &outputs, flags].concat()).expect(0);
        self.results()
    }

    /// The metrics of each step and the bytes of the export, as they lie in the folder.
    pub fn results(&self) -> (Vec<Value>, Vec<u8>) {
        let text = fs::read_to_string(self.here.join("metrics.jsonl")).unwrap();
        let metrics = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (metrics, fs::read(self.here.join("trained.onnx")).unwrap())
    }

    /// Compiles to `plan`; what is printed.
    pub fn compiled(&self) -> String {
        shardc(&self.here, &["compile", &self.model, "--spec", "job.shard", "-o", "plan", "--no-certificate"]).expect(0).out
    }

    /// Refused with one error, of these words at this place, with some help, and no plan is left.
    pub fn refused(&self, place: &str, words: &str) {
        let ran = shardc(&self.here, &["compile", &self.model, "--spec", "job.shard", "-o", "plan"]).expect(1);
        assert_eq!(ran.err.matches("error:").count(), 1, "{}", ran.err);
        assert!(ran.err.contains(words) && ran.err.contains(place) && ran.err.contains("help:"), "{}", ran.err);
        assert!(!self.here.join("plan").exists(), "a plan is left");
    }

    /// The JSON of the plan.
    pub fn inspected(&self) -> Value {
        serde_json::from_str(&shardc(&self.here, &["inspect", "plan", "--format", "json"]).expect(0).out).unwrap()
    }
}

/// Losses and norms within what PyTorch's own f32 leaves of f64.
pub fn holds(model: &str, metrics: &[Value], name: &str) {
    let gold: Value = serde_json::from_str(&fs::read_to_string(models(model).join("gold.json")).unwrap()).unwrap();
    assert_eq!(metrics.len(), 12);
    let number = |value: &Value| value.as_f64().unwrap();
    let seen: Vec<[f64; 2]> = metrics.iter().map(|line| ["loss", "grad_norm"].map(|what| number(&line[what]))).collect();
    judge(&gold, &seen, None).unwrap_or_else(|why| panic!("{name} {why}"));
}

/// By how many times as much as the CPU backend a run in 16 bits may miss one in 32.
pub const AS_EXACT: f64 = 1.5;

/// By how much more its losses and norms may miss PyTorch's, in part of them: which way single
/// numbers are rounded is luck. A sixteenth of a rounding to bf16.
const LUCK: f64 = 1.0 / 4096.0;

/// Holds the loss and norm of each step against PyTorch's, within what its own f32 leaves of f64.
/// Of a run in 16 bits, `narrow` has those of the CPU backend, which may be missed besides.
pub fn judge(gold: &Value, seen: &[[f64; 2]], narrow: Option<&[[f64; 2]]>) -> Result<(), String> {
    let number = |of: &str, what: &str, step: usize| gold[of][what][step].as_f64().unwrap();
    let missed = |at: usize, what: &str| {
        let by = narrow.into_iter().flatten().enumerate().map(|(step, of)| (of[at] - number("float64", what, step)).abs());
        AS_EXACT * by.fold(0.0, f64::max)
    };
    let luck = |of: f64| if narrow.is_some() { LUCK * of } else { 0.0 };
    let besides = [missed(0, "loss"), missed(1, "grad_norm")];
    for (step, [loss, norm]) in seen.iter().copied().enumerate() {
        let (want, want_norm) = (number("float64", "loss", step), number("float64", "grad_norm", step));
        let noise = (number("float32", "loss", step) - want).abs();
        let is_near = |found: f64, want: f64, allowed: f64| (found - want).abs() <= allowed;
        if !is_near(loss, want, 2e-5 + 20.0 * noise + besides[0] + luck(want)) {
            return Err(format!("step {step}: loss {loss}, PyTorch {want}"));
        }
        if !is_near(norm, want_norm, want_norm * (1e-3 + 50.0 * noise) + besides[1] + luck(want_norm)) {
            return Err(format!("step {step}: gradient norm {norm}, PyTorch {want_norm}"));
        }
    }
    Ok(())
}

/// The loss and norm of each step as text, and the export.
pub fn bits((metrics, export): &(Vec<Value>, Vec<u8>)) -> (Vec<[String; 2]>, &[u8]) {
    (metrics.iter().map(|line| [line["loss"].to_string(), line["grad_norm"].to_string()]).collect(), export)
}
