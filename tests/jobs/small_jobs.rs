//! Jobs of small models that are made here: what their users are told, and models that the rest of
//! the tests lack.

use crate::support::{example, folder, shardc};
use prost::Message;
use serde_json::Value;
use shardc_executor::data::{read_npz, write_npz};
use shardc_executor::tensor::Tensor;
use shardc_testkit::onnx::{floats, initializer, input, ints, model, node, output, raw};
use shardc_testkit::random::Random;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

fn numbers(count: i64, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.unit() as f32 - 0.5).collect()
}

fn weight(name: &str, sizes: &[i64], seed: u64) -> pb::TensorProto {
    floats(name, sizes, &numbers(sizes.iter().product(), seed))
}

/// `MODEL` in `folder`: the input `x[batch, 6]`, nodes `op inputs -> outputs`, initializers, and
/// outputs.
fn save(folder: &Path, nodes: &[(&str, &str, &str)], tensors: Vec<pb::TensorProto>, outputs: &[&str]) {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 6]);
    tensors.into_iter().for_each(|t| initializer(&mut m, t));
    nodes.iter().for_each(|(op, inputs, outputs)| node(&mut m, op, inputs, outputs, vec![]));
    outputs.iter().for_each(|name| output(&mut m, name));
    fs::write(folder.join("model.onnx"), m.encode_to_vec()).unwrap();
}

/// `data.npz` in `folder` with `samples` samples of `x`.
fn save_x(folder: &Path, samples: u64) {
    let x = Tensor::from_f32(&[samples, 6], &numbers(samples as i64 * 6, 9));
    write_npz(&folder.join("data.npz"), &[("x".to_string(), x)].into()).unwrap();
}

fn spec(folder: &Path, text: &str) {
    fs::write(folder.join("job.shard"), text).unwrap();
}

const JOB: [&str; 5] = ["model.onnx", "--spec", "job.shard", "--data", "data.npz"];

#[test]
fn what_would_be_lost_is_told_before_the_first_step() {
    let here = folder("warnings");
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    let lines = "batch 64\nloss cross_entropy labels=y\noptimizer sgd lr=0.1\n";
    let train = |schedule: &str, more: &[&str]| {
        spec(&here, &format!("{lines}{schedule}"));
        let job = ["train", &model, "--spec", "job.shard", "--data", &data];
        shardc(&here, &[&job, more].concat()).expect(0).err
    };
    let said = train("schedule cosine steps=4 min_lr=0.01\n", &["--steps", "6", "--export", "t.onnx"]);
    let warning = "\
warning: the schedule ends after 4 steps, and training after 6
  ┌─ job.shard:4:1
4 │ schedule cosine steps=4 min_lr=0.01
  │ ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ from step 5 on the rate stays at 0.01
  = help: write `steps=6` in the `schedule` line, or train with `--steps 4`
";
    assert!(said.find(warning) < said.find("step 1/6") && said.contains(warning), "{said}");
    let said = train("schedule linear steps=1\n", &["--steps", "2", "--export", "t.onnx"]);
    assert!(
        said.contains("ends after 1 step, and") && said.contains("from step 2 on the rate is 0, and nothing is trained"),
        "{said}"
    );
    // A run that is shorter than its schedule was asked for.
    let fine = [("schedule cosine steps=4\n", "2"), ("schedule cosine steps=4\n", "4"), ("schedule constant\n", "6"), ("", "6")];
    for (schedule, steps) in fine {
        let said = train(schedule, &["--steps", steps, "--export", "t.onnx"]);
        assert!(!said.contains("warning"), "{schedule}: {said}");
    }
    let said = train("", &["--steps", "1"]);
    let warning =
        "warning: the trained weights will be lost\n  = help: add `--export TRAINED.onnx` or `--checkpoint DIR` to keep them\n";
    assert!(said.contains(warning), "{said}");
}

#[test]
fn half_floats_are_told_to_be_trained_in_f32() {
    let here = folder("halves");
    save_x(&here, 8);
    spec(&here, "batch 4\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n");
    for (kind, name) in [(DataType::Float16, "f16"), (DataType::Bfloat16, "bf16")] {
        let half = |tensor: &str| raw(tensor, kind, &[6, 6], vec![0; 72]);
        save(&here, &[("MatMul", "x a", "h"), ("MatMul", "h b", "y")], vec![half("a"), half("b")], &["y"]);
        let ran = shardc(&here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "p"]).expect(0);
        let warning = format!(
            "warning: weights of type {name} are trained in f32: `a` and 1 more\n  ┌─ model.onnx\n  = help: expect twice the memory that \
             the file takes; an export rounds the weights to {name} again\n"
        );
        assert!(ran.err.contains(&warning), "{}", ran.err);
    }
}

