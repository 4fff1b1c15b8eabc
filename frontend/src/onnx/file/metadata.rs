//! The metadata of a graph, of its nodes and of its values, which exporters write in fields that
//! tract's protobuf lacks.

use crate::onnx::file::record::{Exported, Record};
use prost::Message;

/// The metadata of a model.
pub(in crate::onnx) struct Metadata {
    /// The module path of each node that has one.
    pub scopes: Vec<Option<String>>,
    /// The exporter's record of the module's parameters.
    pub record: Option<Record>,
}

impl Metadata {
    /// Of the model in `skeleton`, its protobuf.
    pub fn of(skeleton: &[u8]) -> Result<Metadata, prost::DecodeError> {
        let graph = Model::decode(skeleton)?.graph.unwrap_or_default();
        let scope = |node: &Node| module_path(entry(&node.metadata, "pkg.torch.onnx.name_scopes")?);
        let values = || graph.input.iter().chain(&graph.output).chain(&graph.value);
        let exported = Exported {
            signature: entry(&graph.metadata, "pkg.torch.export.ExportedProgram.graph_signature"),
            kinds: values()
                .filter_map(|v| Some((v.name.as_str(), entry(&v.metadata, "pkg.torch.export.graph_signature.InputSpec.kind")?)))
                .collect(),
            folded: values()
                .filter_map(|v| Some((v.name.as_str(), entry(&v.metadata, "pkg.onnxscript.optimizer.folded_from")?)))
                .collect(),
            calls: graph.node.iter().map(|node| entry(&node.metadata, "pkg.torch.onnx.fx_node")).collect(),
        };
        Ok(Metadata { scopes: graph.node.iter().map(scope).collect(), record: Record::of(&exported) })
    }
}

fn entry<'m>(metadata: &'m [Entry], key: &str) -> Option<&'m str> {
    metadata.iter().find(|e| e.key == key).map(|e| e.value.as_str())
}

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
}

#[derive(Clone, PartialEq, Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    node: Vec<Node>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<Value>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<Value>,
    #[prost(message, repeated, tag = "13")]
    value: Vec<Value>,
    #[prost(message, repeated, tag = "16")]
    metadata: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(message, repeated, tag = "9")]
    metadata: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "4")]
    metadata: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// The innermost module of a Python list such as `['', 'model', 'model.h.0', 'add']`, whose last
/// entry is the node itself.
fn module_path(list: &str) -> Option<String> {
    let names: Vec<&str> = list.trim_matches(['[', ']']).split(',').map(|s| s.trim().trim_matches(['\'', '"'])).collect();
    let module = names.len().checked_sub(2).map(|i| names[i])?;
    (!module.is_empty()).then(|| module.to_string())
}
