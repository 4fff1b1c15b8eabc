//! The global graph: nodes in a topological order, values with global types and shardings, state
//! variables and their updates.
//!
//! A graph only grows: a pass that changes something builds a new graph through
//! [`crate::builder::Builder`], node by node, so node order is a topological order at every moment
//! and ids are dense.

use crate::mesh::{AxisId, Mesh};
use crate::ops::Op;
use crate::plan::{Block, Provenance, StateRole};
use crate::sharding::Sharding;
use crate::train::StateInit;
use crate::types::Type;
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A node: one op applied to values. The order of ids is the order of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// A value: one result of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// A state variable, by position in [`Graph::states`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StateId(pub u32);

macro_rules! index {
    ($($id:ident)*) => {$(
        impl $id {
            /// The position in its table.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}
index!(NodeId ValueId StateId);

/// How far a graph has come; passes only move it forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// As the model says.
    Imported,
    /// Patterns are recognised.
    Raised,
    /// Loss, gradients and updates are in.
    Differentiated,
    /// Every value has the dimensions of its sharding.
    Annotated,
    /// Every disagreement is a communication op, every partial value is marked.
    Explicit,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Phase; 5] = [Phase::Imported, Phase::Raised, Phase::Differentiated, Phase::Annotated, Phase::Explicit];

    /// Its name in text.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Imported => "imported",
            Phase::Raised => "raised",
            Phase::Differentiated => "differentiated",
            Phase::Annotated => "annotated",
            Phase::Explicit => "explicit",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One op applied to values.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The op with its attributes.
    pub op: Op,
    /// The values that it reads.
    pub operands: Vec<ValueId>,
    /// The values that it defines.
    pub results: Vec<ValueId>,
    /// Its origin.
    pub origin: NodeOrigin,
}

/// The parts of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The model and its loss.
    #[default]
    Forward,
    /// Gradients.
    Backward,
    /// The work that is done once, after the last micro-batch: norm, clip, update.
    Update,
}

impl Part {
    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Part::Forward => "forward",
            Part::Backward => "backward",
            Part::Update => "update",
        }
    }
}

/// The origin of a node: the model's scope, and for nodes that a pass put in, why. Texts are shared
/// between copies of a graph.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeOrigin {
    /// The module path in the model: `h.0.attn`.
    pub scope: Option<Arc<str>>,
    /// Which part of the step it belongs to.
    pub part: Part,
    /// The stage of a pipeline that it is of; `None` where it belongs to whoever reads it.
    pub stage: Option<u32>,
    /// Why a pass inserted it, for listings.
    pub reason: Option<Arc<str>>,
    /// The line of the spec that asked for it.
    pub spec_line: Option<u32>,
}

impl NodeOrigin {
    /// As the plan carries it.
    pub fn provenance(&self, ops: Vec<String>) -> Provenance {
        let words = |text: &Option<Arc<str>>| text.as_deref().map(str::to_string);
        Provenance { ops, reason: words(&self.reason), spec_line: self.spec_line, scope: words(&self.scope) }
    }
}

/// One result of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Its name in text, unique in the graph, without `%`; shared between copies of a graph.
    pub name: Arc<str>,
    /// Global type.
    pub ty: Type,
    /// Its sharding; replicated before phase `annotated`.
    pub sharding: Sharding,
    /// The node that defines it.
    pub node: NodeId,
    /// Which of the node's results it is.
    pub result: usize,
    /// For each axis that splits it, the line of the spec that asked for that, from 1.
    pub asked: Vec<(AxisId, u32)>,
}

/// A state variable.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// The initializer's name, or `NAME.m` and the like for moments.
    pub name: String,
    /// Global type.
    pub ty: Type,
    /// Its sharding.
    pub sharding: Sharding,
    /// Its role.
    pub role: StateRole,
    /// How it begins.
    pub init: StateInit,
    /// Which part of an initializer it is; `None` for all of it, and for moments.
    pub block: Option<Block>,
    /// Its value at the end of a step, if it changes.
    pub update: Option<ValueId>,
    /// For a parameter: its gradient, complete, as the update reads it before clipping.
    pub gradient: Option<ValueId>,
}

impl State {
    /// A whole initializer, the same on every rank, that nothing changes yet.
    pub fn new(name: impl Into<String>, ty: Type, role: StateRole, init: StateInit) -> State {
        let sharding = Sharding::replicated(ty.rank());
        State { name: name.into(), ty, sharding, role, init, block: None, update: None, gradient: None }
    }
}

