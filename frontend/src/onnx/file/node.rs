//! Questions about single nodes of a model.

use tract_onnx::pb;

/// Whether the node chooses between branches.
pub(in crate::onnx) fn is_if(node: &pb::NodeProto) -> bool {
    node.domain.is_empty() && node.op_type == "If"
}

/// A node for people: `node "h.0.mlp/MatMul" (MatMul)`.
pub(in crate::onnx) fn node_text(node: &pb::NodeProto) -> String {
    let name = if node.name.is_empty() { node.output.first().map_or("", String::as_str) } else { &node.name };
    format!("node \"{name}\" ({})", node.op_type)
}
