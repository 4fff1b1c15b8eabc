//! Gives every op of the model the element type that the spec's `precision` line asks for.
//!
//! Before: `%y = contract "bk,kn->bn" %x, %w` in f32. After `precision compute=bf16`: `%x16 = cast
//! %x`, `%w16 = cast %w`, `%y = contract %x16, %w16 : bf16[…]`; a norm that reads `%y` reads `cast
//! %y` in f32. Parameters stay as they are: they are the masters, and a product reads a rounded
//! copy of them, made once. Outputs keep their types. With `compute=tf32` operands of products are
//! rounded and stay f32. What each op does is its [`CastPolicy`]. A product that only a wide sum
//! reads is not rounded, unless `reduce=` wants its parts in 16 bits. One with a constant is wide:
//! the weights of an average are no numbers of 16 bits. Needs phase `raised` and keeps it. Refuses
//! what the types cannot mean. Source: Micikevicius et al., Mixed Precision Training (2018).

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{ValueMap, mapped, rebuild, rebuild_nodes};
use crate::weights::weights;
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Node, NodeId, Output, Phase, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::ops::cast_policy::CastPolicy;
use shardc_ir::ops::elementwise::RoundTo;
use shardc_ir::scalar::Rounding;
use shardc_ir::spec::{FloatType, Precision as Line};
use std::collections::HashMap;

/// See the module.
pub struct Precision;

impl Pass for Precision {
    fn name(&self) -> &'static str {
        "precision"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Raised
    }

    fn gives(&self) -> Phase {
        Phase::Raised
    }

    fn modes(&self) -> &'static [Mode] {
        Mode::ALL
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let compute = cx.spec.precision.as_ref().and_then(|line| line.value.compute);
        let compute = match compute {
            None | Some(FloatType::F64) => return Ok(()),
            Some(FloatType::Tf32) => Compute::Rounded(Rounding::Tf32),
            Some(FloatType::F32) => Compute::Type(DType::F32),
            Some(FloatType::Bf16) => Compute::Type(DType::BF16),
            Some(FloatType::F16) => Compute::Type(DType::F16),
        };
        let line = cx.spec.precision.as_ref().map(|line| &line.value);
        let is_narrow = |part: fn(&Line) -> Option<FloatType>| line.and_then(part).is_some_and(|part| part.dtype().is_half());
        let (narrow_tables, narrow_sums) = (is_narrow(|line| line.gradients), is_narrow(|line| line.reduce));
        let typed = Rewrite { narrow_tables, narrow_sums, ..Rewrite::new(graph, compute) }.build();
        // Products that were rounded again are nobody's.
        let typed = rebuild(&typed, |_, _, _, _| None);
        let uses = typed.use_counts();
        *graph = rebuild(&typed, |b, id, node, map| rounded_norm(b, &typed, &uses, (id, node), map));
        Ok(())
    }
}

/// A norm that all readers round, rounded as it is written; its readers have it as it is then.
fn rounded_norm(
    b: &mut Builder,
    graph: &Graph,
    uses: &[usize],
    (id, node): (NodeId, &Node),
    map: &ValueMap,
) -> Option<Vec<ValueId>> {
    let operands: Vec<ValueId> = node.operands.iter().map(|v| mapped(map, *v)).collect();
    if let Some(to) = node.op.converts_to().filter(|to| b.ty(operands[0]).dtype == *to) {
        return Some(vec![b.cast(operands[0], to)]);
    }
    let casts: Vec<DType> = graph.users(id).iter().filter_map(|user| graph.node(*user).op.converts_to()).collect();
    let to = casts.first().copied().filter(|to| to.is_half() && casts.iter().all(|other| other == to))?;
    let op = node.op.rounded(to).filter(|_| casts.len() == uses[node.results[0].index()])?;
    let results = b.ops(op, &operands);
    for (old, new) in node.results.iter().zip(&results) {
        b.rename(*new, &graph.value(*old).name);
    }
    Some(results)
}

/// The numbers that products read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compute {
    /// Of a narrower type.
    Type(DType),
    /// Of their own type, with fewer bits.
    Rounded(Rounding),
}