/// A result that somebody outside reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its name: that of the model's output, `loss`, `grad_norm`.
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// The global graph.
#[derive(Debug, Clone)]
pub struct Graph {
    /// The model's name.
    pub name: String,
    /// How far it has come.
    pub phase: Phase,
    /// The mesh that shardings refer to.
    pub mesh: Mesh,
    pub(crate) dag: DiGraph<Node, ()>,
    pub(crate) values: Vec<Value>,
    /// State variables.
    pub states: Vec<State>,
    /// The values that are read from outside.
    pub outputs: Vec<Output>,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>, phase: Phase, mesh: Mesh) -> Graph {
        Graph { name: name.into(), phase, mesh, dag: DiGraph::new(), values: vec![], states: vec![], outputs: vec![] }
    }

    /// The graph, in whose place an empty one of its phase and mesh is left.
    pub fn take(&mut self) -> Graph {
        let empty = Graph::new("", self.phase, self.mesh.clone());
        std::mem::replace(self, empty)
    }

    /// Makes room for as many nodes and values as `other` has.
    pub(crate) fn reserve(&mut self, other: &Graph) {
        self.dag.reserve_nodes(other.dag.node_count());
        self.dag.reserve_edges(other.dag.edge_count());
        self.values.reserve(other.values.len());
    }

    /// All nodes in program order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> {
        self.dag.node_indices().map(|i| (NodeId(i.index() as u32), &self.dag[i]))
    }

    /// The number of nodes.
    pub fn node_count(&self) -> usize {
        self.dag.node_count()
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.dag[NodeIndex::new(id.index())]
    }

    /// All values by id.
    pub fn values(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.values.iter().enumerate().map(|(i, v)| (ValueId(i as u32), v))
    }

    /// The number of values.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The type of a value.
    pub fn ty(&self, id: ValueId) -> &Type {
        &self.values[id.index()].ty
    }

    /// The sharding of a value.
    pub fn sharding(&self, id: ValueId) -> &Sharding {
        &self.values[id.index()].sharding
    }

    /// The line of the spec because of which `axis` splits a value.
    pub fn asked(&self, id: ValueId, axis: AxisId) -> Option<u32> {
        self.values[id.index()].asked.iter().find(|(a, _)| *a == axis).map(|(_, line)| *line)
    }

    /// Remembers the line of the spec because of which `axis` splits a value.
    pub fn set_asked(&mut self, id: ValueId, axis: AxisId, line: u32) {
        self.values[id.index()].asked.push((axis, line));
    }

    /// Sets the stage of a node.
    pub fn set_stage(&mut self, id: NodeId, stage: Option<u32>) {
        self.dag[NodeIndex::new(id.index())].origin.stage = stage;
    }

    /// For each state variable, the stage of the first node with one that reads it.
    pub fn stages_of_states(&self) -> Vec<Option<u32>> {
        let mut stages = vec![None; self.states.len()];
        for (_, node) in self.nodes().filter(|(_, node)| node.origin.stage.is_some()) {
            for value in &node.operands {
                if let Op::State(read) = &self.def(*value).op {
                    stages[read.state.index()] = stages[read.state.index()].or(node.origin.stage);
                }
            }
        }
        stages
    }

    /// Sets the sharding of a value.
    pub fn set_sharding(&mut self, id: ValueId, sharding: Sharding) {
        self.values[id.index()].sharding = sharding;
    }

    /// The node that defines a value.
    pub fn def(&self, id: ValueId) -> &Node {
        self.node(self.values[id.index()].node)
    }

    /// The nodes that read any result of a node, in program order, once each.
    pub fn users(&self, id: NodeId) -> Vec<NodeId> {
        let edges = self.dag.edges_directed(NodeIndex::new(id.index()), Direction::Outgoing);
        let mut users: Vec<NodeId> = edges.map(|e| NodeId(e.target().index() as u32)).collect();
        users.sort();
        users.dedup();
        users
    }

    /// The only node that reads results of a node; none where nobody or several do.
    pub fn sole_user(&self, id: NodeId) -> Option<NodeId> {
        let edges = self.dag.edges_directed(NodeIndex::new(id.index()), Direction::Outgoing);
        let mut users = edges.map(|e| NodeId(e.target().index() as u32));
        let first = users.next()?;
        users.all(|user| user == first).then_some(first)
    }

    /// How many operands, outputs, updates and gradients read each value.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.values.len()];
        for (_, node) in self.nodes() {
            node.operands.iter().for_each(|v| counts[v.index()] += 1);
        }
        self.roots().for_each(|v| counts[v.index()] += 1);
        counts
    }

    /// The values that must be computed: outputs, updates, gradients.
    pub fn roots(&self) -> impl Iterator<Item = ValueId> + '_ {
        let states = self.states.iter().flat_map(|s| s.update.into_iter().chain(s.gradient));
        self.outputs.iter().map(|o| o.value).chain(states)
    }

    /// For each state variable, the value that it is first read as; none of one that nobody reads.
    pub fn state_reads(&self) -> Vec<Option<ValueId>> {
        let mut reads = vec![None; self.states.len()];
        for (_, node) in self.nodes() {
            if let Op::State(read) = &node.op {
                reads[read.state.index()].get_or_insert(node.results[0]);
            }
        }
        reads
    }

    /// The value with that name.
    pub fn named(&self, name: &str) -> Option<ValueId> {
        self.values.iter().position(|v| *v.name == *name).map(|i| ValueId(i as u32))
    }

    /// The types of a node's operands.
    pub fn operand_types(&self, node: &Node) -> Vec<Type> {
        node.operands.iter().map(|v| self.ty(*v).clone()).collect()
    }

    /// The types of a node's results.
    pub fn result_types(&self, node: &Node) -> Vec<Type> {
        node.results.iter().map(|v| self.ty(*v).clone()).collect()
    }

    /// For each value, whether it depends on any value in `sources`.
    pub fn reached_from(&self, sources: impl Fn(ValueId) -> bool) -> Vec<bool> {
        let mut reached = vec![false; self.values.len()];
        for (_, node) in self.nodes() {
            let through = node.operands.iter().any(|v| reached[v.index()]);
            for v in &node.results {
                reached[v.index()] = through || sources(*v);
            }
        }
        reached
    }
}
