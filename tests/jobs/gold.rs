//! The small models train as PyTorch trained them: every step's loss and gradient norm, under data
//! and tensor parallelism and micro-batches. Tolerances: loss 2e-5 + 20 |f32 - f64| absolute, norm
//! 1e-3 + 50 |f32 - f64| relative, where f32 and f64 are PyTorch's own losses. From a step on that
//! a rounding decides, 5e-4 and 5e-3: three times of what a rounding of the data makes.

use serde_json::Value;
use shardc_frontend::onnx::{ImportOptions, import};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ADAMW: &str = "optimizer adamw lr=1e-3 beta1=0.9 beta2=0.95 eps=1e-8 weight_decay=0.1 decay=matrices\nclip norm=1.0\n";
const SGD: &str = "optimizer sgd lr=0.05 momentum=0.9 weight_decay=1e-2 decay=matrices\n";

/// One job: a model's folder, its files, and the spec.
struct Job<'a> {
    model: &'a str,
    data: &'a str,
    gold: &'a str,
    spec: String,
    /// The first step that a rounding decides.
    kink: Option<usize>,
}

impl Job<'_> {
    /// Trains and compares; gives what PyTorch has, and the trained model.
    fn holds(&self, name: &str) -> (Value, PathBuf) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(self.model);
        let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&scratch).expect("a scratch folder");
        let [spec, metrics, trained] = ["job.shard", "metrics.jsonl", "trained.onnx"].map(|file| scratch.join(file));
        fs::write(&spec, &self.spec).expect("the spec is written");
        let output = Command::new(env!("CARGO_BIN_EXE_shardc"))
            .arg("train")
            .arg(folder.join("model.onnx"))
            .arg("--spec")
            .arg(&spec)
            .arg("--data")
            .arg(folder.join(self.data))
            .args(["--steps", "12", "--metrics"])
            .arg(&metrics)
            .arg("--export")
            .arg(&trained)
            .output()
            .expect("shardc runs");
        assert!(output.status.success(), "{name}\n{}\n{}", self.spec, String::from_utf8_lossy(&output.stderr));
        let gold: Value = serde_json::from_str(&fs::read_to_string(folder.join(self.gold)).expect("gold")).expect("gold is JSON");
        let text = fs::read_to_string(&metrics).expect("metrics are written");
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("a line is JSON")).collect();
        assert_eq!(lines.len(), 12, "{name}");
        for (i, line) in lines.iter().enumerate() {
            let number = |v: &Value| v.as_f64().expect("a number");
            let (f32_loss, f64_loss) = (number(&gold["float32"]["loss"][i]), number(&gold["float64"]["loss"][i]));
            let noise = (f32_loss - f64_loss).abs();
            let (loss, norm) = (number(&line["loss"]), number(&line["grad_norm"]));
            let gold_norm = number(&gold["float64"]["grad_norm"][i]);
            let (loss_off, norm_off) = if self.kink.is_some_and(|kink| i >= kink) { (5e-4, 5e-3) } else { (2e-5, 1e-3) };
            assert!((loss - f64_loss).abs() <= loss_off + 20.0 * noise, "{name} step {i}: loss {loss}, PyTorch {f64_loss}");
            assert!(
                (norm - gold_norm).abs() <= gold_norm * (norm_off + 50.0 * noise),
                "{name} step {i}: gradient norm {norm}, PyTorch {gold_norm}"
            );
        }
        (gold, trained)
    }
}

fn data_parallel(model: &str, batch: u64, optimizer: &str) {
    for ranks in [1, 2, 4] {
        for microbatches in [1, 2] {
            let spec = format!(
                "mesh dp={ranks}\nbatch {batch} microbatches={microbatches}\nloss cross_entropy logits=logits labels=y\n\
                 {optimizer}data axis=dp\n"
            );
            let name = format!("{model}-dp{ranks}-mb{microbatches}");
            Job { model, data: "data.npz", gold: "gold.json", spec, kink: None }.holds(&name);
        }
    }
}

#[test]
fn mlp() {
    data_parallel("mlp", 32, SGD);
}

/// Statistics of the whole batch, of each micro-batch, of each rank; the running ones of the
/// trained model are the moving averages of what PyTorch normalised by, the biased variance among
/// them.
#[test]
fn batch_normalisation() {
    for (ranks, microbatches, statistics, gold) in [
        (1, 1, "", "gold.json"),
        (4, 1, "", "gold.json"),
        (1, 2, "batchnorm statistics=microbatch\n", "gold-accumulate.json"),
        (2, 2, "batchnorm statistics=microbatch\n", "gold-accumulate.json"),
        (2, 2, "batchnorm statistics=rank\n", "gold-groups.json"),
        (4, 1, "batchnorm statistics=rank\n", "gold-groups.json"),
    ] {
        let spec = format!(
            "mesh dp={ranks}\nbatch 32 microbatches={microbatches}\nloss cross_entropy logits=logits labels=y\n{SGD}data axis=dp\n\
             {statistics}"
        );
        let name = format!("batchnorm-dp{ranks}-{microbatches}-{gold}");
        let (gold, trained) = Job { model: "batchnorm", data: "../mlp/data.npz", gold, spec, kink: None }.holds(&name);
        let options = ImportOptions { batch: Some(32), ..ImportOptions::default() };
        let trained = import(&trained, &options).expect("the trained model is a model");
        let running = gold["running"].as_object().expect("an object");
        assert_eq!(running.len(), 4);
        for (statistic, expected) in running {
            let found = trained.weights[statistic].load().expect("its elements").to_f64();
            for (found, expected) in found.iter().zip(expected.as_array().expect("numbers")) {
                let expected = expected.as_f64().expect("a number");
                assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{name} {statistic}: {found} {expected}");
            }
        }
    }
}

