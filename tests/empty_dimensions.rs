//! Models with dimensions of size 0, which slices, pads, tiles and the like make: each is trained
//! or refused in words, none panics, and what is trained is certified, by differences of the loss
//! and by what tract computes of the same file where it takes it. `SHARDC_PROGRAMS` is the number
//! of models, 300 without it.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod support;

use prost::Message;
use shardc_executor::data::write_npz;
use shardc_executor::tensor::Tensor;
use shardc_testkit::onnx::{float, initializer, input, int, int_list, ints, model, node, output, weight};
use shardc_testkit::parallel;
use shardc_testkit::random::Random;
use std::fs;
use std::path::Path;
use support::{folder, shardc};
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

/// A model under construction and the values that its next node may read, whose ranks are 2.
struct Maker {
    m: pb::ModelProto,
    values: Vec<String>,
    random: Random,
    count: usize,
}

impl Maker {
    fn pick(&mut self) -> String {
        let at = self.random.below(self.values.len());
        self.values[at].clone()
    }

    fn fresh(&mut self) -> String {
        self.count += 1;
        format!("v{}", self.count)
    }

    /// A list of integers as an initializer.
    fn list(&mut self, values: &[i64]) -> String {
        let name = self.fresh();
        initializer(&mut self.m, ints(&name, &[values.len() as i64], values));
        name
    }

    fn node(&mut self, op: &str, inputs: &[&str], attributes: Vec<pb::AttributeProto>) -> String {
        let name = self.fresh();
        node(&mut self.m, op, &inputs.join(" "), &name, attributes);
        name
    }

    /// A value with fewer elements, often none.
    fn smaller(&mut self) -> String {
        let (x, axis) = (self.pick(), self.random.below(2) as i64);
        match self.random.below(7) {
            0 => {
                let (from, to, axes) = (self.list(&[2]), self.list(&[2]), self.list(&[axis]));
                self.node("Slice", &[&x, &from, &to, &axes], vec![])
            }
            1 => {
                let sizes = self.list(&[0, [4, 6][axis as usize]]);
                let (name, other) = (self.fresh(), self.fresh());
                node(&mut self.m, "Split", &format!("{x} {sizes}"), &format!("{name} {other}"), vec![int("axis", axis)]);
                self.values.push(other);
                name
            }
            2 => {
                let pads = self.list(if axis == 0 { &[-2, 0, -2, 0] } else { &[0, -3, 0, -3] });
                self.node("Pad", &[&x, &pads], vec![])
            }
            3 => {
                let repeats = self.list(if axis == 0 { &[0, 1] } else { &[1, 0] });
                self.node("Tile", &[&x, &repeats], vec![])
            }
            4 => {
                let indices = self.list(&[]);
                self.node("Gather", &[&x, &indices], vec![int("axis", axis)])
            }
            5 => {
                let shape = self.list(&[0, -1]);
                let cut = self.smaller();
                self.node("Reshape", &[&cut, &shape], vec![])
            }
            _ => {
                let (kept, shape) = (self.node("ReduceSum", &[&x], vec![int("keepdims", 1)]), self.list(&[0, 6]));
                self.node("Expand", &[&kept, &shape], vec![])
            }
        }
    }

    /// Any op.
    fn any(&mut self) -> String {
        let (x, y, axis) = (self.pick(), self.pick(), self.random.below(2) as i64);
        let with_axis = |op: &str| (op.to_string(), vec![int("axis", axis)]);
        let (op, attributes) = match self.random.below(14) {
            0 => ("Relu".to_string(), vec![]),
            1 => with_axis("Softmax"),
            2 => ("Transpose".to_string(), vec![int_list("perm", vec![1, 0])]),
            3 => with_axis("LogSoftmax"),
            4 => with_axis("ArgMax"),
            5 => with_axis("Hardmax"),
            6 => with_axis("Flatten"),
            7 => ("ReduceMean".to_string(), vec![int("keepdims", 1)]),
            8 => ("ReduceMax".to_string(), vec![int("keepdims", 1)]),
            9 => ("ReduceProd".to_string(), vec![int("keepdims", 1)]),
            10 => {
                let at = self.list(&[axis]);
                return self.node("CumSum", &[&x, &at], vec![]);
            }
            11 => return self.node("MatMul", &[&x, &y], vec![]),
            12 => return self.node("Add", &[&x, &y], vec![]),
            _ => return self.node("Concat", &[&x, &y], vec![int("axis", axis)]),
        };
        self.node(&op, &[&x], attributes)
    }

