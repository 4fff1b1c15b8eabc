//! The module path of each node: what the exporter wrote, or the node's name, or that of a parameter that it reads, or that of
//! the node before it.

use super::model_file::ModelFile;
use super::tensor::Weight;
use std::collections::{BTreeMap, HashMap};
use tract_onnx::pb;

/// The scope of every node, by position, where state variables are `weights` and nodes are computed in `order`.
pub(super) fn scopes(file: &ModelFile, order: &[usize], weights: &BTreeMap<String, Weight>) -> Vec<Option<String>> {
    let nodes = &file.graph().node;
    let mut scopes: Vec<Option<String>> = vec![None; nodes.len()];
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for position in order {
        let node = &nodes[*position];
        let of_parameter = || node.input.iter().find(|name| weights.contains_key(*name)).and_then(|name| parent(name));
        let before = || node.input.iter().find_map(|name| scopes[*makers.get(name.as_str())?].clone());
        scopes[*position] = written(file, *position).or_else(of_parameter).or_else(before);
        makers.extend(node.output.iter().map(|name| (name.as_str(), *position)));
    }
    scopes
}

/// The scope that the file gives the node at `position`, by metadata or by its name.
pub(super) fn written(file: &ModelFile, position: usize) -> Option<String> {
    let node: &pb::NodeProto = &file.graph().node[position];
    file.scopes.get(position).cloned().flatten().or_else(|| parent(node.name.trim_start_matches('/')))
}

/// A path without its last part: `h.0.attn` of `h.0.attn.weight` or `h.0/attn/MatMul`.
fn parent(name: &str) -> Option<String> {
    let path = name.replace('/', ".");
    path.rsplit_once('.').map(|(parent, _)| parent.to_string()).filter(|p| !p.is_empty())
}
