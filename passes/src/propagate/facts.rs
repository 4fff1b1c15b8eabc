//! The splits of every value as far as they are known, and how splits spread along the letters of
//! ops.

use crate::annotate::Annotation;
use shardc_ir::graph::{Graph, NodeId, Part, ValueId};
use shardc_ir::letters::{Assignment, Letter, Letters, Role};
use shardc_ir::limits::MAX_RANKS;
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::ops::{Op, letters_of};
use shardc_ir::sharding::{Sharding, Split, Splits, with_split};
use std::collections::{BTreeSet, VecDeque};

/// The tensors that one node ties together: its operands, then its results, with their letters.
pub struct Rule {
    /// The node; none for what ties a state variable to its update.
    pub node: Option<NodeId>,
    /// Whether it is a node of the model.
    pub is_forward: bool,
    /// The letters of `operands` and `results`.
    pub letters: Letters,
    /// The values that are read.
    pub operands: Vec<ValueId>,
    /// The values that are defined.
    pub results: Vec<ValueId>,
    /// Operands, by position, that are split apart from the rest.
    pub untied: Vec<usize>,
}

impl Rule {
    /// Tied operands, then results, with the letters of their dimensions.
    pub fn tensors(&self) -> impl DoubleEndedIterator<Item = (ValueId, &Vec<Vec<Letter>>)> {
        let operands = self.operands.iter().copied().zip(&self.letters.operands).enumerate();
        let operands = operands.filter(|(i, _)| !self.untied.contains(i)).map(|(_, tensor)| tensor);
        operands.chain(self.results.iter().copied().zip(&self.letters.results))
    }
}

/// One rule for each node, and one for each state variable: what it becomes is split as what it
/// was.
pub struct LetterTable {
    /// In the order of nodes.
    pub all: Vec<Rule>,
    /// For each value, the rules that it is in.
    of: Vec<Vec<usize>>,
}

impl LetterTable {
    /// The rules of a graph.
    pub fn of(graph: &Graph) -> LetterTable {
        let mut all: Vec<Rule> = graph
            .nodes()
            .filter(|(_, node)| !node.operands.is_empty())
            .map(|(id, node)| Rule {
                node: Some(id),
                is_forward: node.origin.part == Part::Forward,
                letters: letters_of(graph, id),
                operands: node.operands.clone(),
                results: node.results.clone(),
                untied: vec![],
            })
            .collect();
        for (_, node) in graph.nodes() {
            let Op::State(read) = &node.op else { continue };
            let Some(update) = graph.states[read.state.index()].update else { continue };
            let ty = graph.ty(update).clone();
            let letters = Letters::broadcast(std::slice::from_ref(&ty), std::slice::from_ref(&ty));
            let (operands, results) = (node.results.clone(), vec![update]);
            all.push(Rule { node: None, is_forward: false, letters, operands, results, untied: vec![] });
        }
        let mut of: Vec<Vec<usize>> = vec![vec![]; graph.value_count()];
        for (r, rule) in all.iter().enumerate() {
            for (value, _) in rule.tensors() {
                let of = &mut of[value.index()];
                if of.last() != Some(&r) {
                    of.push(r);
                }
            }
        }
        LetterTable { all, of }
    }

    /// The rules that values which have changed are in.
    fn with<'c>(&'c self, changes: &'c [Change]) -> impl Iterator<Item = usize> + 'c {
        changes.iter().flat_map(|change| self.of[change.value.index()].iter().copied())
    }

    /// The rules of the model that any of `values` is in, in order.
    pub fn forward_of(&self, values: &[ValueId]) -> Vec<usize> {
        let mut rules: Vec<usize> = values.iter().flat_map(|v| self.of[v.index()].iter().copied()).collect();
        rules.sort();
        rules.dedup();
        rules.retain(|r| self.all[*r].is_forward);
        rules
    }
}

/// How a value was before it changed.
pub struct Change {
    /// The value.
    pub value: ValueId,
    sharding: Sharding,
    asked: usize,
}

/// The shardings that are known so far.
pub struct Facts {
    /// For each value.
    pub shardings: Vec<Sharding>,
    /// The mesh.
    pub mesh: Mesh,
    asked: Vec<Vec<(AxisId, u32)>>,
    closed: Vec<Vec<bool>>,
    shapes: Vec<Vec<u64>>,
}