    fn layer(&mut self) -> String {
        let (x, scale) = (self.pick(), self.fresh());
        initializer(&mut self.m, weight(&scale, &[6], self.count as u64));
        self.node("LayerNormalization", &[&x, &scale], vec![float("epsilon", 1e-5)])
    }
}

/// A linear layer with random ops behind it, all of which go into the output.
fn made(seed: u64) -> pb::ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[4, 6]);
    initializer(&mut m, weight("w", &[6, 6], seed));
    node(&mut m, "MatMul", "x w", "h", vec![]);
    let mut maker = Maker { m, values: vec!["h".into(), "x".into()], random: Random(seed), count: 0 };
    for _ in 0..1 + maker.random.below(3) {
        let value = maker.smaller();
        maker.values.push(value);
        for _ in 0..maker.random.below(3) {
            let value = if maker.random.below(6) == 0 { maker.layer() } else { maker.any() };
            maker.values.push(value);
        }
    }
    let mut y = "h".to_string();
    for value in maker.values.clone() {
        let number = maker.node("Cast", &[&value], vec![int("to", 1)]);
        let sum = maker.node("ReduceSum", &[&number], vec![int("keepdims", 0)]);
        y = maker.node("Add", &[&y, &sum], vec![]);
    }
    node(&mut maker.m, "Identity", &y, "y", vec![]);
    output(&mut maker.m, "y");
    maker.m
}

/// The job of each model.
const SPEC: &str = "batch 4\nloss mse prediction=y labels=t\noptimizer sgd lr=0.01\n";

/// What became of a model.
#[derive(Default)]
struct Outcome {
    is_trained: bool,
    /// What the certificate holds against tract.
    of_tract: usize,
    bad: Option<String>,
}

/// Trains a model and looks at its certificate, in a folder of its own.
fn tried(here: &Path, seed: u64) -> Outcome {
    fs::create_dir(here).unwrap();
    fs::write(here.join("job.shard"), SPEC).unwrap();
    fs::write(here.join("model.onnx"), made(seed).encode_to_vec()).unwrap();
    let job = ["train", "model.onnx", "--spec", "job.shard", "--data", "../data.npz", "--steps", "1", "--threads", "1"];
    let ran = shardc(here, &job);
    let is_trained = ran.code == 0;
    if !matches!(ran.code, 0 | 1) || ran.err.contains("bug of shardc") || ran.err.contains("panicked") {
        return Outcome { is_trained, bad: Some(format!("exits with {}: {}", ran.code, ran.err)), ..Outcome::default() };
    }
    if !is_trained {
        return Outcome::default();
    }
    let ran = shardc(here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "plan"]);
    let manifest = fs::read_to_string(here.join("plan/manifest.json")).unwrap_or_default();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap_or_default();
    let certificate = &manifest["certificate"];
    let is_doubted = certificate["doubted"].as_array().is_some_and(|doubts| !doubts.is_empty());
    let is_bad = ran.code != 0 || !certificate.is_object() || is_doubted;
    let found = certificate["certified"].as_array().into_iter().flatten();
    Outcome {
        is_trained,
        of_tract: found.filter(|found| found["how"].as_str().is_some_and(|how| how.contains("and as tract"))).count(),
        bad: is_bad.then(|| format!("is not certified: {} {}", ran.err, certificate["doubted"])),
    }
}

#[test]
fn empty_dimensions_are_trained_or_refused() {
    let here = folder("empty-dimensions");
    let array = || Tensor::from_f32(&[8, 6], &[0.5; 48]);
    write_npz(&here.join("data.npz"), &[("x".to_string(), array()), ("t".to_string(), array())].into()).unwrap();
    let count: usize = std::env::var("SHARDC_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let all = parallel::map(count, |seed| tried(&here.join(seed.to_string()), seed as u64));
    let trained = all.iter().filter(|outcome| outcome.is_trained).count();
    let of_tract: usize = all.iter().map(|outcome| outcome.of_tract).sum();
    let bad = all.iter().enumerate().filter_map(|(seed, outcome)| outcome.bad.as_ref().map(|why| format!("case {seed} {why}")));
    let bad: Vec<String> = bad.collect();
    println!("{trained} of {count} are trained, {of_tract} held against tract");
    assert!(bad.is_empty(), "{} of {count}:\n{}", bad.len(), bad.join("\n"));
    assert!(trained > count / 20 && of_tract > count / 20, "{trained} are trained, {of_tract} held against tract");
}
