//! Rebuilding a graph node by node: what every pass that changes nodes is made of.

use shardc_ir::builder::Builder;
use shardc_ir::graph::{Graph, Node, NodeId, ValueId};

/// Old values to new ones.
pub type ValueMap = Vec<Option<ValueId>>;

/// Builds the graph again from its live nodes. For each, `replace` may append other nodes and give the values that stand for its
/// results, or leave it to be copied.
pub fn rebuild(graph: &Graph, mut replace: impl FnMut(&mut Builder, NodeId, &Node, &ValueMap) -> Option<Vec<ValueId>>) -> Graph {
    let live = live_nodes(graph);
    let mut builder = Builder::rewrite(graph);
    let mut map: ValueMap = vec![None; graph.value_count()];
    for (id, node) in graph.nodes().filter(|(id, _)| live[id.index()]) {
        builder.origin = node.origin.clone();
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
    builder.copy_roots(graph, &map);
    builder.finish()
}

/// For each node, whether an output, an update or a gradient needs it. Inputs always stay: the data must have them.
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