impl Facts {
    /// The shardings that annotations ask for.
    pub fn new(graph: &Graph, annotations: &[Annotation]) -> Facts {
        let shapes: Vec<Vec<u64>> = graph.values().map(|(_, v)| v.ty.shape.clone()).collect();
        let mut facts = Facts {
            shardings: shapes.iter().map(|s| Sharding::replicated(s.len())).collect(),
            mesh: graph.mesh.clone(),
            asked: vec![vec![]; shapes.len()],
            closed: shapes.iter().map(|s| vec![false; s.len()]).collect(),
            shapes,
        };
        for a in annotations {
            let value = a.value.index();
            facts.shardings[value].dims[a.dim] = a.splits.clone();
            facts.closed[value][a.dim] |= a.closed;
            facts.asked[value].extend(a.splits.iter().map(|s| (s.axis, a.line)));
        }
        facts
    }

    /// Spreads everything to a fixed point: forward, then backward, until nothing moves. A rule is
    /// applied again only where one of its tensors has changed.
    pub fn settle(&mut self, rules: &LetterTable) {
        let all = || (0..rules.all.len()).collect::<BTreeSet<usize>>();
        let (mut forward, mut backward) = (all(), all());
        while !(forward.is_empty() && backward.is_empty()) {
            let mut at = 0;
            while let Some(r) = forward.range(at..).next().copied() {
                forward.remove(&r);
                let mut changes = vec![];
                self.apply(&rules.all[r], rules.all[r].tensors(), &mut changes);
                forward.extend(rules.with(&changes));
                backward.extend(rules.with(&changes));
                at = r + 1;
            }
            let mut end = rules.all.len();
            while let Some(r) = backward.range(..end).next_back().copied() {
                backward.remove(&r);
                let mut changes = vec![];
                self.apply(&rules.all[r], rules.all[r].tensors().rev(), &mut changes);
                forward.extend(rules.with(&changes));
                backward.extend(rules.with(&changes));
                end = r;
            }
        }
    }

    /// Splits a letter of a rule of the model, because `line` asks for it, and spreads that over
    /// the model. Returns the changes, in order, for [`Facts::undo`].
    pub fn spread(&mut self, rules: &LetterTable, rule: usize, letter: Letter, split: Split, line: u32) -> Vec<Change> {
        let mut changes = vec![];
        let mut assignment: Assignment = vec![vec![]; rules.all[rule].letters.sizes.len()];
        assignment[letter] = vec![split];
        self.give(&rules.all[rule], &assignment, &[(split.axis, line)], &mut changes);
        let mut next = 0;
        let mut queue: VecDeque<usize> = VecDeque::new();
        loop {
            queue.extend(rules.with(&changes[next..]).filter(|r| rules.all[*r].is_forward));
            next = changes.len();
            let Some(r) = queue.pop_front() else { return changes };
            self.apply(&rules.all[r], rules.all[r].tensors(), &mut changes);
        }
    }

    /// Splits a letter of the results of a rule, because `line` asks for it, where nothing splits
    /// it otherwise.
    pub fn split_results(&mut self, rule: &Rule, letter: Letter, split: Split, line: u32) {
        let mut assignment: Assignment = vec![vec![]; rule.letters.sizes.len()];
        assignment[letter] = vec![split];
        for (value, dims) in rule.results.iter().zip(&rule.letters.results) {
            self.add(*value, &rule.letters.project(dims, &assignment), &[(split.axis, line)], &mut vec![]);
        }
    }

    /// Splits a letter of a rule, because `line` asks for it, where nothing splits it otherwise.
    pub fn split_letter(&mut self, rule: &Rule, letter: Letter, splits: Splits, line: u32) {
        let asked: Vec<(AxisId, u32)> = splits.iter().map(|split| (split.axis, line)).collect();
        let mut assignment: Assignment = vec![vec![]; rule.letters.sizes.len()];
        assignment[letter] = splits;
        self.give(rule, &assignment, &asked, &mut vec![]);
    }

    /// Takes changes back.
    pub fn undo(&mut self, changes: Vec<Change>) {
        for Change { value, sharding, asked } in changes.into_iter().rev() {
            self.shardings[value.index()] = sharding;
            self.asked[value.index()].truncate(asked);
        }
    }

    /// The axes that split a value, with the lines that ask for it.
    pub fn asked(&self, value: ValueId) -> &[(AxisId, u32)] {
        &self.asked[value.index()]
    }

    /// Lets nothing split a value further.
    pub fn close(&mut self, value: ValueId) {
        self.closed[value.index()].fill(true);
    }

    /// Whether the spec says of some dimension how it is split.
    pub fn is_closed(&self, value: ValueId) -> bool {
        self.closed[value.index()].contains(&true)
    }

