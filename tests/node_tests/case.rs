//! A node test: its model, and the tensors that lie beside it.

use prost::Message;
use std::fs;
use std::path::Path;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

/// A node test.
pub struct Case {
    /// Its folder.
    pub name: String,
    /// The model.
    pub model: pb::ModelProto,
    /// The op that it tests.
    pub op: String,
    /// Sets of inputs and the outputs that belong to them.
    pub data: Vec<DataSet>,
}

/// Inputs and outputs, in the order of the model's.
pub struct DataSet {
    /// The inputs, under the names of the model's.
    pub inputs: Vec<pb::TensorProto>,
    /// The outputs that are expected.
    pub outputs: Vec<pb::TensorProto>,
}

/// Cases that drop what evaluation keeps.
const DROPOUT_OF_TRAINING: [&str; 4] = [
    "test_training_dropout",
    "test_training_dropout_default",
    "test_training_dropout_default_mask",
    "test_training_dropout_mask",
];

/// Why a case cannot be evaluated.
pub struct Unread(pub String);

impl Case {
    /// The case in `folder`.
    pub fn read(folder: &Path) -> Result<Case, Unread> {
        let bytes = fs::read(folder.join("model.onnx")).unwrap();
        let model = pb::ModelProto::decode(&bytes[..]).map_err(|_| Unread("the model is more than tensors".to_string()))?;
        let graph = model.graph.as_ref().unwrap();
        // A function's body is tested under the name of its op.
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        if DROPOUT_OF_TRAINING.contains(&name.as_str()) {
            return Err(Unread("evaluation has no dropout".to_string()));
        }
        let of = name.split("_expanded").next().unwrap_or(&name);
        let op = if of == name { main_op(graph) } else { read_op(&folder.with_file_name(of)).unwrap_or_else(|| main_op(graph)) };
        let mut data = vec![];
        for set in 0.. {
            let folder = folder.join(format!("test_data_set_{set}"));
            if !folder.is_dir() {
                break;
            }
            data.push(DataSet {
                inputs: read_all(&folder, "input", &graph.input)?,
                outputs: read_all(&folder, "output", &graph.output)?,
            });
        }
        Ok(Case { name, model, op, data })
    }
}

fn read_op(folder: &Path) -> Option<String> {
    let model = pb::ModelProto::decode(&fs::read(folder.join("model.onnx")).ok()?[..]).ok()?;
    Some(main_op(model.graph.as_ref()?))
}

/// The op of the last node, which the others prepare.
fn main_op(graph: &pb::GraphProto) -> String {
    graph.node.last().map(|node| node.op_type.clone()).unwrap_or_default()
}

fn read_all(folder: &Path, prefix: &str, values: &[pb::ValueInfoProto]) -> Result<Vec<pb::TensorProto>, Unread> {
    let tensor = |(i, value): (usize, &pb::ValueInfoProto)| {
        let Some(pb::type_proto::Value::TensorType(ty)) = value.r#type.as_ref().and_then(|t| t.value.as_ref()) else {
            return Err(Unread("a sequence or an optional value is an input or output of the model".to_string()));
        };
        let bytes = fs::read(folder.join(format!("{prefix}_{i}.pb"))).unwrap();
        let mut tensor = pb::TensorProto::decode(&bytes[..]).map_err(|_| Unread("a file is no tensor".to_string()))?;
        tensor.name = value.name.clone();
        // Files of bf16 say u16.
        if ty.elem_type == DataType::Bfloat16 as i32 {
            tensor.data_type = ty.elem_type;
        }
        Ok(tensor)
    };
    values.iter().enumerate().map(tensor).collect()
}

/// Whether a tensor holds floats.
pub fn is_float(tensor: &pb::TensorProto) -> bool {
    let floats = [DataType::Float, DataType::Double, DataType::Float16, DataType::Bfloat16];
    floats.iter().any(|kind| tensor.data_type == *kind as i32)
}
