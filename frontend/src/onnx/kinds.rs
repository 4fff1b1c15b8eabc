//! The ONNX element types of a model's values, as far as it declares them: types of the graph do not tell integers of
//! different widths apart.

use super::initializers;
use super::model_file::ModelFile;
use std::collections::HashMap;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

/// The element type of each value that is declared, stored or cast.
pub(super) fn kinds(file: &ModelFile) -> HashMap<&str, DataType> {
    let graph = file.graph();
    let declared = graph.input.iter().chain(&graph.output).chain(&graph.value_info).filter_map(|value| {
        let pb::type_proto::Value::TensorType(tensor) = value.r#type.as_ref()?.value.as_ref()?;
        Some((value.name.as_str(), tensor.elem_type))
    });
    let stored = initializers(file).map(|(_, tensor)| (tensor.name.as_str(), tensor.data_type));
    let made = graph.node.iter().filter_map(|node| {
        let attribute = |name: &str| node.attribute.iter().find(|a| a.name == name);
        let kind = match node.op_type.as_str() {
            "Cast" => i32::try_from(attribute("to")?.i).ok()?,
            "Constant" => attribute("value")?.t.as_ref()?.data_type,
            _ => return None,
        };
        Some((node.output.first()?.as_str(), kind))
    });
    let known = |(name, kind)| Some((name, DataType::try_from(kind).ok().filter(|k| *k != DataType::Undefined)?));
    declared.chain(stored).chain(made).filter_map(known).collect()
}
