//! Checks that ranks send and hold what their programs say.

use shardc_executor::run::Executor;
use shardc_ir::kernel::{CollectiveKind, CommunicationKind, Kernel};
use shardc_ir::listing::{communication_by_kind, summary};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::Program;
use std::collections::BTreeMap;

/// One kind of call over the same axes, in a step: as the closed forms have it.
#[derive(Default)]
struct Planned {
    calls: u64,
    bytes: u64,
    /// How far one rank may be from that: shares of what no group divides differ by an element.
    slack: u64,
    /// The bytes that each rank sends of all that ranks with the same program send, on average.
    together: u64,
}

/// Demands that after `steps` steps every rank of `executor` has sent what its messages and the
/// closed forms of its collectives say, and has as much memory as was planned, all of it used; and
/// that replicas of a state variable have the same bits.
pub fn check(executor: &Executor, steps: u64) {
    assert_eq!(executor.replicas().expect("no rank failed"), None);
    let set = executor.programs();
    let traffic = executor.traffic().expect("no rank failed");
    let planned: Vec<_> = set.programs.iter().map(planned).collect();
    let mut together: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for (rank, sent) in traffic.iter().enumerate() {
        let at = set.at(set.mesh(), rank as u64);
        let (program, planned) = (&set.programs[at], &planned[at]);
        let said = communication_by_kind(program);
        assert_eq!(said.len(), planned.len());
        assert_eq!(sent.len(), planned.len(), "rank {rank} calls other things");
        for ((kind, axes), plan) in planned {
            let name = axes.iter().map(|a| program.mesh.name(*a)).collect::<Vec<_>>().join(",");
            let said = said.iter().find(|c| (c.kind, &c.axis) == (*kind, &name)).expect("the summary has it");
            assert_eq!((said.calls, said.bytes_sent), (plan.calls, plan.bytes), "rank {rank}: {kind:?} over {name}");
            let sent = sent[&(*kind, axes.clone())];
            assert_eq!(sent.calls, steps * plan.calls, "rank {rank}: {kind:?} over {name}");
            let off = sent.bytes_sent.abs_diff(steps * plan.bytes);
            assert!(off <= steps * plan.slack, "rank {rank} sends {} bytes by {kind:?} over {name}", sent.bytes_sent);
            let (all, wanted) = together.entry((*kind, axes.clone())).or_default();
            *all += sent.bytes_sent;
            *wanted += steps * plan.together;
        }
    }
    for (key, (sent, planned)) in together {
        // Each rank's share of what its group sends together, which the group's size divides.
        let members: u64 = key.1.iter().map(|a| set.mesh().size(*a)).product();
        assert_eq!(sent * members, planned, "{key:?}");
    }
    for (rank, memory) in executor.memory().expect("no rank failed").into_iter().enumerate() {
        let (taken, used) = memory.expect("the CPU sees what is used");
        let program = set.of_rank(set.mesh(), rank as u64);
        // Nobody uses what an empty buffer has; all else is used to its end.
        let with_elements = program.buffers.iter().filter(|buffer| !buffer.local.contains(&0));
        let needed = with_elements.map(|buffer| buffer.offset + buffer.slot_bytes * buffer.slots).max().unwrap_or(0);
        assert_eq!(taken, program.arena_bytes);
        assert!((needed..=taken).contains(&used.next_multiple_of(64)), "{used} of {taken} bytes are used, not {needed}");
        assert_eq!(summary(program).peak_bytes, taken);
    }
}

fn planned(program: &Program) -> BTreeMap<(CommunicationKind, Vec<AxisId>), Planned> {
    let mut all: BTreeMap<_, Planned> = BTreeMap::new();
    for launch in program.launches() {
        let Kernel::Collective(call) = &program.step(launch).kernel else { continue };
        let members: u64 = call.axes.iter().map(|a| program.mesh.size(*a)).product();
        let bytes = call.count() * call.dtype.bytes();
        let plan = all.entry((call.kind.into(), call.axes.clone())).or_default();
        plan.calls += 1;
        plan.bytes += call.bytes_sent(members);
        plan.slack += if call.count().is_multiple_of(members) { 0 } else { members * call.dtype.bytes() };
        let of_a_group = if call.kind == CollectiveKind::AllReduce { 2 } else { members };
        plan.together += of_a_group * (members - 1) * bytes;
    }
    for (message, _) in (0..program.order.len()).flat_map(|row| program.exchange(row)).filter(|(message, _)| message.sends) {
        let plan = all.entry((CommunicationKind::Send, vec![message.axis])).or_default();
        plan.calls += 1;
        plan.bytes += message.view.bytes;
        plan.together += message.view.bytes * program.mesh.size(message.axis);
    }
    all
}
