//! Folds transposes and reshapes into each other and into the letters of contractions.
//!
//! Before: `%t = transpose %w perm=[1, 0]`, `%y = contract "bk,kn->bn" %x, %t`. After:
//! `%y = contract "bk,nk->bn" %x, %w`. Also: a reshape of a reshape is one; a transpose of a
//! transpose is one; reshape, transpose, reshape that only moves whole dimensions is a transpose; a
//! transpose that is the only reader of a contraction moves into it. Needs phase `imported`, gives
//! `imported`. Never moves an element that was not moved before.

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{ValueMap, mapped, neighbours, rebuild};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Node, Phase, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::layout::{Reshape, Transpose};

/// See the module.
pub struct FoldLayout;

impl Pass for FoldLayout {
    fn name(&self) -> &'static str {
        "fold-layout"
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
        let uses = graph.use_counts();
        let named = cx.named();
        *graph = rebuild(graph, |b, _, node, map| match &node.op {
            _ if named.touches_named(graph, node) => None,
            Op::Reshape(_) => fold_reshape(b, node, map),
            Op::Transpose(op) => fold_transpose(b, node, &op.perm, map, |v| uses[v.index()] == 1),
            Op::Contract(op) => fold_contract(b, node, op, map),
            _ => None,
        });
        Ok(())
    }
}

fn fold_reshape(b: &mut Builder, node: &Node, map: &ValueMap) -> Option<Vec<ValueId>> {
    let Op::Reshape(Reshape { shape }) = &node.op else { return None };
    let x = mapped(map, node.operands[0]);
    if b.ty(x).shape == *shape {
        return Some(vec![x]);
    }
    let inner = b.graph().def(x).clone();
    match &inner.op {
        Op::Reshape(_) => Some(vec![b.reshape(inner.operands[0], shape)]),
        Op::Transpose(t) => {
            let source = b.graph().def(inner.operands[0]).clone();
            let Op::Reshape(_) = source.op else { return None };
            let (apart, perm) = whole_moves(&b.ty(inner.operands[0]).shape, &t.perm, shape)?;
            let only_ones = without_ones(shape) == without_ones(&b.ty(x).shape);
            if only_ones && b.ty(source.operands[0]).shape != apart {
                return None;
            }
            let apart = b.reshape(source.operands[0], &apart);
            Some(vec![b.transpose(apart, &perm)])
        }
        _ => None,
    }
}

/// A shape and an order of its dimensions that equal transposing `merged` by `perm` and splitting
/// the result to `to`.
fn whole_moves(merged: &[u64], perm: &[usize], to: &[u64]) -> Option<(Vec<u64>, Vec<usize>)> {
    let moved: Vec<u64> = perm.iter().map(|p| merged[*p]).collect();
    let counts = neighbours(to, &moved)?;
    let mut dims: Vec<Vec<usize>> = vec![vec![]; merged.len()];
    let mut next = 0;
    for (count, p) in counts.iter().zip(perm) {
        dims[*p] = (next..next + count).collect();
        next += count;
    }
    let dims = dims.concat();
    let order = (0..to.len()).map(|d| dims.iter().position(|o| *o == d)).collect::<Option<Vec<usize>>>()?;
    Some((dims.iter().map(|d| to[*d]).collect(), order))
}

fn without_ones(shape: &[u64]) -> Vec<u64> {
    shape.iter().copied().filter(|n| *n != 1).collect()
}

fn fold_transpose(
    b: &mut Builder,
    node: &Node,
    perm: &[usize],
    map: &ValueMap,
    read_once: impl Fn(ValueId) -> bool,
) -> Option<Vec<ValueId>> {
    let x = mapped(map, node.operands[0]);
    if perm.iter().enumerate().all(|(i, p)| i == *p) {
        return Some(vec![x]);
    }
    let inner = b.graph().def(x).clone();
    match &inner.op {
        Op::Transpose(t) => {
            let both: Vec<usize> = perm.iter().map(|p| t.perm[*p]).collect();
            Some(vec![b.transpose(inner.operands[0], &both)])
        }
        Op::Contract(op) if read_once(node.operands[0]) => {
            let (a, c, out) = op.terms()?;
            let letters: Vec<char> = out.chars().collect();
            let out: String = perm.iter().map(|p| letters[*p]).collect();
            Some(vec![b.op(Contract::new(format!("{a},{c}->{out}")), &inner.operands)])
        }
        _ => None,
    }
}

fn fold_contract(b: &mut Builder, node: &Node, op: &Contract, map: &ValueMap) -> Option<Vec<ValueId>> {
    let (a, c, out) = op.terms()?;
    let (x, first) = through(b, mapped(map, node.operands[0]), a);
    let (y, second) = through(b, mapped(map, node.operands[1]), c);
    (first != a || second != c).then(|| vec![b.op(Contract::new(format!("{first},{second}->{out}")), &[x, y])])
}

/// The operand before its transposes, with its letters in that order.
fn through(b: &Builder, mut value: ValueId, term: &str) -> (ValueId, String) {
    let mut letters: Vec<char> = term.chars().collect();
    while let Op::Transpose(Transpose { perm }) = &b.graph().def(value).op {
        let mut before = letters.clone();
        perm.iter().enumerate().for_each(|(i, p)| before[*p] = letters[i]);
        letters = before;
        value = b.graph().def(value).operands[0];
    }
    (value, letters.into_iter().collect())
}
