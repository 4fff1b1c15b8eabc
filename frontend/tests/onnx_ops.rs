//! Each ONNX op against what ONNX Runtime computes, once on inputs of the model and once folded.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod onnx_support;

use onnx_support::*;
use serde_json::Value;
use shardc_frontend::onnx::ImportOptions;
use shardc_ir::dtype::DType;
use shardc_ir::interp::{self, Feed};
use shardc_ir::types::{Tensor, Type};
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

fn number(value: &Value) -> f64 {
    match value {
        Value::Null => f64::NAN,
        Value::String(s) if s == "inf" => f64::INFINITY,
        Value::String(_) => f64::NEG_INFINITY,
        other => other.as_f64().unwrap(),
    }
}

fn read(value: &Value) -> Tensor {
    let shape: Vec<u64> = value["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    let dtype = DType::from_name(value["dtype"].as_str().unwrap()).unwrap();
    let values = value["values"].as_array().unwrap();
    if dtype == DType::I64 {
        return Tensor::from_i64(shape, &values.iter().map(|v| v.as_i64().unwrap()).collect::<Vec<_>>());
    }
    Tensor::from_f64(Type::new(dtype, shape), &values.iter().map(number).collect::<Vec<_>>())
}

fn attribute(name: &str, value: &Value) -> pb::AttributeProto {
    match value {
        Value::Number(n) if n.is_i64() => int(name, n.as_i64().unwrap()),
        Value::Number(n) => float(name, n.as_f64().unwrap() as f32),
        Value::Array(list) => int_list(name, list.iter().map(|n| n.as_i64().unwrap()).collect()),
        Value::Object(map) => tensor(name, proto("", &read(&map["tensor"]))),
        other => string(name, other.as_str().unwrap()),
    }
}

fn kind(dtype: DType) -> DataType {
    match dtype {
        DType::I64 => DataType::Int64,
        DType::Bool => DataType::Bool,
        _ => DataType::Float,
    }
}

/// The model of a case and what goes in; `fold` makes every input a constant.
fn prepare(case: &Value, fold: bool) -> (pb::ModelProto, Feed) {
    let mut model = model(case["opset"].as_i64().unwrap());
    let mut feed = Feed::default();
    let mut names = vec![];
    for (i, value) in case["inputs"].as_array().unwrap().iter().enumerate() {
        if value.is_null() {
            names.push("-".to_string());
            continue;
        }
        let (name, value, known) = (format!("i{i}"), read(value), value["known"] == true);
        if fold || known {
            initializer(&mut model, proto(&name, &value));
        } else {
            let sizes: Vec<i64> = value.ty.shape.iter().map(|n| *n as i64).collect();
            input(&mut model, &name, kind(value.ty.dtype), &sizes);
            feed.inputs.insert(name.clone(), value);
        }
        names.push(name);
    }
    let outputs: Vec<String> = (0..case["outputs"].as_array().unwrap().len()).map(|i| format!("o{i}")).collect();
    let attributes = case["attributes"].as_object().unwrap().iter().map(|(name, v)| attribute(name, v)).collect();
    node(&mut model, case["op"].as_str().unwrap(), &names.join(" "), &outputs.join(" "), attributes);
    outputs.iter().for_each(|name| output(&mut model, name));
    (model, feed)
}

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
    let cases: Value = serde_json::from_str(include_str!("onnx_cases.json")).unwrap();
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 150);
    for case in cases {
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
    let cases: Value = serde_json::from_str(include_str!("onnx_cases.json")).unwrap();
    let (mut taken, mut refused) = (0, 0);
    for case in cases.as_array().unwrap() {
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

/// A batch that was merged with what is picked from it stays a dimension of its own, which may be split.
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
