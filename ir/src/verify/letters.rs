//! Chapter 3 of the verifier: shardings of operands and results, re-derived from the op's letters.

use super::Found;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::letters::{Assignment, Letter, Letters, Role};
use crate::lower::{Extent, LowerContext, Lowered};
use crate::mesh::AxisId;
use crate::ops::{Op, letters_of, linear_of};
use crate::reduce_kind::ReduceKind;
use crate::sharding::{At, Partial, Sharding, Splits};
use std::collections::BTreeSet;

/// Checks a node that computes.
pub(super) fn check(graph: &Graph, id: NodeId, found: &mut Found) {
    let node = graph.node(id);
    let checker = Checker { graph, node, letters: letters_of(graph, id) };
    if let Err((about, message)) = checker.check() {
        found.node(id, about, message);
    }
}

/// Checks what is read from outside, and states.
pub(super) fn check_roots(graph: &Graph, found: &mut Found) {
    for (id, node) in graph.nodes() {
        if let Op::State(read) = &node.op
            && *graph.sharding(node.results[0]) != graph.states[read.state.index()].sharding
        {
            found.node(id, Some(node.results[0]), "has another sharding than its state");
        }
    }
    let is_partial = |v: ValueId| !graph.sharding(v).partial.is_empty();
    for (i, state) in graph.states.iter().enumerate() {
        if state.update.is_some_and(|v| *graph.sharding(v) != state.sharding) {
            found.state(i, "is updated under another sharding than its own");
        }
        if state.gradient.is_some_and(is_partial) {
            found.state(i, "its gradient is partial");
        }
        if state.gradient.is_some_and(|v| !At::covered(&state.sharding.at, &graph.sharding(v).at)) {
            found.state(i, "its gradient is held elsewhere");
        }
    }
    for (i, output) in graph.outputs.iter().enumerate() {
        if is_partial(output.value) {
            found.output(i, "is partial");
        }
    }
}

/// The operand or result that is wrong, and the fault in words.
type Wrong = (Option<ValueId>, String);

struct Checker<'g> {
    graph: &'g Graph,
    node: &'g Node,
    letters: Letters,
}

