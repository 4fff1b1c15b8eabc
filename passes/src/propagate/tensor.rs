//! `tensor axis=tp`: finds the column and row split of attention and MLP blocks, and of pairs of
//! convolutions, from the letters.
//!
//! Before: `%h = contract "btd,dn->btn" %x, %w1`, `%y = contract "btn,nd->btd" %a, %w2`. After: n
//! is split in `%w1`, `%h`, `%a`, `%w2`. A block is what the split of one letter reaches that a
//! layer (the row) sums over, spread both ways: everything it reaches agrees, it begins in the
//! outputs of other layers (the columns), and nothing but rows sums over it. So it costs one
//! all-reduce of the row's result forward and one of the columns' input backward, and no other
//! communication. Of blocks that overlap the one that sends least for each parameter it splits is
//! taken; where a model has residual connections, only blocks beside one are. Then heads: a layer
//! whose outputs only reductions sum over, such as those of a loss, is split by columns where it
//! has as many parameters as the dearest block and sends no more for each. Values that the spec's
//! own lines split otherwise are left to them. Refuses a block whose sizes the ranks do not divide,
//! and a line without a block. Source: Shoeybi et al., Megatron-LM (2019).

use super::facts::{Change, Facts, LetterTable, Rule, primes};
use super::scopes::unmatched;
use crate::pass::{Context, Mode};
use crate::weights::{Layer, bytes, columns, contracted, layer, parameter, weights};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, counted, first_of_each_place};
use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::letters::{Letter, Role};
use shardc_ir::mesh::AxisId;
use shardc_ir::names::matches_scope;
use shardc_ir::ops::{Linear, Op, linear_of};
use shardc_ir::plan::StateRole;
use shardc_ir::sharding::Split;
use shardc_ir::spec::{Located, Tensor};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Splits the blocks of the model as the spec's `tensor` lines say.
///
/// # Errors
/// For each line one about scopes that are not there, or sizes that its ranks do not divide.
pub fn split_blocks(graph: &Graph, cx: &Context<'_>, rules: &LetterTable, facts: &mut Facts) -> Result<(), Diagnostics> {
    let mut errors = unmatched(graph, cx, cx.spec.tensor.iter().filter_map(|line| line.value.on.as_ref()));
    let search = Search { graph, rules, weights: weights(graph), moves: moves(graph) };
    let mut alone = Facts::new(graph, &[]);
    let mut blocks: Vec<Block> = vec![];
    for (r, rule) in rules.all.iter().enumerate() {
        let (Some(layer), Some(line)) = (search.layer(rule), line_of(graph, cx, rule)) else { continue };
        if facts.mesh.size(line.value.axis) > 1 {
            for letter in contracted(rule, layer) {
                match search.block(r, letter, line, End::Row, &mut alone) {
                    Some(block) => blocks.push(block),
                    None => errors.extend(search.stopped(r, letter, line, &mut alone, facts, cx)),
                }
            }
        }
    }
    // Obstacles of blocks are reported before the lack of any block.
    if errors.is_empty() {
        errors = fruitless(graph, cx, &blocks);
    }
    if blocks.iter().any(|b| b.beside_residual) {
        blocks.retain(|b| b.beside_residual);
    }
    blocks.sort_by(Block::dearer);
    let mut taken: Vec<BTreeSet<AxisId>> = vec![BTreeSet::new(); graph.value_count()];
    // The dearest block that is taken for each line.
    let mut dearest: Vec<Block<'_>> = vec![];
    for block in blocks {
        let axis = block.line.value.axis;
        if block.values.iter().any(|v| taken[v.index()].contains(&axis)) {
            continue;
        }
        if search.spread(block.row, block.letter, facts, block.line).is_none() {
            match search.spread(block.row, block.letter, &mut alone, block.line) {
                Some(changes) => {
                    alone.undo(changes);
                    continue;
                }
                None if block.values.iter().any(|v| facts.is_closed(*v)) => continue,
                None => {
                    let unit = search.indivisible(&block, graph.mesh.size(axis));
                    errors.push(search.does_not_divide(block.row, block.line, unit, cx));
                }
            }
        }
        for value in &block.values {
            taken[value.index()].insert(axis);
        }
        dearest.retain(|other| other.line.source != block.line.source);
        dearest.push(block);
    }
    if errors.is_empty() {
        search.split_heads(cx, facts, &dearest);
    }
    first_of_each_place(errors)
}

