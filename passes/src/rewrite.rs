//! The tools of passes that change nodes: rebuilding a graph node by node, and telling how its
//! shapes nest.

use shardc_ir::builder::Builder;
use shardc_ir::graph::{Graph, Node, NodeId, ValueId};

/// Old values to new ones.
pub type ValueMap = Vec<Option<ValueId>>;

/// Builds the graph again from its live nodes. For each, `replace` may append other nodes and give
/// the values that stand for its results, or leave it to be copied.
pub fn rebuild(graph: &Graph, replace: impl FnMut(&mut Builder, NodeId, &Node, &ValueMap) -> Option<Vec<ValueId>>) -> Graph {
    let (mut builder, map) = rebuild_nodes(Builder::rewrite(graph), graph, replace);
    builder.copy_roots(graph, &map);
    builder.finish()
}

/// [`rebuild`] in a builder that was prepared for it, without what reads from outside.
pub fn rebuild_nodes(
    mut builder: Builder,
    graph: &Graph,
    mut replace: impl FnMut(&mut Builder, NodeId, &Node, &ValueMap) -> Option<Vec<ValueId>>,
) -> (Builder, ValueMap) {
    let live = live_nodes(graph);
    let mut map: ValueMap = vec![None; graph.value_count()];
    for (id, node) in graph.nodes().filter(|(id, _)| live[id.index()]) {
        builder.origin = node.origin.clone();
        builder.base = None;
        match replace(&mut builder, id, node, &map) {
            Some(results) => {
                for (old, new) in node.results.iter().zip(results) {
                    map[old.index()] = Some(new);
                }
            }
            None => {
                builder.copy(graph, node, &mut map);
            }
        }
    }
    (builder, map)
}

/// For each node, whether an output, an update or a gradient needs it.
fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.node_count()];
    for root in graph.roots() {
        live[graph.value(root).node.index()] = true;
    }
    for (id, node) in graph.nodes().rev() {
        if live[id.index()] {
            node.operands.iter().for_each(|v| live[graph.value(*v).node.index()] = true);
        }
    }
    live
}

/// The new value that stands for an old one.
pub fn mapped(map: &ValueMap, value: ValueId) -> ValueId {
    map[value.index()].expect("operands come before their users")
}

/// For each dimension of `merged`, how many neighbouring dimensions of `apart` it holds; none if
/// some do not nest.
pub fn neighbours(apart: &[u64], merged: &[u64]) -> Option<Vec<usize>> {
    let mut next = 0;
    let mut out = vec![];
    for (i, size) in merged.iter().enumerate() {
        let (mut product, start) = (1, next);
        while next < apart.len() && (product < *size || (i + 1 == merged.len() && apart[next] == 1)) {
            product *= apart[next];
            next += 1;
        }
        if product != *size || next == start {
            return None;
        }
        out.push(next - start);
    }
    (next == apart.len()).then_some(out)
}
