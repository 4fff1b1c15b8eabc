//! Chapter 1 of the verifier: names, definitions and types.

use super::Found;
use crate::graph::{Graph, Node, NodeId, Part, Phase};
use crate::ops::Op;
use crate::reason;
use crate::types::Type;
use std::collections::BTreeSet;

/// Checks the whole graph.
pub(super) fn check(graph: &Graph, found: &mut Found) {
    let mut names = BTreeSet::new();
    for (_, value) in graph.values() {
        if !names.insert(&value.name) {
            found.node(value.node, None, format!("`%{}` is the name of two values", value.name));
        }
    }
    for (id, node) in graph.nodes() {
        check_definitions(graph, id, node, found);
    }
    if found.violations.is_empty() {
        for (id, node) in graph.nodes() {
            check_types(graph, id, node, found);
        }
        check_tables(graph, found);
    }
}

fn check_definitions(graph: &Graph, id: NodeId, node: &Node, found: &mut Found) {
    for operand in &node.operands {
        if operand.index() >= graph.value_count() || graph.value(*operand).node >= id {
            found.node(id, None, format!("operand {} is not defined before this node", operand.0));
        }
    }
    for (i, result) in node.results.iter().enumerate() {
        let value = graph.value(*result);
        if value.node != id || value.result != i {
            found.node(id, Some(*result), "the value names another node as the one that defines it");
        }
    }
}

fn check_types(graph: &Graph, id: NodeId, node: &Node, found: &mut Found) {
    if graph.phase < Phase::Annotated && node.op.is_comm() {
        found.node(id, None, format!("communication has no place in phase `{}`", graph.phase));
    }
    let derived = match &node.op {
        Op::State(read) => match graph.states.get(read.state.index()) {
            Some(state) => Ok(vec![state.ty.clone()]),
            None => Err(reason!("there is no state {}", read.state.0)),
        },
        op => op.rules().result(&graph.operand_types(node)),
    };
    match derived {
        Err(why) => found.node(id, None, why.to_string()),
        Ok(types) if types.len() != node.results.len() => {
            found.node(id, None, format!("the op has {} results, not {}", types.len(), node.results.len()));
        }
        Ok(types) => {
            for (result, ty) in node.results.iter().zip(types) {
                if *graph.ty(*result) != ty {
                    found.node(id, Some(*result), format!("is {}, but the op gives {ty}", graph.ty(*result)));
                }
            }
        }
    }
}

fn check_tables(graph: &Graph, found: &mut Found) {
    let mut names = BTreeSet::new();
    for (i, state) in graph.states.iter().enumerate() {
        if !names.insert(&state.name) {
            found.state(i, "is the name of two states");
        }
        if state.ty.dtype.is_half() && state.update.is_some() {
            found.state(i, format!("is {}, and what is updated has 32 bits or more", state.ty));
        }
        let is_kept = |ty: &Type| ty.shape == state.ty.shape && ty.dtype.is_half();
        match state.gradient.map(|v| graph.ty(v)) {
            Some(ty) if *ty != state.ty && !is_kept(ty) => found.state(i, format!("is {}, its gradient {ty}", state.ty)),
            _ => {}
        }
        match state.update.map(|v| graph.ty(v)) {
            Some(ty) if *ty != state.ty => found.state(i, format!("is {}, its update {ty}", state.ty)),
            _ => {}
        }
    }
    for (id, node) in graph.nodes().filter(|(_, node)| node.origin.part == Part::Update) {
        if node.results.iter().any(|v| graph.ty(*v).dtype.is_half()) && !node.op.is_comm() {
            found.node(id, None, "rounds what masters are updated by");
        }
    }
    let mut names = BTreeSet::new();
    for (i, output) in graph.outputs.iter().enumerate() {
        if !names.insert(&output.name) {
            found.output(i, "is the name of two outputs");
        }
    }
}
