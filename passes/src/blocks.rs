//! Blocks of parameters and inputs: where they are cut, and which values of a graph are blocks.

use shardc_ir::graph::{Graph, Node, ValueId};
use shardc_ir::ops::Op;

/// A cut of a value: a dimension and the sizes of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The dimension.
    pub dim: usize,
    /// The sizes of the parts, which are all of it.
    pub sizes: Vec<u64>,
}

impl Cut {
    /// The first index and the size of each part.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.sizes.iter().scan(0, |end, size| {
            *end += size;
            Some((*end - size, *size))
        })
    }
}

/// The slices that are those blocks of an input along `dim`, with their sizes.
pub fn slices(graph: &Graph, input: ValueId, dim: usize, blocks: &[u64]) -> Vec<(ValueId, u64)> {
    let cut = Cut { dim, sizes: blocks.to_vec() };
    let users = graph.users(graph.value(input).node).into_iter().map(|user| graph.node(user));
    let block = |node: &Node| match &node.op {
        Op::Slice(s) if s.axis == dim && s.step == 1 => {
            cut.ranges().any(|range| range == (s.start, s.size)).then_some((node.results[0], s.size))
        }
        _ => None,
    };
    users.filter_map(block).collect()
}

/// A value, and what it is a slice of, if it is one.
pub fn with_whole(graph: &Graph, value: ValueId) -> impl Iterator<Item = ValueId> {
    let node = graph.def(value);
    let whole = node.operands.first().filter(|_| matches!(node.op, Op::Slice(_)));
    [value].into_iter().chain(whole.copied())
}

/// Whether a value is a block of a parameter.
pub fn is_block(graph: &Graph, value: ValueId) -> bool {
    matches!(&graph.def(value).op, Op::State(read) if graph.states[read.state.index()].block.is_some())
}

/// Whether a node puts blocks together: its result is no value of the model.
pub fn is_joined(graph: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::Concat(_)) && node.operands.iter().any(|v| is_block(graph, *v))
}
