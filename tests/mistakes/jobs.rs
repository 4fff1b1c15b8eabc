//! The jobs in whose graphs mistakes are made: small models of several kinds, each under another
//! loss and optimizer, compiled for one rank.

use shardc::{Compiled, Graphs, Options, compile, derive};
use shardc_executor::data::read_npz;
use shardc_executor::tensor::Tensor;
use shardc_frontend::onnx::Imported;
use shardc_frontend::spec;
use shardc_ir::spec::Spec;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A job, compiled.
pub struct Job {
    pub name: &'static str,
    pub model: PathBuf,
    pub text: String,
    pub spec: Spec,
    pub compiled: Compiled,
    pub graphs: Graphs,
    pub imported: Imported,
    /// The arrays of its data, all samples.
    pub data: BTreeMap<String, Tensor>,
}

const ADAMW: &str = "optimizer adamw lr=0.02 beta1=0.8 beta2=0.9 weight_decay=0.1\nclip norm=0.5\n";
const SGD: &str = "optimizer sgd lr=0.1 momentum=0.9 nesterov=true weight_decay=0.05\n";
const ADAM: &str =
    "optimizer adam lr=0.02 beta2=0.9 eps=1e-3 weight_decay=0.1 decay=all\nschedule linear warmup=2 steps=9 min_lr=0.001\n";
const LAMB: &str = "optimizer lamb lr=0.05 beta2=0.9 weight_decay=0.05\nclip norm=2\n";

/// Name, model, its loss, and the rest of the spec.
const JOBS: [(&str, &str, &str, &str); 10] = [
    ("mlp", "models/mlp/model.onnx", "loss cross_entropy labels=y label_smoothing=0.1", SGD),
    ("losses", "models/losses/model.onnx", "loss cross_entropy labels=y class_axis=1 ignore_index=3", LAMB),
    ("padding", "recorded/padding/random.onnx", "loss cross_entropy logits=logits labels=y", ADAMW),
    ("batchnorm", "recorded/batchnorm/plain.onnx", "loss cross_entropy logits=logits labels=y", SGD),
    ("gpt2", "recorded/gpt2/random.onnx", "loss cross_entropy logits=logits labels=y", ADAMW),
    ("lstm", "recorded/lstm/random.onnx", "loss cross_entropy logits=logits labels=y", ADAM),
    ("vit", "recorded/vit/plain.onnx", "loss cross_entropy logits=logits labels=y", LAMB),
    ("mse", "models/losses/model.onnx", "loss mse labels=t", ADAMW),
    ("shares", "models/losses/model.onnx", "loss bce_with_logits labels=soft", "optimizer sgd lr=0.5\n"),
    ("own loss", "models/losses/own-each.onnx", "loss output=loss", ADAM),
];

/// All jobs.
pub fn all() -> Vec<Job> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let job = |(name, file, loss, rest): (&'static str, &str, &str, &str)| {
        let model = tests.join(file);
        let text = format!("batch 8\n{loss}\n{rest}");
        let spec = spec::parse(Path::new("job.shard"), &text).expect("a good spec");
        let compiled = compile(&model, &spec, &Options::default()).unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
        let (graphs, imported) = derive(&model, &spec, &Options::default()).expect("it was compiled");
        let data = read_npz(File::open(model.with_file_name("data.npz")).expect("data")).expect("data");
        Job { name, model, text, spec, compiled, graphs, imported, data }
    };
    JOBS.into_iter().map(job).collect()
}