    /// The letter of `rule` that `axis` splits, alike in all of its tensors.
    ///
    /// # Errors
    /// If they differ, or the letter must stay whole.
    pub fn letter(&self, rule: &Rule, axis: AxisId) -> Result<Option<Letter>, Disagreement> {
        let mut found: Option<(Letter, Split)> = None;
        let own = |value: ValueId| self.shardings[value.index()].dims.iter().flatten().find(|s| s.axis == axis);
        for (value, dims) in rule.tensors() {
            if own(value).is_none() {
                continue;
            }
            let located = rule.letters.to_letters(dims, &self.shardings[value.index()]);
            let here = located.into_iter().flatten().flatten().find(|(_, split)| split.axis == axis).ok_or(Disagreement)?;
            if *found.get_or_insert(here) != here || rule.letters.roles[here.0] == Role::Whole {
                return Err(Disagreement);
            }
        }
        let Some((letter, _)) = found else { return Ok(None) };
        let agree = rule.tensors().all(|(value, dims)| own(value).is_some() == dims.iter().flatten().any(|l| *l == letter));
        if agree { Ok(Some(letter)) } else { Err(Disagreement) }
    }

    /// Gathers the splits of a rule's letters from its tensors, in that order, and gives them to
    /// all of its tensors.
    fn apply<'a>(
        &mut self,
        rule: &Rule,
        order: impl Iterator<Item = (ValueId, &'a Vec<Vec<Letter>>)>,
        changes: &mut Vec<Change>,
    ) {
        let mut assignment: Assignment = vec![vec![]; rule.letters.sizes.len()];
        let mut asked: Vec<(AxisId, u32)> = vec![];
        for (value, dims) in order {
            if self.shardings[value.index()].dims.iter().all(Vec::is_empty) {
                continue;
            }
            for (letter, split) in rule.letters.to_letters(dims, &self.shardings[value.index()]).into_iter().flatten().flatten() {
                if let Some(splits) = rule.letters.extend(&assignment, letter, split, &self.mesh) {
                    assignment[letter] = splits;
                    if asked.iter().all(|(a, _)| *a != split.axis) {
                        asked.extend(self.asked[value.index()].iter().find(|(a, _)| *a == split.axis));
                    }
                }
            }
        }
        if !assignment.iter().all(Vec::is_empty) {
            self.give(rule, &assignment, &asked, changes);
        }
    }

    /// Gives all tensors of a rule the splits of its letters.
    fn give(&mut self, rule: &Rule, assignment: &Assignment, asked: &[(AxisId, u32)], changes: &mut Vec<Change>) {
        for (value, dims) in rule.tensors() {
            self.add(value, &rule.letters.project(dims, assignment), asked, changes);
        }
    }

    /// Adds splits to the open dimensions of a value.
    fn add(&mut self, value: ValueId, dims: &[Splits], asked: &[(AxisId, u32)], changes: &mut Vec<Change>) {
        let v = value.index();
        for (dim, splits) in dims.iter().enumerate() {
            for split in splits {
                if self.closed[v][dim] || self.shardings[v].splits(split.axis) {
                    continue;
                }
                let wider = with_split(&self.shardings[v].dims[dim], *split, self.shapes[v][dim], &self.mesh);
                if let Some(wider) = wider {
                    changes.push(Change { value, sharding: self.shardings[v].clone(), asked: self.asked[v].len() });
                    self.shardings[v].dims[dim] = wider;
                    self.asked[v].extend(asked.iter().find(|(a, _)| *a == split.axis));
                }
            }
        }
    }

    /// Writes what is known into the graph.
    pub fn store(self, graph: &mut Graph) {
        for (v, (sharding, asked)) in self.shardings.into_iter().zip(self.asked).enumerate() {
            let value = ValueId(v as u32);
            graph.set_sharding(value, sharding);
            for (axis, line) in asked {
                graph.set_asked(value, axis, line);
            }
        }
        for (state, read) in graph.state_reads().into_iter().enumerate() {
            if let Some(value) = read {
                graph.states[state].sharding = graph.sharding(value).clone();
            }
        }
    }
}

/// The tensors of an op are split differently, or where the op needs them whole.
pub struct Disagreement;

/// The prime factors of `n`, ascending; without those beyond the ranks of any mesh, where there are
/// several.
pub fn primes(mut n: u64) -> Vec<u64> {
    let mut found = vec![];
    let mut p = 2;
    while p * p <= n && p <= MAX_RANKS {
        if n.is_multiple_of(p) {
            found.push(p);
            while n.is_multiple_of(p) {
                n /= p;
            }
        }
        p += 1;
    }
    found.extend((n > 1 && p * p > n).then_some(n));
    found
}
