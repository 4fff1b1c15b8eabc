//! What each buffer of a program is for.

use crate::kernel::{CollectiveKind, Kernel};
use crate::plan::lives::lasts;
use crate::plan::{Buffer, BufferKind, Program, StateRole, Step, View};

/// For each buffer the name of its kind. A parameter that is gathered from its ranges for the steps
/// that read it, and a gradient that sums up micro-batches before it is reduced, are no activations.
pub fn kinds(program: &Program) -> Vec<&'static str> {
    let mut kinds: Vec<&'static str> = program.buffers.iter().map(|buffer| kind(program, buffer)).collect();
    let reduced = reduced(program);
    for step in program.tasks.iter().flat_map(|task| &task.steps) {
        let of = |views: &[View]| views.iter().map(|view| view.buffer.index()).collect::<Vec<_>>();
        let (reads, writes) = (of(&step.reads), of(&step.writes));
        // What fills up a range is dropped in a copy.
        let is_copy = matches!(step.kernel, Kernel::Move(_)) && !reads.is_empty();
        let gathers = is_gather(step) && reads.iter().all(|i| is_range(program, *i));
        if gathers || is_copy && reads.iter().all(|i| kinds[*i] == GATHERED) {
            for i in writes.iter().copied().filter(|i| !lasts(&program.buffers[*i])) {
                kinds[i] = GATHERED;
            }
        }
        if let Kernel::Map(_) = step.kernel
            && let ([first, ..], [sum]) = (&reads[..], &writes[..])
            && first == sum
            && reduced[*sum]
        {
            kinds[*sum] = "gradients";
        }
    }
    kinds
}

const GATHERED: &str = "gathered parameters";

fn is_gather(step: &Step) -> bool {
    matches!(&step.kernel, Kernel::Collective(call) if call.kind == CollectiveKind::AllGather)
}

fn is_range(program: &Program, buffer: usize) -> bool {
    let buffer = &program.buffers[buffer];
    matches!(buffer.kind, BufferKind::State(_)) && !buffer.sharding.flat.is_empty()
}

/// For each buffer, whether it is reduced to a gradient, as it is or filled up.
fn reduced(program: &Program) -> Vec<bool> {
    let mut reduced = vec![false; program.buffers.len()];
    for step in program.tasks.iter().rev().flat_map(|task| task.steps.iter().rev()) {
        let is_reduced = step.writes.iter().map(|view| view.buffer.index()).any(|i| match &step.kernel {
            Kernel::Collective(_) => matches!(program.buffers[i].kind, BufferKind::Gradient(_)),
            Kernel::Move(_) => reduced[i],
            _ => false,
        });
        if is_reduced {
            step.reads.iter().for_each(|view| reduced[view.buffer.index()] = true);
        }
    }
    reduced
}

fn kind(program: &Program, buffer: &Buffer) -> &'static str {
    match buffer.kind {
        BufferKind::State(state) => match program.states.get(state as usize).map(|state| state.role) {
            Some(StateRole::Moment) => "optimizer",
            _ => "parameters",
        },
        BufferKind::Gradient(_) => "gradients",
        BufferKind::Activation => "activations",
        BufferKind::Communication => "communication",
        BufferKind::Input(_) | BufferKind::Output(_) => "data",
        BufferKind::Constant(_) | BufferKind::Scalar(_) => "constants",
    }
}
