//! Mutants of graphs: plans whose graph already holds the mistake, so that every rank, every kernel
//! and every buffer agrees on it.
//!
//! A node is left out, changed, put in or given another operand. Then the shardings after it may be
//! repaired, so that the graph is as consistent as the mistake allows.

use shardc_ir::builder::Builder;
use shardc_ir::graph::{Graph, Node, NodeId, ValueId};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use shardc_ir::ops::comm::{Accumulate, AllGather, AllReduce, ShardSlice};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::sharding::{Sharding, Split, inserted};
use shardc_ir::verify::{Site, verify};
use shardc_testkit::random::Random;

/// Nodes that a repair may change.
const REPAIRS: usize = 60;

/// A graph with one change, and what it is.
pub fn mutate(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let of = |f: &dyn Fn(&Node) -> bool| graph.nodes().filter(|(_, n)| f(n)).map(|(id, _)| id).collect::<Vec<NodeId>>();
    let comm = |n: &Node| n.op.is_comm();
    let alike = |n: &Node| n.results.len() == 1 && n.operands.iter().any(|v| graph.ty(*v) == graph.ty(n.results[0]));
    let (place, change): (NodeId, Change) = match random.below(7) {
        0 => (random.pick(&of(&comm))?, Change::Omit),
        1 => (random.pick(&of(&alike))?, Change::Omit),
        2 | 3 => {
            let id = random.pick(&of(&comm))?;
            (id, Change::Replace(other_comm(graph, graph.node(id), random)?))
        }
        4 => {
            let id = random.pick(&of(&|n| n.results.len() == 1))?;
            (id, Change::Follow(new_comm(graph, graph.node(id), random)?))
        }
        5 => {
            let id = random.pick(&of(&|n| !n.operands.is_empty()))?;
            let node = graph.node(id);
            let operand = random.below(node.operands.len());
            let earlier = graph.values().filter(|(v, value)| {
                value.node < id && *v != node.operands[operand] && value.ty == *graph.ty(node.operands[operand])
            });
            (id, Change::Operand(operand, random.pick(&earlier.map(|(v, _)| v).collect::<Vec<_>>())?))
        }
        _ => {
            let id = random.pick(&of(&|n| !n.op.is_comm()))?;
            let node = graph.node(id);
            let same = |n: &Node| {
                n.op != node.op
                    && graph.operand_types(n) == graph.operand_types(node)
                    && graph.result_types(n) == graph.result_types(node)
            };
            (id, Change::Replace(graph.node(random.pick(&of(&same))?).op.clone()))
        }
    };
    let text = format!("{change:?} at `%{}` ({})", graph.value(graph.node(place).results[0]).name, graph.node(place).op.name());
    let mut mutant = rebuilt(graph, place, &change)?;
    let how = random.below(3);
    if how > 0 {
        repair(&mut mutant);
    }
    Some((mutant, format!("{text}, {}", if how > 0 { "repaired" } else { "as it is" })))
}

#[derive(Debug)]
enum Change {
    /// Its readers read its operand.
    Omit,
    /// It is another op.
    Replace(Op),
    /// Its readers read this op of its result.
    Follow(Op),
    /// It reads another value.
    Operand(usize, ValueId),
}

/// The graph with a change at one node.
fn rebuilt(graph: &Graph, place: NodeId, change: &Change) -> Option<Graph> {
    let mut b = Builder::rewrite(graph);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    for (id, node) in graph.nodes() {
        if id != place {
            b.copy(graph, node, &mut map);
            continue;
        }
        match change {
            Change::Omit => {
                let result = node.results[0];
                let operand = node.operands.iter().find(|v| graph.ty(**v) == graph.ty(result))?;
                map[result.index()] = map[operand.index()];
            }
            Change::Replace(op) => {
                b.copy(graph, &Node { op: op.clone(), ..node.clone() }, &mut map);
            }
            Change::Follow(op) => {
                let result = b.copy(graph, node, &mut map)[0];
                let next = b.try_node(op.clone(), &[result], "more").ok()?[0];
                let sharding = graph.sharding(node.results[0]).clone();
                b.graph_mut().set_sharding(next, sharding);
                map[node.results[0].index()] = Some(next);
            }
            Change::Operand(i, other) => {
                let mut node = node.clone();
                node.operands[*i] = *other;
                b.copy(graph, &node, &mut map);
            }
        }
    }
    b.copy_roots(graph, &map);
    Some(b.finish())
}

