//! Takes merged dimensions apart again: Reshape-Gemm-Reshape becomes one contraction over the
//! letters that were merged.
//!
//! Before: `%m = reshape %x shape=[256, 64]`, `%g = contract "bk,kn->bn" %m, %w`,
//! `%y = reshape %g shape=[8, 32, 192]`. After: `%y = contract "ack,kn->acn" %x, %w`. Elementwise
//! ops in between (the bias) move along: what they do to a merged value they do to the value
//! before. A value that the spec names stays as it is. Needs phase `imported`, gives `imported`. A
//! letter that both operands of a contraction have stays merged.

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{mapped, neighbours, rebuild};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Phase, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::ops::contract::Contract;

/// See the module.
pub struct Unmerge;

impl Pass for Unmerge {
    fn name(&self) -> &'static str {
        "unmerge"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Imported
    }

    fn gives(&self) -> Phase {
        Phase::Imported
    }

    fn modes(&self) -> &'static [Mode] {
        Mode::ALL
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let named = cx.named();
        *graph = rebuild(graph, |b, _, node, map| {
            if named.touches_named(graph, node) {
                return None;
            }
            let operands: Vec<ValueId> = node.operands.iter().map(|v| mapped(map, *v)).collect();
            let whole = match &node.op {
                Op::Reshape(op) => Some(b.reshape(before(b, operands[0]).unwrap_or(operands[0]), &op.shape)),
                Op::Contract(op) => contraction(b, op, &operands),
                Op::Unary(_) | Op::Binary(_) => elementwise(b, node.op.clone(), &operands, &graph.ty(node.results[0]).shape),
                _ => None,
            }?;
            b.rename(whole, &graph.value(node.results[0]).name);
            Some(vec![whole])
        });
        Ok(())
    }
}

/// The value that a reshape reads.
fn before(b: &Builder, value: ValueId) -> Option<ValueId> {
    let node = b.graph().def(value);
    matches!(node.op, Op::Reshape(_)).then(|| node.operands[0])
}

/// The value before a reshape that merges dimensions.
fn unmerged(b: &Builder, value: ValueId) -> Option<ValueId> {
    before(b, value).filter(|x| b.ty(*x).rank() > b.ty(value).rank())
}

/// The contraction over the dimensions before their merge, reshaped to the shape that was there.
fn contraction(b: &mut Builder, op: &Contract, operands: &[ValueId]) -> Option<ValueId> {
    let (first, second, out) = op.terms()?;
    let mut terms = [first.to_string(), second.to_string()];
    let mut values = [operands[0], operands[1]];
    let mut result: Vec<String> = out.chars().map(String::from).collect();
    let mut fresh = ('A'..='Z').filter(|c| !op.spec.contains(*c));
    for side in 0..2 {
        let Some(x) = unmerged(b, values[side]) else { continue };
        let Some(sizes) = neighbours(&b.ty(x).shape, &b.ty(values[side]).shape) else { continue };
        let other = if side == 0 { second } else { first };
        let letters: Vec<char> = [first, second][side].chars().collect();
        let comes_apart = |(letter, n): (&char, &usize)| *n > 1 && !other.contains(*letter) && out.contains(*letter);
        if !letters.iter().zip(&sizes).any(comes_apart) {
            continue;
        }
        let apart_shape = b.ty(x).shape.clone();
        let (mut term, mut shape, mut at) = (String::new(), vec![], 0);
        for (letter, n) in letters.iter().zip(&sizes) {
            let dims = &apart_shape[at..at + n];
            at += n;
            if !comes_apart((letter, n)) {
                shape.push(dims.iter().product());
                term.push(*letter);
                continue;
            }
            let apart: String = fresh.by_ref().take(*n).collect();
            if apart.chars().count() != *n {
                return None;
            }
            for place in result.iter_mut().filter(|p| **p == letter.to_string()) {
                place.clone_from(&apart);
            }
            shape.extend(dims);
            term += &apart;
        }
        terms[side] = term;
        values[side] = b.reshape(x, &shape);
    }
    if values == operands[..] {
        return None;
    }
    let shape = Contract::new(&op.spec);
    let types = [b.ty(operands[0]).clone(), b.ty(operands[1]).clone()];
    let merged = shardc_ir::ops::Rules::result(&shape, &types).ok()?.remove(0).shape;
    let y = b.op(Contract::new(format!("{},{}->{}", terms[0], terms[1], result.concat())), &values);
    Some(b.reshape(y, &merged))
}

/// The op on the values before their merge: all operands are merged alike, or are scalars or
/// vectors over a last dimension that was not merged.
fn elementwise(b: &mut Builder, op: Op, operands: &[ValueId], shape: &[u64]) -> Option<ValueId> {
    let apart: Vec<Option<ValueId>> = operands.iter().map(|v| unmerged(b, *v).filter(|_| b.ty(*v).shape == shape)).collect();
    let inner = b.ty(apart.iter().flatten().next().copied()?).shape.clone();
    let untouched = |v: ValueId| {
        let own = &b.ty(v).shape;
        own.is_empty() || (own.len() == 1 && (own[0] == 1 || (inner.last() == shape.last() && own.last() == shape.last())))
    };
    let fits = apart.iter().zip(operands).all(|(x, v)| x.map_or_else(|| untouched(*v), |x| b.ty(x).shape == inner));
    if !fits {
        return None;
    }
    let values: Vec<ValueId> = apart.iter().zip(operands).map(|(x, v)| x.unwrap_or(*v)).collect();
    let y = b.try_node(op, &values, "unmerged").ok()?[0];
    (b.ty(y).shape == inner).then(|| b.reshape(y, shape))
}
