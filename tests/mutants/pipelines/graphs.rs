//! Mutants of the graphs of pipelines: transfers that go elsewhere, are left out or come too early,
//! and values that say that they are held elsewhere.

use crate::rewrite;
use shardc_ir::builder::Builder;
use shardc_ir::graph::{Graph, Node, NodeId, ValueId};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use shardc_ir::ops::comm::Transfer;
use shardc_ir::sharding::At;
use shardc_testkit::random::Random;
use std::collections::BTreeSet;

fn transfers(graph: &Graph) -> Vec<(NodeId, &Transfer)> {
    let transfer = |(id, node): (NodeId, &'_ Node)| matches!(node.op, Op::Transfer(_)).then_some(id);
    let ids: Vec<NodeId> = graph.nodes().filter_map(transfer).collect();
    ids.into_iter().filter_map(|id| if let Op::Transfer(op) = &graph.node(id).op { Some((id, op)) } else { None }).collect()
}

fn name(graph: &Graph, id: NodeId) -> &str {
    &graph.value(graph.node(id).results[0]).name
}

/// The graph with each node as `with` makes it: a node to copy, or the value to read in its place.
fn rebuilt(graph: &Graph, with: impl Fn(NodeId, &Node, &mut Builder, &[Option<ValueId>]) -> Made) -> Graph {
    let mut b = Builder::rewrite(graph);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    for (id, node) in graph.nodes() {
        match with(id, node, &mut b, &map) {
            Made::Node(node) => drop(b.copy(graph, &node, &mut map)),
            Made::Value(value) => map[node.results[0].index()] = Some(value),
        }
    }
    b.copy_roots(graph, &map);
    b.finish()
}

enum Made {
    Node(Box<Node>),
    Value(ValueId),
}

/// The values that a node makes from here on are held where their operands are.
fn follow(graph: &mut Graph, random: &mut Random) {
    if random.below(2) == 0 {
        rewrite::repair(graph);
    }
}

/// A transfer goes from elsewhere or to elsewhere; its result is held where it says, or not.
pub fn way(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let (id, op) = random.pick(&transfers(graph))?;
    let size = graph.mesh.size(op.axis);
    let mut new = op.clone();
    match random.below(5) {
        4 => new.axis = AxisId(random.below(graph.mesh.axes().len()) as u8),
        0 => new.from = (op.from + 1 + random.below(size as usize - 1) as u64) % size,
        1 => new.to = vec![random.below(size as usize) as u64],
        2 => new.to.retain(|to| *to == op.from || random.below(2) == 0),
        _ => {
            new.to =
                op.to.iter().copied().chain([random.below(size as usize) as u64]).collect::<BTreeSet<_>>().into_iter().collect()
        }
    }
    if new == *op {
        return None;
    }
    let text = format!("`{}` goes from {} to {:?}, not {op:?}", name(graph, id), new.from, new.to);
    let mut mutant = rebuilt(graph, |at, node, _, _| {
        Made::Node(Box::new(if at == id { Node { op: new.clone().into(), ..node.clone() } } else { node.clone() }))
    });
    let says = random.below(3) > 0;
    if says && let Some(value) = mutant.named(name(graph, id)) {
        let mut sharding = mutant.sharding(value).clone();
        sharding.at = At::of(new.axis, new.to.iter().copied().collect(), &mutant.mesh);
        mutant.set_sharding(value, sharding);
    }
    follow(&mut mutant, random);
    Some((mutant, format!("{text}, says so {says}")))
}

/// A transfer is left out: some reader, or all, read what was not sent.
pub fn dropped(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let (id, _) = random.pick(&transfers(graph))?;
    let (before, after) = (graph.node(id).operands[0], graph.node(id).results[0]);
    let users = graph.users(id);
    let user = random.pick(&users).filter(|_| random.below(2) == 0);
    let mut mutant = rebuilt(graph, |at, node, _, map| match map[before.index()] {
        Some(sent) if at == id && user.is_none() => Made::Value(sent),
        _ if Some(at) == user => {
            let mut node = node.clone();
            node.operands.iter_mut().filter(|value| **value == after).for_each(|value| *value = before);
            Made::Node(node.into())
        }
        _ => Made::Node(node.clone().into()),
    });
    follow(&mut mutant, random);
    Some((mutant, format!("`{}`, one reader {}", name(graph, id), user.is_some())))
}

/// A transfer sends another value of its type, or one of its readers reads another transfer's.
pub fn other_value(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let (id, _) = random.pick(&transfers(graph))?;
    let own = graph.node(id).operands[0];
    let earlier = graph.values().filter(|(v, value)| {
        value.node < id && *v != own && value.ty == *graph.ty(own) && value.sharding.dims == graph.sharding(own).dims
    });
    let same = |v: &ValueId| graph.sharding(*v) == graph.sharding(own);
    let all: Vec<ValueId> = earlier.map(|(v, _)| v).collect();
    let alike: Vec<ValueId> = all.iter().copied().filter(same).collect();
    let from = if random.below(3) > 0 && !alike.is_empty() { alike } else { all };
    let other = random.pick(&from)?;
    let mut mutant = rebuilt(graph, |at, node, _, _| {
        Made::Node(Box::new(if at == id { Node { operands: vec![other], ..node.clone() } } else { node.clone() }))
    });
    follow(&mut mutant, random);
    Some((mutant, format!("`{}` sends `{}`", name(graph, id), graph.value(other).name)))
}

/// A value says that it is held elsewhere, and with it, or not, all results of its node and what
/// reads them.
pub fn held(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let (_, Transfer { axis, .. }) = transfers(graph).first().copied()?;
    let other = AxisId(random.below(graph.mesh.axes().len()) as u8);
    let axis = if random.below(4) == 0 { &other } else { axis };
    let size = graph.mesh.size(*axis) as usize;
    let values: Vec<ValueId> = graph.values().map(|(id, _)| id).collect();
    let value = random.pick(&values)?;
    let positions: BTreeSet<u64> = (0..1 + random.below(2)).map(|_| random.below(size) as u64).collect();
    let at = match random.below(8) {
        0 => None,
        1 => Some(At { axis: *axis, positions: vec![] }),
        2 => Some(At { axis: *axis, positions: (0..size as u64).collect() }),
        _ => At::of(*axis, positions, &graph.mesh),
    };
    if at == graph.sharding(value).at {
        return None;
    }
    let text = format!("`{}` is held at {at:?}", graph.value(value).name);
    let mut mutant = graph.clone();
    let how = random.below(3);
    let mut moved = vec![false; graph.value_count()];
    moved[value.index()] = true;
    for (_, node) in graph.nodes() {
        let reads = how == 2 && node.operands.iter().any(|v| moved[v.index()]) && !matches!(node.op, Op::Transfer(_));
        let beside = how > 0 && node.results.iter().any(|v| moved[v.index()]);
        if reads || beside {
            node.results.iter().for_each(|v| moved[v.index()] = true);
        }
    }
    for v in values.into_iter().filter(|v| moved[v.index()]) {
        let sharding = graph.sharding(v).clone();
        mutant.set_sharding(v, shardc_ir::sharding::Sharding { at: at.clone(), ..sharding });
    }
    // A state that is read elsewhere lives elsewhere.
    if let Op::State(read) = &graph.def(value).op
        && random.below(2) == 0
    {
        mutant.states[read.state.index()].sharding.at = at;
    }
    follow(&mut mutant, random);
    Some((mutant, format!("{text}, way {how}")))
}

/// A state variable lives at another position, everywhere or nowhere.
pub fn state(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let (_, Transfer { axis, .. }) = transfers(graph).first().copied()?;
    let size = graph.mesh.size(*axis) as usize;
    let mut mutant = graph.clone();
    let at = random.below(mutant.states.len());
    let state = &mut mutant.states[at];
    let place = if random.below(4) == 0 { None } else { At::of(*axis, BTreeSet::from([random.below(size) as u64]), &graph.mesh) };
    if state.sharding.at == place {
        return None;
    }
    let text = format!("state `{}` lives at {place:?}", state.name);
    state.sharding.at = place.clone();
    let reads: Vec<ValueId> = (graph.nodes())
        .filter(|(_, node)| matches!(&node.op, Op::State(read) if read.state.index() == at))
        .map(|(_, node)| node.results[0])
        .collect();
    if random.below(2) == 0 {
        for read in reads {
            let sharding = graph.sharding(read).clone();
            mutant.set_sharding(read, shardc_ir::sharding::Sharding { at: place.clone(), ..sharding });
        }
    }
    Some((mutant, text))
}

/// What was combined and then sent is sent first, and combined where it arrives; or it is sent
/// only, or combined again.
pub fn too_early(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let combines = |id: NodeId| {
        let before = graph.def(graph.node(id).operands[0]);
        before.op.is_comm() && !matches!(before.op, Op::Transfer(_))
    };
    let all: Vec<NodeId> = transfers(graph).into_iter().map(|(id, _)| id).filter(|id| combines(*id)).collect();
    let id = random.pick(&all)?;
    let combined = graph.def(graph.node(id).operands[0]);
    let raw = combined.operands[0];
    let how = random.below(4);
    let text = format!("`{}` is sent before {}, way {how}", name(graph, id), combined.op.name());
    let mut mutant = rebuilt(graph, |at, node, b, map| {
        let (Some(sent), Some(done)) = (map[raw.index()], map[node.operands.first().map_or(0, |v| v.index())]) else {
            return Made::Node(node.clone().into());
        };
        if at != id {
            return Made::Node(node.clone().into());
        }
        let place = graph.sharding(node.results[0]).at.clone();
        let mut put = |op: &Op, of: ValueId, sharding: shardc_ir::sharding::Sharding| {
            let new = b.try_node(op.clone(), &[of], "early").map_or(of, |made| made[0]);
            b.graph_mut().set_sharding(new, sharding);
            new
        };
        let moved = |of: ValueId| shardc_ir::sharding::Sharding { at: place.clone(), ..graph.sharding(of).clone() };
        match how {
            // Combined where it arrives.
            0 | 1 => {
                let there = put(&node.op, sent, moved(raw));
                Made::Value(put(&combined.op, there, moved(node.results[0])))
            }
            // Never combined.
            2 => Made::Value(put(&node.op, sent, moved(node.results[0]))),
            // Combined twice.
            _ => {
                let there = put(&node.op, done, moved(node.results[0]));
                Made::Value(put(&combined.op, there, moved(node.results[0])))
            }
        }
    });
    follow(&mut mutant, random);
    Some((mutant, text))
}

/// A node is of another stage, or of none: planning is told otherwise than places say.
pub fn stage(graph: &Graph, random: &mut Random) -> Option<(Graph, String)> {
    let ids: Vec<NodeId> = graph.nodes().filter(|(_, node)| node.origin.stage.is_some()).map(|(id, _)| id).collect();
    let (id, other) = (random.pick(&ids)?, random.pick(&ids)?);
    let new = graph.node(other).origin.stage.filter(|_| random.below(4) > 0);
    if new == graph.node(id).origin.stage {
        return None;
    }
    let mut mutant = graph.clone();
    mutant.set_stage(id, new);
    Some((mutant, format!("`{}` is of stage {new:?}", name(graph, id))))
}
