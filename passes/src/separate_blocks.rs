//! Takes parameters and inputs whose blocks differ in size apart, so that each block is split on
//! its own.
//!
//! Before: `%w = state "w"` named by `shard "w" [-, (64|32|32)*tp]`, `%y = contract %x, %w`,
//! `%q = slice axis=2 start=0 size=64 %y`. After: `state "w[:, 0:64]"` and two more, each a block
//! of the initializer; `%q = contract %x, %w.0`. A value computed from a concatenation is computed
//! from its parts wherever the dimension is one letter of the op: kept letters give a concatenation
//! again, summed ones a sum. Other operands with that letter are sliced; an operand that depends on
//! parameters alone has its parameters taken apart alike, unless a `shard` line says otherwise of
//! them. Slices and concatenations along the dimension find the parts. Everything else reads the
//! concatenation. An input stays whole, its slices are split. The same under every mesh, so that a
//! plan and its reference have the same parts. Needs and keeps phase `raised`. Refuses a block that
//! the model does not use. A value that cannot be split at all is refused by `annotate`.

use crate::annotate::{check_blocks, last_lines};
use crate::blocks::Cut;
use crate::pass::{Context, Mode, Named, Pass};
use crate::rewrite::{ValueMap, mapped, rebuild, rebuild_nodes};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::{Graph, Node, NodeOrigin, Output, Part, Phase, State, StateId, ValueId};
use shardc_ir::letters::{Letter, Letters, Role};
use shardc_ir::ops::layout::{Concat, Slice};
use shardc_ir::ops::leaf::StateRead;
use shardc_ir::ops::{Op, letters_of};
use shardc_ir::plan::Block;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::spec::{DimSharding, Located, Shard};
use shardc_ir::types::Type;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// See the module.
pub struct SeparateBlocks;

impl Pass for SeparateBlocks {
    fn name(&self) -> &'static str {
        "separate-blocks"
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
        let mut cuts = Cuts::named(graph, cx);
        if cuts.states.is_empty() && cuts.inputs.is_empty() {
            return Ok(());
        }
        check_blocks(graph, cx)?;
        // Each time more parameters are known to meet the parts of another.
        let mut separated = None;
        for _ in 0..MOST_ROUNDS {
            let (made, met) = Separation::new(graph, cx, &cuts).build();
            if made.node_count() > most_nodes(graph) {
                break;
            }
            if met.is_empty() {
                separated = Some(made);
                break;
            }
            cuts.states.extend(met);
        }
        let separated = separated.ok_or_else(|| too_many(cx))?;
        *graph = rebuild(&separated, |_, _, _, _| None);
        all_used(graph)?;
        Ok(())
    }
}

/// Parameters that are met because others are taken apart, and so on, are looked for so often.
const MOST_ROUNDS: usize = 16;

/// The nodes that a graph may have once it is taken apart.
fn most_nodes(graph: &Graph) -> usize {
    (1 << 14) + 8 * graph.node_count()
}

/// The error where taking apart does not end, or makes too much.
fn too_many(cx: &Context<'_>) -> Diagnostic {
    let is_cut = |line: &&Located<Shard>| line.value.dims.iter().any(|dim| dim.value.unequal_blocks().is_some());
    let place = cx.spec.shard.iter().find(is_cut).map(|line| cx.spec.place_of(line.source));
    let error = Diagnostic::error("blocks of different sizes take too much of the model apart").at_opt(place);
    error.help("give fewer blocks, and lines of their own to parameters that meet them")
}

/// The state variables and inputs that are taken apart.
#[derive(Default)]
struct Cuts {
    states: BTreeMap<StateId, Cut>,
    inputs: BTreeMap<ValueId, Cut>,
    /// The dimensions of which a `shard` line says something else.
    closed: BTreeSet<(StateId, usize)>,
}

