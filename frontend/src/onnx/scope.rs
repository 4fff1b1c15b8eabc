//! The module path of each node: what the exporter wrote, or the node's name, or that of a parameter that it reads.

use super::model_file::ModelFile;
use super::tensor::Weight;
use std::collections::BTreeMap;
use tract_onnx::pb;

/// Where scopes come from.
pub(super) struct Scopes<'a> {
    file: &'a ModelFile,
    weights: &'a BTreeMap<String, Weight>,
}

impl<'a> Scopes<'a> {
    /// The scopes of a model whose state variables are `weights`.
    pub fn of(file: &'a ModelFile, weights: &'a BTreeMap<String, Weight>) -> Self {
        Scopes { file, weights }
    }

    /// The scope of the node at `position`.
    pub fn node(&self, position: usize) -> Option<String> {
        let node = &self.file.graph().node[position];
        written(self.file, position).or_else(|| {
            let weight = node.input.iter().find(|name| self.weights.contains_key(*name))?;
            parent(weight)
        })
    }
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
