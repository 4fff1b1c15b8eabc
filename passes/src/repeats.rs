//! Equal blocks of a model, such as the layers of a transformer: where they are, and the same model
//! with fewer of them.
//!
//! Before: `%x`, then ninety-six blocks that read what the one before gives and parameters of their
//! own, then a head. After: the same with two. What a plan of a deep model holds, computes and
//! sends follows from plans of shallow ones, since each block adds the same.
//!
//! A block ends where no value but one goes on, besides those that all blocks read. Blocks are
//! equal if they have the same ops over the same types in the same order.

use crate::rewrite::{mapped, rebuild, rebuild_nodes};
use shardc_ir::builder::Builder;
use shardc_ir::graph::{Graph, NodeId, State, StateId, ValueId};
use shardc_ir::ops::Op;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Pieces between two cuts that one block has at most.
const MOST_PIECES: usize = 16;

/// Fewer blocks are no repeats.
const LEAST_BLOCKS: usize = 3;

/// Constants of so many elements are told apart by them, larger ones by their types.
const SMALL: u64 = 64;

/// Where the equal blocks of a graph are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeats {
    /// For each block its nodes that depend on the model's inputs, in order.
    blocks: Vec<Vec<NodeId>>,
    /// The value that goes on from each block.
    ends: Vec<ValueId>,
}

/// A place after which one value goes on.
struct Cut {
    /// How many of the nodes that depend on inputs come before.
    nodes: usize,
    /// That value.
    value: ValueId,
}

/// The longest row of equal blocks in an imported graph.
pub fn repeats(graph: &Graph) -> Option<Repeats> {
    let varies = graph.reached_from(|value| matches!(graph.def(value).op, Op::Input(_)));
    let nodes: Vec<NodeId> =
        graph.nodes().filter(|(_, node)| node.results.iter().any(|v| varies[v.index()])).map(|(id, _)| id).collect();
    let cuts = cuts(graph, &nodes, &varies);
    let still = still(graph, &varies);
    let pieces: Vec<u64> = cuts.windows(2).map(|pair| fingerprint(graph, &still, &nodes, &pair[0], &pair[1])).collect();
    let (first, period, count) = longest(&pieces)?;
    let at = |block: usize| &cuts[first + block * period];
    let blocks = (0..count).map(|block| nodes[at(block).nodes..at(block + 1).nodes].to_vec()).collect();
    Some(Repeats { blocks, ends: (0..count).map(|block| at(block + 1).value).collect() })
}

/// The places where as few values go on as anywhere in the middle of the graph.
fn cuts(graph: &Graph, nodes: &[NodeId], varies: &[bool]) -> Vec<Cut> {
    let mut last = vec![None; graph.value_count()];
    for (at, id) in nodes.iter().enumerate() {
        graph.node(*id).operands.iter().filter(|v| varies[v.index()]).for_each(|v| last[v.index()] = Some(at));
    }
    graph.roots().for_each(|v| last[v.index()] = Some(nodes.len()));
    let mut alive: BTreeSet<(Option<usize>, ValueId)> = BTreeSet::new();
    let mut counts = vec![];
    for (at, id) in nodes.iter().enumerate() {
        let results = graph.node(*id).results.iter().filter(|v| varies[v.index()] && last[v.index()] > Some(at));
        alive.extend(results.map(|v| (last[v.index()], *v)));
        while alive.first().is_some_and(|(until, _)| *until <= Some(at)) {
            alive.pop_first();
        }
        let newest = alive.iter().map(|(_, v)| *v).max();
        counts.push((alive.len(), newest));
    }
    let middle = &counts[nodes.len() / 4..];
    let least = middle[..middle.len() * 2 / 3].iter().map(|(count, _)| *count).filter(|count| *count > 0).min();
    let mut cuts: Vec<Cut> = vec![];
    for (at, (count, newest)) in counts.iter().enumerate() {
        let Some(value) = newest.filter(|_| Some(*count) == least) else { continue };
        match cuts.last_mut().filter(|cut| cut.value == value) {
            Some(cut) => cut.nodes = at + 1,
            None => cuts.push(Cut { nodes: at + 1, value }),
        }
    }
    cuts
}

/// What the nodes between two cuts do, as a number.
fn fingerprint(graph: &Graph, still: &[Option<u64>], nodes: &[NodeId], from: &Cut, to: &Cut) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut local: BTreeMap<ValueId, usize> = BTreeMap::from([(from.value, 0)]);
    for id in &nodes[from.nodes..to.nodes] {
        let node = graph.node(*id);
        format!("{:?}", node.op).hash(&mut hasher);
        for operand in &node.operands {
            match (local.get(operand), still[operand.index()]) {
                (Some(number), _) => number.hash(&mut hasher),
                (None, None) => operand.hash(&mut hasher),
                (None, Some(still)) => still.hash(&mut hasher),
            }
        }
        for result in &node.results {
            graph.ty(*result).to_string().hash(&mut hasher);
            let number = local.len();
            local.insert(*result, number);
        }
    }
    local.get(&to.value).hash(&mut hasher);
    hasher.finish()
}

