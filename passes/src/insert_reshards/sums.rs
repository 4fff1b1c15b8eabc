//! In which order sums of more than two terms are added: terms that are partial alike first, so
//! that they are reduced together.
//!
//! Before: `%a = add %w, %p`, `%b = add %a, %q` with `%p` and `%q` partial over tp. After:
//! `%a = add %p, %q`, `%b = add %a, %w`: one reduction in place of two. The gradient of a value
//! that several split layers read is such a sum, and so is the norm of all gradients.

use shardc_ir::graph::{Graph, Node, NodeId, ValueId};
use shardc_ir::letters::Role;
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::{letters_of, linear_of};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Axes over which a value is partial.
type Axes = BTreeSet<AxisId>;

/// The nodes in an order in which they can be placed, those of sums with other operands where that
/// saves reductions.
pub fn ordered<'g>(graph: &'g Graph, uses: &[usize]) -> Vec<(NodeId, Cow<'g, Node>)> {
    let partial = partial(graph, uses);
    let mut moved: Vec<bool> = vec![false; graph.node_count()];
    let mut sums: BTreeMap<NodeId, Vec<(NodeId, Node)>> = BTreeMap::new();
    for (id, node) in graph.nodes().rev() {
        if node.op.is_sum() && !moved[id.index()] && !is_term(graph, id, uses) {
            let mut sum = Sum { nodes: vec![], terms: vec![] };
            sum.collect(graph, id, uses);
            if let Some(nodes) = sum.grouped(graph, &partial) {
                nodes.iter().for_each(|(id, _)| moved[id.index()] = true);
                sums.insert(id, nodes);
            }
        }
    }
    let mut out = Vec::with_capacity(graph.node_count());
    for (id, node) in graph.nodes() {
        match sums.remove(&id) {
            Some(nodes) => out.extend(nodes.into_iter().map(|(id, node)| (id, Cow::Owned(node)))),
            None if moved[id.index()] => {}
            None => out.push((id, Cow::Borrowed(node))),
        }
    }
    out
}

/// The axes of ranks over which each value is going to be partial, as far as shardings tell.
fn partial(graph: &Graph, uses: &[usize]) -> Vec<Axes> {
    let mut partial: Vec<Axes> = vec![Axes::new(); graph.value_count()];
    for (id, node) in graph.nodes().filter(|(_, node)| !node.operands.is_empty()) {
        let letters = letters_of(graph, id);
        let mut axes = Axes::new();
        for (value, dims) in node.operands.iter().zip(&letters.operands) {
            let located = letters.to_letters(dims, graph.sharding(*value)).into_iter().flatten().flatten();
            axes.extend(located.filter(|(l, _)| matches!(letters.roles[*l], Role::Reduced(_))).map(|(_, split)| split.axis));
        }
        let sets = linear_of(graph, node).sets(node.operands.len());
        let all: Axes = node.operands.iter().flat_map(|v| partial[v.index()].iter().copied()).collect();
        axes.extend(all.into_iter().filter(|axis| {
            let over: Vec<usize> =
                (0..node.operands.len()).filter(|i| partial[node.operands[*i].index()].contains(axis)).collect();
            over.iter().all(|i| uses[node.operands[*i].index()] == 1) && sets.contains(&over)
        }));
        axes.remove(&graph.mesh.microbatch_axis());
        node.results.iter().for_each(|v| partial[v.index()] = axes.clone());
    }
    partial
}

/// Whether a sum is only a term of another of the same shape.
fn is_term(graph: &Graph, id: NodeId, uses: &[usize]) -> bool {
    let (node, result) = (graph.node(id), graph.node(id).results[0]);
    let Some(user) = graph.sole_user(id) else { return false };
    let user = graph.node(user);
    user.op.is_sum()
        && uses[result.index()] == 1
        && graph.ty(user.results[0]) == graph.ty(result)
        && user.origin.part == node.origin.part
}

/// A tree of sums of one shape.
struct Sum {
    /// Its nodes, operands before users.
    nodes: Vec<NodeId>,
    /// The values that they add.
    terms: Vec<ValueId>,
}

impl Sum {
    fn collect(&mut self, graph: &Graph, root: NodeId, uses: &[usize]) {
        // Sums of thousands of terms lean to one side: no recursion.
        let mut left = vec![graph.node(root).results[0]];
        while let Some(value) = left.pop() {
            let id = graph.value(value).node;
            if id == root || (graph.node(id).op.is_sum() && is_term(graph, id, uses)) {
                self.nodes.push(id);
                left.extend(&graph.node(id).operands);
            } else {
                self.terms.push(value);
            }
        }
        self.nodes.sort();
        self.terms.reverse();
    }

    /// The sum with terms that are partial alike added first; none where that saves nothing.
    fn grouped(self, graph: &Graph, partial: &[Axes]) -> Option<Vec<(NodeId, Node)>> {
        let root = graph.node(*self.nodes.last()?).results[0];
        let is_full = |v: &ValueId| graph.ty(*v) == graph.ty(root);
        let mut groups: BTreeMap<&Axes, Vec<ValueId>> = BTreeMap::new();
        let (full, small): (Vec<ValueId>, Vec<ValueId>) = self.terms.iter().partition(|v| is_full(v));
        full.iter().for_each(|v| groups.entry(&partial[v.index()]).or_default().push(*v));
        let saves = groups.iter().any(|(axes, terms)| !axes.is_empty() && terms.len() > 1);
        if !saves || (groups.len() == 1 && small.is_empty()) {
            return None;
        }
        let mut nodes = self.nodes.iter();
        let mut out: Vec<(NodeId, Node)> = vec![];
        let mut stages: BTreeMap<ValueId, Option<u32>> = BTreeMap::new();
        let mut add = |a: ValueId, b: ValueId| {
            let id = *nodes.next().expect("a sum of n terms has n - 1 nodes");
            let mut node = Node { operands: vec![a, b], ..graph.node(id).clone() };
            let result = node.results[0];
            // A sum is in the stage that has made the term that comes to it.
            node.origin.stage = stages.get(&b).copied().unwrap_or(graph.def(b).origin.stage).or(node.origin.stage);
            stages.insert(result, node.origin.stage);
            out.push((id, node));
            result
        };
        // Partial groups first: what is added to them later finds them reduced.
        let groups: Vec<Vec<ValueId>> = groups.into_values().rev().collect();
        let sums: Vec<ValueId> = groups.into_iter().filter_map(|terms| terms.into_iter().reduce(&mut add)).collect();
        sums.into_iter().chain(small).reduce(&mut add);
        Some(out)
    }
}