#[test]
fn patterns_without_a_match_name_what_there_is() {
    let here = folder("patterns");
    let model = example("digits/model.onnx");
    let lines = "mesh tp=2\nbatch 64\nloss cross_entropy labels=y\noptimizer sgd lr=0.1\n";
    for (line, near) in [("freeze", ""), ("train", ""), ("init", " auto"), ("shard", " [tp, -]")] {
        for (pattern, says) in [("fc1.wait", "near names are `fc1.weight`"), ("*.decoder.*.q_proj", "among its ")] {
            spec(&here, &format!("{lines}{line} \"{pattern}\"{near}\n"));
            let ran = shardc(&here, &["compile", &model, "--spec", "job.shard", "-o", "p"]).expect(1);
            assert!(ran.err.contains(&format!("matches `{pattern}`")) && ran.err.contains(says), "{line}: {}", ran.err);
            assert!(!ran.err.contains("shardc compile"), "{line}: {}", ran.err);
            let all = ran.err.contains("`fc1.weight`, ") && ran.err.contains("`shardc init MODEL.onnx` prints them all");
            assert!(all || says != "among its ", "{line}: {}", ran.err);
        }
    }
}

/// The squares of the differences, their mean.
fn mean_square(a: &Tensor, b: &Tensor) -> f64 {
    let squares = a.to_f64().into_iter().zip(b.to_f64()).map(|(a, b)| (a - b) * (a - b));
    squares.sum::<f64>() / a.elements() as f64
}

fn arrays(path: &Path) -> BTreeMap<String, Tensor> {
    read_npz(fs::File::open(path).unwrap()).unwrap()
}

/// The loss and the number of labels that `eval --json` prints.
fn evaluated(here: &Path, source: &[&str]) -> (f64, u64) {
    let ran = shardc(here, &[&["eval"], source, &["--json", "--outputs", "out.npz"]].concat()).expect(0);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    (json["loss"].as_f64().unwrap(), json["labels"].as_u64().unwrap())
}

/// Metrics without times.
fn metrics(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split(",\"seconds\"").next().unwrap().to_string()).collect()
}

#[test]
fn an_autoencoder_learns_its_input() {
    let here = folder("autoencoder");
    let nodes = [("MatMul", "x a", "h"), ("Tanh", "h", "t"), ("MatMul", "t b", "y")];
    save(&here, &nodes, vec![weight("a", &[6, 3], 1), weight("b", &[3, 6], 2)], &["y"]);
    save_x(&here, 20);
    let x = arrays(&here.join("data.npz"))["x"].clone();
    write_npz(&here.join("two.npz"), &[("x".to_string(), x.clone()), ("t".to_string(), x.clone())].into()).unwrap();
    for mesh in ["", "mesh dp=2\ndata axis=dp\n", "mesh dp=2 tp=3\ndata axis=dp\nshard \"a\" [-, tp]\nshard \"b\" [tp, -]\n"] {
        let text = |labels: &str| {
            format!("{mesh}batch 8 microbatches=2\nloss mse prediction=y labels={labels}\noptimizer adam lr=0.01\n")
        };
        let job = |spec: &'static str, data: &'static str| ["model.onnx", "--spec", spec, "--data", data];
        fs::write(here.join("one.shard"), text("x")).unwrap();
        fs::write(here.join("two.shard"), text("t")).unwrap();
        let train = |job: [&str; 5], name: &str| {
            let more = ["--steps", "12", "--metrics", "m.jsonl", "--export", name];
            shardc(&here, &[&["train"], &job[..], &more].concat()).expect(0);
            metrics(&here.join("m.jsonl"))
        };
        let one = train(job("one.shard", "data.npz"), "one.onnx");
        assert_eq!(one, train(job("two.shard", "two.npz"), "two.onnx"), "the same as with labels of their own, under `{mesh}`");
        let ran = shardc(&here, &[&["check"], &job("one.shard", "data.npz")[..], &["--replay"]].concat()).expect(0);
        assert!(ran.out.ends_with("the plan computes what its reference computes\n"), "{}", ran.out);
        // 20 samples are two batches and four more, of which none may be left out.
        let (loss, labels) = evaluated(&here, &job("one.shard", "data.npz"));
        let y = arrays(&here.join("out.npz"))["y"].clone();
        assert_eq!((labels, &y.shape[..]), (120, &[20, 6][..]));
        assert!((loss - mean_square(&y, &x)).abs() < 1e-6, "{loss}");
        assert!(y.to_f64().iter().all(|y| y.is_finite()));
        shardc(&here, &["compile", "model.onnx", "--spec", "one.shard", "-o", "p"]).expect(0);
        assert_eq!(evaluated(&here, &["p", "--data", "data.npz"]), (loss, labels));
    }
    spec(&here, "batch 4\nloss cross_entropy logits=y labels=x\noptimizer sgd lr=0.1\n");
    let ran = shardc(&here, &[&["train"], &JOB[..]].concat()).expect(1);
    assert!(ran.err.contains("`x` is an input of the model, f32[4, 6], but the loss needs labels of i64[4]"), "{}", ran.err);
    assert!(ran.err.contains("job.shard:2:36"), "{}", ran.err);
}

