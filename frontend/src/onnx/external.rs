//! The files beside a model that hold the elements of its tensors.

use super::export::is_external;
use super::model_file::ModelFile;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tract_onnx::pb;

/// Every file that the model at `path` names as external data, wherever in the model; none where there is no model to read.
pub fn external_files(path: &Path) -> Vec<PathBuf> {
    let Ok(file) = ModelFile::read(path) else { return vec![] };
    let mut locations = BTreeSet::new();
    in_graph(file.graph(), &mut locations);
    file.model.functions.iter().for_each(|function| in_nodes(&function.node, &mut locations));
    let folder = path.parent().unwrap_or(Path::new(""));
    locations.into_iter().map(|location| folder.join(location)).collect()
}

fn in_graph<'m>(graph: &'m pb::GraphProto, locations: &mut BTreeSet<&'m str>) {
    let sparse = graph.sparse_initializer.iter().flat_map(|sparse| [&sparse.values, &sparse.indices]).flatten();
    graph.initializer.iter().chain(sparse).for_each(|tensor| locations.extend(location(tensor)));
    in_nodes(&graph.node, locations);
}

fn in_nodes<'m>(nodes: &'m [pb::NodeProto], locations: &mut BTreeSet<&'m str>) {
    for attribute in nodes.iter().flat_map(|node| &node.attribute) {
        attribute.t.iter().chain(&attribute.tensors).for_each(|tensor| locations.extend(location(tensor)));
        attribute.g.iter().chain(&attribute.graphs).for_each(|graph| in_graph(graph, locations));
    }
}

fn location(tensor: &pb::TensorProto) -> Option<&str> {
    let entry = || tensor.external_data.iter().find(|entry| entry.key == "location");
    is_external(tensor).then(entry).flatten().map(|entry| entry.value.as_str())
}