/// An error for each line without a block. Without its backward pass a model may have other blocks;
/// what is trained decides.
fn fruitless(graph: &Graph, cx: &Context<'_>, blocks: &[Block<'_>]) -> Diagnostics {
    let error = |line: &Located<Tensor>| {
        let axis = graph.mesh.name(line.value.axis);
        let of = line.value.on.as_ref().map_or("the model".to_string(), |on| format!("\"{}\"", on.value));
        Diagnostic::error(format!("no block of {of} can be split over `{axis}` by columns and rows"))
            .at(cx.spec.place_of(line.source))
            .help(format!("name what is split in lines such as `shard \"*.weight\" [{axis}, -]`, or remove the line"))
    };
    let finds = |line: &Located<Tensor>| blocks.iter().any(|block| block.line.source == line.source);
    let is_asked = |line: &&Located<Tensor>| graph.mesh.size(line.value.axis) > 1 && !cx.spec.may_be_idle(line.value.axis);
    let lines = cx.spec.tensor.iter().filter(|_| cx.mode == Mode::Train);
    lines.filter(is_asked).filter(|line| !finds(line)).map(error).collect()
}

/// The last line whose scope holds the node.
fn line_of<'c>(graph: &Graph, cx: &Context<'c>, rule: &Rule) -> Option<&'c Located<Tensor>> {
    let scope = rule.node.and_then(|node| graph.node(node).origin.scope.as_deref()).unwrap_or("");
    let holds = |line: &&Located<Tensor>| line.value.on.as_ref().is_none_or(|on| matches_scope(&on.value, scope));
    cx.spec.tensor.iter().rev().find(holds)
}

/// A letter whose split makes columns and rows of layers.
struct Block<'c> {
    /// The line that asks for it.
    line: &'c Located<Tensor>,
    /// The layer that sums over the letter.
    row: usize,
    letter: Letter,
    /// Everything that its split reaches.
    values: Vec<ValueId>,
    /// The sizes of the letters that it splits on the way.
    sizes: BTreeSet<u64>,
    /// Bytes that are summed over ranks in a step.
    sent: u128,
    /// Elements of parameters that are split.
    split: u64,
    beside_residual: bool,
}

impl Block<'_> {
    /// Which of two sends more for each parameter that it splits.
    fn dearer(&self, other: &Block<'_>) -> Ordering {
        (self.sent * u128::from(other.split)).cmp(&(other.sent * u128::from(self.split)))
    }
}

/// What sums over the letter of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Other layers.
    Row,
    /// No layer: what follows a head.
    Loss,
}

struct Search<'g> {
    graph: &'g Graph,
    rules: &'g LetterTable,
    weights: Vec<bool>,
    /// For each value, whether it moves with a parameter: then its gradient is summed too.
    moves: Vec<bool>,
}

fn moves(graph: &Graph) -> Vec<bool> {
    graph.reached_from(
        |v| matches!(&graph.def(v).op, Op::State(read) if graph.states[read.state.index()].role == StateRole::Parameter),
    )
}