fn axis(graph: &Graph, random: &mut Random) -> AxisId {
    AxisId(random.below(graph.mesh.axes().len()) as u8)
}

fn kind(random: &mut Random) -> ReduceKind {
    if random.below(3) == 0 { ReduceKind::Max } else { ReduceKind::Sum }
}

/// Another collective in the place of one: over other axes, of another kind, along another
/// dimension.
fn other_comm(graph: &Graph, node: &Node, random: &mut Random) -> Option<Op> {
    let mut op = node.op.clone();
    let rank = graph.ty(node.results[0]).rank();
    match &mut op {
        Op::AllReduce(a) => match random.below(5) {
            0 => a.kind = kind(random),
            1 => a.axes = vec![axis(graph, random)],
            2 if a.axes.len() > 1 => drop(a.axes.pop()),
            3 => a.axes.push(axis(graph, random)),
            _ => a.axes.reverse(),
        },
        Op::Accumulate(a) => a.kind = kind(random),
        Op::AllGather(AllGather { dim, split }) | Op::ShardSlice(ShardSlice { dim, split }) => {
            change_split(graph, rank, dim, split, random);
        }
        Op::ReduceScatter(r) => match random.below(3) {
            0 => r.kind = kind(random),
            _ => change_split(graph, rank, &mut r.dim, &mut r.split, random),
        },
        Op::AllToAll(a) => match random.below(2) {
            0 => change_split(graph, rank, &mut a.dim, &mut a.split, random),
            _ => change_split(graph, rank, &mut a.to_dim, &mut a.to_split, random),
        },
        _ => {}
    }
    let other = [op, new_comm(graph, node, random)?];
    let other = other[usize::from(random.below(4) == 0)].clone();
    (other != node.op).then_some(other)
}

fn change_split(graph: &Graph, rank: usize, dim: &mut usize, split: &mut Split, random: &mut Random) {
    match random.below(3) {
        0 => *dim = random.below(rank),
        1 => split.axis = axis(graph, random),
        _ => split.stride = [1, 2, 4, 8][random.below(4)],
    }
}

fn new_comm(graph: &Graph, node: &Node, random: &mut Random) -> Option<Op> {
    let ty = graph.ty(node.results[0]);
    let split = Split { axis: axis(graph, random), stride: [1, 2, 4][random.below(3)] };
    let dim = random.below(ty.rank());
    Some(match random.below(4) {
        0 => AllReduce { kind: kind(random), axes: vec![axis(graph, random)] }.into(),
        1 => Accumulate { kind: kind(random) }.into(),
        2 if ty.rank() > 0 => ShardSlice { dim, split }.into(),
        _ if ty.rank() > 0 => AllGather { dim, split }.into(),
        _ => return None,
    })
}

/// Gives what the change has made wrong the shardings that would follow from it, as far as that can
/// be guessed.
pub fn repair(graph: &mut Graph) {
    for _ in 0..REPAIRS {
        let Err(violations) = verify(graph) else { return };
        let Some(Site::Node(id)) = violations.first().map(|v| v.place) else { return };
        let node = graph.node(id).clone();
        let mut changed = false;
        for result in &node.results {
            let next = guess(graph, &node, *result);
            changed |= next != *graph.sharding(*result);
            graph.set_sharding(*result, next);
        }
        if !changed {
            return;
        }
    }
}

/// The sharding that a result may have.
fn guess(graph: &Graph, node: &Node, result: ValueId) -> Sharding {
    let mut next = graph.sharding(result).clone();
    let Some(first) = node.operands.first() else { return next };
    let from = graph.sharding(*first);
    match &node.op {
        Op::AllReduce(op) => {
            next = from.clone();
            next.partial.retain(|p| !op.axes.contains(&p.axis));
        }
        Op::Accumulate(_) => {
            next = from.clone();
            next.partial.retain(|p| p.axis != graph.mesh.microbatch_axis());
        }
        Op::AllGather(op) => {
            next = from.clone();
            next.dims[op.dim].retain(|s| *s != op.split);
        }
        Op::ShardSlice(op) => {
            next = from.clone();
            next.dims[op.dim] = inserted(&next.dims[op.dim], op.split);
        }
        _ => {
            let partial = node.operands.iter().flat_map(|v| &graph.sharding(*v).partial).copied();
            partial.for_each(|p| next.add_partial(p.axis, p.kind));
            if graph.ty(*first).shape == graph.ty(result).shape {
                next.dims = from.dims.clone();
            }
        }
    }
    next
}
