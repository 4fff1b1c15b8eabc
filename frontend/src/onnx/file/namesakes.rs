//! Results of nodes that have the name of an initializer, as PyTorch's exporter writes them for a
//! module with an attribute such as `mean`: the calls that nodes came from tell who means which.

use crate::onnx::file::record::{Call, Record};
use std::collections::{HashMap, HashSet};
use tract_onnx::pb;

/// Gives each such result another name, wherever the record tells its readers from those of the
/// initializer. A result whose readers it does not tell is left, and refused as defined twice.
pub(in crate::onnx) fn rename(graph: &mut pb::GraphProto, record: &Record) {
    let initializers: HashSet<String> = graph.initializer.iter().map(|t| t.name.clone()).collect();
    let outputs: HashSet<&str> = graph.output.iter().map(|o| o.name.as_str()).collect();
    let made = graph.node.iter().enumerate().flat_map(|(at, node)| node.output.iter().map(move |name| (name, at)));
    let shared: HashMap<String, usize> = made
        .filter(|(name, _)| initializers.contains(*name) && !outputs.contains(name.as_str()))
        .map(|(name, at)| (name.clone(), at))
        .collect();
    if shared.is_empty() {
        return;
    }
    let mut taken: HashSet<String> = graph.node.iter().flat_map(|n| &n.output).chain(&initializers).cloned().collect();
    let mut names: Vec<&String> = shared.keys().collect();
    names.sort();
    for name in names {
        let Some(readers) = readers(graph, record, name, shared[name]) else { continue };
        let free = (1..).map(|i| format!("{name}_{i}")).find(|free| !taken.contains(free)).unwrap_or_default();
        for (node, input) in readers {
            graph.node[node].input[input].clone_from(&free);
        }
        graph.node[shared[name]].output.iter_mut().filter(|output| *output == name).for_each(|output| output.clone_from(&free));
        taken.insert(free);
    }
}

/// The inputs of nodes, by node and position, that mean the result `name` of the node at `maker`;
/// none where one of them is not told.
fn readers(graph: &pb::GraphProto, record: &Record, name: &str, maker: usize) -> Option<Vec<(usize, usize)>> {
    let placeholder = record.placeholders.get(name)?;
    let mut found = vec![];
    for (at, node) in graph.node.iter().enumerate() {
        let inputs: Vec<usize> = (0..node.input.len()).filter(|i| node.input[*i] == name).collect();
        if at <= maker || inputs.is_empty() {
            continue;
        }
        let call: &Call = record.calls.get(at)?.as_ref()?;
        let meant: Vec<bool> = call.takes.iter().filter(|t| *t == name || *t == placeholder).map(|t| t == name).collect();
        if meant.iter().all(|is_result| *is_result == meant[0]) && !meant.is_empty() {
            found.extend(inputs.into_iter().filter(|_| meant[0]).map(|input| (at, input)));
        } else if meant.len() == inputs.len() {
            found.extend(inputs.into_iter().zip(meant).filter(|(_, is_result)| *is_result).map(|(input, _)| (at, input)));
        } else {
            return None;
        }
    }
    Some(found)
}