/// From step 9 on a rectifier's operand is within 1e-7 of 0: PyTorch's own run leaves the gold one,
/// even in f64, where its weights begin 1e-7 elsewhere. Where the data is 1e-7 elsewhere, losses of
/// steps 9 to 11 are off by up to 1.6e-4 and norms by 1.9e-3, and of steps before by 5e-6 and
/// 1.1e-4; processors that sum in another order do the same.
#[test]
fn resnet() {
    for (ranks, microbatches, statistics, gold) in [
        (1, 1, "", "gold.json"),
        (2, 1, "", "gold.json"),
        (4, 1, "", "gold.json"),
        (1, 2, "batchnorm statistics=microbatch\n", "gold-accumulate.json"),
        (4, 2, "batchnorm statistics=microbatch\n", "gold-accumulate.json"),
        (2, 1, "batchnorm statistics=rank\n", "gold-accumulate.json"),
    ] {
        let spec = format!(
            "mesh dp={ranks}\nbatch 16 microbatches={microbatches}\nloss cross_entropy logits=logits labels=y\n{SGD}data axis=dp\n\
             {statistics}"
        );
        let name = format!("resnet-dp{ranks}-{microbatches}-{gold}");
        Job { model: "resnet", data: "data.npz", gold, spec, kink: Some(9) }.holds(&name);
    }
}

#[test]
fn gpt2() {
    data_parallel("gpt2", 8, ADAMW);
}

#[test]
fn gpt2_folded() {
    data_parallel("gpt2-folded", 8, ADAMW);
}

#[test]
fn llama() {
    data_parallel("llama", 8, ADAMW);
}

#[test]
fn inception() {
    data_parallel("inception", 16, SGD);
}

#[test]
fn vit() {
    data_parallel("vit", 8, &ADAMW.replace("clip norm=1.0\n", ""));
}

/// Convolutions split by output channels, then by input channels.
#[test]
fn inception_with_split_channels() {
    for (name, mesh, data) in [("tp2", "tp=2", ""), ("dp2-tp2", "dp=2 tp=2", "data axis=dp\n")] {
        let spec = format!(
            "mesh {mesh}\nbatch 16 microbatches=2\nloss cross_entropy logits=logits labels=y\n{SGD}{data}\
             shard \"mix.*.0.weight\" [tp, -, -, -]\nshard \"mix.*.2.weight\" [-, tp, -, -]\n"
        );
        Job { model: "inception", data: "data.npz", gold: "gold.json", spec, kink: None }.holds(&format!("inception-{name}"));
    }
}

#[test]
fn mlp_with_split_weights() {
    for (name, mesh, data) in
        [("tp2", "tp=2", ""), ("dp2-tp2", "dp=2 tp=2", "data axis=dp\n"), ("tp2-dp2", "tp=2 dp=2", "data axis=dp\n")]
    {
        for microbatches in [1, 2] {
            let spec = format!(
                "mesh {mesh}\nbatch 32 microbatches={microbatches}\nloss cross_entropy logits=logits labels=y\n{SGD}{data}\
                 shard \"1.weight\" [tp, -]\nshard \"3.weight\" [-, tp]\n"
            );
            let name = format!("mlp-{name}-mb{microbatches}");
            Job { model: "mlp", data: "data.npz", gold: "gold.json", spec, kink: None }.holds(&name);
        }
    }
}

#[test]
fn gpt2_with_ignored_labels() {
    let spec = format!(
        "mesh dp=2\nbatch 8 microbatches=2\nloss cross_entropy logits=logits labels=y ignore_index=-100\n{ADAMW}data axis=dp\n"
    );
    Job { model: "gpt2", data: "data-ignore.npz", gold: "gold-ignore.json", spec, kink: None }.holds("gpt2-ignore");
}

/// A fused projection of four heads of queries and two of keys and values, and a fused layer of an
/// MLP, both in blocks of different sizes; they are exported as the parameters that they were.
#[test]
fn grouped_queries_in_unequal_blocks() {
    for (name, mesh, data) in [("tp1", "tp=1", ""), ("tp2", "tp=2", ""), ("dp2-tp2", "dp=2 tp=2", "data axis=dp\n")] {
        let spec = format!(
            "mesh {mesh}\nbatch 8 microbatches=2\nloss cross_entropy logits=logits labels=y\n{ADAMW}{data}\
             shard \"qkv.weight\" [(32|16|16)*tp, -]\nshard \"proj.weight\" [-, tp]\nshard \"up.weight\" [(64|32)*tp, -]\n"
        );
        let job = Job { model: "grouped", data: "data.npz", gold: "gold.json", spec, kink: None };
        let (gold, trained) = job.holds(&format!("grouped-{name}"));
        let trained = import(&trained, &ImportOptions::default()).expect("the trained model is a model");
        for parameter in ["qkv.weight", "qkv.bias", "up.weight", "up.bias"] {
            let values = trained.weights[parameter].load().expect("its elements").to_f64();
            let norm = values.iter().map(|v| v * v).sum::<f64>().sqrt();
            let expected = gold["float64"]["param_norm"][parameter].as_f64().expect("a number");
            assert!((norm - expected).abs() <= 1e-4 * expected, "{name} {parameter}: {norm} {expected}");
        }
    }
}
