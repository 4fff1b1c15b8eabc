//! Pipelines as people run them: the numbers of PyTorch, the bits of one rank, the order of tasks
//! as an outside program replays it, memory and messages by their formulas, branches side by side,
//! tables of one's own, and mistakes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../support/mod.rs"]
mod support;

mod mistakes;
mod replay;
mod size;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use support::{folder, shardc};

const ADAMW: &str = "optimizer adamw lr=1e-3 beta1=0.9 beta2=0.95 eps=1e-8 weight_decay=0.1 decay=matrices\n";
const SGD: &str = "optimizer sgd lr=0.05 momentum=0.9 weight_decay=1e-2 decay=matrices\n";

/// A folder of `tests/models`.
fn models(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name)
}

/// The spec of a job on a mesh, with `lines` of its own.
fn spec(model: &str, mesh: &str, microbatches: u64, lines: &str) -> String {
    let (batch, optimizer) = match model {
        "mlp" => (32, SGD.to_string()),
        "inception" | "resnet" => (16, SGD.to_string()),
        "vit" => (8, ADAMW.to_string()),
        _ => (8, format!("{ADAMW}clip norm=1.0\n")),
    };
    let data = if mesh.contains("dp=") { "data axis=dp\n" } else { "" };
    let tensor = if mesh.contains("tp=") { "tensor axis=tp\n" } else { "" };
    format!(
        "mesh {mesh}\nbatch {batch} microbatches={microbatches}\nloss cross_entropy logits=logits labels=y\n{optimizer}{data}{tensor}{lines}"
    )
}

/// A job in a folder of its own.
struct Job {
    here: PathBuf,
    model: String,
    data: String,
}

impl Job {
    fn new(name: &str, model: &str, spec: &str) -> Job {
        let here = folder(&format!("pipelines-{name}"));
        fs::write(here.join("job.shard"), spec).unwrap();
        let file = |file: &str| models(model).join(file).to_str().unwrap().to_string();
        Job { here, model: file("model.onnx"), data: file("data.npz") }
    }

    /// Trains, and gives the metrics of each step and the bytes of the export.
    fn trained(&self, steps: u64, flags: &[&str]) -> (Vec<Value>, Vec<u8>) {
        let steps = steps.to_string();
        let job = ["train", &self.model, "--spec", "job.shard", "--data", &self.data, "--steps", &steps];
        let outputs = ["--metrics", "metrics.jsonl", "--export", "trained.onnx"];
        shardc(&self.here, &[&job[..], &outputs, flags].concat()).expect(0);
        let text = fs::read_to_string(self.here.join("metrics.jsonl")).unwrap();
        let metrics = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (metrics, fs::read(self.here.join("trained.onnx")).unwrap())
    }

    /// Compiles to `plan`; what is printed.
    fn compiled(&self) -> String {
        shardc(&self.here, &["compile", &self.model, "--spec", "job.shard", "-o", "plan", "--no-certificate"]).expect(0).out
    }

    /// The JSON of the plan.
    fn inspected(&self) -> Value {
        serde_json::from_str(&shardc(&self.here, &["inspect", "plan", "--format", "json"]).expect(0).out).unwrap()
    }
}

/// Losses and norms within what PyTorch's own f32 leaves of f64.
fn holds(model: &str, metrics: &[Value], name: &str) {
    let gold: Value = serde_json::from_str(&fs::read_to_string(models(model).join("gold.json")).unwrap()).unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    assert_eq!(metrics.len(), 12);
    for (i, line) in metrics.iter().enumerate() {
        let (single, double) = (number(&gold["float32"]["loss"][i]), number(&gold["float64"]["loss"][i]));
        let (noise, norm) = ((single - double).abs(), number(&gold["float64"]["grad_norm"][i]));
        let (loss, own) = (number(&line["loss"]), number(&line["grad_norm"]));
        assert!((loss - double).abs() <= 2e-5 + 20.0 * noise, "{name} step {i}: loss {loss}, PyTorch {double}");
        assert!((own - norm).abs() <= norm * (1e-3 + 50.0 * noise), "{name} step {i}: norm {own}, PyTorch {norm}");
    }
}

