//! Every node of a graph lowered on a rank's part, and where each value is stored: views of one
//! another share storage.

use super::{Extent, LowerContext, Lowered};
use crate::graph::{Graph, NodeId, ValueId};

/// The lowered graph.
pub struct LoweredGraph<'g> {
    /// The graph.
    pub graph: &'g Graph,
    /// For each node.
    pub nodes: Vec<Lowered>,
    /// For each value, a rank's part of it.
    pub extents: Vec<Extent>,
    /// For each value, the value whose memory it is.
    pub storage: Vec<ValueId>,
    /// For each storage, the nodes that read it (through any view), in order.
    pub readers: Vec<Vec<NodeId>>,
    /// For each storage, whether an output, an update or a gradient is in it.
    pub is_root: Vec<bool>,
}

impl<'g> LoweredGraph<'g> {
    /// Lowers all nodes.
    pub fn new(graph: &'g Graph) -> LoweredGraph<'g> {
        let extents: Vec<Extent> = graph.values().map(|(_, v)| Extent::new(&v.ty, &v.sharding, &graph.mesh)).collect();
        let take = |values: &[ValueId]| -> Vec<Extent> { values.iter().map(|v| extents[v.index()].clone()).collect() };
        let mut nodes = vec![];
        let mut storage: Vec<ValueId> = graph.values().map(|(id, _)| id).collect();
        let mut readers: Vec<Vec<NodeId>> = vec![vec![]; extents.len()];
        for (id, node) in graph.nodes() {
            let (operands, results) = (take(&node.operands), take(&node.results));
            let cx = LowerContext { mesh: &graph.mesh, operands: &operands, results: &results };
            let lowered = node.op.rules().lower(&cx);
            if let Lowered::Alias(i) = lowered {
                storage[node.results[0].index()] = storage[node.operands[i].index()];
            } else {
                for v in &node.operands {
                    readers[storage[v.index()].index()].push(id);
                }
            }
            nodes.push(lowered);
        }
        let mut is_root = vec![false; extents.len()];
        graph.roots().for_each(|v| is_root[storage[v.index()].index()] = true);
        LoweredGraph { graph, nodes, extents, storage, readers, is_root }
    }

    /// The lowered form of a node.
    pub fn node(&self, id: NodeId) -> &Lowered {
        &self.nodes[id.index()]
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
