//! Jobs of small models that are made here: what their users are told, and models that the rest of the tests lack.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../frontend/tests/onnx_support/mod.rs"]
mod onnx_support;
mod support;

use onnx_support::{floats, initializer, input, model, node, output, raw};
use prost::Message;
use shardc_executor::data::write_npz;
use shardc_executor::tensor::Tensor;
use std::fs;
use std::path::Path;
use support::{Random, example, folder, shardc};
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

fn numbers(count: i64, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.unit() as f32 - 0.5).collect()
}

fn weight(name: &str, sizes: &[i64], seed: u64) -> pb::TensorProto {
    floats(name, sizes, &numbers(sizes.iter().product(), seed))
}

/// `MODEL` in `folder`: the input `x[batch, 6]`, nodes `op inputs -> outputs`, initializers, and outputs.
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
step 1/6";
    assert!(said.starts_with(warning), "{said}");
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
    let warning = "warning: the trained weights will be lost\n  = help: add `--export TRAINED.onnx` to keep them\n";
    assert!(said.starts_with(warning), "{said}");
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
