//! Each ONNX op against what ONNX Runtime computes, once on inputs of the model and once folded.

use serde_json::Value;
use shardc_frontend::onnx::ImportOptions;
use shardc_ir::interp;
use shardc_ir::types::Tensor;
use shardc_testkit::onnx::cases::{self, prepare, read};
use shardc_testkit::onnx::*;
use tract_onnx::pb::tensor_proto::DataType;

/// The outputs of a case.
fn run(case: &Value, fold: bool) -> Vec<Tensor> {
    let (model, mut feed) = prepare(case, fold);
    let options = ImportOptions { freeze: &|_| true, ..ImportOptions::default() };
    let imported = import_model(&model, &options).unwrap_or_else(|errors| panic!("{}: {errors:#?}", case["name"]));
    for (name, weight) in &imported.weights {
        feed.states.insert(name.clone(), weight.load().unwrap());
    }
    let results = interp::outputs(&imported.graph, &feed).unwrap_or_else(|why| panic!("{}: {why}", case["name"]));
    model.graph.unwrap().output.iter().map(|output| results[&output.name].clone()).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() <= 2e-6 + 2e-6 * b.abs()
}

#[test]
fn ops_agree_with_onnx_runtime() {
    let cases = cases::all();
    assert!(cases.len() > 150);
    for case in &cases {
        for fold in [false, true] {
            let expected: Vec<Tensor> = case["outputs"].as_array().unwrap().iter().map(read).collect();
            for (i, (ours, theirs)) in run(case, fold).iter().zip(&expected).enumerate() {
                assert_eq!(ours.ty, theirs.ty, "{} output {i}, folded: {fold}", case["name"]);
                let (a, b) = (ours.to_f64(), theirs.to_f64());
                let same = a.iter().zip(&b).all(|(a, b)| close(*a, *b));
                assert!(same, "{} output {i}, folded: {fold}: {a:?} is not {b:?}", case["name"]);
            }
        }
    }
}

/// Numbers that no attribute, shape or index should have.
const ABSURD: [i64; 6] = [i64::MIN, -7, 0, 1 << 17, 1 << 40, i64::MAX];

/// The case with each attribute of integers, and each input of integers, all of one absurd number.
fn absurd(case: &Value, number: i64) -> Vec<Value> {
    let mut cases = vec![];
    for (name, value) in case["attributes"].as_object().unwrap() {
        let mut changed = case.clone();
        changed["attributes"][name] = match value {
            Value::Array(list) => vec![number; list.len()].into(),
            Value::Number(n) if n.is_i64() => number.into(),
            _ => continue,
        };
        cases.push(changed);
    }
    for (i, input) in case["inputs"].as_array().unwrap().iter().enumerate().filter(|(_, input)| input["dtype"] == "i64") {
        let mut changed = case.clone();
        changed["inputs"][i]["values"] = vec![number; input["values"].as_array().unwrap().len()].into();
        cases.push(changed);
    }
    cases
}

#[test]
fn absurd_numbers_end_in_a_diagnostic_or_a_graph() {
    let (mut taken, mut refused) = (0, 0);
    for case in &cases::all() {
        for changed in ABSURD.iter().flat_map(|number| absurd(case, *number)) {
            for fold in [false, true] {
                let options = ImportOptions { freeze: &|_| true, ..ImportOptions::default() };
                match import_model(&prepare(&changed, fold).0, &options) {
                    Ok(_) => taken += 1,
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(refused > 1000, "{refused} refused, {taken} taken");
}

/// A batch that was merged with what is picked from it stays a dimension of its own, which may be
/// split.
#[test]
fn indices_alike_in_each_block_index_one_block() {
    let ops = |rows: &[i64]| {
        let mut m = model(20);
        input(&mut m, "x", DataType::Float, &[8, 3]);
        initializer(&mut m, ints("rows", &[2, rows.len() as i64 / 2], rows));
        node(&mut m, "Gather", "x rows", "y", vec![]);
        output(&mut m, "y");
        let graph = import_model(&m, &ImportOptions::default()).unwrap().graph;
        let made = graph.nodes().filter(|(_, n)| !n.operands.is_empty()).map(|(_, n)| n.op.clone()).collect::<Vec<_>>();
        made.iter()
            .map(|op| format!("{} {}", op.name(), op.attributes().get("axis").cloned().unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    assert_eq!(ops(&[1, 0, 5, 4]), ["reshape null", "gather 1"]);
    assert!(ops(&(0..8).collect::<Vec<_>>()).iter().all(|op| op.starts_with("reshape")));
    assert_eq!(ops(&[1, 4, 5, 0]), ["gather 0"]);
    assert_eq!(ops(&[1, 0, 5, 6]), ["gather 0"]);
}