impl Cuts {
    /// The cuts that the spec asks for.
    fn named(graph: &Graph, cx: &Context<'_>) -> Cuts {
        let mut cuts = Cuts::default();
        for (value, shard) in last_lines(graph, cx) {
            for (dim, entry) in shard.dims.iter().enumerate() {
                let cut = entry.value.unequal_blocks().map(|sizes| Cut { dim, sizes: sizes.to_vec() });
                match (&graph.def(value).op, cut) {
                    (Op::State(read), Some(cut)) => drop(cuts.states.insert(read.state, cut)),
                    (Op::State(read), None) if entry.value != DimSharding::Open => drop(cuts.closed.insert((read.state, dim))),
                    (Op::Input(_), Some(cut)) => drop(cuts.inputs.insert(value, cut)),
                    _ => {}
                }
            }
        }
        cuts
    }
}

/// A value that is a concatenation.
struct Parts {
    cut: Cut,
    values: Vec<ValueId>,
}

/// The graph with everything that can be computed in parts computed in parts.
struct Separation<'g> {
    old: &'g Graph,
    named: Named<'g>,
    cuts: &'g Cuts,
    /// For each state variable, where it is read.
    reads: Vec<Option<ValueId>>,
    /// For each state variable, its first one in the new table.
    renumbered: Vec<StateId>,
    /// New values that are concatenations.
    parts: BTreeMap<ValueId, Parts>,
    /// Old values that depend on an input.
    of_inputs: Vec<bool>,
    /// State variables that meet parts, and how they would have to be cut.
    met: BTreeMap<StateId, Cut>,
    /// Old values that were asked for these, each along a dimension.
    visited: HashSet<(ValueId, usize)>,
}

