//! Which nodes of a model are needed, in an order in which each comes after what it reads.

use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::model_file::initializers;
use crate::onnx::file::node::is_if;
use crate::onnx::file::node::node_text;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use std::collections::{HashMap, HashSet};

/// The positions of the nodes that the model's outputs depend on, in the file's order wherever that
/// is an order of computation.
pub(in crate::onnx) fn needed(file: &ModelFile) -> Result<Vec<usize>, Diagnostics> {
    let graph = file.graph();
    if graph.output.is_empty() {
        return Err(Diagnostic::error("the model has no outputs").at(file.place("graph")).into());
    }
    let makers = makers(file)?;
    let condition = |node: usize| file.sources[node].branch.map(|branch| &file.branches[branch].condition);
    let reads = |node: usize| {
        let names = graph.node[node].input.iter().chain(condition(node));
        names.filter_map(|name| makers.get(name.as_str()).copied())
    };

    // Depth first, without recursion: a node is placed when everything that it reads has been.
    let mut order = vec![];
    let mut placed = vec![false; graph.node.len()];
    let mut open = vec![false; graph.node.len()];
    for output in &graph.output {
        let mut stack: Vec<usize> = makers.get(output.name.as_str()).copied().into_iter().collect();
        while let Some(node) = stack.last().copied() {
            if placed[node] {
                stack.pop();
                continue;
            }
            let waits: Vec<usize> = reads(node).filter(|n| !placed[*n]).collect();
            if waits.is_empty() {
                placed[node] = true;
                order.push(node);
                stack.pop();
            } else if open[node] {
                let message = "the node depends on its own result";
                return Err(Diagnostic::error(message).at(file.place(node_text(&graph.node[node]))).into());
            } else {
                open[node] = true;
                stack.extend(waits);
            }
        }
    }
    undefined(file, &order, &makers)?;
    // The file's own order, if it is one of computation.
    let mut sorted = order.clone();
    sorted.sort();
    let in_order = sorted.iter().all(|node| reads(*node).all(|n| n < *node));
    Ok(if in_order { sorted } else { order })
}

/// An error for each name that a node in `order` reads and nothing defines; branches may not be
/// taken.
fn undefined(file: &ModelFile, order: &[usize], makers: &HashMap<&str, usize>) -> Result<(), Diagnostics> {
    let graph = file.graph();
    let mut known: HashSet<&str> = initializers(file).map(|(_, tensor)| tensor.name.as_str()).collect();
    known.extend(graph.input.iter().map(|input| input.name.as_str()));
    let always = order.iter().filter(|node| file.sources[**node].branch.is_none());
    let mut errors = vec![];
    for node in always.map(|node| &graph.node[*node]).filter(|node| !is_if(node)) {
        for name in node.input.iter().filter(|n| !n.is_empty() && !makers.contains_key(n.as_str())) {
            if known.insert(name) {
                let message = format!("`{name}` is read, but nothing defines it");
                errors.push(Diagnostic::error(message).at(file.place(node_text(node))));
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// The node that makes each name; an error for names that are made twice.
fn makers(file: &ModelFile) -> Result<HashMap<&str, usize>, Diagnostics> {
    let graph = file.graph();
    let mut errors = vec![];
    let mut twice = |name: &str, what: String| {
        errors.push(Diagnostic::error(format!("`{name}` is defined twice")).at(file.place(what)));
    };
    let mut defined: HashSet<&str> = HashSet::new();
    for (_, tensor) in initializers(file) {
        if !defined.insert(&tensor.name) {
            twice(&tensor.name, format!("initializer \"{}\"", tensor.name));
        }
    }
    let mut inputs = HashSet::new();
    for input in &graph.input {
        if !inputs.insert(input.name.as_str()) {
            twice(&input.name, format!("input \"{}\"", input.name));
        }
        // An input with an initializer is that initializer, as old versions of the format had it.
        defined.insert(&input.name);
    }
    let mut makers = HashMap::new();
    for (position, node) in graph.node.iter().enumerate() {
        for name in node.output.iter().filter(|n| !n.is_empty()) {
            if defined.insert(name) {
                makers.insert(name.as_str(), position);
            } else {
                twice(name, node_text(node));
            }
        }
    }
    if errors.is_empty() { Ok(makers) } else { Err(errors) }
}
