//! Mutants of graphs with casts, a flag and masters, which are planned again.

use shardc_ir::builder::Builder;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Node, NodeId, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::plan::StateRole;
use shardc_testkit::random::Random;

type Map = Vec<Option<ValueId>>;

/// The graph, of which `change` makes the results of some nodes; `None` where it leaves a node.
fn rebuilt(graph: &Graph, mut change: impl FnMut(&mut Builder, NodeId, &Node, &mut Map) -> Option<ValueId>) -> Graph {
    let mut b = Builder::rewrite(graph);
    let mut map: Map = vec![None; graph.value_count()];
    for (id, node) in graph.nodes() {
        match change(&mut b, id, node, &mut map) {
            Some(new) => map[node.results[0].index()] = Some(new),
            None => drop(b.copy(graph, node, &mut map)),
        }
    }
    b.copy_roots(graph, &map);
    b.finish()
}

/// A value in another type, with the sharding of the one that it is made of.
fn cast(b: &mut Builder, value: ValueId, dtype: DType) -> ValueId {
    let sharding = b.graph().sharding(value).clone();
    let new = b.cast(value, dtype);
    if new != value {
        b.graph_mut().set_sharding(new, sharding);
    }
    new
}

fn nodes(graph: &Graph, of: impl Fn(&Node) -> bool) -> Vec<NodeId> {
    graph.nodes().filter(|(_, node)| of(node)).map(|(id, _)| id).collect()
}

fn is_cast(node: &Node) -> bool {
    matches!(node.op, Op::Cast(_) | Op::RoundTo(_))
}

/// A value is cast to another format on its way to its own, which is not the one it comes from: by
/// way of that nothing is lost.
pub fn other_format(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let place = random.pick(&nodes(graph, |node| is_cast(node) && graph.ty(node.operands[0]).dtype.is_float()))?;
    let format = random.pick(&[DType::BF16, DType::F16])?;
    let result = graph.node(place).results[0];
    let [from, to] = [graph.node(place).operands[0], result].map(|value| graph.ty(value).dtype);
    (from != format && to != format && to.is_float()).then_some(())?;
    let changed = rebuilt(graph, |b, id, node, map| {
        if id != place {
            return None;
        }
        let own = b.copy(graph, node, map)[0];
        let between = cast(b, own, format);
        let back = cast(b, between, graph.ty(result).dtype);
        b.graph_mut().set_sharding(back, graph.sharding(result).clone());
        Some(back)
    });
    Some((changed, format!("`%{}` by way of {format}", graph.value(result).name)))
}

/// A cast is of another value.
pub fn other_value(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let place = random.pick(&nodes(graph, is_cast))?;
    let node = graph.node(place);
    let own = node.operands[0];
    let fits = |v: &ValueId| {
        *v != own && graph.value(*v).node < place && graph.ty(*v) == graph.ty(own) && graph.sharding(*v) == graph.sharding(own)
    };
    let other = random.pick(&graph.values().map(|(v, _)| v).filter(fits).collect::<Vec<_>>())?;
    let changed = Node { operands: vec![other], ..node.clone() };
    let new = rebuilt(graph, |b, id, _, map| (id == place).then(|| b.copy(graph, &changed, map)[0]));
    Some((new, format!("`%{}` is of `%{}`", graph.value(node.results[0]).name, graph.value(other).name)))
}

/// A state variable is renewed whatever the flag says, or never, or where it says the opposite.
pub fn without_flag(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let updates: Vec<ValueId> = graph.states.iter().filter_map(|state| state.update).collect();
    let chooses = |node: &Node| matches!(node.op, Op::Where(_)) && updates.contains(&node.results[0]);
    let place = random.pick(&nodes(graph, chooses))?;
    let how = random.below(3);
    let node = graph.node(place);
    let mut changed = node.clone();
    changed.operands.swap(1, 2);
    let new = rebuilt(graph, |b, id, node, map| {
        (id == place).then(|| match how {
            0 => map[node.operands[1].index()].expect("it is copied"),
            1 => map[node.operands[2].index()].expect("it is copied"),
            _ => b.copy(graph, &changed, map)[0],
        })
    });
    Some((new, format!("`%{}`, way {how}", graph.value(node.results[0]).name)))
}

/// A master is kept in 16 bits, or is rounded as it is renewed.
pub fn narrow_master(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let masters: Vec<usize> = (0..graph.states.len()).filter(|i| graph.states[*i].role == StateRole::Parameter).collect();
    let master = random.pick(&masters)?;
    let state = &graph.states[master];
    let (format, is_kept) = (random.pick(&[DType::BF16, DType::F16])?, random.below(2) == 0);
    let mut new = rebuilt(graph, |b, _, node, _| {
        let Op::State(read) = &node.op else { return None };
        if !is_kept || read.state.index() != master {
            return None;
        }
        b.graph_mut().states[master].ty.dtype = format;
        let narrow = b.state(read.state);
        Some(cast(b, narrow, state.ty.dtype))
    });
    let update = new.states[master].update?;
    let mut b = Builder::extend(new);
    let narrow = cast(&mut b, update, format);
    let last = if is_kept { narrow } else { cast(&mut b, narrow, state.ty.dtype) };
    b.graph_mut().states[master].update = Some(last);
    new = b.finish();
    Some((new, format!("`{}` in {format}, {}", state.name, if is_kept { "kept" } else { "rounded" })))
}
