//! The cases of `cases.json`: an op, what goes in, and what ONNX Runtime makes of it.

use super::{float, initializer, input, int, int_list, model, node, output, proto, string, tensor, whole};
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

/// The ONNX type of an input: by its `kind`, or what its `dtype` is in ONNX.
fn kind(value: &Value, dtype: DType) -> DataType {
    let named = |name| [DataType::Uint32, DataType::Uint64].into_iter().find(|kind| kind.as_str_name() == name);
    match (value["kind"].as_str(), dtype) {
        (Some(name), _) => named(name).unwrap(),
        (None, DType::I64) => DataType::Int64,
        (None, DType::Bool) => DataType::Bool,
        (None, _) => DataType::Float,
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
        let (name, tensor, known) = (format!("i{i}"), read(value), value["known"] == true);
        let kind = kind(value, tensor.ty.dtype);
        let sizes: Vec<i64> = tensor.ty.shape.iter().map(|n| *n as i64).collect();
        if (fold || known) && tensor.ty.dtype == DType::I64 {
            initializer(&mut model, whole(&name, kind, &sizes, &tensor.to_i64()));
        } else if fold || known {
            initializer(&mut model, proto(&name, &tensor));
        } else {
            input(&mut model, &name, kind, &sizes);
            feed.inputs.insert(name.clone(), tensor);
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
