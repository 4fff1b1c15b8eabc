//! The module path of each node: what the exporter wrote, or the node's name, or that of a
//! parameter that it reads, or that of the node before it.

use crate::onnx::file::model_file::ModelFile;
use std::collections::{HashMap, HashSet};
use tract_onnx::pb;

/// Bytes of the longest module path: every node inside has it, and what is longer names no module.
pub(in crate::onnx) const LONGEST: usize = 1024;

/// The scope of every node, by position, where parameters are `held` and nodes are computed in
/// `order`.
pub(in crate::onnx) fn scopes(file: &ModelFile, order: &[usize], held: &HashSet<&str>) -> Vec<Option<String>> {
    let nodes = &file.graph().node;
    let mut scopes: Vec<Option<String>> = vec![None; nodes.len()];
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for position in order {
        let node = &nodes[*position];
        let of_parameter = || node.input.iter().find(|name| held.contains(name.as_str())).and_then(|name| parent(name));
        let before = || node.input.iter().find_map(|name| scopes[*makers.get(name.as_str())?].clone());
        scopes[*position] = written(file, *position).or_else(of_parameter).or_else(before);
        makers.extend(node.output.iter().map(|name| (name.as_str(), *position)));
    }
    scopes
}

/// The scope that the file gives the node at `position`, by metadata or by its name.
pub(in crate::onnx) fn written(file: &ModelFile, position: usize) -> Option<String> {
    let node: &pb::NodeProto = &file.graph().node[position];
    file.sources[position].scope.clone().or_else(|| parent(node.name.trim_start_matches('/')))
}

/// A path without its last part: `h.0.attn` of `h.0.attn.weight` or `h.0/attn/MatMul`.
pub(in crate::onnx) fn parent(name: &str) -> Option<String> {
    let path = name.replace('/', ".");
    path.rsplit_once('.').map(|(parent, _)| parent.to_string()).filter(|p| !p.is_empty() && p.len() <= LONGEST)
}
