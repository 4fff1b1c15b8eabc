//! The ONNX element types of a model's values, declared or following from those of inputs: types of
//! the graph do not tell integers of different widths apart.

use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::model_file::initializers;
use std::collections::HashMap;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

/// The element type of each value that is declared or stored.
pub(in crate::onnx) fn kinds(file: &ModelFile) -> HashMap<&str, DataType> {
    let graph = file.graph();
    let declared = graph.input.iter().chain(&graph.output).chain(&graph.value_info).filter_map(|value| {
        let pb::type_proto::Value::TensorType(tensor) = value.r#type.as_ref()?.value.as_ref()?;
        Some((value.name.as_str(), tensor.elem_type))
    });
    let stored = initializers(file).map(|(_, tensor)| (tensor.name.as_str(), tensor.data_type));
    let known = |(name, kind)| Some((name, DataType::try_from(kind).ok().filter(|k| *k != DataType::Undefined)?));
    declared.chain(stored).filter_map(known).collect()
}

/// The element type of output `i` of a node, where ONNX names it or ties it to that of an input.
pub(in crate::onnx) fn result(node: &pb::NodeProto, i: usize, input: impl Fn(usize) -> Option<DataType>) -> Option<DataType> {
    if !matches!(node.domain.as_str(), "" | "ai.onnx") {
        return None;
    }
    let attribute = |name: &str| node.attribute.iter().find(|a| a.name == name);
    let named = |name: &str| DataType::try_from(i32::try_from(attribute(name)?.i).ok()?).ok();
    let tensor = |name: &str| DataType::try_from(attribute(name)?.t.as_ref()?.data_type).ok();
    match (node.op_type.as_str(), i) {
        ("Shape" | "Size" | "ArgMax" | "ArgMin" | "NonZero", _) | ("TopK" | "MaxPool" | "Unique", 1..) => Some(DataType::Int64),
        ("And" | "Or" | "Xor" | "Not" | "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual", _)
        | ("IsNaN" | "IsInf", _)
        | ("Dropout", 1) => Some(DataType::Bool),
        ("Cast", _) => named("to"),
        ("CastLike" | "Where", _) => input(1),
        ("OneHot", _) => input(2),
        ("If", _) => input(1 + i),
        ("Constant", _) if attribute("value_int").or(attribute("value_ints")).is_some() => Some(DataType::Int64),
        ("Constant" | "ConstantOfShape", _) => tensor("value"),
        ("EyeLike" | "Bernoulli", _) => named("dtype").or_else(|| input(0)),
        ("Multinomial", _) => named("dtype").or(Some(DataType::Int32)),
        ("MatMulInteger" | "ConvInteger", _) => Some(DataType::Int32),
        ("QuantizeLinear", _) => input(2).or(Some(DataType::Uint8)),
        ("DequantizeLinear", _) => input(1),
        ("DynamicQuantizeLinear", 0 | 2) => Some(DataType::Uint8),
        ("QLinearMatMul" | "QLinearConv", _) => input(7),
        _ => input(0),
    }
}
