//! Rounds what flows back as the model is rounded.
//!
//! Before: `%p = contract %g, %w dtype=f32`, a product of the backward pass. After: `%r = contract
//! %g, %w : bf16[…]`, `%p = cast f32 %r`: the gradient of a rounded value is rounded as it is
//! written, once, unless it is a term of a sum that stays wide, or the gradient of a weight that
//! does. A product of the model that only a rounding reads is rounded likewise. Where sums over
//! ranks are of 16 bits all products are, but for those gradients, so that what is reduced is what
//! one device computes. The gradient of a bias adds up what products read: of `%g` and `%n = cast
//! bf16 %g`, `%n`. Nodes that nothing needs are left out, such as casts of what a gradient did not
//! read after all. Needs and keeps phase `differentiated`. Source: gradients of PyTorch's autocast
//! have the types of what they are gradients of.

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{ValueMap, mapped, rebuild};
use crate::weights::gradients_of_weights;
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Node, NodeId, Part, Phase, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::reduce::{Reduce, ReduceName};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::spec::FloatType;
use std::collections::HashMap;

/// See the module.
pub struct RoundProducts;

impl Pass for RoundProducts {
    fn name(&self) -> &'static str {
        "round-products"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Differentiated
    }

    fn gives(&self) -> Phase {
        Phase::Differentiated
    }

    fn modes(&self) -> &'static [Mode] {
        &[Mode::Train]
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let Some(line) = &cx.spec.precision else { return Ok(()) };
        let reduced = line.value.reduce.map(FloatType::dtype).filter(|dtype| dtype.is_half());
        // Dead casts are no readers.
        let live = rebuild(graph, |_, _, _, _| None);
        let rounding = Rounding { of_weights: gradients_of_weights(&live), graph: &live, reduced };
        let rounded = rebuild(&live, |b, id, node, map| rounding.product(b, id, node, map));
        let folded = rebuild(&rounded, |b, _, node, map| narrow_again(b, &rounded, node, map));
        let mut sums = Sums::of(&folded);
        let added = rebuild(&folded, |b, id, node, map| sums.of_rounded(b, id, node, map));
        *graph = rebuild(&added, |_, _, _, _| None);
        Ok(())
    }
}

struct Rounding<'g> {
    graph: &'g Graph,
    /// For each value, whether it is the gradient of a weight.
    of_weights: Vec<bool>,
    /// The type of 16 bits in which sums are reduced over ranks.
    reduced: Option<DType>,
}

impl Rounding<'_> {
    /// A product that is rounded as it is written, in the type that its readers know.
    fn product(&self, b: &mut Builder, id: NodeId, node: &Node, map: &ValueMap) -> Option<Vec<ValueId>> {
        let Op::Contract(Contract { spec, dtype: Some(wide) }) = &node.op else { return None };
        let factors: Vec<_> = node.operands.iter().map(|v| mapped(map, *v)).collect();
        let narrow = b.ty(factors[0]).dtype;
        let is_read_narrow = self.is_only_read_as(id, narrow);
        let is_rounded = Some(narrow) == self.reduced || self.flows_back(id, node, narrow) || is_read_narrow;
        if self.of_weights[node.results[0].index()] || !is_rounded {
            return None;
        }
        let rounded = b.op(Contract::new(spec), &factors);
        let user = self.graph.sole_user(id).filter(|_| is_read_narrow).unwrap_or(id);
        b.rename(rounded, &self.graph.value(self.graph.node(user).results[0]).name);
        Some(vec![b.cast(rounded, *wide)])
    }

    /// Whether a product is the gradient of a value, and no term of a sum that stays wide.
    fn flows_back(&self, id: NodeId, node: &Node, dtype: DType) -> bool {
        let is_wide_sum = |user: &NodeId| self.graph.node(*user).op.is_sum() && !self.is_only_read_as(*user, dtype);
        node.origin.part == Part::Backward && !self.graph.users(id).iter().any(is_wide_sum)
    }

    /// Whether the one reader of a node's result casts it to a type.
    fn is_only_read_as(&self, id: NodeId, dtype: DType) -> bool {
        self.graph.sole_user(id).is_some_and(|user| self.graph.node(user).op.converts_to() == Some(dtype))
    }
}

