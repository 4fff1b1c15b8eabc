//! A table that is added to what a scatter sums up, as one kernel: the scatter onto that table.
//!
//! `%s = scatter_add %indices, %g`, `%w.grad = add %p, %s`, where `%p` is the gradient of the same
//! table as a matrix (an embedding tied to the head), is the scatter of `%g` onto `%p`. It touches
//! few rows, and may be done in place.

use super::Lowered;
use super::fused::Fused;
use super::graph::LoweredGraph;
use crate::graph::{NodeId, ValueId};
use crate::kernel::{Kernel, ScatterAdd};
use crate::ops::Op;
use crate::scalar::Binary;

/// The addition `end` and the scatter that it adds to a table, if `inside` names it.
pub fn scatter(lowered: &LoweredGraph<'_>, end: NodeId, inside: &dyn Fn(NodeId) -> bool) -> Option<Fused> {
    let sum = lowered.graph.node(end);
    let ([a, b], [result]) = (&sum.operands[..], &sum.results[..]) else { return None };
    if !matches!(&sum.op, Op::Binary(op) if op.f == Binary::Add) {
        return None;
    }
    let is_alike = |value: &ValueId| {
        let [own, whole] = [*value, *result].map(|value| lowered.extent(value));
        own.ty.dtype == whole.ty.dtype && own.local == whole.local
    };
    [(a, b), (b, a)].into_iter().filter(|(a, b)| is_alike(a) && is_alike(b)).find_map(|(table, summed)| {
        let id = lowered.graph.value(lowered.stored_in(*summed)).node;
        let Lowered::Launches { launches, .. } = lowered.node(id) else { return None };
        let [launch] = &launches[..] else { return None };
        let Kernel::ScatterAdd(ScatterAdd { gather, onto: false }) = &launch.kernel else { return None };
        let [table, indices, source] =
            [*table, lowered.graph.node(id).operands[0], lowered.graph.node(id).operands[1]].map(|v| lowered.stored_in(v));
        let is_kernel = inside(id) && table != lowered.stored_in(*summed);
        is_kernel.then(|| Fused {
            kernel: Kernel::ScatterAdd(ScatterAdd { gather: gather.clone(), onto: true }),
            reads: vec![indices, source, table],
            nodes: vec![id, end],
        })
    })
}