impl<'g> Separation<'g> {
    fn new(old: &'g Graph, cx: &'g Context<'g>, cuts: &'g Cuts) -> Separation<'g> {
        let of_inputs = old.reached_from(|v| matches!(old.def(v).op, Op::Input(_)));
        Separation {
            old,
            named: cx.named(),
            cuts,
            reads: old.state_reads(),
            renumbered: vec![],
            parts: BTreeMap::new(),
            of_inputs,
            met: BTreeMap::new(),
            visited: HashSet::new(),
        }
    }

    fn build(mut self) -> (Graph, BTreeMap<StateId, Cut>) {
        let mut builder = Builder::rewrite(self.old);
        let mut states = vec![];
        for (i, state) in self.old.states.iter().enumerate() {
            self.renumbered.push(StateId(states.len() as u32));
            match self.cuts.states.get(&StateId(i as u32)) {
                Some(cut) => states.extend(cut.ranges().map(|(start, size)| self.block(i, state, cut.dim, start, size))),
                None => states.push(State { update: None, ..state.clone() }),
            }
        }
        builder.graph_mut().states = states;
        let (mut b, map) = rebuild_nodes(builder, self.old, |b, _, node, map| self.replace(b, node, map));
        b.graph_mut().outputs =
            self.old.outputs.iter().map(|o| Output { name: o.name.clone(), value: mapped(&map, o.value) }).collect();
        for (i, state) in self.old.states.iter().enumerate() {
            let Some(update) = state.update.map(|update| mapped(&map, update)) else { continue };
            let updates = self.updates(&mut b, StateId(i as u32), update);
            for (k, update) in updates.into_iter().enumerate() {
                b.graph_mut().states[self.renumbered[i].index() + k].update = Some(update);
            }
        }
        (b.finish(), self.met)
    }

    /// The updates of an old state variable, one for each of its blocks.
    fn updates(&mut self, b: &mut Builder, state: StateId, update: ValueId) -> Vec<ValueId> {
        let Some(cut) = self.cuts.states.get(&state) else { return vec![update] };
        b.origin = NodeOrigin { part: Part::Update, ..NodeOrigin::default() };
        let mut updates = vec![];
        for (start, size) in cut.ranges() {
            let pieces = self.pieces(b, update, cut.dim, start, size);
            updates.push(self.join(b, cut.dim, pieces, "update"));
        }
        updates
    }

    /// The state variable of a range of the `i`-th.
    fn block(&self, i: usize, state: &State, axis: usize, start: u64, size: u64) -> State {
        let alias = self.reads[i].map(|read| self.old.value(read).name.to_string()).filter(|alias| *alias != state.name);
        let block = Block { of: state.name.clone(), alias, axis, start, whole: state.ty.shape[axis] };
        let ty = resized(&state.ty, Some(axis), size);
        State { name: block.name(&ty.shape), ty, block: Some(block), update: None, ..state.clone() }
    }

    fn replace(&mut self, b: &mut Builder, node: &Node, map: &ValueMap) -> Option<Vec<ValueId>> {
        let operands: Vec<ValueId> = node.operands.iter().map(|v| mapped(map, *v)).collect();
        match &node.op {
            Op::State(read) => Some(vec![self.read(b, node, read.state)]),
            Op::Input(_) => {
                let cut = self.cuts.inputs.get(&node.results[0])?;
                let x = b.push(node.op.clone(), &[], self.old.result_types(node), "v")[0];
                b.rename(x, &self.old.value(node.results[0]).name);
                let values = cut.ranges().map(|(start, size)| slice(b, x, cut.dim, start, size)).collect();
                self.parts.insert(x, Parts { cut: cut.clone(), values });
                Some(vec![x])
            }
            _ if b.graph().node_count() > most_nodes(self.old) => None,
            _ if !operands.iter().any(|v| self.parts.contains_key(v)) || self.named.is_named(self.old, node) => None,
            _ => self.border(b, node, &operands).or_else(|| self.in_parts(b, node, &operands)),
        }
    }

    fn read(&mut self, b: &mut Builder, node: &Node, old: StateId) -> ValueId {
        let (first, name) = (self.renumbered[old.index()].0, self.old.value(node.results[0]).name.clone());
        let mut read = |state: u32, name: &str| {
            let ty = b.graph().states[state as usize].ty.clone();
            let value = b.push(StateRead { state: StateId(state) }.into(), &[], vec![ty], "v")[0];
            b.rename(value, name);
            value
        };
        let Some(cut) = self.cuts.states.get(&old) else { return read(first, &name) };
        let values: Vec<ValueId> = (0..cut.sizes.len() as u32).map(|k| read(first + k, &format!("{name}.{k}"))).collect();
        self.join(b, cut.dim, values, &name)
    }

    /// The result of a slice or concatenation along the dimension, made of the parts.
    fn border(&mut self, b: &mut Builder, node: &Node, operands: &[ValueId]) -> Option<Vec<ValueId>> {
        let name = &self.old.value(node.results[0]).name;
        let along = |v: &ValueId, axis: usize| self.parts.get(v).is_some_and(|parts| parts.cut.dim == axis);
        let (axis, pieces) = match &node.op {
            Op::Slice(s) if s.step == 1 && along(&operands[0], s.axis) => {
                (s.axis, self.pieces(b, operands[0], s.axis, s.start, s.size))
            }
            Op::Concat(c) if operands.iter().any(|v| along(v, c.axis)) => {
                let pieces = operands.iter().flat_map(|v| match self.parts.get(v) {
                    Some(parts) if parts.cut.dim == c.axis => parts.values.clone(),
                    _ => vec![*v],
                });
                (c.axis, pieces.collect())
            }
            _ => return None,
        };
        if let [only] = pieces[..]
            && !matches!(b.graph().def(only).op, Op::State(_) | Op::Input(_))
        {
            b.rename(only, name);
        }
        Some(vec![self.join(b, axis, pieces, name)])
    }

    /// The node once for each part of an operand, where that gives its results.
    fn in_parts(&mut self, b: &mut Builder, node: &Node, operands: &[ValueId]) -> Option<Vec<ValueId>> {
        let rules = node.op.rules();
        if rules.positions() {
            return None;
        }
        let (types, results): (Vec<Type>, _) = (operands.iter().map(|v| b.ty(*v).clone()).collect(), self.old.result_types(node));
        let letters = rules.letters(&types, &results);
        let (letter, cut) = operands.iter().zip(&letters.operands).find_map(|(v, dims)| {
            let parts = self.parts.get(v)?;
            let letter = *dims[parts.cut.dim].first()?;
            Carried::of(&letters, letter).map(|_| (letter, parts.cut.clone()))
        })?;
        let carried = Carried::of(&letters, letter)?;
        let part_of = |types: &[Type], dims: &[Option<usize>], size: u64| -> Vec<Type> {
            types.iter().zip(dims).map(|(ty, dim)| resized(ty, *dim, size)).collect()
        };
        let part = |size: u64| {
            let expected = part_of(&results, &carried.results, size);
            let op = node.op.clone().with_shape(&expected[0].shape);
            let found = op.rules().result(&part_of(&types, &carried.operands, size));
            (found.as_ref() == Ok(&expected)).then_some(op)
        };
        let ops: Vec<Op> = cut.sizes.iter().map(|size| part(*size)).collect::<Option<_>>()?;
        for (old, dim) in node.operands.iter().zip(&carried.operands) {
            dim.iter().for_each(|dim| self.meet(*old, &Cut { dim: *dim, sizes: cut.sizes.clone() }));
        }
        let names: Vec<&str> = node.results.iter().map(|v| &*self.old.value(*v).name).collect();
        let mut parts: Vec<Vec<ValueId>> = vec![vec![]; names.len()];
        for (k, (op, (start, size))) in ops.into_iter().zip(cut.ranges()).enumerate() {
            let mut inputs = vec![];
            for (v, dim) in operands.iter().zip(&carried.operands) {
                inputs.push(match dim {
                    Some(dim) => {
                        let pieces = self.pieces(b, *v, *dim, start, size);
                        self.join(b, *dim, pieces, names[0])
                    }
                    None => *v,
                });
            }
            let values = b.try_node(op, &inputs, "v").ok()?;
            for (value, (name, parts)) in values.into_iter().zip(names.iter().zip(&mut parts)) {
                b.rename(value, &format!("{name}.{k}"));
                parts.push(value);
            }
        }
        let whole = |(parts, (name, dim)): (Vec<ValueId>, (&&str, &Option<usize>))| match dim {
            Some(dim) => self.join(b, *dim, parts, name),
            None => sum(b, &parts, name),
        };
        Some(parts.into_iter().zip(names.iter().zip(&carried.results)).map(whole).collect())
    }

    /// `start..start + size` of a value along `dim`, as pieces of its parts.
    fn pieces(&self, b: &mut Builder, value: ValueId, dim: usize, start: u64, size: u64) -> Vec<ValueId> {
        let Some(parts) = self.parts.get(&value).filter(|parts| parts.cut.dim == dim) else {
            return vec![slice(b, value, dim, start, size)];
        };
        let overlap = |(part, (first, length)): (&ValueId, (u64, u64))| {
            let (low, high) = (start.max(first), (start + size).min(first + length));
            (low < high).then(|| slice(b, *part, dim, low - first, high - low))
        };
        parts.values.iter().zip(parts.cut.ranges()).filter_map(overlap).collect()
    }

    /// The concatenation of `values`, called `name`, or the only one.
    fn join(&mut self, b: &mut Builder, dim: usize, values: Vec<ValueId>, name: &str) -> ValueId {
        if let [only] = values[..] {
            return only;
        }
        let whole = b.op(Concat { axis: dim }, &values);
        b.rename(whole, name);
        let sizes = values.iter().map(|v| b.ty(*v).shape[dim]).collect();
        self.parts.insert(whole, Parts { cut: Cut { dim, sizes }, values });
        whole
    }

    /// Notes the parameters on which alone an old value depends along the dimension: they are cut
    /// alike.
    fn meet(&mut self, value: ValueId, cut: &Cut) {
        let mut left = vec![(value, cut.dim)];
        while let Some((value, dim)) = left.pop() {
            if !self.visited.insert((value, dim)) {
                continue;
            }
            let node = self.old.def(value);
            if let Op::State(read) = &node.op {
                if !self.cuts.states.contains_key(&read.state) && !self.cuts.closed.contains(&(read.state, dim)) {
                    self.met.entry(read.state).or_insert_with(|| Cut { dim, sizes: cut.sizes.clone() });
                }
                continue;
            }
            if self.of_inputs[value.index()] || node.operands.is_empty() {
                continue;
            }
            let letters = letters_of(self.old, self.old.value(value).node);
            let letter = letters.results[self.old.value(value).result][dim].first().copied();
            let Some(carried) = letter.and_then(|letter| Carried::of(&letters, letter)) else { continue };
            let operands = node.operands.iter().zip(carried.operands);
            left.extend(operands.rev().filter_map(|(operand, dim)| Some((*operand, dim?))));
        }
    }
}

