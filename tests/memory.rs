//! The memory of the program beside what a job has to hold.
#![cfg(target_os = "linux")]

mod support;

use prost::Message;
use shardc_executor::data::npz_bytes;
use shardc_executor::tensor::Tensor;
use shardc_testkit::onnx::{initializer, input, int, ints, model, node, output, raw};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{folder, program};
use tract_onnx::pb::tensor_proto::DataType;
use wait4::Wait4;

/// Rows and columns of the one weight.
const SHAPE: [i64; 2] = [256, 1 << 17];

/// Its bytes.
const WEIGHT: u64 = 4 * SHAPE[0] as u64 * SHAPE[1] as u64;

/// What the program takes for itself, with the activations of two samples.
const REST: u64 = 64 << 20;

/// What AdamW holds for each weight: itself, its gradient and two moments.
const HELD: u64 = 4 * WEIGHT + REST;

/// Makes a model of one large weight in `here`, and one whose head is tied to its embedding, with
/// two samples and a spec for each learning rate.
fn job(here: &Path) {
    let write = |name: &str, bytes: &[u8]| fs::write(here.join(name), bytes).expect("a file can be written");
    // 2^-7 and 2^-6, for one.
    let elements = [0, 0, 0, 0x3c, 0, 0, 0x80, 0x3c].repeat((WEIGHT / 8) as usize);
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, SHAPE[0]]);
    initializer(&mut m, raw("w", DataType::Float, &SHAPE, elements.clone()));
    node(&mut m, "MatMul", "x w", "y", vec![]);
    output(&mut m, "y");
    write("model.onnx", &m.encode_to_vec());
    let mut m = model(20);
    input(&mut m, "token", DataType::Int64, &[-1]);
    initializer(&mut m, raw("table", DataType::Float, &[SHAPE[1], SHAPE[0]], elements));
    node(&mut m, "Gather", "table token", "row", vec![]);
    node(&mut m, "Transpose", "table", "w", vec![]);
    node(&mut m, "MatMul", "row w", "y", vec![]);
    output(&mut m, "y");
    write("tied.onnx", &m.encode_to_vec());
    for rate in ["1e-3", "1e30"] {
        let spec = format!("batch 2\nloss mse prediction=y labels=t\noptimizer adamw lr={rate}\n");
        write(&format!("{rate}.shard"), spec.as_bytes());
    }
    let array = |columns: i64| Tensor::from_f32(&[2, columns as u64], &vec![0.5; 2 * columns as usize]);
    let tokens = Tensor::from_i64(&[2], &[3, 3]);
    for (name, input, values) in [("data.npz", "x", array(SHAPE[0])), ("tokens.npz", "token", tokens)] {
        let arrays = BTreeMap::from([(input.to_string(), values), ("t".to_string(), array(SHAPE[1]))]);
        write(name, &npz_bytes(&arrays).expect("arrays"));
    }
}

/// Bytes of a table of integers that stays in the graphs.
const TABLE: u64 = 32 << 20;

/// Makes a model that gathers by such a table in `here`.
fn table(here: &Path) {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 8]);
    initializer(&mut m, raw("w", DataType::Float, &[8, 8], [0, 0, 0, 0x3c].repeat(64)));
    let places = (0..TABLE as i64 / 8).flat_map(|at| (at % 8).to_le_bytes()).collect();
    initializer(&mut m, raw("places", DataType::Int64, &[TABLE as i64 / 8], places));
    node(&mut m, "MatMul", "x w", "h", vec![]);
    node(&mut m, "Gather", "h places", "p", vec![int("axis", 1)]);
    initializer(&mut m, ints("one", &[1], &[1]));
    node(&mut m, "ReduceMean", "p one", "y", vec![int("keepdims", 0)]);
    output(&mut m, "y");
    fs::write(here.join("table.onnx"), m.encode_to_vec()).expect("a file can be written");
}

/// Runs the program; it ends with `code` and has held less than `most`.
fn holds(here: &Path, arguments: &str, code: i32, most: u64) {
    let mut command = Command::new(program());
    command.args(arguments.split(' ')).current_dir(here).stdout(Stdio::null()).stderr(Stdio::null());
    let ended = command.spawn().expect("the program starts").wait4().expect("the program ends");
    let peak = ended.rusage.maxrss;
    assert_eq!(ended.status.code(), Some(code), "{arguments}");
    assert!(peak < most, "{arguments} takes {} MiB, not {}", peak >> 20, most >> 20);
}

/// One test, as the memory that this process had counts for those that it starts: what is small
/// comes first.
#[test]
fn weights_are_held_as_often_as_the_optimizer_needs_them() {
    let here = folder("memory");
    table(&here);
    fs::write(here.join("table.shard"), "batch 2\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n").expect("a spec");
    // Graphs name the table by its hash, and share it.
    holds(&here, "compile table.onnx --spec table.shard -o plan", 0, 9 * TABLE);
    holds(&here, "verify plan", 0, 7 * TABLE);
    job(&here);
    holds(&here, "compile model.onnx --spec 1e-3.shard -o plan", 0, 3 * WEIGHT + REST);
    holds(&here, "train plan --data data.npz --steps 3 --export trained.onnx", 0, HELD);
    holds(&here, "train model.onnx --spec 1e-3.shard --data data.npz --steps 3 --export trained.onnx", 0, HELD);
    holds(&here, "train tied.onnx --spec 1e-3.shard --data tokens.npz --steps 3 --export trained.onnx", 0, HELD);
    // The first value that is not finite is looked for.
    holds(&here, "train model.onnx --spec 1e30.shard --data data.npz --steps 6", 1, HELD);
    fs::remove_dir_all(here).expect("the folder can be removed");
}