#[test]
fn a_flat_reconstruction_is_held_against_the_input_in_its_order() {
    let here = folder("flat");
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 2, 3]);
    initializer(&mut m, ints("flat", &[2], &[-1, 6]));
    initializer(&mut m, weight("a", &[6, 6], 1));
    node(&mut m, "Reshape", "x flat", "f", vec![]);
    node(&mut m, "MatMul", "f a", "y", vec![]);
    output(&mut m, "y");
    fs::write(here.join("model.onnx"), m.encode_to_vec()).unwrap();
    let x = Tensor::from_f32(&[8, 2, 3], &numbers(48, 3));
    write_npz(&here.join("data.npz"), &[("x".to_string(), x.clone())].into()).unwrap();
    spec(&here, "mesh dp=2\ndata axis=dp\nbatch 4\nloss mse labels=x\noptimizer sgd lr=0.1\n");
    let (loss, labels) = evaluated(&here, &JOB);
    assert!(labels == 48 && (loss - mean_square(&arrays(&here.join("out.npz"))["y"], &x)).abs() < 1e-6, "{loss}");
    shardc(&here, &[&["check"], &JOB[..]].concat()).expect(0);
}

#[test]
fn outputs_may_have_any_name() {
    let here = folder("output-names");
    let nodes = [("MatMul", "x a", "labels"), ("Tanh", "labels", "loss_sum"), ("MatMul", "loss_sum b", "loss")];
    save(&here, &nodes, vec![weight("a", &[6, 6], 1), weight("b", &[6, 6], 2)], &["labels", "loss_sum", "loss"]);
    save_x(&here, 10);
    let x = arrays(&here.join("data.npz"))["x"].clone();
    write_npz(&here.join("data.npz"), &[("x".to_string(), x.clone()), ("t".to_string(), x.clone())].into()).unwrap();
    for prediction in ["labels", "loss_sum", "loss"] {
        spec(
            &here,
            &format!("mesh dp=2\ndata axis=dp\nbatch 4\nloss mse prediction={prediction} labels=t\noptimizer sgd lr=0.1\n"),
        );
        shardc(&here, &[&["train"], &JOB[..], &["--steps", "2", "--export", "t.onnx"]].concat()).expect(0);
        shardc(&here, &[&["check"], &JOB[..]].concat()).expect(0);
        let (loss, labels) = evaluated(&here, &JOB);
        let outputs = arrays(&here.join("out.npz"));
        assert_eq!(outputs.keys().collect::<Vec<_>>(), ["labels", "loss", "loss_sum"]);
        assert!(outputs.values().all(|output| output.shape == [10, 6]), "{prediction}");
        assert!(labels == 60 && (loss - mean_square(&outputs[prediction], &x)).abs() < 1e-6, "{prediction}: {loss}");
        shardc(&here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "p"]).expect(0);
        shardc(&here, &["verify", "p"]).expect(0);
        assert_eq!(evaluated(&here, &["p", "--data", "data.npz"]), (loss, labels));
    }
    // Without a loss there are the model's outputs alone.
    spec(&here, "batch 4\n");
    let ran = shardc(&here, &[&["eval"], &JOB[..], &["--outputs", "out.npz"]].concat()).expect(0);
    assert!(ran.out.starts_with("10 samples, no loss"), "{}", ran.out);
    assert_eq!(arrays(&here.join("out.npz")).keys().collect::<Vec<_>>(), ["labels", "loss", "loss_sum"]);
}

#[test]
fn what_is_not_trained_need_not_be_clear() {
    let here = folder("unclear");
    save(&here, &[("Div", "x onnx::Div_7", "y")], vec![weight("onnx::Div_7", &[6], 1)], &["y"]);
    save_x(&here, 10);
    spec(&here, "batch 4\n");
    shardc(&here, &[&["eval"], &JOB[..], &["--outputs", "out.npz"]].concat()).expect(0);
    assert_eq!(arrays(&here.join("out.npz"))["y"].shape, [10, 6]);
    spec(&here, "batch 4\nloss mse labels=x\noptimizer sgd lr=0.1\n");
    shardc(&here, &[&["eval"], &JOB[..]].concat()).expect(0);
    let ran = shardc(&here, &[&["train"], &JOB[..]].concat()).expect(1);
    assert!(ran.err.contains("whether `onnx::Div_7` is trained is unclear"), "{}", ran.err);
}