/// The dimension of each operand and result that is a letter along which a node can be computed in
/// parts.
struct Carried {
    operands: Vec<Option<usize>>,
    results: Vec<Option<usize>>,
}

impl Carried {
    /// None if the letter is part of a merged dimension, or the results are neither concatenations
    /// nor sums of parts.
    fn of(letters: &Letters, letter: Letter) -> Option<Carried> {
        let place = |dims: &Vec<Vec<Letter>>| {
            let mut holding = dims.iter().enumerate().filter(|(_, held)| held.contains(&letter));
            match (holding.next(), holding.next()) {
                (None, _) => Some(None),
                (Some((dim, held)), None) => (held[..] == [letter]).then_some(Some(dim)),
                (Some(_), Some(_)) => None,
            }
        };
        let places = |tensors: &[Vec<Vec<Letter>>]| tensors.iter().map(place).collect::<Option<Vec<_>>>();
        let carried = Carried { operands: places(&letters.operands)?, results: places(&letters.results)? };
        let fits = match letters.roles[letter] {
            Role::Kept => carried.results.iter().all(Option::is_some),
            Role::Reduced(ReduceKind::Sum) => carried.results.iter().all(Option::is_none),
            Role::Reduced(_) | Role::Whole => false,
        };
        fits.then_some(carried)
    }
}