impl Search<'_> {
    fn layer(&self, rule: &Rule) -> Option<Layer> {
        if rule.is_forward { layer(rule, &self.weights) } else { None }
    }

    /// The block of a row, as the smallest number of ranks that splits it shows it. `facts` are
    /// empty, before and after.
    fn block<'c>(&self, row: usize, letter: Letter, line: &'c Located<Tensor>, end: End, facts: &mut Facts) -> Option<Block<'c>> {
        let mesh = facts.mesh.clone();
        let found = primes(self.rules.all[row].letters.sizes[letter]).into_iter().find_map(|ranks| {
            facts.mesh = mesh.resized(line.value.axis, ranks);
            let changes = self.spread(row, letter, facts, line)?;
            let values = changes.iter().map(|c| c.value).collect();
            let block = self.price((row, letter), line, end, values, facts);
            facts.undo(changes);
            block
        });
        facts.mesh = mesh;
        found
    }

    /// Splits the heads that have as many parameters as the dearest block of their line, and send
    /// no more for each.
    fn split_heads(&self, cx: &Context<'_>, facts: &mut Facts, dearest: &[Block<'_>]) {
        let mut alone = Facts::new(self.graph, &[]);
        alone.mesh = facts.mesh.clone();
        for (r, rule) in self.rules.all.iter().enumerate() {
            let (Some(layer), Some(line)) = (self.layer(rule), line_of(self.graph, cx, rule)) else { continue };
            let Some(block) = dearest.iter().find(|block| block.line.source == line.source) else { continue };
            for letter in columns(rule, layer) {
                let head = self.block(r, letter, line, End::Loss, &mut alone);
                if head.is_some_and(|head| head.split >= block.split && head.dearer(block) != Ordering::Greater) {
                    self.spread(r, letter, facts, line);
                }
            }
        }
    }

    /// The error of units, such as heads, that stop the split of a row's letter because there are
    /// too few of them; none where `spec` has lines of its own.
    fn stopped(
        &self,
        row: usize,
        letter: Letter,
        line: &Located<Tensor>,
        facts: &mut Facts,
        spec: &Facts,
        cx: &Context<'_>,
    ) -> Option<Diagnostic> {
        let (axis, size) = (line.value.axis, self.rules.all[row].letters.sizes[letter]);
        let ranks = facts.mesh.size(axis);
        let split = Split { axis, stride: size.is_multiple_of(ranks).then_some(size / ranks)? };
        let changes = facts.spread(self.rules, row, letter, split, line.source.line as u32);
        let values: Vec<ValueId> = changes.iter().map(|c| c.value).collect();
        let stops = |rule: &Rule| if facts.letter(rule, axis).is_err() { rule.letters.indivisible(ranks) } else { None };
        let unit = self.rules.forward_of(&values).into_iter().find_map(|r| stops(&self.rules.all[r]));
        facts.undo(changes);
        unit.filter(|_| !values.iter().any(|v| spec.is_closed(*v))).map(|unit| self.does_not_divide(row, line, unit, cx))
    }

    /// Spreads the split of a row's letter; takes it back where something disagrees.
    fn spread(&self, row: usize, letter: Letter, facts: &mut Facts, line: &Located<Tensor>) -> Option<Vec<Change>> {
        let (axis, size) = (line.value.axis, self.rules.all[row].letters.sizes[letter]);
        if !size.is_multiple_of(facts.mesh.size(axis)) {
            return None;
        }
        let split = Split { axis, stride: size / facts.mesh.size(axis) };
        let changes = facts.spread(self.rules, row, letter, split, line.source.line as u32);
        let values: Vec<ValueId> = changes.iter().map(|c| c.value).collect();
        let mut reached = self.rules.forward_of(&values);
        reached.push(row);
        if facts.letter(&self.rules.all[row], axis).ok().flatten() != Some(letter)
            || reached.iter().any(|r| facts.letter(&self.rules.all[*r], axis).is_err())
        {
            facts.undo(changes);
            return None;
        }
        Some(changes)
    }

    /// The block of a split, with the bytes that it sends; none if it is no block.
    fn price<'c>(
        &self,
        (row, letter): (usize, Letter),
        line: &'c Located<Tensor>,
        end: End,
        values: Vec<ValueId>,
        facts: &Facts,
    ) -> Option<Block<'c>> {
        let axis = line.value.axis;
        let mut columns: BTreeSet<ValueId> = BTreeSet::new();
        let mut broadcast: BTreeSet<ValueId> = BTreeSet::new();
        let mut rows: BTreeSet<ValueId> = BTreeSet::new();
        let mut sizes: BTreeSet<u64> = BTreeSet::new();
        for r in self.rules.forward_of(&values) {
            let rule = &self.rules.all[r];
            let Some(letter) = facts.letter(rule, axis).ok()? else { continue };
            sizes.insert(rule.letters.sizes[letter]);
            let lacks = |i: &usize| !rule.letters.operands[*i].iter().flatten().any(|l| *l == letter);
            match (self.layer(rule), rule.letters.roles[letter]) {
                (found, Role::Reduced(_)) => {
                    let is_row = found.is_some_and(|layer| contracted(rule, layer).any(|l| l == letter));
                    if is_row != (end == End::Row) {
                        return None;
                    }
                    rows.extend(&rule.results);
                }
                (Some(layer), _) if lacks(&layer.input) && !lacks(&layer.weight) => {
                    columns.insert(rule.operands[layer.input]);
                }
                _ => {}
            }
            broadcast.extend((0..rule.operands.len()).filter(lacks).map(|i| rule.operands[i]).filter(|v| self.moves[v.index()]));
        }
        if columns.is_empty() || rows.is_empty() {
            return None;
        }
        let sent = rows.iter().chain(&broadcast).map(|v| u128::from(bytes(self.graph, *v))).sum();
        let states = values.iter().filter(|v| matches!(self.graph.def(**v).op, Op::State(_)));
        let split = states.collect::<BTreeSet<_>>().into_iter().map(|v| self.graph.ty(*v).elements()).sum();
        let beside_residual = rows.iter().any(|row| columns.iter().any(|x| self.is_beside_residual(*x, *row)));
        Some(Block { line, row, letter, values, sizes, sent, split, beside_residual })
    }

    /// The unit of a block that the ranks do not divide: heads where an op counts them, or else the
    /// smallest letter.
    fn indivisible(&self, block: &Block<'_>, ranks: u64) -> (u64, &'static str) {
        let reached = self.rules.forward_of(&block.values);
        let unit = reached.iter().find_map(|r| self.rules.all[*r].letters.indivisible(ranks));
        let letters = block.sizes.iter().copied().filter(|size| !size.is_multiple_of(ranks)).min();
        let row = self.rules.all[block.row].letters.sizes[block.letter];
        unit.unwrap_or((letters.unwrap_or(row), "channel"))
    }

    fn does_not_divide(&self, row: usize, line: &Located<Tensor>, (size, unit): (u64, &str), cx: &Context<'_>) -> Diagnostic {
        let rule = &self.rules.all[row];
        let weight = parameter(self.graph, rule.operands[self.layer(rule).map_or(0, |l| l.weight)]);
        let (ranks, name) = (self.graph.mesh.size(line.value.axis), self.graph.mesh.name(line.value.axis));
        let closed = vec!["-"; self.graph.ty(weight).rank()].join(", ");
        let weight = &self.graph.value(weight).name;
        let units = counted(size, unit);
        Diagnostic::error(format!("`{name}` has {ranks} ranks, but the block that ends in \"{weight}\" has {units}"))
            .at(cx.spec.place_of(line.source))
            .help(format!(
                "use `{name}` of a size that divides {size}, or leave the block whole with `shard \"{weight}\" [{closed}]`"
            ))
    }

    /// Whether what is computed from `row`, before the next layer, is added to `input`, to what
    /// `input` was made of, or to what else was made of it.
    fn is_beside_residual(&self, input: ValueId, row: ValueId) -> bool {
        let before = self.before(input, None);
        let mut downstream = BTreeSet::from([row]);
        let first = self.graph.value(row).node;
        for rule in &self.rules.all {
            let Some(node) = rule.node.filter(|n| *n > first && rule.is_forward) else { continue };
            let (from_row, others): (Vec<ValueId>, Vec<ValueId>) = rule.operands.iter().partition(|v| downstream.contains(v));
            if from_row.is_empty() || self.layer(rule).is_some() {
                continue;
            }
            let adds = linear_of(self.graph, self.graph.node(node)) == Linear::Together;
            let is_skip = |v: &ValueId| before.contains(v) || self.before(*v, Some(input)).contains(&input);
            if adds && others.iter().any(|v| !self.weights[v.index()] && is_skip(v)) {
                return true;
            }
            downstream.extend(&rule.results);
        }
        false
    }

    /// The value and everything that it was made of (later than `after`), inputs and constants
    /// apart.
    fn before(&self, value: ValueId, after: Option<ValueId>) -> BTreeSet<ValueId> {
        let mut found = BTreeSet::from([value]);
        let mut left = vec![value];
        while let Some(value) = left.pop() {
            for operand in &self.graph.def(value).operands {
                let late = after.is_none_or(|a| *operand >= a);
                if late
                    && !self.weights[operand.index()]
                    && !self.graph.def(*operand).operands.is_empty()
                    && found.insert(*operand)
                {
                    left.push(*operand);
                }
            }
        }
        found
    }
}
