//! Decides for each op how its letters are split, marks what is partial, and makes every
//! disagreement a visible `reshard`.
//!
//! Before: `%p = contract "bn,nm->bm" %a, %w2` and `%y = add %p, %b2`, with n split over tp. After:
//! `%p : … partial(sum: tp)`, `%p_1 = reshard %p`, `%y = add %p_1, %b2`. A partial sum passes an op
//! only where the op is linear in it, while it has one reader and does not grow; sums add what is
//! partial alike first ([`sums`]). Weights stay where they are, activations move; a state variable
//! is updated under its own sharding. With stages, each node runs at the position of its stage and
//! its operands are moved there, once for all readers that lack them, reduced and summed up over
//! micro-batches first ([`places`]). Needs phase `annotated`, gives `explicit` (with `reshard`s
//! still in it).

mod places;
mod reasons;
mod sums;

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{ValueMap, mapped};
use crate::weights::{gradients_of_weights, weights};
use crate::zero;
use places::{Places, Stages, is_for_all};
use reasons::Reasons;
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Node, NodeId, NodeOrigin, Output, Part, Phase, ValueId};
use shardc_ir::letters::{Assignment, Letter, Letters, Role};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::{comm::Reshard, linear_of};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::sharding::{At, Sharding, with_split};
use shardc_ir::spec::FloatType;
use std::collections::HashMap;
use std::sync::Arc;

/// See the module.
pub struct InsertReshards;

impl Pass for InsertReshards {
    fn name(&self) -> &'static str {
        "insert-reshards"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Annotated
    }

    fn gives(&self) -> Phase {
        Phase::Explicit
    }

    fn modes(&self) -> &'static [Mode] {
        Mode::ALL
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let pipeline = cx.spec.pipeline.as_ref().filter(|pipeline| graph.mesh.size(pipeline.value.axis) > 1);
        let stages = pipeline.map(|pipeline| Stages { axis: pipeline.value.axis, line: pipeline.source.line as u32 });
        let lines = zero::lines(graph, cx.spec, &mut vec![]);
        let kept = zero::kept_copies(graph, &lines);
        let cuts = lines.into_iter().map(zero::cuts_gradients).collect();
        let reduce = cx.spec.precision.as_ref().and_then(|line| line.value.reduce).map(FloatType::dtype);
        *graph = Explicit { kept, reduce: reduce.filter(|dtype| dtype.is_half()), ..Explicit::new(graph, stages, cuts) }.build();
        Ok(())
    }
}

/// The readers that a value is for, by part and stage; all where there is none.
type Readers = Option<(Part, Option<u32>)>;

struct Explicit<'g> {
    old: &'g Graph,
    uses: Vec<usize>,
    /// For each old value, whether it is made of parameters alone.
    weights: Vec<bool>,
    /// For each old value, whether it is the gradient of one.
    gradients: Vec<bool>,
    b: Builder,
    map: ValueMap,
    /// For the gradient of a state variable, the value that updates read: under the sharding of the
    /// state.
    complete: ValueMap,
    /// For each new value its reshards so far. What was gathered or cut is for readers of one part
    /// and stage, and is gone behind them.
    made: Vec<Vec<(Sharding, Readers, ValueId)>>,
    /// For each old value, the state variable whose gradient it is.
    gradient_of: Vec<Option<usize>>,
    /// For each state variable, whether its gradient is cut in every micro-batch.
    cuts_gradients: Vec<bool>,
    /// Where everything is.
    places: Places,
    /// Moved values, by the new value that was moved.
    moved: HashMap<ValueId, ValueId>,
    /// For each old value, whether it is a rounded parameter that stays whole for the step.
    kept: Vec<bool>,
    /// The type of 16 bits in which sums are reduced over ranks, where they have two to choose
    /// from; else they are wide.
    reduce: Option<DType>,
}

