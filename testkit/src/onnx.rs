//! Small ONNX models made for tests.

pub mod cases;

use prost::Message;
use shardc_frontend::onnx::{Export, ImportOptions, Imported, import_bytes};
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::dtype::DType;
use shardc_ir::types::Tensor;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tract_onnx::pb;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};

/// A model under construction; fields may be spoilt before it is encoded.
pub fn model(opset: i64) -> pb::ModelProto {
    pb::ModelProto {
        ir_version: 9,
        opset_import: vec![pb::OperatorSetIdProto { domain: String::new(), version: opset }],
        graph: Some(pb::GraphProto { name: "test".into(), ..Default::default() }),
        ..Default::default()
    }
}

/// The graph of a model.
pub fn graph(model: &mut pb::ModelProto) -> &mut pb::GraphProto {
    model.graph.as_mut().unwrap()
}

/// Adds a node; inputs and outputs are separated by spaces, `-` leaves one out.
pub fn node(model: &mut pb::ModelProto, op: &str, inputs: &str, outputs: &str, attributes: Vec<pb::AttributeProto>) {
    let names = |list: &str| list.split_whitespace().map(|n| n.replace('-', "")).collect();
    let name = outputs.split_whitespace().next().unwrap_or("").to_string();
    graph(model).node.push(pb::NodeProto {
        op_type: op.into(),
        input: names(inputs),
        output: names(outputs),
        name,
        attribute: attributes,
        ..Default::default()
    });
}

/// Dimensions of fixed sizes.
pub fn dims(sizes: &[i64]) -> Vec<Dimension> {
    sizes.iter().map(|n| Dimension { value: Some(dimension::Value::DimValue(*n)), ..Default::default() }).collect()
}

