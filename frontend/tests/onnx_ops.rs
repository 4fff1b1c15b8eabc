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
    let values: Vec<f64> = value["values"].as_array().unwrap().iter().map(number).collect();
    Tensor::from_f64(Type::new(dtype, shape), &values)
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

/// The outputs of a case; `fold` makes every input a constant.
fn run(case: &Value, fold: bool) -> Vec<Tensor> {
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
    let options = ImportOptions { freeze: &|_| true, ..ImportOptions::default() };
    let imported = import_model(&model, &options).unwrap_or_else(|errors| panic!("{}: {errors:#?}", case["name"]));
    for (name, weight) in &imported.weights {
        feed.states.insert(name.clone(), weight.load().unwrap());
    }
    let results = interp::outputs(&imported.graph, &feed).unwrap_or_else(|why| panic!("{}: {why}", case["name"]));
    outputs.iter().map(|name| results[name].clone()).collect()
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