impl<'g> Explicit<'g> {
    fn new(old: &'g Graph, stages: Option<Stages>, cuts_gradients: Vec<bool>) -> Explicit<'g> {
        let mut gradient_of = vec![None; old.value_count()];
        for (i, state) in old.states.iter().enumerate() {
            if let Some(g) = state.gradient {
                gradient_of[g.index()] = Some(i);
            }
        }
        Explicit {
            old,
            uses: old.use_counts(),
            weights: weights(old),
            gradients: gradients_of_weights(old),
            b: Builder::rewrite(old),
            map: vec![None; old.value_count()],
            complete: vec![None; old.value_count()],
            made: vec![],
            gradient_of,
            cuts_gradients,
            places: Places::of(old, stages),
            moved: HashMap::new(),
            kept: vec![false; old.value_count()],
            reduce: None,
        }
    }

    fn build(mut self) -> Graph {
        for (id, node) in sums::ordered(self.old, &self.uses) {
            if node.operands.is_empty() {
                let results = self.b.copy(self.old, &node, &mut self.map);
                for value in results {
                    let at = self.places.node(self.old, id, &node);
                    let sharding = Sharding { at, ..self.b.graph().sharding(value).clone() };
                    self.b.graph_mut().set_sharding(value, sharding);
                }
            } else {
                self.place(id, &node);
            }
        }
        self.whole_roots();
        let mut graph = self.b.finish();
        graph.phase = Phase::Explicit;
        graph
    }

    /// Appends a node with its operands resharded to what its letters need.
    fn place(&mut self, id: NodeId, node: &Node) {
        let at = self.places.node(self.old, id, node);
        let letters = node.op.rules().letters(&self.old.operand_types(node), &self.old.result_types(node));
        let operands: Vec<ValueId> = node.operands.iter().map(|v| self.read(*v, node.origin.part)).collect();
        let current: Vec<Sharding> = operands.iter().map(|v| self.b.graph().sharding(*v).clone()).collect();
        let mut assignment = self.settled(&letters, &current, node);
        let passing = self.passing(&assignment, node, &current, &at);
        self.complete_wishes(&mut assignment, &letters, &current, node, &passing);
        let mut inputs = vec![];
        let flat = self.flat(node, &letters);
        for (i, value) in operands.iter().enumerate() {
            let dims = letters.project(&letters.operands[i], &assignment);
            let flat = if self.is_flat(node, i) { flat.clone() } else { vec![] };
            let mut wanted = Sharding { dims, flat, partial: vec![], at: at.clone() };
            wanted.partial = current[i].partial.iter().filter(|p| passing.contains(&p.axis)).copied().collect();
            let input = self.reshard(*value, wanted, node.operands[i], Some(node));
            inputs.push(input);
        }
        self.b.origin = node.origin.clone();
        let types = self.old.result_types(node);
        let results = self.b.push(node.op.clone(), &inputs, types, "v");
        for (k, (old, new)) in node.results.iter().zip(results).enumerate() {
            self.b.rename(new, &self.old.value(*old).name);
            let dims = letters.project(&letters.results[k], &assignment);
            let mut sharding = Sharding { dims, flat: vec![], partial: vec![], at: at.clone() };
            match of_all(&letters) {
                Some(kind) => flat.iter().for_each(|axis| sharding.add_partial(*axis, kind)),
                None => sharding.flat = flat.clone(),
            }
            for (letter, splits) in assignment.iter().enumerate() {
                if let Role::Reduced(kind) = letters.roles[letter] {
                    splits.iter().for_each(|s| sharding.add_partial(s.axis, kind));
                }
            }
            passing.iter().for_each(|axis| sharding.add_partial(*axis, ReduceKind::Sum));
            let graph = self.b.graph_mut();
            graph.set_sharding(new, sharding);
            self.old.value(*old).asked.iter().for_each(|(axis, line)| graph.set_asked(new, *axis, *line));
            self.map[old.index()] = Some(new);
        }
        for old in &node.results {
            if let Some(state) = self.gradient_of[old.index()] {
                self.complete[old.index()] = Some(self.gradient(*old, state));
            }
        }
    }

    /// The axes over which a node computes ranges of a line.
    fn flat(&self, node: &Node, letters: &Letters) -> Vec<AxisId> {
        let of = if of_all(letters).is_some() { node.operands[0] } else { node.results[0] };
        let rounds = node.op.converts_to().is_some() && !self.old.sharding(node.operands[0]).flat.is_empty();
        let computes = node.origin.part == Part::Update || rounds;
        if computes { self.old.sharding(of).flat.clone() } else { vec![] }
    }

    /// Whether operand `i` of a node that computes ranges is one of them, and no single number.
    fn is_flat(&self, node: &Node, i: usize) -> bool {
        self.old.ty(node.operands[i]).rank() > 0
    }

    /// The new value of `old` for a reader in `part`.
    fn read(&self, old: ValueId, part: Part) -> ValueId {
        match self.complete[old.index()] {
            Some(complete) if part == Part::Update => complete,
            _ => mapped(&self.map, old),
        }
    }

    /// The splits that letters have: from weights as they are and gradients of weights as they are
    /// wanted, so that neither moves, then from the other operands.
    fn settled(&self, letters: &Letters, current: &[Sharding], node: &Node) -> Assignment {
        let mut assignment: Assignment = vec![vec![]; letters.sizes.len()];
        let is_weight = |i: &usize| self.weights[node.operands[*i].index()];
        let (weights, others): (Vec<usize>, Vec<usize>) = (0..current.len()).partition(is_weight);
        let operand = |i: usize| (&letters.operands[i], &current[i]);
        let gradients = node.results.iter().zip(&letters.results).filter(|(v, _)| self.gradients[v.index()]);
        let gradients = gradients.map(|(v, dims)| (dims, self.old.sharding(*v)));
        for (dims, sharding) in weights.into_iter().map(operand).chain(gradients).chain(others.into_iter().map(operand)) {
            self.extend(&mut assignment, letters, dims, sharding, |_| true);
        }
        assignment
    }

    /// Adds the splits that propagation wants of operands that are still partial, and of results;
    /// not over axes in `passing`.
    fn complete_wishes(
        &self,
        assignment: &mut Assignment,
        letters: &Letters,
        current: &[Sharding],
        node: &Node,
        passing: &[AxisId],
    ) {
        for ((value, dims), current) in node.operands.iter().zip(&letters.operands).zip(current) {
            let reduced = |axis: AxisId| current.partial_over(axis).is_some() && !passing.contains(&axis);
            self.extend(assignment, letters, dims, self.old.sharding(*value), reduced);
        }
        for (value, dims) in node.results.iter().zip(&letters.results) {
            self.extend(assignment, letters, dims, self.old.sharding(*value), |axis| !passing.contains(&axis));
        }
    }

    fn extend(
        &self,
        assignment: &mut Assignment,
        letters: &Letters,
        dims: &[Vec<Letter>],
        sharding: &Sharding,
        over: impl Fn(AxisId) -> bool,
    ) {
        let located = letters.to_letters(dims, sharding).into_iter().flatten().flatten();
        for (letter, split) in located.filter(|(_, split)| over(split.axis)) {
            if let Some(splits) = letters.extend(assignment, letter, split, &self.old.mesh) {
                assignment[letter] = splits;
            }
        }
    }

    /// The axes over which partial sums pass through the node. Micro-batches are summed up before a
    /// sum is moved.
    fn passing(&self, assignment: &Assignment, node: &Node, current: &[Sharding], at: &Option<At>) -> Vec<AxisId> {
        let time = self.old.mesh.microbatch_axis();
        let mut axes: Vec<AxisId> = current.iter().flat_map(|s| s.partial.iter().map(|p| p.axis)).collect();
        axes.sort();
        axes.dedup();
        if axes.is_empty() || !self.passes_cast(node) {
            return vec![];
        }
        let sets = linear_of(self.old, node).sets(node.operands.len());
        let mut reads: HashMap<ValueId, usize> = HashMap::new();
        node.operands.iter().for_each(|value| *reads.entry(*value).or_default() += 1);
        let grows = |i: &usize| {
            let size = self.old.ty(node.operands[*i]).elements();
            node.results.iter().any(|v| self.old.ty(*v).elements() > size)
        };
        axes.retain(|axis| {
            let splits_letter = assignment.iter().flatten().any(|s| s.axis == *axis);
            let partial: Vec<usize> = (0..current.len()).filter(|i| current[*i].partial_over(*axis).is_some()).collect();
            let sums = partial.iter().all(|i| current[*i].partial_over(*axis) == Some(ReduceKind::Sum));
            let read_once = partial.iter().map(|i| node.operands[*i]).all(|value| self.uses[value.index()] == reads[&value]);
            let stays = *axis != time || partial.iter().all(|i| At::covered(at, &current[*i].at));
            stays && !splits_letter && sums && read_once && sets.contains(&partial) && !partial.iter().any(grows)
        });
        axes
    }

    /// Whether sums that are not complete may be cast: gradients of weights are kept in their type
    /// while they are summed up, all else is reduced in the type for that.
    fn passes_cast(&self, node: &Node) -> bool {
        let Some(to) = node.op.converts_to() else { return true };
        let from = self.old.ty(node.operands[0]).dtype;
        let rounds = from.is_half() || to.is_half();
        let is_towards = self.reduce.map_or(!to.is_half(), |reduce| to == reduce);
        rounds && (self.gradients[node.results[0].index()] || is_towards)
    }

    /// `value` under another sharding: itself, a reshard made before, or a new one. What is wanted
    /// at a place where it is not is moved.
    fn reshard(&mut self, value: ValueId, wanted: Sharding, old: ValueId, reader: Option<&Node>) -> ValueId {
        let current = self.b.graph().sharding(value).clone();
        if !At::covered(&wanted.at, &current.at) {
            let moved = self.move_to(value, &wanted, old, reader);
            return self.reshard(moved, wanted, old, reader);
        }
        let wanted = Sharding { at: current.at.clone(), ..wanted };
        if current == wanted {
            return value;
        }
        let cuts_or_gathers = current.flat.is_empty() != wanted.flat.is_empty();
        let kept = cuts_or_gathers && self.kept[old.index()];
        let reads = reader.filter(|_| cuts_or_gathers && !kept).map(|reader| (reader.origin.part, reader.origin.stage));
        self.made.resize(self.b.graph().value_count(), vec![]);
        if let Some((.., known)) = self.made[value.index()].iter().find(|(s, by, _)| *s == wanted && *by == reads) {
            return *known;
        }
        self.b.origin = self.reason(value, &wanted, old, reader);
        if let Some((part, stage)) = reads {
            (self.b.origin.part, self.b.origin.stage) = (part, stage);
        }
        let name = self.b.graph().value(value).name.clone();
        let ty = self.b.ty(value).clone();
        let result = self.b.push(Reshard { kept }.into(), &[value], vec![ty], &name)[0];
        self.b.graph_mut().set_sharding(result, wanted.clone());
        self.made.resize(self.b.graph().value_count(), vec![]);
        self.made[value.index()].push((wanted, reads, result));
        result
    }

    /// `value` where all of its readers are that lack it; partial only as `wanted`, and scattered
    /// as `wanted` where it is reduced.
    fn move_to(&mut self, value: ValueId, wanted: &Sharding, old: ValueId, reader: Option<&Node>) -> ValueId {
        let known = self.moved.get(&value).copied();
        if let Some(moved) = known.filter(|moved| At::covered(&wanted.at, &self.b.graph().sharding(*moved).at)) {
            return moved;
        }
        let current = self.b.graph().sharding(value).clone();
        let mut reduced = Sharding { partial: vec![], ..current.clone() };
        for partial in &current.partial {
            if wanted.partial.contains(partial) {
                reduced.partial.push(*partial);
            } else if let Some((dim, split)) = wanted.split_over(partial.axis)
                && let Some(splits) = with_split(&reduced.dims[dim], split, self.b.ty(value).shape[dim], &self.old.mesh)
            {
                reduced.dims[dim] = splits;
            }
        }
        let source = self.reshard(value, reduced, old, reader);
        let at = self.places.targets(self.old, old, &wanted.at);
        let current = self.b.graph().sharding(source).clone();
        let mut origin = self.b.graph().def(source).origin.clone();
        origin.reason = self.move_reason(old, &at, reader).map(Arc::from);
        origin.spec_line = self.places.stages().map(|stages| stages.line);
        self.b.origin = origin;
        let (name, ty) = (self.b.graph().value(source).name.clone(), self.b.ty(source).clone());
        let moved = self.b.push(Reshard::default().into(), &[source], vec![ty], &name)[0];
        self.b.graph_mut().set_sharding(moved, Sharding { at, ..current });
        self.moved.insert(value, moved);
        moved
    }

    /// Why a value is moved.
    fn move_reason(&self, old: ValueId, at: &Option<At>, reader: Option<&Node>) -> Option<String> {
        let axis = self.old.mesh.name(self.places.stages()?.axis);
        let Some(reader) = reader else { return Some("for every rank to know".to_string()) };
        let place = match at {
            Some(At { positions, .. }) => {
                let positions: Vec<String> = positions.iter().map(u64::to_string).collect();
                format!("at {axis}={}", positions.join(","))
            }
            None => format!("at every {axis}"),
        };
        if self.gradients[old.index()] {
            return Some(format!("part of a gradient {place}"));
        }
        Some(match (&reader.origin.reason, &reader.origin.scope) {
            (Some(reason), _) if reader.origin.part == Part::Update => format!("{reason} {place}"),
            (_, Some(scope)) if at.as_ref().is_some_and(|at| at.positions.len() == 1) => {
                format!("for {} in \"{scope}\" {place}", reader.op.name())
            }
            _ => format!("for {} {place}", reader.op.name()),
        })
    }

    /// Why a value is resharded, with the line of the spec that asks for it.
    fn reason(&self, value: ValueId, wanted: &Sharding, old: ValueId, reader: Option<&Node>) -> NodeOrigin {
        let (current, graph) = (self.b.graph().sharding(value), self.b.graph());
        let mut origin = self.old.def(old).origin.clone();
        origin.stage = graph.def(value).origin.stage;
        if let (Some(reader), Part::Update) = (reader, origin.part) {
            origin.part = reader.origin.part;
        }
        if let Some(reader) = reader.filter(|_| current.at != graph.sharding(mapped(&self.map, old)).at) {
            origin.stage = reader.origin.stage;
        }
        // What is whole or split already is moved for the reader alone.
        if let (Some(reader), true) = (reader, current.partial.is_empty()) {
            origin.scope = reader.origin.scope.clone();
        }
        let gradient = self.gradient_of[old.index()].map(|state| &self.old.states[state].name);
        let rows = reader.and_then(|reader| self.rows_of(reader));
        // What is gathered for one product is not held any longer than for that.
        if let (Some(reader), Some(_)) = (reader, rows) {
            origin.part = reader.origin.part;
        }
        let reasons = Reasons { graph: self.old, weights: &self.weights, gradient, rows };
        let (reason, line) = reasons.of(current, wanted, old, reader);
        (origin.reason, origin.spec_line) = (reason.map(Arc::from), line);
        origin
    }

    /// The parameter of whose gradient a node makes rows, which the parameter is not split into.
    fn rows_of(&self, node: &Node) -> Option<&'g String> {
        let state_of = |v: &ValueId| Some((*v, &self.old.states[self.gradient_of[v.index()]?]));
        let (gradient, state) = node.results.iter().find_map(state_of)?;
        (self.old.sharding(gradient).dims != state.sharding.dims).then_some(&state.name)
    }

