//! The sum of many small products as one.
//!
//! Before: `%a = contract "bh,bg->gh" %h, %d`, `%b = contract "bh,bg->gh" %h_1, %d_1`,
//! `%s = add %a, %b`. After: `%s = contract "abh,abg->gh" %hs, %ds`, where `%hs` and `%ds` are the
//! operands, one step after the other. Gradients of recurrent weights are such sums: every step
//! reads the weight, and makes a product of its size, which is far larger than what it is made of.

use shardc_ir::builder::Builder;
use shardc_ir::graph::{Node, ValueId};
use shardc_ir::limits::MAX_KERNEL_RANK;
use shardc_ir::ops::Op;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::elementwise::RoundTo;
use shardc_ir::ops::layout::{Concat, Reshape};
use std::collections::BTreeSet;

/// A product that is stacked has at least so many times as many elements as its operands.
const LARGER: u64 = 4;

/// One product with the sum of the parts, if these are products of equal letters and types in one
/// scope and stage, and copies of their operands are small beside them.
pub(super) fn stacked(b: &mut Builder, parts: &[ValueId]) -> Option<ValueId> {
    let nodes: Vec<Node> = parts.iter().map(|part| b.graph().def(*part).clone()).collect();
    let [first, others @ ..] = &nodes[..] else { return None };
    let Op::Contract(op) = &first.op else { return None };
    let types = |b: &Builder, node: &Node| [0, 1].map(|side| b.ty(node.operands[side]).clone());
    let is_alike = |node: &Node| node.op == first.op && types(b, node) == types(b, first) && node.origin == first.origin;
    let elements = |v: ValueId| b.ty(v).shape.iter().fold(1u64, |all, n| all.saturating_mul(*n));
    let read = first.operands.iter().fold(0u64, |sum, v| sum.saturating_add(elements(*v)));
    if others.is_empty() || !others.iter().all(is_alike) || read.saturating_mul(LARGER) > elements(parts[0]) {
        return None;
    }
    let (x, y, out) = op.terms()?;
    let letters: BTreeSet<char> = x.chars().chain(y.chars()).collect();
    if letters.len() >= MAX_KERNEL_RANK {
        return None;
    }
    let step = ('a'..='z').find(|letter| !letters.contains(letter))?;
    let spec = format!("{step}{x},{step}{y}->{out}");
    let own = std::mem::replace(&mut b.origin, first.origin.clone());
    let operands = [0, 1].map(|side| stack(b, nodes.iter().map(|node| node.operands[side]).collect()));
    let sum = b.op(Contract { spec, dtype: op.dtype }, &operands);
    b.origin = own;
    Some(sum)
}

/// The values along a new first dimension. Where each of them is rounded, what they were before is
/// rounded there, for a product reads its rounding.
fn stack(b: &mut Builder, values: Vec<ValueId>) -> ValueId {
    let rounded = |v: &ValueId| match &b.graph().def(*v).op {
        Op::RoundTo(op) => Some((b.graph().def(*v).operands[0], op.format)),
        _ => None,
    };
    let inner: Option<Vec<_>> = values.iter().map(rounded).collect();
    match inner {
        Some(inner) if inner.iter().all(|(_, format)| *format == inner[0].1) => {
            let format = inner[0].1;
            let whole = along(b, inner.into_iter().map(|(v, _)| v).collect());
            b.op(RoundTo { format }, &[whole])
        }
        _ => along(b, values),
    }
}

fn along(b: &mut Builder, values: Vec<ValueId>) -> ValueId {
    let shape: Vec<u64> = std::iter::once(1).chain(b.ty(values[0]).shape.iter().copied()).collect();
    let rows: Vec<ValueId> = values.iter().map(|v| b.op(Reshape { shape: shape.clone() }, &[*v])).collect();
    b.op(Concat { axis: 0 }, &rows)
}
