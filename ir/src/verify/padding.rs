//! Chapter 3 of the verifier, of what is flat: the numbers that fill up a line are zero wherever
//! they are summed up, and at the end of a step where they were at its beginning.

use super::Found;
use crate::dtype::DType;
use crate::graph::{Graph, Node, ValueId};
use crate::lower::{Extent, LowerContext, Lowered};
use crate::ops::Op;
use crate::scalar::padding::{Filling, padding};

/// Checks every sum of squares and every update.
pub(super) fn check(graph: &Graph, found: &mut Found) {
    let is_padded = |v: ValueId| {
        let sharding = graph.sharding(v);
        !sharding.flat.is_empty() && sharding.is_padded(&graph.ty(v).shape, &graph.mesh)
    };
    if !graph.values().any(|(id, _)| is_padded(id)) {
        return;
    }
    // Of each flat value the numbers that fill it up, and of each single number itself.
    let mut known: Vec<Option<f64>> = vec![None; graph.value_count()];
    for (id, node) in graph.nodes() {
        for (value, number) in node.results.iter().zip(filling(graph, node, &known)) {
            known[value.index()] = number;
        }
        if let (Op::SquareSum(_), [x]) = (&node.op, &node.operands[..])
            && is_padded(*x)
            && known[x.index()] != Some(0.0)
        {
            found.node(id, Some(*x), "is filled up with other numbers than zeros, which are summed up here");
        }
    }
    for (i, state) in graph.states.iter().enumerate() {
        if state.update.is_some_and(|update| is_padded(update) && known[update.index()] != Some(0.0)) {
            found.state(i, "its update makes other numbers of the zeros that fill it up");
        }
    }
}

fn filling(graph: &Graph, node: &Node, known: &[Option<f64>]) -> Vec<Option<f64>> {
    let is_flat = |v: &ValueId| !graph.sharding(*v).flat.is_empty();
    match &node.op {
        Op::Constant(constant) => vec![constant.value.splat()],
        Op::State(_) => vec![is_flat(&node.results[0]).then_some(0.0)],
        // A line is filled up with zeros, and the sum of zeros is zero.
        op if op.is_comm() => {
            let from = node.operands[0];
            let is_zero = is_flat(&node.results[0]) && (!is_flat(&from) || known[from.index()] == Some(0.0));
            vec![is_zero.then_some(0.0)]
        }
        _ if node.results.iter().any(is_flat) => {
            let extent = |v: &ValueId| Extent::new(graph.ty(*v), graph.sharding(*v), &graph.mesh).line();
            let (operands, results): (Vec<Extent>, Vec<Extent>) =
                (node.operands.iter().map(extent).collect(), node.results.iter().map(extent).collect());
            let cx = LowerContext { mesh: &graph.mesh, operands: &operands, results: &results };
            let input = |v: &ValueId| Filling { value: known[v.index()], alike: !is_flat(v) };
            let inputs: Vec<Filling> = node.operands.iter().map(input).collect();
            match node.op.rules().lower(&cx) {
                Lowered::Map(map) => padding(&map.program, map.compute.unwrap_or(DType::F32), &inputs),
                _ => vec![None; node.results.len()],
            }
        }
        _ => vec![None; node.results.len()],
    }
}
