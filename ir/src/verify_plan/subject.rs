//! A program beside the graph that it says it carries out.

use super::launches::{self, Launches};
use crate::dtype::DType;
use crate::graph::{Graph, NodeId, ValueId};
use crate::lower::graph::LoweredGraph;
use crate::lower::{Lowered, Slot};
use crate::mesh::AxisId;
use crate::ops::Op;
use crate::plan::Program;
use crate::sharding::Sharding;
use std::collections::HashMap;

/// The subject of a proof, with the tables that the proof reads again and again.
pub struct Subject<'s> {
    /// The program.
    pub program: &'s Program,
    /// The explicit graph.
    pub graph: &'s Graph,
    /// The coordinates of the first of the ranks that it is proven for.
    pub coordinates: &'s [u64],
    /// Its nodes on these ranks.
    pub lowered: &'s LoweredGraph<'s>,
    names: &'s HashMap<&'s str, ValueId>,
    storage: &'s [ValueId],
    launches: &'s HashMap<NodeId, Launches>,
}

/// The tables that all programs of a set share.
pub struct Known<'g> {
    lowered: LoweredGraph<'g>,
    names: HashMap<&'g str, ValueId>,
    launches: HashMap<NodeId, Launches>,
}

/// The graph as ranks at some coordinates have it.
pub struct Here<'g> {
    coordinates: Vec<u64>,
    lowered: LoweredGraph<'g>,
    storage: Vec<ValueId>,
}

impl<'g> Known<'g> {
    /// Lowers the graph.
    pub fn new(graph: &'g Graph) -> Known<'g> {
        let lowered = LoweredGraph::new(graph);
        let names = graph.values().map(|(id, value)| (&*value.name, id)).collect();
        let launches = launches::index(&lowered);
        Known { lowered, names, launches }
    }

    /// As ranks at `coordinates` have it.
    pub fn at(&self, coordinates: Vec<u64>) -> Here<'g> {
        let lowered = self.lowered.at(&coordinates);
        let storage = storage(&lowered);
        Here { coordinates, lowered, storage }
    }

    /// Beside the program of ranks.
    pub fn subject<'s>(&'s self, here: &'s Here<'s>, program: &'s Program) -> Subject<'s> {
        let Here { coordinates, lowered, storage } = here;
        let Known { names, launches, .. } = self;
        Subject { program, graph: lowered.graph, coordinates, lowered, names, storage, launches }
    }
}

/// For each value the one whose memory it is; of leaves that are read several times, the first.
fn storage(lowered: &LoweredGraph<'_>) -> Vec<ValueId> {
    let mut first: HashMap<String, ValueId> = HashMap::new();
    let mut storage = lowered.storage.clone();
    for (_, node) in lowered.nodes_here() {
        let key = match &node.op {
            Op::State(read) => format!("state {}", read.state.0),
            Op::Host(host) => format!("{:?}", host.scalar),
            _ => continue,
        };
        storage[node.results[0].index()] = *first.entry(key).or_insert(node.results[0]);
    }
    let through = |v: &ValueId| storage[v.index()];
    lowered.storage.iter().map(through).collect()
}

impl<'s> Subject<'s> {
    /// The micro-batches of a step.
    pub fn microbatches(&self) -> u64 {
        self.graph.mesh.microbatches()
    }

    /// The value whose memory `value` is.
    pub fn stored_in(&self, value: ValueId) -> ValueId {
        self.storage[value.index()]
    }

    /// Whether these ranks hold a value.
    pub fn is_here(&self, value: ValueId) -> bool {
        self.graph.sharding(value).is_at(self.coordinates)
    }

    /// The launches of a node that has some.
    pub fn launches(&self, id: NodeId) -> &Launches {
        &self.launches[&id]
    }

    /// The value with that name.
    pub fn named(&self, name: &str) -> Option<ValueId> {
        self.names.get(name).copied()
    }

    /// Whether there is one of a value for each micro-batch.
    pub fn timed(&self, value: ValueId) -> bool {
        self.microbatches() > 1 && self.graph.sharding(value).depends_on(self.graph.mesh.microbatch_axis())
    }

    /// Whether a node runs once for each micro-batch.
    pub fn node_is_timed(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        node.operands.iter().chain(&node.results).any(|v| self.timed(*v))
    }

    /// Element type and bytes of a rank's part of a value.
    pub fn size_of(&self, value: ValueId) -> (DType, u64) {
        let extent = self.lowered.extent(value);
        (extent.ty.dtype, extent.elements() * extent.ty.dtype.bytes())
    }

    /// Element type and bytes of a tensor of a node.
    pub fn size_of_slot(&self, id: NodeId, slot: Slot) -> (DType, u64) {
        let node = self.graph.node(id);
        match (slot, self.lowered.node(id)) {
            (Slot::Operand(i), _) => self.size_of(node.operands[i]),
            (Slot::Scratch(i), Lowered::Launches { scratch, .. }) => (scratch[i].0, scratch[i].1 * scratch[i].0.bytes()),
            (Slot::Scratch(_), _) => (DType::Bool, 0),
            (Slot::Result(i), _) => self.size_of(node.results[i]),
        }
    }

    /// The line of the spec that asked for what makes a value, or for its sharding.
    pub fn line_of(&self, value: ValueId) -> Option<u32> {
        let asked = || self.graph.value(value).asked.first().map(|(_, line)| *line);
        self.graph.def(value).origin.spec_line.or_else(asked)
    }

    /// Two ranks that hold different parts of one of the values and not of the other, or combine
    /// them differently.
    pub fn apart(&self, a: ValueId, b: ValueId) -> Option<(u64, u64)> {
        let mesh = &self.graph.mesh;
        let (a, b) = (self.graph.sharding(a), self.graph.sharding(b));
        let differs = |axis: &AxisId| {
            let splits = |s: &Sharding| -> Vec<_> {
                s.dims.iter().map(|splits| splits.iter().find(|s| s.axis == *axis).map(|s| s.stride)).collect()
            };
            let flat = |s: &Sharding| s.flat.contains(axis);
            a.partial_over(*axis) != b.partial_over(*axis) || flat(a) != flat(b) || splits(a) != splits(b)
        };
        let axes = (0..mesh.rank_axes().len()).map(|i| AxisId(i as u8)).filter(|axis| mesh.size(*axis) > 1);
        axes.filter(differs).map(|axis| (0, mesh.group(0, &[axis])[1])).next()
    }
}
