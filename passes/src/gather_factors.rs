//! Shares out the products that make gradients of weights, where their factors are much smaller
//! than the gradient.
//!
//! Before: `%g = contract "bk,bn->kn" %x, %d` with b split over dp, so that each rank makes a whole
//! gradient of its samples, and all of them are summed up. After: `%g {dp, -}`: each rank makes
//! some rows of it, of all samples, and what makes one number of it, as the norm does, reads these.
//! The reshards come later: `%x` is exchanged and `%d` gathered in place of the sum, and the rows
//! are gathered for the update, half of what an all-reduce sends. Only a gradient that is one
//! product is shared out, where the samples alone are split, over one axis, and come at once, and
//! the update wants it whole. Needs and keeps phase `annotated`. Source: Xie et al., Distributed
//! Machine Learning via Sufficient Factor Broadcasting (2015).

use crate::pass::{Context, Mode, Pass};
use crate::weights::bytes;
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Node, NodeId, NodeOrigin, Part, Phase, ValueId};
use shardc_ir::letters::{Letter, Letters, Role};
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::ops::letters_of;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::sharding::Split;
use shardc_ir::spec::{Data, Located, Recompute, Spec};
use std::collections::BTreeSet;

/// The least bytes of a gradient for each rank beside one: with less, the calls cost more than what
/// is not sent.
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

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let Some(axis) = axis(&graph.mesh, cx.spec) else { return Ok(()) };
        let gradients: Vec<ValueId> = graph.states.iter().filter_map(|state| state.gradient).collect();
        let mut shared_out = BTreeSet::new();
        for gradient in gradients {
            if let Some(split) = rows(graph, gradient, axis) {
                let mut sharding = graph.sharding(gradient).clone();
                sharding.dims[0] = vec![split];
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

/// The axis of ranks over which gradients are shared out: that of the samples, where nothing else
/// is split, and nobody counts the memory of rows beside the whole gradient.
fn axis(mesh: &Mesh, spec: &Spec) -> Option<AxisId> {
    let is_budget = |line: &Located<Recompute>| matches!(line.value, Recompute::Budget(_));
    let counts_memory = spec.device_memory.is_some() || spec.recompute.iter().any(is_budget);
    let [Located { value: Data { axes, on: None }, .. }] = &spec.data[..] else { return None };
    let [axis] = axes[..] else { return None };
    let is_alone = (0..mesh.axes().len()).map(|other| AxisId(other as u8)).all(|other| other == axis || mesh.size(other) == 1);
    (is_alone && mesh.size(axis) > 1 && !counts_memory).then_some(axis)
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

/// How the first dimension of a gradient is shared out over the axis, if that sends less.
fn rows(graph: &Graph, gradient: ValueId, axis: AxisId) -> Option<Split> {
    let (node, ranks) = (graph.def(gradient), graph.mesh.size(axis));
    let (shape, sharding) = (&graph.ty(gradient).shape, graph.sharding(gradient));
    let letters = letters_of(graph, graph.value(gradient).node);
    let [Some([row])] = [letters.results[0].first().map(Vec::as_slice)] else { return None };
    if node.results.len() > 1 || node.operands.len() != 2 || !sharding.is_replicated() || !sums_over(graph, node, &letters, axis)
    {
        return None;
    }
    let (own, factors) = (bytes(graph, gradient), sent(graph, node, &letters, *row, ranks)?);
    let is_less = own >= LEAST_BYTES.saturating_mul(ranks - 1) && factors.saturating_mul(TIMES) <= own;
    (is_less && shape[0].is_multiple_of(ranks)).then(|| Split { axis, stride: shape[0] / ranks })
}

/// Whether the axis splits what a product sums up, in both factors alike.
fn sums_over(graph: &Graph, node: &Node, letters: &Letters, axis: AxisId) -> bool {
    let split = |(factor, dims): (&ValueId, &Vec<Vec<Letter>>)| {
        let mut located = letters.to_letters(dims, graph.sharding(*factor)).into_iter().flatten().flatten();
        let summed =
            |(letter, split): &(Letter, Split)| split.axis == axis && letters.roles[*letter] == Role::Reduced(ReduceKind::Sum);
        located.find(summed)
    };
    let mut splits = node.operands.iter().zip(&letters.operands).map(split);
    matches!((splits.next(), splits.next()), (Some(Some(one)), Some(Some(other))) if one == other)
}

/// The bytes of the factor that is gathered, and of a rank's part of the other, which has the rows
/// and is exchanged; `None` if both have the rows, or none.
fn sent(graph: &Graph, node: &Node, letters: &Letters, row: Letter, ranks: u64) -> Option<u64> {
    let has_rows = |factor: &usize| letters.operands[*factor].iter().flatten().any(|letter| *letter == row);
    let (with, without): (Vec<usize>, Vec<usize>) = (0..node.operands.len()).partition(has_rows);
    let ([exchanged], [gathered]) = (&with[..], &without[..]) else { return None };
    Some(bytes(graph, node.operands[*gathered]).saturating_add(bytes(graph, node.operands[*exchanged]) / ranks))
}
