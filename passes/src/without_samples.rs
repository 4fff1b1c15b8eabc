//! The outputs that are of no sample, or of all samples of a batch together.

use crate::follow_batch::{BatchDigit, End, Follow};
use shardc_ir::graph::{Graph, Node, NodeId, ValueId};
use shardc_ir::letters::Letter;
use shardc_ir::ops::{Op, letters_of};
use std::collections::BTreeSet;

/// The outputs whose dimension 0 is known not to be the samples, whatever its size: they depend on
/// no sample, or on all of a batch together, or have the samples in another dimension.
pub fn outputs_without_samples(graph: &Graph) -> BTreeSet<String> {
    let inputs = graph.nodes().filter(|(_, node)| matches!(node.op, Op::Input(_)));
    let sizes: BTreeSet<u64> = inputs.filter_map(|(_, node)| graph.ty(node.results[0]).shape.first().copied()).collect();
    let batch = match sizes.len() {
        0 => 1,
        1 => sizes.into_iter().sum(),
        _ => return BTreeSet::new(),
    };
    let mut follow = Follow::new(graph, batch);
    let mut is_lost = vec![false; graph.value_count()];
    for (id, node) in graph.nodes() {
        let loses = match follow.node(id, node) {
            Ok(Some(_)) => false,
            Ok(None) => makes_dimensions(graph, id, node),
            Err(End::Reduced) => !adds_samples(node, &follow.places),
            Err(_) => true,
        };
        let lost = loses || node.operands.iter().any(|v| is_lost[v.index()]);
        node.results.iter().for_each(|v| is_lost[v.index()] = lost);
    }
    let is_in_front = |v: ValueId| follow.places[v.index()].is_some_and(|place| place.dim == 0);
    let known = graph.outputs.iter().filter(|output| !is_lost[output.value.index()] && !is_in_front(output.value));
    known.map(|output| output.name.clone()).collect()
}

/// Whether a node that reduces over the batch adds up its samples, and does not pick some.
fn adds_samples(node: &Node, places: &[Option<BatchDigit>]) -> bool {
    let of_samples = || node.operands.iter().all(|v| places[v.index()].is_some());
    matches!(node.op, Op::Reduce(_) | Op::SquareSum(_)) || matches!(node.op, Op::Contract(_)) && of_samples()
}

/// Whether a node makes a dimension that none of its operands has, which may be one for the
/// samples: a broadcast, a constant, a range.
fn makes_dimensions(graph: &Graph, id: NodeId, node: &Node) -> bool {
    if matches!(node.op, Op::State(_) | Op::Input(_)) {
        return false;
    }
    let letters = letters_of(graph, id);
    let had: BTreeSet<Letter> = letters.operands.iter().flatten().flatten().copied().collect();
    letters.results.iter().flatten().flatten().any(|letter| letters.sizes[*letter] > 1 && !had.contains(letter))
}
