//! Mutants of graphs with lines: collectives of lines over other axes, of other kinds, in another
//! order with the sums beside them, and values that say that they are cut otherwise.

use crate::rewrite;
use shardc_ir::builder::Builder;
use shardc_ir::graph::{Graph, Node, NodeId, ValueId};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use shardc_ir::ops::comm::{Accumulate, AllReduce};
use shardc_ir::ops::flat::{FlatGather, FlatScatter, FlatSlice};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_testkit::random::Random;

/// How often a general change is tried until it is one of a line.
const ATTEMPTS: usize = 20;

fn nodes(graph: &Graph, of: impl Fn(&Node) -> bool) -> Vec<NodeId> {
    graph.nodes().filter(|(_, node)| of(node)).map(|(id, _)| id).collect()
}

fn is_flat(op: &Op) -> bool {
    matches!(op, Op::FlatGather(_) | Op::FlatScatter(_) | Op::FlatSlice(_))
}

fn name(graph: &Graph, id: NodeId) -> String {
    graph.value(graph.node(id).results[0]).name.to_string()
}

/// The graph with other ops and operands of one node.
fn with(graph: &Graph, place: NodeId, op: Op, operand: Option<ValueId>) -> Graph {
    let mut b = Builder::rewrite(graph);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    for (id, node) in graph.nodes() {
        let mut node = node.clone();
        if id == place {
            node.op = op.clone();
            node.operands[0] = operand.unwrap_or(node.operands[0]);
        }
        b.copy(graph, &node, &mut map);
    }
    b.copy_roots(graph, &map);
    b.finish()
}

/// As it is, or with what may follow from it.
fn followed(mut graph: Graph, text: String, random: &mut Random) -> (Graph, String) {
    if random.below(2) == 0 {
        rewrite::repair(&mut graph);
        return (graph, format!("{text}, repaired"));
    }
    (graph, text)
}

fn change_axes(graph: &Graph, axes: &mut Vec<AxisId>, random: &mut Random) {
    let axis = AxisId(random.below(graph.mesh.axes().len()) as u8);
    match random.below(4) {
        0 => axes.reverse(),
        1 => axes[0] = axis,
        2 => axes.push(axis),
        _ => drop(axes.pop()),
    }
}

/// A collective of a line goes over other axes, and its result says so, or not.
pub fn axes(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let id = random.pick(&nodes(graph, |node| is_flat(&node.op)))?;
    let mut op = graph.node(id).op.clone();
    match &mut op {
        Op::FlatGather(FlatGather { axes, .. })
        | Op::FlatScatter(FlatScatter { axes, .. })
        | Op::FlatSlice(FlatSlice { axes }) => {
            change_axes(graph, axes, random);
        }
        _ => return None,
    }
    let text = format!("`%{}` over other axes: {op:?}", name(graph, id));
    let mut mutant = with(graph, id, op.clone(), None);
    let (Op::FlatScatter(FlatScatter { axes, .. }) | Op::FlatSlice(FlatSlice { axes })) = op else {
        return Some(followed(mutant, text, random));
    };
    if let Some(value) = mutant.named(&name(graph, id)).filter(|_| random.below(2) == 0) {
        let mut sharding = mutant.sharding(value).clone();
        sharding.flat = axes;
        mutant.set_sharding(value, sharding);
    }
    Some(followed(mutant, text, random))
}

/// A collective of a line is another: a scatter does not sum, sums up otherwise, or what is whole
/// is summed.
pub fn kind(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let id = random.pick(&nodes(graph, |node| is_flat(&node.op)))?;
    let kind = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min][random.below(3)];
    let op: Op = match (&graph.node(id).op, random.below(3)) {
        (Op::FlatScatter(FlatScatter { axes, .. }), 0) => FlatSlice { axes: axes.clone() }.into(),
        (Op::FlatScatter(FlatScatter { axes, .. }), 1) => FlatScatter { kind, axes: axes.clone() }.into(),
        (Op::FlatScatter(FlatScatter { axes, .. }), _) => AllReduce { kind, axes: axes.clone() }.into(),
        (Op::FlatSlice(FlatSlice { axes }), 0) => FlatGather { axes: axes.clone(), kept: false }.into(),
        (Op::FlatSlice(FlatSlice { axes }), _) => FlatScatter { kind, axes: axes.clone() }.into(),
        (Op::FlatGather(FlatGather { axes, .. }), 0) => FlatSlice { axes: axes.clone() }.into(),
        (Op::FlatGather(FlatGather { axes, .. }), 1) => AllReduce { kind, axes: axes.clone() }.into(),
        (Op::FlatGather(_), _) => Accumulate { kind }.into(),
        _ => return None,
    };
    let text = format!("`%{}` is {op:?}", name(graph, id));
    Some(followed(with(graph, id, op, None), text, random))
}

