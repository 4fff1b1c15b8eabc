//! The backward pass anew: what it reads of the forward pass is what is kept, and the rest it
//! computes again, just before it first reads it.

use crate::rewrite::{ValueMap, rebuild};
use shardc_ir::builder::Builder;
use shardc_ir::graph::{Graph, Node, NodeId, Part, ValueId};
use shardc_ir::ops::Op;
use std::collections::{BTreeSet, HashMap, HashSet};

/// The reason of each node that is computed again.
pub const REASON: &str = "computed again";

/// The graph whose backward pass reads only those values of the forward pass that are `kept`;
/// `line` says which line of the spec asks for a node again. What nobody reads any more is gone.
pub fn again(graph: &Graph, kept: &[bool], line: impl Fn(NodeId) -> u32) -> Graph {
    let mut builder = Builder::rewrite(graph);
    let empty: ValueMap = vec![None; graph.value_count()];
    let mut again = Again { graph, line, values: empty.clone(), gathers: HashMap::new(), gathered: HashSet::new() };
    let mut map = empty;
    for (_, node) in graph.nodes() {
        if node.origin.part == Part::Backward {
            again.repeat(&mut builder, &node.operands);
            again.append(&mut builder, node);
            node.results.iter().for_each(|v| map[v.index()] = again.values[v.index()]);
        } else {
            builder.copy(graph, node, &mut map);
            let known = node.results.iter().filter(|v| kept[v.index()]);
            known.for_each(|v| again.values[v.index()] = map[v.index()]);
        }
    }
    builder.copy_roots(graph, &map);
    rebuild(&builder.finish(), |_, _, _, _| None)
}

/// The nodes that the backward pass computes again where only what is `kept` is there.
pub fn repeated(graph: &Graph, kept: &[bool]) -> BTreeSet<NodeId> {
    let backward = graph.nodes().filter(|(_, node)| node.origin.part == Part::Backward);
    let read = backward.flat_map(|(_, node)| node.operands.iter().copied()).collect();
    let is_there = |value: ValueId| kept[value.index()] || graph.def(value).origin.part != Part::Forward;
    missing(graph, read, is_there)
}

/// The nodes that must run for `values` to be there.
fn missing(graph: &Graph, mut values: Vec<ValueId>, is_there: impl Fn(ValueId) -> bool) -> BTreeSet<NodeId> {
    let mut missing: BTreeSet<NodeId> = BTreeSet::new();
    while let Some(value) = values.pop() {
        let id = graph.value(value).node;
        if !is_there(value) && missing.insert(id) {
            values.extend(&graph.node(id).operands);
        }
    }
    missing
}

struct Again<'g, L> {
    graph: &'g Graph,
    line: L,
    /// For each value the one that the backward pass reads.
    values: ValueMap,
    /// What the backward pass gathers, and makes of that alone, by what is read; once for each
    /// stage, whoever asks for it first.
    gathers: HashMap<Vec<ValueId>, Vec<Node>>,
    /// The results of those.
    gathered: HashSet<ValueId>,
}

impl<L: Fn(NodeId) -> u32> Again<'_, L> {
    /// Appends what computes those of `values` that are neither kept nor repeated yet.
    fn repeat(&mut self, b: &mut Builder, values: &[ValueId]) {
        for id in missing(self.graph, values.to_vec(), |value| self.values[value.index()].is_some()) {
            let mut node = self.graph.node(id).clone();
            node.origin.part = Part::Backward;
            if !matches!(node.op, Op::FlatGather(_)) {
                (node.origin.reason, node.origin.spec_line) = (Some(REASON.into()), Some((self.line)(id)));
            }
            self.append(b, &node);
        }
    }

    /// Appends a node of the backward pass, if it is not there as a gather that is shared.
    fn append(&mut self, b: &mut Builder, node: &Node) {
        let operands: Vec<ValueId> = node.operands.iter().filter_map(|v| self.values[v.index()]).collect();
        // What is made of samples is none.
        let is_made = operands.iter().all(|v| self.gathered.contains(v)) && !operands.is_empty();
        if !is_made && !matches!(node.op, Op::FlatGather(_)) {
            b.copy(self.graph, node, &mut self.values);
            return;
        }
        let alike = |known: &&Node| known.op == node.op && known.origin.stage == node.origin.stage;
        match self.gathers.get(&operands).and_then(|known| known.iter().find(alike)) {
            Some(known) => {
                for (old, new) in node.results.iter().zip(&known.results) {
                    self.values[old.index()] = Some(*new);
                }
            }
            None => {
                let results = b.copy(self.graph, node, &mut self.values);
                self.gathered.extend(&results);
                let known = Node { results, ..node.clone() };
                self.gathers.entry(operands).or_default().push(known);
            }
        }
    }
}
