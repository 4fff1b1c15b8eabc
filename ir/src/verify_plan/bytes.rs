//! The bytes that each rank sends, beside the least that the graph's communication costs.

use super::subject::Subject;
use crate::graph::{Node, NodeId};
use crate::kernel::{CommunicationKind, Kernel};
use crate::listing::{Communication, communication};
use crate::lower::Lowered;
use crate::ops::Op;

/// All calls of one kind over the same axes in a step of training.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The program's calls, with the closed form of the bytes that they send.
    pub actual: Communication,
    /// The bytes that the same communication of the graph costs a rank at least: the ring
    /// algorithms' bounds, without padding, and each value once for each micro-batch that it
    /// depends on.
    pub bound: u64,
}

/// For each kind and axes of the program.
pub fn sent(subject: &Subject<'_>) -> Vec<Sent> {
    let Subject { program, graph, lowered, .. } = *subject;
    let times = |id| if subject.node_is_timed(id) { subject.microbatches() } else { 1 };
    // Messages have no cheaper form: each value once to each position that lacks it.
    let messages = || -> u64 {
        let cost = |(id, node): (NodeId, &Node)| match &node.op {
            Op::Transfer(op) if subject.coordinates[op.axis.index()] == op.from => {
                let others = op.to.iter().filter(|to| **to != op.from).count() as u64;
                times(id) * others * subject.size_of(node.operands[0]).1
            }
            _ => 0,
        };
        graph.nodes().map(cost).fold(0, u64::saturating_add)
    };
    let bound = |actual: &Communication| -> u64 {
        if actual.kind == CommunicationKind::Send {
            return messages();
        }
        let nodes = subject.lowered.nodes_here().filter(|(_, node)| node.op.is_collective());
        let cost = |(id, _)| {
            let Lowered::Launches { launches, .. } = lowered.node(id) else { return 0 };
            let calls = launches.iter().filter_map(|launch| match &launch.kernel {
                Kernel::Collective(call) => Some(call),
                _ => None,
            });
            let axes =
                |call: &crate::kernel::Collective| call.axes.iter().map(|a| graph.mesh.name(*a)).collect::<Vec<_>>().join(",");
            let alike = calls.filter(|call| CommunicationKind::from(call.kind) == actual.kind && axes(call) == actual.axis);
            alike.map(|call| times(id) * call.bytes_sent(call.axes.iter().map(|a| graph.mesh.size(*a)).product())).sum::<u64>()
        };
        nodes.map(cost).fold(0, u64::saturating_add)
    };
    communication(program).into_iter().map(|actual| Sent { bound: bound(&actual), actual }).collect()
}
