//! The way from a tensor that is split, or partial, back to where that began.

use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;

/// The values from `value` back to the one whose split over the axis no other one gave, `value`
/// first. Where it is partial, the way leads to the op that made it so, and on by what it has
/// summed over.
pub fn chain(graph: &Graph, value: ValueId, axis: AxisId) -> Vec<ValueId> {
    let operands = |value: ValueId| graph.def(value).operands.iter().copied();
    let is_partial = |value: &ValueId| graph.sharding(*value).partial_over(axis).is_some();
    let splits = |value: &ValueId| graph.sharding(*value).splits(axis);
    // A weight says more than what was computed by way of others.
    let is_state = |value: &ValueId| matches!(graph.def(*value).op, Op::State(_)) && splits(value);
    let mut chain = vec![value];
    let mut at = value;
    // Operands come before results, so both ways end.
    while is_partial(&at) {
        let Some(next) =
            operands(at).find(is_partial).or_else(|| operands(at).find(is_state)).or_else(|| operands(at).find(splits))
        else {
            return chain;
        };
        chain.push(next);
        at = next;
    }
    loop {
        let asked = graph.asked(at, axis);
        let same = |value: &ValueId| splits(value) && graph.asked(*value, axis) == asked;
        let Some(next) = operands(at).find(same).or_else(|| operands(at).find(splits)) else { return chain };
        chain.push(next);
        at = next;
    }
}
