//! Carries the splits of the spec to every value, letter by letter, to a fixed point.
//!
//! Before: `%h = contract %x, %w1 : f32[8, 16]` with `%x {dp, -}` and `%w1 {-, tp}`. After: `%h : f32[8, 16]{dp, tp}`.
//! Facts of the spec come first and are never changed; then values take splits from what defines them (in program order), then
//! from what reads them (in reverse), until nothing moves. Of two that disagree the first wins; the reshard comes later.
//! Needs phase `differentiated` (or `raised` for evaluation), gives `annotated`.
//! Source: GSPMD (Xu et al., 2021); Shardy's propagation.

use crate::annotate::{Annotation, annotations};
use crate::{Changed, Context, Pass};
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::{Graph, Phase, ValueId};
use shardc_ir::letters::{Assignment, Letter, Letters};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::{Op, letters_of};
use shardc_ir::sharding::{Sharding, with_split};

/// See the module.
pub struct Propagate;

impl Pass for Propagate {
    fn name(&self) -> &'static str {
        "propagate"
    }

    fn phases(&self) -> (Phase, Phase) {
        (Phase::Differentiated, Phase::Annotated)
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<Changed, Diagnostics> {
        let annotations = annotations(graph, cx)?;
        let mut facts = Facts::new(graph, &annotations);
        let rules = Rules::of(graph);
        while facts.sweep(&rules) {}
        facts.store(graph);
        Ok(Changed::Yes)
    }
}

/// The tensors that one node ties together: its operands, then its results, with their letters.
struct Rule {
    letters: Letters,
    operands: Vec<ValueId>,
    results: Vec<ValueId>,
}

impl Rule {
    fn tensors(&self) -> impl DoubleEndedIterator<Item = (ValueId, &Vec<Vec<Letter>>)> {
        let operands = self.operands.iter().copied().zip(&self.letters.operands);
        operands.chain(self.results.iter().copied().zip(&self.letters.results))
    }
}

/// One rule for each node, and one for each state variable: what it becomes is split as what it was.
struct Rules(Vec<Rule>);

impl Rules {
    fn of(graph: &Graph) -> Rules {
        let mut rules: Vec<Rule> = graph
            .nodes()
            .filter(|(_, node)| !node.operands.is_empty())
            .map(|(id, node)| Rule {
                letters: letters_of(graph, id),
                operands: node.operands.clone(),
                results: node.results.clone(),
            })
            .collect();
        for (_, node) in graph.nodes() {
            let Op::State(read) = &node.op else { continue };
            let Some(update) = graph.states[read.state.index()].update else { continue };
            let ty = graph.ty(update).clone();
            let letters = Letters::broadcast(std::slice::from_ref(&ty), std::slice::from_ref(&ty));
            rules.push(Rule { letters, operands: node.results.clone(), results: vec![update] });
        }
        Rules(rules)
    }
}

/// What is known so far.
struct Facts {
    shardings: Vec<Sharding>,
    asked: Vec<Vec<(AxisId, u32)>>,
    closed: Vec<Vec<bool>>,
    shapes: Vec<Vec<u64>>,
    mesh: shardc_ir::mesh::Mesh,
}

impl Facts {
    fn new(graph: &Graph, annotations: &[Annotation]) -> Facts {
        let shapes: Vec<Vec<u64>> = graph.values().map(|(_, v)| v.ty.shape.clone()).collect();
        let mut facts = Facts {
            shardings: shapes.iter().map(|s| Sharding::replicated(s.len())).collect(),
            asked: vec![vec![]; shapes.len()],
            closed: shapes.iter().map(|s| vec![false; s.len()]).collect(),
            shapes,
            mesh: graph.mesh.clone(),
        };
        for a in annotations {
            let value = a.value.index();
            facts.shardings[value].dims[a.dim] = a.splits.clone();
            facts.closed[value][a.dim] |= a.closed;
            facts.asked[value].extend(a.splits.iter().map(|s| (s.axis, a.line)));
        }
        facts
    }

    /// Forward, then backward; whether anything moved.
    fn sweep(&mut self, rules: &Rules) -> bool {
        let mut moved = false;
        for rule in &rules.0 {
            moved |= self.apply(rule, rule.tensors());
        }
        for rule in rules.0.iter().rev() {
            moved |= self.apply(rule, rule.tensors().rev());
        }
        moved
    }

    /// Gathers the splits of a rule's letters from its tensors, in that order, and gives them to all of its tensors.
    fn apply<'a>(&mut self, rule: &Rule, order: impl Iterator<Item = (ValueId, &'a Vec<Vec<Letter>>)>) -> bool {
        let mut assignment: Assignment = vec![vec![]; rule.letters.sizes.len()];
        let mut asked: Vec<(AxisId, u32)> = vec![];
        for (value, dims) in order {
            if self.shardings[value.index()].dims.iter().all(Vec::is_empty) {
                continue;
            }
            for (letter, split) in rule.letters.to_letters(dims, &self.shardings[value.index()]).into_iter().flatten().flatten() {
                if let Some(splits) = rule.letters.extend(&assignment, letter, split, &self.mesh) {
                    assignment[letter] = splits;
                    asked.extend(self.asked[value.index()].iter().filter(|(a, _)| *a == split.axis));
                }
            }
        }
        if assignment.iter().all(Vec::is_empty) {
            return false;
        }
        let mut moved = false;
        for (value, dims) in rule.tensors() {
            moved |= self.add(value, &rule.letters.project(dims, &assignment), &asked);
        }
        moved
    }

    /// Adds splits to the open dimensions of a value.
    fn add(&mut self, value: ValueId, dims: &[shardc_ir::sharding::Splits], asked: &[(AxisId, u32)]) -> bool {
        let v = value.index();
        let mut moved = false;
        for (dim, splits) in dims.iter().enumerate() {
            for split in splits {
                if self.closed[v][dim] || self.shardings[v].splits(split.axis) {
                    continue;
                }
                let wider = with_split(&self.shardings[v].dims[dim], *split, self.shapes[v][dim], &self.mesh);
                if let Some(wider) = wider {
                    self.shardings[v].dims[dim] = wider;
                    self.asked[v].extend(asked.iter().find(|(a, _)| *a == split.axis));
                    moved = true;
                }
            }
        }
        moved
    }

    fn store(self, graph: &mut Graph) {
        for (v, (sharding, asked)) in self.shardings.into_iter().zip(self.asked).enumerate() {
            let value = ValueId(v as u32);
            graph.set_sharding(value, sharding);
            for (axis, line) in asked {
                graph.set_asked(value, axis, line);
            }
        }
        let reads: Vec<(usize, ValueId)> = graph
            .nodes()
            .filter_map(|(_, n)| match &n.op {
                Op::State(read) => Some((read.state.index(), n.results[0])),
                _ => None,
            })
            .collect();
        for (state, value) in reads {
            graph.states[state].sharding = graph.sharding(value).clone();
        }
    }
}
