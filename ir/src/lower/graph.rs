//! Every node of a graph lowered on a rank's part, and where each value is stored: views of one
//! another share storage.

use super::fused::fuse;
use super::{Extent, LowerContext, Lowered};
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::kernel::{Kernel, Work};
use crate::ops::Op;
use std::sync::Arc;

/// The lowered graph, as ranks at some coordinates have it.
#[derive(Clone)]
pub struct LoweredGraph<'g> {
    /// The graph.
    pub graph: &'g Graph,
    /// For each node.
    pub nodes: Arc<Vec<Lowered>>,
    /// For each value, a rank's part of it.
    pub extents: Arc<Vec<Extent>>,
    /// For each value, the value whose memory it is.
    pub storage: Vec<ValueId>,
    /// For each storage, the nodes that read it (through any view), in order.
    pub readers: Vec<Vec<NodeId>>,
    /// For each storage, whether an output, an update or a gradient is in it.
    pub is_root: Vec<bool>,
    /// For each node, whether it runs here: its results are held here.
    is_here: Vec<bool>,
}

impl<'g> LoweredGraph<'g> {
    /// Lowers all nodes, as the first rank has them.
    pub fn new(graph: &'g Graph) -> LoweredGraph<'g> {
        let extents: Vec<Extent> = graph.values().map(|(_, v)| Extent::new(&v.ty, &v.sharding, &graph.mesh)).collect();
        let take = |values: &[ValueId]| -> Vec<Extent> { values.iter().map(|v| extents[v.index()].clone()).collect() };
        let lower = |node: &Node| {
            let (mut operands, mut results) = (take(&node.operands), take(&node.results));
            let is_flat = |extent: &Extent| !extent.sharding.flat.is_empty();
            if !node.op.is_comm() && operands.iter().chain(&results).any(is_flat) {
                operands.iter_mut().chain(&mut results).for_each(|extent| *extent = extent.line());
            }
            node.op
                .rules()
                .lower(&LowerContext { mesh: &graph.mesh, operands: &operands, results: &results })
                .rounded(&operands, &results)
        };
        let nodes = graph.nodes().map(|(_, node)| lower(node)).collect();
        let empty = LoweredGraph {
            graph,
            nodes: Arc::new(nodes),
            extents: Arc::new(extents),
            storage: vec![],
            readers: vec![],
            is_root: vec![],
            is_here: vec![],
        };
        empty.at(&graph.mesh.coordinates(0))
    }

    /// The same, as ranks at `coordinates` have it: nodes run where their results are held, and
    /// what is transferred away is read where it is sent.
    pub fn at(&self, coordinates: &[u64]) -> LoweredGraph<'g> {
        let graph = self.graph;
        let is_at = |v: &ValueId| graph.sharding(*v).is_at(coordinates);
        let mut storage: Vec<ValueId> = graph.values().map(|(id, _)| id).collect();
        let mut readers: Vec<Vec<NodeId>> = vec![vec![]; storage.len()];
        let mut is_here = vec![];
        for (id, node) in graph.nodes() {
            let here = node.results.iter().all(is_at);
            is_here.push(here);
            let alias = match (self.node(id), &node.op) {
                (Lowered::Alias(i), _) if here => Some(*i),
                (_, Op::Transfer(_)) if here && is_at(&node.operands[0]) => Some(0),
                _ => None,
            };
            if let Some(i) = alias {
                storage[node.results[0].index()] = storage[node.operands[i].index()];
            }
            let sends = matches!(&node.op, Op::Transfer(op) if coordinates[op.axis.index()] == op.from && op.to != [op.from]);
            if sends || (here && alias.is_none()) {
                let here = node.operands.iter().filter(|v| is_at(v));
                here.for_each(|v| readers[storage[v.index()].index()].push(id));
            }
        }
        let mut is_root = vec![false; storage.len()];
        graph.roots().filter(is_at).for_each(|v| is_root[storage[v.index()].index()] = true);
        let (nodes, extents) = (self.nodes.clone(), self.extents.clone());
        LoweredGraph { graph, nodes, extents, storage, readers, is_root, is_here }
    }

    /// The lowered form of a node.
    pub fn node(&self, id: NodeId) -> &Lowered {
        &self.nodes[id.index()]
    }

    /// The work of a node's kernels on a rank, by itself.
    pub fn work(&self, id: NodeId) -> Work {
        let work = |kernel: &Kernel| kernel.work(&self.graph.mesh).unwrap_or_default();
        match self.node(id) {
            Lowered::Map(_) | Lowered::Reduce { .. } => {
                fuse(self, id, &|_| false).map_or(Work::default(), |fused| work(&fused.kernel))
            }
            Lowered::Launches { launches, .. } => {
                launches.iter().map(|launch| work(&launch.kernel)).fold(Work::default(), Work::and)
            }
            Lowered::Alias(_) | Lowered::Leaf => Work::default(),
        }
    }

    /// The nodes that run here, in order.
    pub fn nodes_here(&self) -> impl DoubleEndedIterator<Item = (NodeId, &'g Node)> + '_ {
        self.graph.nodes().filter(|(id, _)| self.is_here(*id))
    }

    /// Whether a node runs here.
    pub fn is_here(&self, id: NodeId) -> bool {
        self.is_here[id.index()]
    }

    /// The value whose memory `value` is.
    pub fn stored_in(&self, value: ValueId) -> ValueId {
        self.storage[value.index()]
    }

    /// A rank's part of a value.
    pub fn extent(&self, value: ValueId) -> &Extent {
        &self.extents[value.index()]
    }
}
