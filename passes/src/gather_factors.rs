//! Shares out the products that make gradients of weights, where their factors are much smaller
//! than the gradient.
//!
//! Before: `%g = contract "bk,bn->kn" %x, %d` with b split over dp, so that each rank makes a whole
//! gradient of its samples, and all of them are summed up. After: `%g {dp, -}`: each rank makes
//! some rows of it, of all samples, and adds up their squares for the norm. The reshards come
//! later: `%x` is exchanged and `%d` gathered in place of the sum, and the rows are gathered for
//! the update, half of what an all-reduce sends. Only a gradient that comes from one product is
//! shared out, where the batch comes at once and the update wants it whole. Needs and keeps phase
//! `annotated`. Source: Xie et al., Distributed Machine Learning via Sufficient Factor Broadcasting
//! (2015).

use crate::pass::{Context, Mode, Pass};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Node, NodeId, NodeOrigin, Part, Phase, ValueId};
use shardc_ir::letters::{Letters, Role};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::letters_of;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::sharding::{Sharding, Split, degree};
use std::collections::BTreeSet;

/// The least bytes of a gradient on a rank: of less, calls cost more than what is not sent.
const LEAST_BYTES: u64 = 1 << 20;

/// How many times more bytes the gradient has than what is sent in place of its sum.
const TIMES: u64 = 5;

/// See the module.
pub struct GatherFactors;

impl Pass for GatherFactors {
    fn name(&self) -> &'static str {
        "gather-factors"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Annotated
    }

    fn gives(&self) -> Phase {
        Phase::Annotated
    }

    fn modes(&self) -> &'static [Mode] {
        &[Mode::Train]
    }

    fn run(&self, graph: &mut Graph, _cx: &Context<'_>) -> Result<(), Diagnostics> {
        if graph.mesh.size(graph.mesh.microbatch_axis()) > 1 {
            return Ok(());
        }
        let gradients: Vec<ValueId> = graph.states.iter().filter_map(|state| state.gradient).collect();
        let mut shared_out = BTreeSet::new();
        for gradient in gradients {
            if let Some((axis, split)) = rows(graph, gradient) {
                let mut sharding = graph.sharding(gradient).clone();
                sharding.dims[0].push(split);
                let line = graph.def(gradient).operands.iter().find_map(|factor| graph.asked(*factor, axis));
                graph.set_sharding(gradient, sharding);
                line.into_iter().for_each(|line| graph.set_asked(gradient, axis, line));
                shared_out.insert(graph.value(gradient).node);
            }
        }
        if !shared_out.is_empty() {
            *graph = with_norms_behind(graph, &shared_out);
        }
        Ok(())
    }
}

/// The graph with the numbers that are made of each of these gradients, its square, right behind
/// it: a rank then needs its rows no longer.
fn with_norms_behind(graph: &Graph, gradients: &BTreeSet<NodeId>) -> Graph {
    let (mut b, mut map) = (Builder::rewrite(graph), vec![None; graph.value_count()]);
    for (id, node) in graph.nodes() {
        if node.results.iter().all(|value| map[value.index()].is_some()) {
            continue;
        }
        b.copy(graph, node, &mut map);
        let users = if gradients.contains(&id) { graph.users(id) } else { vec![] };
        let is_of_all = |user: &&Node| user.operands.len() == 1 && graph.ty(user.results[0]).rank() == 0;
        for user in users.into_iter().map(|user| graph.node(user)).filter(is_of_all) {
            let origin = NodeOrigin { part: Part::Backward, ..user.origin.clone() };
            b.copy(graph, &Node { origin, ..user.clone() }, &mut map);
        }
    }
    b.copy_roots(graph, &map);
    b.finish()
}

/// How the first dimension of a gradient is shared out over an axis that splits the samples, if
/// that sends less.
fn rows(graph: &Graph, gradient: ValueId) -> Option<(AxisId, Split)> {
    let (node, ty, sharding) = (graph.def(gradient), graph.ty(gradient), graph.sharding(gradient));
    let letters = letters_of(graph, graph.value(gradient).node);
    let [Some([row])] = [letters.results[0].first().map(Vec::as_slice)] else { return None };
    if node.results.len() > 1 || node.operands.len() != 2 || !sharding.flat.is_empty() {
        return None;
    }
    let axis = summed_over(graph, node, &letters).filter(|axis| !sharding.splits(*axis))?;
    let ranks = graph.mesh.size(axis);
    let rows = ty.shape[0] / degree(&sharding.dims[0], &graph.mesh);
    let (own, factors) = (bytes(graph, gradient, sharding), sent(graph, node, &letters, *row, ranks)?);
    let is_less = own >= LEAST_BYTES && factors.saturating_mul(TIMES) <= own;
    // The rows of a rank lie one behind another, as the last digit does.
    let innermost = sharding.dims[0].last().is_none_or(|split| split.stride == rows);
    (is_less && innermost && rows.is_multiple_of(ranks)).then_some((axis, Split { axis, stride: rows / ranks }))
}

/// The one axis of ranks that splits what a product sums up, in all factors alike.
fn summed_over(graph: &Graph, node: &Node, letters: &Letters) -> Option<AxisId> {
    let mut axes = node.operands.iter().zip(&letters.operands).map(|(factor, dims)| {
        let located = letters.to_letters(dims, graph.sharding(*factor)).into_iter().flatten().flatten();
        let summed = located.filter(|(letter, _)| letters.roles[*letter] == Role::Reduced(ReduceKind::Sum));
        summed.collect::<Vec<_>>()
    });
    let first = axes.next()?;
    let [(_, split)] = first[..] else { return None };
    axes.all(|other| other == first).then_some(split.axis)
}

/// The bytes that a rank takes where one factor is gathered and the other, which has the rows,
/// exchanged; `None` if both have the rows, or none.
fn sent(graph: &Graph, node: &Node, letters: &Letters, row: usize, ranks: u64) -> Option<u64> {
    let has_rows = |factor: &usize| letters.operands[*factor].iter().flatten().any(|letter| *letter == row);
    let (with, without): (Vec<usize>, Vec<usize>) = (0..node.operands.len()).partition(has_rows);
    let ([exchanged], [gathered]) = (&with[..], &without[..]) else { return None };
    let own = |factor: usize| bytes(graph, node.operands[factor], graph.sharding(node.operands[factor]));
    own(*gathered).checked_mul(ranks)?.checked_add(own(*exchanged))
}

/// The bytes of a rank's part.
fn bytes(graph: &Graph, value: ValueId, sharding: &Sharding) -> u64 {
    let ty = graph.ty(value);
    sharding.local(&ty.shape, &graph.mesh).iter().product::<u64>().saturating_mul(ty.dtype.bytes())
}
