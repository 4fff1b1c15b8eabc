//! The cases of `cases.json`: an op, what goes in, and what ONNX Runtime makes of it.

use super::{float, initializer, input, int, int_list, model, node, output, proto, string, tensor};
use serde_json::Value;
use shardc_ir::dtype::DType;
use shardc_ir::interp::Feed;
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

/// The tensor that a case writes as shape, type and values.
pub fn read(value: &Value) -> Tensor {
    let shape: Vec<u64> = value["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    let dtype = DType::from_name(value["dtype"].as_str().unwrap()).unwrap();
    let values = value["values"].as_array().unwrap();
    if dtype == DType::I64 {
        return Tensor::from_i64(shape, &values.iter().map(|v| v.as_i64().unwrap()).collect::<Vec<_>>());
    }
    Tensor::from_f64(Type::new(dtype, shape), &values.iter().map(number).collect::<Vec<_>>())
}

/// The attribute that a case writes as a value.
pub fn attribute(name: &str, value: &Value) -> pb::AttributeProto {
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
pub fn prepare(case: &Value, fold: bool) -> (pb::ModelProto, Feed) {
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

/// Every case.
pub fn all() -> Vec<Value> {
    serde_json::from_str(include_str!("cases.json")).unwrap()
}