/// A collective of a line takes another value of its type.
pub fn other_value(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let id = random.pick(&nodes(graph, |node| is_flat(&node.op)))?;
    let own = graph.node(id).operands[0];
    let fits = |v: ValueId| {
        v != own && graph.value(v).node < id && graph.ty(v) == graph.ty(own) && graph.sharding(v).flat == graph.sharding(own).flat
    };
    let other = random.pick(&graph.values().map(|(v, _)| v).filter(|v| fits(*v)).collect::<Vec<_>>())?;
    let text = format!("`%{}` takes `%{}`", name(graph, id), graph.value(other).name);
    Some(followed(with(graph, id, graph.node(id).op.clone(), Some(other)), text, random))
}

/// A value, or a state variable, says that it is cut otherwise.
pub fn sharding(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let mut mutant = graph.clone();
    if random.below(3) == 0 {
        let states: Vec<usize> = (0..graph.states.len()).filter(|i| graph.states[*i].ty.rank() > 0).collect();
        let state = &mut mutant.states[random.pick(&states)?];
        change_or_begin(graph, &mut state.sharding.flat, random);
        let text = format!("state `{}` is cut over {:?}", state.name, state.sharding.flat);
        let (name, flat) = (state.name.clone(), state.sharding.flat.clone());
        if let Some(read) = mutant.named(&name).filter(|_| random.below(2) == 0) {
            let mut sharding = mutant.sharding(read).clone();
            sharding.flat = flat;
            mutant.set_sharding(read, sharding);
        }
        return Some(followed(mutant, text, random));
    }
    let near = |v: ValueId| {
        let node = graph.def(v);
        node.operands.iter().chain(&node.results).any(|v| !graph.sharding(*v).flat.is_empty())
    };
    let value = random.pick(&graph.values().map(|(v, _)| v).filter(|v| near(*v)).collect::<Vec<_>>())?;
    let mut sharding = graph.sharding(value).clone();
    change_or_begin(graph, &mut sharding.flat, random);
    let text = format!("`%{}` is cut over {:?}", graph.value(value).name, sharding.flat);
    mutant.set_sharding(value, sharding);
    Some(followed(mutant, text, random))
}

fn change_or_begin(graph: &Graph, flat: &mut Vec<AxisId>, random: &mut Random) {
    match flat.is_empty() {
        true => flat.push(AxisId(random.below(graph.mesh.axes().len()) as u8)),
        false => change_axes(graph, flat, random),
    }
}

/// What sums up a partial value is left out: micro-batches, groups or the squares of ranges.
pub fn not_summed(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let sums = |node: &Node| {
        let near = |v: &ValueId| !graph.sharding(*v).flat.is_empty();
        let summed = matches!(node.op, Op::AllReduce(_) | Op::Accumulate(_));
        summed && (node.operands.iter().any(near) || !graph.sharding(node.operands[0]).partial.is_empty())
    };
    let id = random.pick(&nodes(graph, sums))?;
    let (from, to) = (graph.node(id).operands[0], graph.node(id).results[0]);
    let mut b = Builder::rewrite(graph);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    for (at, node) in graph.nodes() {
        match at == id {
            true => map[to.index()] = map[from.index()],
            false => drop(b.copy(graph, node, &mut map)),
        }
    }
    b.copy_roots(graph, &map);
    Some(followed(b.finish(), format!("`%{}` is not summed", name(graph, id)), random))
}

/// A change as of any graph, at a line.
pub fn general(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let lines: Vec<String> = graph
        .nodes()
        .filter(|(_, node)| node.operands.iter().chain(&node.results).any(|v| !graph.sharding(*v).flat.is_empty()))
        .map(|(id, _)| format!(" at `%{}` (", name(graph, id)))
        .collect();
    (0..ATTEMPTS).filter_map(|_| rewrite::mutate(graph, random)).find(|(_, text)| lines.iter().any(|line| text.contains(line)))
}