#[test]
fn pipelines_train_as_pytorch_does() {
    let mut jobs: Vec<(&str, &str, u64, &str)> = vec![("resnet", "pp=2", 1, "1f1b")];
    for model in ["gpt2", "llama"] {
        for schedule in ["gpipe", "1f1b", "zb-h1", "interleaved(chunks=2)"] {
            jobs.push((model, "pp=2", 4, schedule));
        }
        jobs.extend([(model, "pp=4", 8, "1f1b"), (model, "dp=2 pp=2 tp=2", 2, "1f1b")]);
    }
    for model in ["bert", "vit", "mlp", "inception"] {
        jobs.extend([(model, "pp=2", 2, "1f1b"), (model, "dp=2 pp=2", 2, "zb-h1")]);
    }
    for (model, mesh, microbatches, schedule) in jobs {
        let name = format!("{model}-{mesh}-{microbatches}-{schedule}").replace([' ', '='], "");
        let lines = format!("pipeline axis=pp schedule={schedule}\n");
        let (metrics, _) = Job::new(&name, model, &spec(model, mesh, microbatches, &lines)).trained(12, &[]);
        holds(model, &metrics, &name);
    }
}

/// The loss and norm of each step as text, and the export.
fn bits((metrics, export): &(Vec<Value>, Vec<u8>)) -> (Vec<[String; 2]>, &[u8]) {
    (metrics.iter().map(|line| [line["loss"].to_string(), line["grad_norm"].to_string()]).collect(), export)
}

#[test]
fn every_schedule_has_the_bits_of_one_position() {
    let job = |mesh: &str, schedule: &str, flags: &[&str]| {
        let name = format!("bits-{mesh}-{schedule}-{}", flags.concat()).replace('=', "");
        let spec = spec("llama", mesh, 4, &format!("pipeline axis=pp schedule={schedule}\n"));
        Job::new(&name, "llama", &spec).trained(8, &[&["--threads", "1"], flags].concat())
    };
    let one = job("pp=1", "1f1b", &[]);
    for (mesh, schedule) in
        [("pp=4", "gpipe"), ("pp=4", "1f1b"), ("pp=4", "zb-h1"), ("pp=2", "interleaved(chunks=2)"), ("pp=2", "1f1b")]
    {
        for flags in [&[][..], &["--strict"], &["--delays", "1ms", "--delay-seed", "3"]] {
            let many = job(mesh, schedule, flags);
            assert!(bits(&many) == bits(&one), "{mesh} {schedule} {flags:?}");
        }
    }
}

#[test]
fn evaluation_and_plans_agree_with_one_position() {
    let job = |mesh: &str| {
        let job = Job::new(&format!("plan-{mesh}"), "gpt2", &spec("gpt2", mesh, 4, "pipeline axis=pp\n"));
        job.compiled();
        let eval = shardc(&job.here, &["eval", "plan", "--data", &job.data, "--json"]).expect(0).out;
        let train = ["train", "plan", "--data", &job.data, "--steps", "12", "--metrics", "metrics.jsonl"];
        shardc(&job.here, &train).expect(0);
        let check = shardc(&job.here, &["check", "plan", "--data", &job.data, "--replay"]).expect(0).out;
        assert!(check.contains("the same bits") && check.ends_with("the plan computes what its reference computes\n"), "{check}");
        (serde_json::from_str::<Value>(&eval).unwrap(), fs::read_to_string(job.here.join("metrics.jsonl")).unwrap())
    };
    let [(one, _), (two, metrics)] = ["pp=1", "pp=2"].map(job);
    assert_eq!((&one["loss"], &one["labels"]), (&two["loss"], &two["labels"]));
    let metrics: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    holds("gpt2", &metrics, "train plan");
}