/// A value that was narrow, wide and reordered, and is narrow again, or is read by an op that takes
/// it so.
fn narrow_again(b: &mut Builder, graph: &Graph, node: &Node, map: &ValueMap) -> Option<Vec<ValueId>> {
    if let Some(operand) = node.op.narrow_operand() {
        let cast = graph.def(node.operands[operand]);
        cast.op.converts_to().filter(|_| graph.ty(cast.operands[0]).dtype.is_half())?;
        let mut operands: Vec<ValueId> = node.operands.iter().map(|v| mapped(map, *v)).collect();
        operands[operand] = mapped(map, cast.operands[0]);
        let results = b.ops(node.op.clone(), &operands);
        b.rename(results[0], &graph.value(node.results[0]).name);
        return Some(results);
    }
    let dtype = node.op.converts_to().filter(|dtype| dtype.is_half())?;
    let mut orders = vec![];
    let mut at = graph.def(node.operands[0]);
    while at.op.is_rearrangement() {
        orders.push(&at.op);
        at = graph.def(at.operands[0]);
    }
    at.op.converts_to().filter(|_| graph.ty(at.operands[0]).dtype == dtype)?;
    let is_reordered = !orders.is_empty();
    let narrow = orders.into_iter().rev().fold(mapped(map, at.operands[0]), |value, op| b.op(op.clone(), &[value]));
    if is_reordered {
        b.rename(narrow, &graph.value(node.results[0]).name);
    }
    Some(vec![narrow])
}

struct Sums<'g> {
    graph: &'g Graph,
    /// For each value, whether it is the gradient of a weight.
    of_weights: Vec<bool>,
    /// For each value that is rounded, the first that it is rounded to.
    casts: HashMap<ValueId, ValueId>,
    /// What stands for values whose turn comes later.
    rounded: HashMap<ValueId, ValueId>,
}

impl<'g> Sums<'g> {
    fn of(graph: &'g Graph) -> Self {
        let mut casts = HashMap::new();
        for (_, node) in graph.nodes().filter(|(_, node)| node.op.converts_to().is_some_and(DType::is_half)) {
            casts.entry(node.operands[0]).or_insert(node.results[0]);
        }
        Sums { of_weights: gradients_of_weights(graph), graph, casts, rounded: HashMap::new() }
    }

    /// The gradient of a bias as the sum of what products read, where they read it rounded; rounded
    /// as it is written, where that is all that becomes of it.
    fn of_rounded(&mut self, b: &mut Builder, id: NodeId, node: &Node, map: &ValueMap) -> Option<Vec<ValueId>> {
        if let Some(known) = self.rounded.get(&node.results[0]) {
            return Some(vec![*known]);
        }
        let Op::Reduce(sum @ Reduce { f: ReduceName(ReduceKind::Sum), .. }) = &node.op else { return None };
        let (wide, narrow) = (node.operands[0], self.narrow_gradient(id, node)?);
        let mut operand = mapped(map, wide);
        if let Some(result) = self.casts.get(&wide).copied() {
            let rounded = map[result.index()].unwrap_or_else(|| {
                let rounded = b.cast(operand, self.graph.ty(result).dtype);
                b.rename(rounded, &self.graph.value(result).name);
                self.rounded.insert(result, rounded);
                rounded
            });
            operand = b.cast(rounded, self.graph.ty(wide).dtype);
        }
        let result = b.op(Reduce { dtype: narrow, ..sum.clone() }, &[operand]);
        b.rename(result, &self.graph.value(node.results[0]).name);
        if let (Some(_), Some(user)) = (narrow, self.graph.sole_user(id)) {
            let gradient = self.graph.node(user).results[0];
            b.rename(result, &self.graph.value(gradient).name);
            self.rounded.insert(gradient, result);
        }
        Some(vec![result])
    }

    /// Whether a sum is the gradient of a weight, and the type to which it alone is rounded, if it
    /// is.
    fn narrow_gradient(&self, id: NodeId, node: &Node) -> Option<Option<DType>> {
        if self.of_weights[node.results[0].index()] {
            return Some(None);
        }
        let user = self.graph.node(self.graph.sole_user(id)?);
        let to = user.op.converts_to().filter(|dtype| dtype.is_half())?;
        self.of_weights[user.results[0].index()].then_some(Some(to))
    }
}