/// For each value that does not depend on inputs a number of what it is.
fn still(graph: &Graph, varies: &[bool]) -> Vec<Option<u64>> {
    let mut still: Vec<Option<u64>> = vec![None; graph.value_count()];
    for (_, node) in graph.nodes() {
        let mut hasher = DefaultHasher::new();
        match &node.op {
            Op::State(read) => {
                let State { ty, role, .. } = &graph.states[read.state.index()];
                (ty.to_string(), role.name()).hash(&mut hasher);
            }
            Op::Constant(constant) if constant.value.ty.elements() > SMALL => constant.value.ty.to_string().hash(&mut hasher),
            op => {
                format!("{op:?}").hash(&mut hasher);
                node.operands.iter().for_each(|operand| still[operand.index()].hash(&mut hasher));
            }
        }
        let number = hasher.finish();
        for result in node.results.iter().filter(|v| !varies[v.index()]) {
            still[result.index()] = Some(number);
        }
    }
    still
}

/// Of all rows of equal pieces, or of equal groups of them, the one with the most: its first piece,
/// the pieces of a group, and the number of groups.
fn longest(pieces: &[u64]) -> Option<(usize, usize, usize)> {
    let mut best: Option<(usize, usize, usize)> = None;
    for period in 1..=MOST_PIECES.min(pieces.len()) {
        let mut first = 0;
        for at in period..=pieces.len() {
            if pieces.get(at).is_some_and(|piece| *piece == pieces[at - period]) {
                continue;
            }
            let count = (at - first) / period;
            if count >= LEAST_BLOCKS && best.is_none_or(|(_, period_of_best, most)| count * period > most * period_of_best) {
                best = Some((first, period, count));
            }
            first = at + 1 - period;
        }
    }
    best
}

impl Repeats {
    /// How many blocks there are.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }

    /// The value that goes from block to block.
    pub fn between(&self) -> ValueId {
        self.ends[0]
    }

    /// A pattern of the scopes of blocks, `h.*`, where each has one of its own.
    pub fn scopes(&self, graph: &Graph) -> Option<String> {
        let scope = |block: &Vec<NodeId>| {
            let scopes: BTreeSet<Vec<&str>> =
                block.iter().filter_map(|id| graph.node(*id).origin.scope.as_deref()).map(|s| s.split('.').collect()).collect();
            let first = scopes.first()?.clone();
            let common = |scope: &Vec<&str>| first.iter().zip(scope).take_while(|(a, b)| a == b).count();
            let length = scopes.iter().map(common).min()?;
            Some(first[..length].to_vec())
        };
        let all: Vec<Vec<&str>> = self.blocks.iter().map(scope).collect::<Option<_>>()?;
        let (first, second) = (all.first()?, all.get(1)?);
        let differs = first.iter().zip(second).position(|(a, b)| a != b)?;
        let is_one = |scope: &Vec<&str>| scope.len() > differs && scope[..differs] == first[..differs];
        let names: BTreeSet<&str> = all.iter().filter_map(|scope| scope.get(differs).copied()).collect();
        let pattern = [&first[..differs], &["*"]].concat().join(".");
        (all.iter().all(is_one) && names.len() == all.len()).then_some(pattern)
    }

    /// The same model with its first `keep` blocks alone.
    pub fn shortened(&self, graph: &Graph, keep: usize) -> Graph {
        if keep == 0 || keep >= self.count() {
            return graph.clone();
        }
        let removed: BTreeSet<NodeId> = self.blocks[keep..].iter().flatten().copied().collect();
        let (kept, end) = (self.ends[keep - 1], self.ends[self.count() - 1]);
        let (mut builder, map) = rebuild_nodes(Builder::rewrite(graph), graph, |_, id, node, map| {
            if !removed.contains(&id) {
                return None;
            }
            let is_end = node.results.contains(&end);
            Some(if is_end { vec![mapped(map, kept); node.results.len()] } else { vec![] })
        });
        builder.copy_roots(graph, &map);
        without_unread_states(&rebuild(&builder.finish(), |_, _, _, _| None))
    }
}

/// The graph with those state variables only that something reads.
fn without_unread_states(graph: &Graph) -> Graph {
    let read = graph.state_reads();
    let mut builder = Builder::rewrite(graph);
    let mut numbers = vec![None; graph.states.len()];
    let mut states = vec![];
    for (state, number) in graph.states.iter().zip(&mut numbers).zip(&read).filter(|(_, read)| read.is_some()).map(|(s, _)| s) {
        *number = Some(StateId(states.len() as u32));
        states.push(State { update: None, gradient: None, ..state.clone() });
    }
    builder.graph_mut().states = states;
    let (mut builder, map) = rebuild_nodes(builder, graph, |builder, _, node, _| match &node.op {
        Op::State(read) => numbers[read.state.index()].map(|state| vec![builder.state(state)]),
        _ => None,
    });
    let mapped = |value: ValueId| map[value.index()].expect("every root is copied");
    let outputs = graph.outputs.iter().map(|output| shardc_ir::graph::Output { value: mapped(output.value), ..output.clone() });
    builder.graph_mut().outputs = outputs.collect();
    builder.finish()
}