impl Checker<'_> {
    fn check(&self) -> Result<(), Wrong> {
        self.check_places()?;
        let assignment = self.assignment()?;
        self.check_whole(&assignment)?;
        let flat = self.check_flat()?;
        let mut partial = self.reduced(&assignment);
        partial.extend(flat);
        partial.extend(self.passed(&assignment)?);
        partial.sort();
        for result in &self.node.results {
            let actual = &self.graph.sharding(*result).partial;
            if *actual != partial {
                let message =
                    format!("is {}, but the operands make it {}", self.partial_text(actual), self.partial_text(&partial));
                return Err((Some(*result), message));
            }
        }
        Ok(())
    }

    /// It runs where its results are held, and there are its operands.
    fn check_places(&self) -> Result<(), Wrong> {
        let at = |value: &ValueId| &self.graph.sharding(*value).at;
        let Some(first) = self.node.results.first() else { return Ok(()) };
        if let Some(other) = self.node.results.iter().find(|result| at(result) != at(first)) {
            return Err((Some(*other), "is held elsewhere than the first result".to_string()));
        }
        match self.node.operands.iter().find(|operand| !At::covered(at(first), at(operand))) {
            Some(absent) => Err((Some(*absent), "is not held everywhere where the op runs".to_string())),
            None => Ok(()),
        }
    }

    /// The splits of each letter, on which all tensors agree.
    fn assignment(&self) -> Result<Assignment, Wrong> {
        let mut assignment: Vec<Option<(Splits, ValueId)>> = vec![None; self.letters.sizes.len()];
        let operands = self.node.operands.iter().zip(&self.letters.operands);
        for (value, dims) in operands.chain(self.node.results.iter().zip(&self.letters.results)) {
            let located = self.letters.to_letters(dims, self.graph.sharding(*value));
            for (d, (letters, splits)) in dims.iter().zip(located).enumerate() {
                let Some(splits) = splits.into_iter().collect::<Option<Vec<_>>>() else {
                    return Err((Some(*value), format!("a split of dimension {d} crosses the border of a letter")));
                };
                for letter in letters {
                    let own: Splits = splits.iter().filter(|(l, _)| l == letter).map(|(_, s)| *s).collect();
                    match &assignment[*letter] {
                        Some((there, _)) if *there == own => {}
                        Some((there, other)) => return Err((Some(*value), self.disagreement(d, *letter, &own, *other, there))),
                        None => assignment[*letter] = Some((own, *value)),
                    }
                }
            }
        }
        Ok(assignment.into_iter().map(|a| a.map_or(vec![], |(splits, _)| splits)).collect())
    }

    fn disagreement(&self, dim: usize, letter: Letter, own: &Splits, other: ValueId, there: &Splits) -> String {
        let text = |splits: &Splits| {
            let sharding = Sharding { dims: vec![splits.clone()], ..Sharding::default() };
            let text = sharding.text(&self.letters.sizes[letter..=letter], &self.graph.mesh);
            if text.is_empty() { "not split".to_string() } else { format!("split {text}") }
        };
        let other = &self.graph.value(other).name;
        format!("dimension {dim} is {}, but the same letter of `%{other}` is {}", text(own), text(there))
    }

    /// Flat operands and results are of ops that compute element by element, all of them flat alike
    /// but for single numbers, and stay zero where they are filled up; or of a sum of squares,
    /// which is then partial over the axes.
    fn check_flat(&self) -> Result<Vec<Partial>, Wrong> {
        let sharding = |value: &ValueId| self.graph.sharding(*value);
        let tensors = || self.node.operands.iter().chain(&self.node.results);
        let Some(first) = tensors().find(|v| !sharding(v).flat.is_empty()) else { return Ok(vec![]) };
        let flat = &sharding(first).flat;
        if let Op::State(_) = &self.node.op {
            return Ok(vec![]);
        }
        if let Op::SquareSum(_) = &self.node.op {
            let whole = |result: &ValueId| sharding(result).flat.is_empty();
            if !self.node.results.iter().all(whole) {
                return Err((Some(self.node.results[0]), "is a single number, which is not cut".to_string()));
            }
            return Ok(flat.iter().map(|axis| Partial { axis: *axis, kind: ReduceKind::Sum }).collect());
        }
        let name = self.node.op.name();
        let letters = &self.letters.results[0];
        let own = |(dims, value): (&Vec<Vec<Letter>>, &ValueId)| match sharding(value).flat == *flat {
            true => dims == letters && self.graph.ty(*value).shape == self.graph.ty(*first).shape,
            false => sharding(value).flat.is_empty() && self.graph.ty(*value).rank() == 0,
        };
        let results = self.node.results.iter().all(|v| sharding(v).flat == *flat);
        let aligned = self.letters.operands.iter().chain(&self.letters.results).zip(tensors()).all(own);
        let kept = self.letters.roles.iter().all(|role| *role == Role::Kept);
        if !(results && aligned && kept) || self.node.op.rules().positions() {
            return Err((Some(*first), format!("is flat, which `{name}` and what it is computed with are not")));
        }
        let extent = |v: &ValueId| Extent::new(self.graph.ty(*v), sharding(v), &self.graph.mesh).line();
        let (operands, results): (Vec<Extent>, Vec<Extent>) =
            (self.node.operands.iter().map(extent).collect(), self.node.results.iter().map(extent).collect());
        let cx = LowerContext { mesh: &self.graph.mesh, operands: &operands, results: &results };
        match self.node.op.rules().lower(&cx) {
            Lowered::Map(_) => Ok(vec![]),
            _ => Err((Some(*first), format!("is flat, but `{name}` is not computed element by element"))),
        }
    }

    fn check_whole(&self, assignment: &Assignment) -> Result<(), Wrong> {
        let mut axes = BTreeSet::new();
        for (splits, role) in assignment.iter().zip(&self.letters.roles) {
            for split in splits {
                let axis = self.graph.mesh.name(split.axis);
                if *role == Role::Whole {
                    return Err((None, format!("`{axis}` splits a letter that `{}` needs whole", self.node.op.name())));
                }
                if !axes.insert(split.axis) {
                    return Err((None, format!("`{axis}` splits two letters")));
                }
            }
        }
        Ok(())
    }

    /// The axes over which the results are partial because a reduced letter is split.
    fn reduced(&self, assignment: &Assignment) -> Vec<Partial> {
        let mut partial = vec![];
        for (splits, role) in assignment.iter().zip(&self.letters.roles) {
            if let Role::Reduced(kind) = role {
                partial.extend(splits.iter().map(|s| Partial { axis: s.axis, kind: *kind }));
            }
        }
        partial
    }

    /// The axes over which the results are partial because operands are.
    fn passed(&self, assignment: &Assignment) -> Result<Vec<Partial>, Wrong> {
        let operands: Vec<&Sharding> = self.node.operands.iter().map(|v| self.graph.sharding(*v)).collect();
        let axes: BTreeSet<AxisId> = operands.iter().flat_map(|s| s.partial.iter().map(|p| p.axis)).collect();
        let mut passed = vec![];
        for axis in axes {
            let positions: Vec<usize> = (0..operands.len()).filter(|i| operands[*i].partial_over(axis).is_some()).collect();
            let kinds: BTreeSet<ReduceKind> = operands.iter().filter_map(|s| s.partial_over(axis)).collect();
            let (about, name) = (Some(self.node.operands[positions[0]]), self.graph.mesh.name(axis));
            if assignment.iter().flatten().any(|s| s.axis == axis) {
                return Err((about, format!("is partial over `{name}`, which splits a letter of this op")));
            }
            for kind in &kinds {
                if kinds.len() > 1 || !self.linear_sets(*kind).contains(&positions) {
                    let op = self.node.op.name();
                    return Err((about, format!("is partial over `{name}`, and `{op}` is not linear in what is")));
                }
                passed.push(Partial { axis, kind: *kind });
            }
        }
        Ok(passed)
    }

    /// The sets of operands that may be partial together.
    fn linear_sets(&self, kind: ReduceKind) -> Vec<Vec<usize>> {
        let count = self.node.operands.len();
        match kind {
            ReduceKind::Sum => linear_of(self.graph, self.node).sets(count),
            ReduceKind::Max | ReduceKind::Min if self.node.op.keeps(kind) => vec![(0..count).collect()],
            ReduceKind::Max | ReduceKind::Min => vec![],
        }
    }

    fn partial_text(&self, partial: &[Partial]) -> String {
        let text = Sharding { partial: partial.to_vec(), ..Sharding::default() }.text(&[], &self.graph.mesh);
        if text.is_empty() { "not partial".to_string() } else { text }
    }
}