/// Adds an input; a negative size is the symbol `s1`, `s2`, ….
pub fn input(model: &mut pb::ModelProto, name: &str, kind: DataType, sizes: &[i64]) {
    let mut dim = dims(sizes);
    for (d, n) in dim.iter_mut().zip(sizes).filter(|(_, n)| **n < 0) {
        d.value = Some(dimension::Value::DimParam(format!("s{}", -n)));
    }
    let tensor = pb::type_proto::Tensor { elem_type: kind as i32, shape: Some(pb::TensorShapeProto { dim }) };
    let ty = pb::TypeProto { value: Some(pb::type_proto::Value::TensorType(tensor)), ..Default::default() };
    graph(model).input.push(pb::ValueInfoProto { name: name.into(), r#type: Some(ty), ..Default::default() });
}

/// Adds an output, of any type.
pub fn output(model: &mut pb::ModelProto, name: &str) {
    graph(model).output.push(pb::ValueInfoProto { name: name.into(), ..Default::default() });
}

/// A tensor with its elements in `raw_data`.
pub fn raw(name: &str, kind: DataType, sizes: &[i64], bytes: Vec<u8>) -> pb::TensorProto {
    pb::TensorProto { name: name.into(), data_type: kind as i32, dims: sizes.to_vec(), raw_data: bytes, ..Default::default() }
}

/// A tensor of f32.
pub fn floats(name: &str, sizes: &[i64], values: &[f32]) -> pb::TensorProto {
    raw(name, DataType::Float, sizes, values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

/// Numbers without a pattern, below 1.
pub fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

/// A tensor of such numbers.
pub fn weight(name: &str, sizes: &[i64], seed: u64) -> pb::TensorProto {
    floats(name, sizes, &noise(sizes.iter().product::<i64>() as usize, seed))
}

/// A tensor of i64.
pub fn ints(name: &str, sizes: &[i64], values: &[i64]) -> pb::TensorProto {
    raw(name, DataType::Int64, sizes, values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

/// A tensor of integers, each as wide as their type.
pub fn whole(name: &str, kind: DataType, sizes: &[i64], values: &[i64]) -> pb::TensorProto {
    let width = match kind {
        DataType::Int8 | DataType::Uint8 => 1,
        DataType::Int16 | DataType::Uint16 => 2,
        DataType::Int32 | DataType::Uint32 => 4,
        _ => 8,
    };
    raw(name, kind, sizes, values.iter().flat_map(|v| v.to_le_bytes().into_iter().take(width)).collect())
}

/// Adds an initializer.
pub fn initializer(model: &mut pb::ModelProto, tensor: pb::TensorProto) {
    graph(model).initializer.push(tensor);
}

/// Moves the raw values of the initializers to a file of that name, and gives its bytes.
pub fn keep_beside(model: &mut pb::ModelProto, file: &str) -> Vec<u8> {
    let mut data = vec![];
    for tensor in &mut graph(model).initializer {
        let entries = [("location", file.to_string()), ("offset", data.len().to_string())];
        data.append(&mut tensor.raw_data);
        tensor.data_location = Some(pb::tensor_proto::DataLocation::External.into());
        tensor.external_data = entries.map(|(key, value)| pb::StringStringEntryProto { key: key.into(), value }).to_vec();
    }
    data
}

/// The tensor as the model stores it.
pub fn proto(name: &str, tensor: &Tensor) -> pb::TensorProto {
    let kind = match tensor.ty.dtype {
        DType::F64 => DataType::Double,
        DType::F32 => DataType::Float,
        DType::BF16 => DataType::Bfloat16,
        DType::F16 => DataType::Float16,
        DType::I64 => DataType::Int64,
        DType::Bool => DataType::Bool,
    };
    let sizes: Vec<i64> = tensor.ty.shape.iter().map(|n| *n as i64).collect();
    raw(name, kind, &sizes, tensor.bytes.to_vec())
}

/// An attribute that is a whole number.
pub fn int(name: &str, i: i64) -> pb::AttributeProto {
    pb::AttributeProto { name: name.into(), r#type: AttributeType::Int as i32, i, ..Default::default() }
}

/// An attribute that is a number.
pub fn float(name: &str, f: f32) -> pb::AttributeProto {
    pb::AttributeProto { name: name.into(), r#type: AttributeType::Float as i32, f, ..Default::default() }
}

/// An attribute of whole numbers.
pub fn int_list(name: &str, ints: Vec<i64>) -> pb::AttributeProto {
    pb::AttributeProto { name: name.into(), r#type: AttributeType::Ints as i32, ints, ..Default::default() }
}

/// An attribute that is text.
pub fn string(name: &str, s: &str) -> pb::AttributeProto {
    pb::AttributeProto { name: name.into(), r#type: AttributeType::String as i32, s: s.into(), ..Default::default() }
}

/// An attribute that is a tensor.
pub fn tensor(name: &str, t: pb::TensorProto) -> pb::AttributeProto {
    pb::AttributeProto { name: name.into(), r#type: AttributeType::Tensor as i32, t: Some(t), ..Default::default() }
}

/// Imports a model as if it were the file `test.onnx`.
///
/// # Errors
/// As [`import_bytes`].
pub fn import_model(model: &pb::ModelProto, options: &ImportOptions<'_>) -> Result<Imported, Diagnostics> {
    import_bytes(Path::new("test.onnx"), model.encode_to_vec(), options)
}

/// A model written with new elements: its bytes, and those of its file of external data.
#[derive(Debug)]
pub struct Written {
    /// The model.
    pub model: Vec<u8>,
    /// Its external data.
    pub data: Vec<u8>,
}

/// The model in `bytes`, the contents of the file at `path`, with the tensors `new`, its external
/// data in `data_file`.
pub fn written(
    path: &Path,
    bytes: impl Into<Arc<Vec<u8>>>,
    new: &BTreeMap<String, Tensor>,
    data_file: &str,
) -> Result<Written, Diagnostics> {
    let types = new.iter().map(|(name, tensor)| (name.clone(), tensor.ty.clone())).collect();
    let export = Export::new(path, bytes, &types)?;
    let mut elements = |name: &str, each: &mut dyn FnMut(Tensor) -> Result<(), Diagnostics>| each(new[name].clone());
    let (mut model, mut data) = (vec![], vec![]);
    export.write_data(&mut elements, &mut |bytes| {
        data.extend_from_slice(bytes);
        Ok(())
    })?;
    export.write_model(data_file, &mut elements, &mut |bytes| {
        model.extend_from_slice(bytes);
        Ok(())
    })?;
    assert_eq!(export.has_data(), !data.is_empty());
    Ok(Written { model, data })
}

/// The notes of an exporter beside a model: a key and a text for each note.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    /// Of the graph.
    pub graph: Vec<(String, String)>,
    /// Of nodes, by position.
    pub nodes: Vec<(usize, String, String)>,
    /// Of values, by name.
    pub values: Vec<(String, String, String)>,
}

/// The model's bytes with `notes`, whose fields tract's protobuf lacks. A value that the graph does
/// not declare is declared.
pub fn noted(model: &pb::ModelProto, notes: &Notes) -> Vec<u8> {
    let mut model = model.clone();
    let mut graph = model.graph.take().unwrap();
    let declared: Vec<String> =
        graph.input.iter().chain(&graph.output).chain(&graph.value_info).map(|v| v.name.clone()).collect();
    for (name, _, _) in notes.values.iter().filter(|(name, _, _)| !declared.contains(name)) {
        if !graph.value_info.iter().any(|v| v.name == *name) {
            graph.value_info.push(pb::ValueInfoProto { name: name.clone(), ..Default::default() });
        }
    }
    let values = |values: Vec<pb::ValueInfoProto>| -> Vec<Vec<u8>> {
        let noted = |value: &pb::ValueInfoProto| {
            let of_it = notes.values.iter().filter(|(name, _, _)| *name == value.name);
            [value.encode_to_vec(), of_it.flat_map(|(_, key, text)| note(4, key, text)).collect()].concat()
        };
        values.iter().map(noted).collect()
    };
    let of_node = |at: usize| notes.nodes.iter().filter(move |(of, _, _)| *of == at);
    let nodes = std::mem::take(&mut graph.node).into_iter().enumerate().map(|(at, node)| {
        let notes: Vec<u8> = of_node(at).flat_map(|(_, key, text)| note(9, key, text)).collect();
        [node.encode_to_vec(), notes].concat()
    });
    let mut body: Vec<u8> = nodes.flat_map(|node| field(1, &node)).collect();
    for (number, found) in [
        (11, values(std::mem::take(&mut graph.input))),
        (12, values(std::mem::take(&mut graph.output))),
        (13, values(std::mem::take(&mut graph.value_info))),
    ] {
        body.extend(found.iter().flat_map(|value| field(number, value)));
    }
    body.extend(graph.encode_to_vec());
    body.extend(notes.graph.iter().flat_map(|(key, text)| note(16, key, text)));
    [model.encode_to_vec(), field(7, &body)].concat()
}

/// One entry of metadata as the field `number`.
fn note(number: u32, key: &str, text: &str) -> Vec<u8> {
    field(number, &[field(1, key.as_bytes()), field(2, text.as_bytes())].concat())
}

fn field(number: u32, contents: &[u8]) -> Vec<u8> {
    let mut bytes = vec![];
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut bytes);
    prost::encoding::encode_varint(contents.len() as u64, &mut bytes);
    bytes.extend(contents);
    bytes
}