    /// Outputs and gradients are whole sums; updates have the sharding of their state.
    fn whole_roots(&mut self) {
        let outputs = self.old.outputs.clone();
        for (i, output) in outputs.iter().enumerate() {
            let value = self.summed(output);
            let name = output.name.clone();
            if i == 0 {
                self.b.graph_mut().outputs.clear();
            }
            self.b.graph_mut().outputs.push(Output { name, value });
        }
        for (i, state) in self.old.states.iter().enumerate() {
            let gradient = state.gradient.map(|g| self.complete[g.index()].unwrap_or_else(|| self.gradient(g, i)));
            let update = state.update.map(|u| self.under(u, i));
            let sharding = self.sharding_of(i);
            let new = &mut self.b.graph_mut().states[i];
            new.sharding = sharding;
            new.gradient = gradient;
            new.update = update;
        }
    }

    fn summed(&mut self, output: &Output) -> ValueId {
        let value = mapped(&self.map, output.value);
        let mut wanted = self.b.graph().sharding(value).clone();
        wanted.partial.clear();
        if is_for_all(&output.name) {
            wanted.at = None;
        }
        self.reshard(value, wanted, output.value, None)
    }

    /// The value under the sharding of a state variable.
    fn under(&mut self, old: ValueId, state: usize) -> ValueId {
        let value = mapped(&self.map, old);
        self.reshard(value, self.sharding_of(state), old, None)
    }