struct Rewrite<'g> {
    old: &'g Graph,
    compute: Compute,
    uses: Vec<usize>,
    /// Whether lookups read rounded tables.
    narrow_tables: bool,
    /// Whether sums over ranks are of 16 bits, so that products are rounded before they are added.
    narrow_sums: bool,
    /// For each old value, whether it is made of state variables and constants.
    weights: Vec<bool>,
    /// For each old value, whether it is made of constants alone.
    constants: Vec<bool>,
    /// For each old value, whether it is a product, whatever the order of its elements.
    products: Vec<bool>,
    /// The rounded copy of each new value that has one.
    narrowed: HashMap<ValueId, ValueId>,
}

impl<'g> Rewrite<'g> {
    fn new(old: &'g Graph, compute: Compute) -> Rewrite<'g> {
        let made = old.reached_from(|v| matches!(old.def(v).op, Op::Input(_) | Op::State(_)));
        let constants = made.into_iter().map(|made| !made).collect();
        let mut products = vec![false; old.value_count()];
        for (_, node) in old.nodes() {
            let is_product = match node.op.cast_policy() {
                CastPolicy::Product => true,
                CastPolicy::Moves => node.operands.iter().all(|v| products[v.index()]),
                _ => false,
            };
            node.results.iter().for_each(|v| products[v.index()] = is_product);
        }
        Rewrite {
            old,
            compute,
            narrow_tables: false,
            narrow_sums: false,
            uses: old.use_counts(),
            weights: weights(old),
            constants,
            products,
            narrowed: HashMap::new(),
        }
    }

    fn build(mut self) -> Graph {
        let old = self.old;
        let (mut b, map) = rebuild_nodes(Builder::rewrite(old), old, |b, _, node, map| self.node(b, node, map));
        // What is read from outside has the type that the model gives it.
        let whole = |b: &mut Builder, value: ValueId| {
            let (new, name) = (mapped(&map, value), &old.value(value).name);
            let cast = b.cast(new, old.ty(value).dtype);
            if cast != new && b.graph().value(cast).name != *name {
                let narrow = format!("{name}.{}", b.ty(new).dtype);
                b.rename(new, &narrow);
                b.rename(cast, name);
            }
            cast
        };
        let outputs = old.outputs.iter().map(|output| Output { name: output.name.clone(), value: whole(&mut b, output.value) });
        let outputs = outputs.collect();
        let updates: Vec<Option<ValueId>> = old.states.iter().map(|s| s.update.map(|update| whole(&mut b, update))).collect();
        let graph = b.graph_mut();
        graph.outputs = outputs;
        graph.states.iter_mut().zip(updates).for_each(|(state, update)| state.update = update);
        b.finish()
    }

    /// What stands for the results of a node; `None` where it stays as it is.
    fn node(&mut self, b: &mut Builder, node: &Node, map: &ValueMap) -> Option<Vec<ValueId>> {
        let operands: Vec<ValueId> = node.operands.iter().map(|v| mapped(map, *v)).collect();
        let wide = node.operands.iter().chain(&node.results).map(|v| self.old.ty(*v).dtype).find(|dtype| dtype.is_float())?;
        let results = match node.op.cast_policy() {
            CastPolicy::Own => return None,
            CastPolicy::Product if node.operands[..factors(node)].iter().any(|v| self.constants[v.index()]) => {
                self.in_type(b, node, &operands, wide)
            }
            CastPolicy::Product => {
                let factors = factors(node);
                let narrow = operands.iter().enumerate().map(|(i, v)| if i < factors { self.narrow(b, *v) } else { *v });
                let narrow: Vec<ValueId> = narrow.collect();
                append(b, self.old, node, &narrow)
            }
            // Where gradients are narrow no rank needs whole masters, so embeddings read copies.
            CastPolicy::Table if self.narrow_tables => {
                let table = self.narrow(b, operands[0]);
                let rows = append(b, self.old, node, &[&[table], &operands[1..]].concat());
                rows.into_iter().map(|v| b.cast(v, wide)).collect()
            }
            CastPolicy::Moves | CastPolicy::Selects => {
                let dtype =
                    if self.is_narrow(b, node, &operands, wide) { b.ty(self.strong(node, &operands)[0]).dtype } else { wide };
                self.in_type(b, node, &operands, dtype)
            }
            CastPolicy::Widest if self.is_narrow(b, node, &operands, wide) => {
                let strong = self.strong(node, &operands);
                let dtype = b.ty(strong[0]).dtype;
                let mut operands = operands;
                let is_bias: Vec<bool> = node.operands.iter().map(|old| self.is_bias(node, *old)).collect();
                // Biases first, so that nothing stands between a product and what is added to it.
                for i in (0..operands.len()).filter(|i| is_bias[*i]) {
                    operands[i] = self.bias(b, node, operands[i]);
                }
                for i in (0..operands.len()).filter(|i| !is_bias[*i]) {
                    operands[i] = self.before_bias(b, node, node.operands[i], operands[i]);
                }
                // Constants are not rounded.
                let through = if strong.len() < floats(b, &operands).count() { wide } else { dtype };
                let results = self.in_type(b, node, &operands, through);
                results.into_iter().map(|v| rounded(b, v, dtype)).collect()
            }
            CastPolicy::Widest if node.op.is_sum() && !self.narrow_sums => {
                let mut unrounded = |(old, new): (&ValueId, &ValueId)| {
                    let is_rounded = b.ty(*new).dtype != wide;
                    is_rounded.then(|| self.unrounded(b, *old, *new)).flatten().unwrap_or(*new)
                };
                let operands: Vec<ValueId> = node.operands.iter().zip(&operands).map(&mut unrounded).collect();
                self.in_type(b, node, &operands, wide)
            }
            CastPolicy::Widest | CastPolicy::Wide | CastPolicy::Table => self.in_type(b, node, &operands, wide),
            CastPolicy::WideAsFirst => {
                let dtype = b.ty(operands[0]).dtype;
                let results = self.in_type(b, node, &operands, wide);
                results.into_iter().map(|v| rounded(b, v, dtype)).collect()
            }
        };
        for (old, new) in node.results.iter().zip(&results) {
            b.rename(*new, &self.old.value(*old).name);
        }
        Some(results)
    }

    /// A bias as products read weights, in the shape of what it is added to, so that it is widened
    /// where it is added.
    fn bias(&mut self, b: &mut Builder, node: &Node, value: ValueId) -> ValueId {
        let narrow = self.narrow(b, value);
        b.broadcast(narrow, &self.old.ty(node.results[0]).shape)
    }

    /// The sum of products that a bias is added to, before it is rounded, unless it may be reduced
    /// over ranks as it is rounded; others as they are.
    fn before_bias(&self, b: &mut Builder, node: &Node, old: ValueId, new: ValueId) -> ValueId {
        let is_alone =
            !self.narrow_sums && node.op.is_sum() && self.strong(node, &node.operands) == [old] && self.products[old.index()];
        let unrounded = if is_alone { self.unrounded(b, old, new) } else { None };
        unrounded.unwrap_or(new)
    }

    /// A product, or the sum of one and a bias, that nothing else reads, however its elements are
    /// ordered, before it is rounded.
    fn unrounded(&self, b: &mut Builder, old: ValueId, new: ValueId) -> Option<ValueId> {
        let (node, from) = (b.graph().def(new).clone(), self.old.def(old));
        match (&node.op, from.operands.first()) {
            _ if self.uses[old.index()] != 1 => None,
            (Op::Contract(product), _) => {
                let dtype = b.ty(node.operands[0]).dtype;
                Some(b.op(product.clone().unrounded(dtype), &node.operands))
            }
            (Op::Cast(_), _) if from.op.is_sum() => {
                let sum = b.graph().def(node.operands[0]).clone();
                let operands: Vec<ValueId> = sum.operands.iter().map(|v| unrounded_bias(b.graph(), *v)).collect();
                if operands == sum.operands {
                    return Some(node.operands[0]);
                }
                let (name, unrounded) = (b.graph().value(node.operands[0]).name.clone(), b.op(sum.op, &operands));
                b.rename(unrounded, &name);
                Some(unrounded)
            }
            (op, Some(inner)) if op.is_rearrangement() => {
                let inner = self.unrounded(b, *inner, node.operands[0])?;
                Some(b.op(op.clone(), &[inner]))
            }
            _ => None,
        }
    }

    /// The node with its floats in one type.
    fn in_type(&self, b: &mut Builder, node: &Node, operands: &[ValueId], dtype: DType) -> Vec<ValueId> {
        let operands: Vec<ValueId> =
            operands.iter().map(|v| if b.ty(*v).dtype.is_float() { b.cast(*v, dtype) } else { *v }).collect();
        append(b, self.old, node, &operands)
    }

    /// The operands that decide in which type a node is computed: floats, but for constants and the
    /// bias of a product.
    fn strong(&self, node: &Node, operands: &[ValueId]) -> Vec<ValueId> {
        let decides = |v: ValueId| self.old.ty(v).dtype.is_float() && !self.constants[v.index()] && !self.is_bias(node, v);
        node.operands.iter().zip(operands).filter(|(old, _)| decides(**old)).map(|(_, new)| *new).collect()
    }

    /// Whether an operand is a bias, which is added to products.
    fn is_bias(&self, node: &Node, operand: ValueId) -> bool {
        let is_line = self.old.ty(operand).shape.iter().filter(|n| **n > 1).count() < 2;
        let others = node.operands.iter().all(|other| *other == operand || self.products[other.index()]);
        node.op.is_sum() && self.weights[operand.index()] && others && is_line
    }

    /// Whether all operands that decide are narrower than `wide`.
    fn is_narrow(&self, b: &Builder, node: &Node, operands: &[ValueId], wide: DType) -> bool {
        let strong = self.strong(node, operands);
        !strong.is_empty() && strong.iter().all(|v| b.ty(*v).dtype != wide)
    }

    /// The rounded copy of a value. Of a parameter that is turned around, the parameter is rounded,
    /// so that there is one copy of it.
    fn narrow(&mut self, b: &mut Builder, value: ValueId) -> ValueId {
        if let Some(known) = self.narrowed.get(&value) {
            return *known;
        }
        let node = b.graph().def(value).clone();
        let name = b.graph().value(value).name.clone();
        b.base = Some(name);
        let narrow = match (&node.operands[..], self.compute) {
            ([only], _) if node.op.is_rearrangement() && is_of_state(b.graph(), value) => {
                let only = self.narrow(b, *only);
                b.op(node.op.clone(), &[only])
            }
            (_, Compute::Type(dtype)) => b.cast(value, dtype),
            (_, Compute::Rounded(format)) => b.op(RoundTo { format }, &[value]),
        };
        b.base = None;
        self.narrowed.insert(value, narrow);
        narrow
    }
}

/// The bias whose rounded copy a value is, in another shape; others as they are.
fn unrounded_bias(graph: &Graph, value: ValueId) -> ValueId {
    let operand = |v: ValueId| graph.def(v).operands.first().copied();
    let chain = operand(value).and_then(|shaped| Some((shaped, operand(shaped)?)));
    let Some((shaped, narrow)) = chain else { return value };
    let is_widened = matches!(graph.def(value).op, Op::Cast(_)) && matches!(graph.def(shaped).op, Op::Broadcast(_));
    let wide =
        operand(narrow).filter(|wide| is_widened && matches!(graph.def(narrow).op, Op::Cast(_)) && is_of_state(graph, *wide));
    wide.unwrap_or(value)
}

/// How many operands of a product are multiplied: a mask is added to sums, which are wide.
fn factors(node: &Node) -> usize {
    if let Op::Attention(_) = node.op { 3 } else { node.operands.len() }
}

/// The node over other operands.
fn append(b: &mut Builder, old: &Graph, node: &Node, operands: &[ValueId]) -> Vec<ValueId> {
    b.base = Some(old.value(node.results[0]).name.clone());
    let results = b.ops(node.op.clone(), operands);
    b.base = None;
    results
}

/// A float in a type.
fn rounded(b: &mut Builder, value: ValueId, dtype: DType) -> ValueId {
    if b.ty(value).dtype.is_float() { b.cast(value, dtype) } else { value }
}

fn floats<'a>(b: &'a Builder, values: &'a [ValueId]) -> impl Iterator<Item = ValueId> + 'a {
    values.iter().copied().filter(|v| b.ty(*v).dtype.is_float())
}

/// Whether a value is a state variable, whatever the order of its elements.
fn is_of_state(graph: &Graph, value: ValueId) -> bool {
    let mut node = graph.def(value);
    while node.op.is_rearrangement() {
        node = graph.def(node.operands[0]);
    }
    matches!(node.op, Op::State(_))
}
