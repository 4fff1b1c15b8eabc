//! Checks that ranks send and hold what their program says.

use shardc_executor::run::Executor;
use shardc_ir::kernel::{CollectiveKind, Kernel};
use shardc_ir::listing::summary;
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
    /// The bytes that all ranks send together, exactly.
    together: u64,
}

/// Demands that after `steps` steps every rank of `executor` has sent what the closed forms of its
/// collectives say, and has as much memory as was planned, all of it used.
pub fn check(executor: &Executor, steps: u64) {
    let program = executor.programs().first();
    let planned = planned(program);
    let traffic = executor.traffic().expect("no rank failed");
    for (rank, sent) in traffic.iter().enumerate() {
        let said = summary(program);
        assert_eq!(said.communication.len(), planned.len());
        assert_eq!(sent.len(), planned.len(), "rank {rank} calls other things");
        for ((kind, axes), plan) in &planned {
            let name = axes.iter().map(|a| program.mesh.name(*a)).collect::<Vec<_>>().join(",");
            let said = said.communication.iter().find(|c| (c.kind, &c.axis) == (*kind, &name)).expect("the summary has it");
            assert_eq!((said.calls, said.bytes_sent), (plan.calls, plan.bytes), "rank {rank}: {kind:?} over {name}");
            let sent = sent[&(*kind, axes.clone())];
            assert_eq!(sent.calls, steps * plan.calls, "rank {rank}: {kind:?} over {name}");
            let off = sent.bytes_sent.abs_diff(steps * plan.bytes);
            assert!(off <= steps * plan.slack, "rank {rank} sends {} bytes by {kind:?} over {name}", sent.bytes_sent);
        }
    }
    for (key, plan) in &planned {
        let together: u64 = traffic.iter().map(|sent| sent[key].bytes_sent).sum();
        assert_eq!(together, steps * plan.together, "{key:?}");
    }
    for (taken, used) in executor.memory().expect("no rank failed") {
        // Nobody uses what an empty buffer has; all else is used to its end.
        let with_elements = program.buffers.iter().filter(|buffer| !buffer.local.contains(&0));
        let needed = with_elements.map(|buffer| buffer.offset + buffer.slot_bytes * buffer.slots).max().unwrap_or(0);
        assert_eq!(taken, program.arena_bytes);
        assert!((needed..=taken).contains(&used.next_multiple_of(64)), "{used} of {taken} bytes are used, not {needed}");
        assert_eq!(summary(program).peak_bytes, taken);
    }
}

fn planned(program: &Program) -> BTreeMap<(CollectiveKind, Vec<AxisId>), Planned> {
    let mut all: BTreeMap<_, Planned> = BTreeMap::new();
    for turn in program.turns() {
        let Kernel::Collective(call) = &program.tasks[turn.task].steps[turn.step].kernel else { continue };
        let members: u64 = call.axes.iter().map(|a| program.mesh.size(*a)).product();
        let bytes = call.count() * call.dtype.bytes();
        let plan = all.entry((call.kind, call.axes.clone())).or_default();
        plan.calls += 1;
        plan.bytes += call.bytes_sent(members);
        plan.slack += if call.count().is_multiple_of(members) { 0 } else { members * call.dtype.bytes() };
        let of_a_group = if call.kind == CollectiveKind::AllReduce { 2 } else { members };
        plan.together += program.mesh.world_size() / members * of_a_group * (members - 1) * bytes;
    }
    all
}