    /// The complete gradient of a state variable, cut as its update is: in every micro-batch, or
    /// when it has summed them up.
    fn gradient(&mut self, old: ValueId, state: usize) -> ValueId {
        let wanted = Sharding { flat: self.old.sharding(old).flat.clone(), ..self.sharding_of(state) };
        let mut value = mapped(&self.map, old);
        let time = self.old.mesh.microbatch_axis();
        if self.cuts_gradients[state] && self.b.graph().sharding(value).partial_over(time).is_some() {
            // What else is to be reduced is, once a step.
            let partial = self.b.graph().sharding(value).partial.iter().filter(|p| !wanted.splits(p.axis)).copied();
            let cut = Sharding { partial: partial.collect(), ..wanted.clone() };
            value = self.reshard(value, cut, old, None);
        }
        self.reshard(value, wanted, old, None)
    }

    /// The sharding of a state variable, and its home.
    fn sharding_of(&self, state: usize) -> Sharding {
        Sharding { at: self.places.state(state).clone(), ..self.old.states[state].sharding.clone() }
    }
}

/// How an op of these letters makes a single number of all elements of what it reads; `None` of
/// others.
fn of_all(letters: &Letters) -> Option<ReduceKind> {
    let mut kinds = letters.roles.iter().map(|role| match role {
        Role::Reduced(kind) => Some(*kind),
        _ => None,
    });
    let first = kinds.next()??;
    kinds.all(|kind| kind == Some(first)).then_some(first)
}
