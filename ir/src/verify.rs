//! The verifier of graphs, run after every pass. This header is its specification.
//!
//! **1 Structure.** Names of values, states and outputs are unique. An operand is a result of an
//! earlier node. The types of a node's results are those that the op's rules derive from its
//! operands; a state is read, updated and differentiated at its own type. Communication appears
//! only from phase `annotated` on.
//!
//! **2 Shardings.** Before phase `annotated` every value and state is whole everywhere. From then
//! on a sharding has as many dimensions as its value; the splits of a dimension are digits of an
//! index below its size; an axis splits one dimension, cuts the line or leaves the value partial,
//! once; a value is partial in one way. A value that is not everywhere is held at some positions of
//! one axis, which neither splits it nor leaves it partial. A state is neither partial nor split
//! over time.
//!
//! **3 Letters**, at phase `explicit`, for every op that computes. It runs where its results are
//! held, and all operands are held there. The splits of operands and
//! results are splits of the op's letters; all tensors agree on the splits of each letter; a whole
//! letter is not split; an axis splits one letter. An operand is partial over an axis only together
//! with the other operands of a set in which the op is linear, and only where that axis splits no
//! letter of the op; `max` and `min` pass only what moves elements, and themselves. The results are
//! partial over exactly those axes and the ones that split a reduced letter. A value that is read
//! from outside (output, gradient) is not partial, and a state is read and updated under its own
//! sharding. What is flat is read and made only by ops that compute element by element from values
//! that are flat alike and single numbers; a sum of squares of it is partial over its axes. Where a
//! line is filled up the numbers are zero when they are summed up, and in a state at the end of a
//! step.
//!
//! **4 Communication**, at phase `explicit`. `all_reduce` removes its axes from the partial ones,
//! `accumulate` removes time, `all_gather` removes one split over ranks, `shard_slice` adds one,
//! `flat_gather` makes the line whole, `flat_slice` cuts it, `flat_scatter` cuts it over axes over
//! which it was partial, `transfer` changes at which positions of an axis it is held, and nothing
//! else changes. `reshard` changes splits as it likes and never makes a value partial.

mod comm;
mod letters;
mod padding;
mod sharding;
mod structure;

use crate::graph::{Graph, NodeId, Phase, StateId, ValueId};
use crate::text::node_text;

/// The place at which a graph breaks a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// A node.
    Node(NodeId),
    /// A state variable.
    State(StateId),
    /// An output, by position in [`Graph::outputs`].
    Output(usize),
}

/// A broken rule: a bug of the pass that made the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The place.
    pub place: Site,
    /// The operand or result that it is about, where there is one.
    pub about: Option<ValueId>,
    /// The rule that is broken, in words.
    pub message: String,
}

/// Checks every rule of this module's header; a later chapter is checked only where the earlier
/// ones hold.
pub fn verify(graph: &Graph) -> Result<(), Vec<Violation>> {
    let mut found = Found { violations: vec![] };
    structure::check(graph, &mut found);
    found.stop_if_any()?;
    sharding::check(graph, &mut found);
    found.stop_if_any()?;
    if graph.phase >= Phase::Explicit {
        for (id, node) in graph.nodes() {
            if node.op.is_comm() {
                comm::check(graph, id, &mut found);
            } else {
                letters::check(graph, id, &mut found);
            }
        }
        letters::check_roots(graph, &mut found);
        found.stop_if_any()?;
        padding::check(graph, &mut found);
    }
    found.stop_if_any()
}

/// The violations for people: each node's line with a caret under what is wrong.
pub fn report(graph: &Graph, violations: &[Violation]) -> String {
    let mut out = format!("graph @{} breaks the rules of phase `{}`\n", graph.name, graph.phase);
    for violation in violations {
        let line = match violation.place {
            Site::Node(id) => node_text(graph, id),
            Site::State(id) => format!("state \"{}\"", graph.states[id.index()].name),
            Site::Output(i) => format!("output \"{}\"", graph.outputs[i].name),
        };
        let about = violation.about.map(|v| format!("%{}", graph.value(v).name));
        let (start, width) = about.and_then(|name| find_word(&line, &name)).unwrap_or((0, first_word(&line)));
        out.push_str(&format!("\n  {line}\n  {}{} {}\n", " ".repeat(start), "^".repeat(width), violation.message));
    }
    out
}

/// The column of `word` in `line` where it is not the beginning of a longer name, and its width;
/// the last such place, since operands follow results.
fn find_word(line: &str, word: &str) -> Option<(usize, usize)> {
    let continues = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let (at, _) = line.match_indices(word).filter(|(at, _)| !line[at + word.len()..].starts_with(continues)).last()?;
    Some((line[..at].chars().count(), word.chars().count()))
}

fn first_word(line: &str) -> usize {
    line.chars().take_while(|c| *c != ' ').count().max(1)
}

/// The violations found so far.
struct Found {
    violations: Vec<Violation>,
}

impl Found {
    fn node(&mut self, id: NodeId, about: Option<ValueId>, message: impl Into<String>) {
        self.violations.push(Violation { place: Site::Node(id), about, message: message.into() });
    }

    fn state(&mut self, index: usize, message: impl Into<String>) {
        self.violations.push(Violation { place: Site::State(StateId(index as u32)), about: None, message: message.into() });
    }

    fn output(&mut self, index: usize, message: impl Into<String>) {
        self.violations.push(Violation { place: Site::Output(index), about: None, message: message.into() });
    }

    fn stop_if_any(&mut self) -> Result<(), Vec<Violation>> {
        if self.violations.is_empty() { Ok(()) } else { Err(std::mem::take(&mut self.violations)) }
    }
}