fn resized(ty: &Type, dim: Option<usize>, size: u64) -> Type {
    let mut ty = ty.clone();
    dim.iter().for_each(|dim| ty.shape[*dim] = size);
    ty
}

fn slice(b: &mut Builder, value: ValueId, axis: usize, start: u64, size: u64) -> ValueId {
    if b.ty(value).shape[axis] == size {
        return value;
    }
    b.base = Some(b.graph().value(value).name.clone());
    b.op(Slice { axis, start, step: 1, size }, &[value])
}

fn sum(b: &mut Builder, parts: &[ValueId], name: &str) -> ValueId {
    let total = parts[1..].iter().fold(parts[0], |total, part| b.add(total, *part));
    b.rename(total, name);
    total
}

/// An error for each block that nothing reads while others of its initializer are read.
fn all_used(graph: &Graph) -> Result<(), Diagnostics> {
    let mut read = vec![false; graph.states.len()];
    for (_, node) in graph.nodes() {
        if let Op::State(state) = &node.op {
            read[state.state.index()] = true;
        }
    }
    let of = |state: &State| state.block.as_ref().map(|block| block.of.clone());
    let used: HashSet<String> = graph.states.iter().zip(&read).filter(|(_, read)| **read).filter_map(|(s, _)| of(s)).collect();
    let lost = graph.states.iter().zip(&read).filter(|(state, read)| !**read && of(state).is_some_and(|of| used.contains(&of)));
    let error = |state: &State| {
        let error = Diagnostic::error(format!("nothing in the model reads `{}`", state.name));
        error.help("join it with a block beside it")
    };
    let errors: Diagnostics = lost.map(|(state, _)| error(state)).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
