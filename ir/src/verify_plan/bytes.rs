//! The bytes that each rank sends, beside the least that the graph's communication costs.
//!
//! The least are the ring algorithms' bounds, without padding. A value counts once for each
//! micro-batch that it depends on, and a parameter that is gathered from ranges once for each
//! micro-batch that its readers run with, as no rank has room for it in between.

use super::subject::Subject;
use crate::graph::{NodeId, ValueId};
use crate::kernel::{CommunicationKind, Kernel};
use crate::listing::{Communication, axes_text, carried, carried_by, communication, kinds};
use crate::lower::Lowered;
use crate::mesh::AxisId;
use crate::ops::Op;
use std::collections::{BTreeMap, BTreeSet};

/// For each kind, axes and what is carried of a step of the program.
pub fn sent(subject: &Subject<'_>) -> Vec<Communication> {
    let bounds = bounds(subject);
    let least = |sum: &Communication| {
        bounds.iter().find(|((kind, axis, carries), _)| (*kind, axis, *carries) == (sum.kind, &sum.axis, &*sum.carries))
    };
    let beside = |sum: Communication| Communication { least_bytes: Some(least(&sum).map_or(0, |(_, bytes)| *bytes)), ..sum };
    communication(subject.program).into_iter().map(beside).collect()
}

/// The calls or messages that are summed up: their kind, their axes, what they carry.
type Key = (CommunicationKind, String, &'static str);

/// The least for each sum, over the ops of the graph that the program's calls and messages carry
/// out, each once.
fn bounds(subject: &Subject<'_>) -> BTreeMap<Key, u64> {
    let program = subject.program;
    let kinds = kinds(program);
    let node = |name: &String| subject.named(name).map(|value| subject.graph.value(value).node);
    let mut ops: BTreeSet<(Key, NodeId)> = BTreeSet::new();
    for step in program.tasks.iter().flat_map(|task| &task.steps) {
        let Kernel::Collective(call) = &step.kernel else { continue };
        let key = (call.kind.into(), axes_text(program, &call.axes), carried(step, &kinds));
        ops.extend(step.provenance.ops.iter().filter_map(node).map(|node| (key.clone(), node)));
    }
    for message in program.messages.iter().filter(|message| message.sends) {
        let key = (CommunicationKind::Send, axes_text(program, &[message.axis]), carried_by(message, &kinds));
        ops.extend(message.provenance.ops.iter().filter_map(node).map(|node| (key.clone(), node)));
    }
    let gathered = read_with_microbatches(subject);
    let mut bounds: BTreeMap<Key, u64> = BTreeMap::new();
    for (key, node) in ops {
        let is_timed = subject.node_is_timed(node) || gathered.contains(&node);
        let times = if is_timed { subject.microbatches() } else { 1 };
        let cost = times.saturating_mul(cost(subject, node, key.0));
        let sum = bounds.entry(key).or_default();
        *sum = sum.saturating_add(cost);
    }
    bounds
}

/// The bytes that a rank sends at least when a node runs once, by calls of that kind.
fn cost(subject: &Subject<'_>, id: NodeId, kind: CommunicationKind) -> u64 {
    let (graph, node) = (subject.graph, subject.graph.node(id));
    let members = |axes: &[AxisId]| axes.iter().map(|axis| graph.mesh.size(*axis)).product::<u64>();
    let ring = |axes: &[AxisId], whole: ValueId| {
        let (members, (_, bytes)) = (u128::from(members(axes)), subject.size_of(whole));
        u64::try_from((members - 1) * u128::from(bytes) / members).unwrap_or(u64::MAX)
    };
    match &node.op {
        // Messages have no cheaper form: each value once to each position that lacks it.
        Op::Transfer(op) => {
            let others = op.to.iter().filter(|to| **to != op.from).count() as u64;
            others.saturating_mul(subject.size_of(node.operands[0]).1)
        }
        Op::FlatGather(op) => ring(&op.axes, node.results[0]),
        Op::FlatScatter(op) => ring(&op.axes, node.operands[0]),
        _ => {
            let Lowered::Launches { launches, .. } = subject.lowered.node(id) else { return 0 };
            let calls = launches.iter().filter_map(|launch| match &launch.kernel {
                Kernel::Collective(call) if CommunicationKind::from(call.kind) == kind => Some(call),
                _ => None,
            });
            calls.map(|call| call.bytes_sent(members(&call.axes))).fold(0, u64::saturating_add)
        }
    }
}

/// The nodes that gather ranges for nodes that run with each micro-batch.
fn read_with_microbatches(subject: &Subject<'_>) -> BTreeSet<NodeId> {
    let (graph, mut gathers) = (subject.graph, BTreeSet::new());
    let mut read: BTreeSet<ValueId> = BTreeSet::new();
    for (id, node) in graph.nodes().collect::<Vec<_>>().into_iter().rev() {
        let is_read = node.results.iter().any(|result| read.contains(result));
        if is_read && matches!(&node.op, Op::FlatGather(gather) if !gather.kept) {
            gathers.insert(id);
        } else if is_read || subject.node_is_timed(id) {
            read.extend(&node.operands);
        }
    }
    gathers
}
