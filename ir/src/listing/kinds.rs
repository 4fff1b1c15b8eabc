//! What each buffer of a program is for.

use crate::kernel::{CollectiveKind, Kernel};
use crate::plan::lives::lasts;
use crate::plan::{Buffer, BufferKind, Program, StateRole, Step, View};

/// For each buffer the name of its kind. A parameter that is gathered from its ranges for the steps
/// that read it is no activation, nor is a gradient that is not reduced yet.
pub fn kinds(program: &Program) -> Vec<&'static str> {
    let mut kinds: Vec<&'static str> = program.buffers.iter().map(|buffer| kind(program, buffer)).collect();
    let reduced = reduced(program);
    for step in program.tasks.iter().flat_map(|task| &task.steps) {
        let of = |views: &[View]| views.iter().map(|view| view.buffer.index()).collect::<Vec<_>>();
        let (reads, writes) = (of(&step.reads), of(&step.writes));
        // What fills up a range is dropped in a copy.
        if let ([read], [write]) = (&reads[..], &writes[..])
            && rounds_parameter(program, step, *read, *write)
        {
            kinds[*write] = ROUNDED;
        }
        let is_copy = matches!(step.kernel, Kernel::Move(_)) && !reads.is_empty();
        let gathers = is_gather(step) && reads.iter().all(|i| is_range(program, *i));
        if gathers || is_copy && reads.iter().all(|i| kinds[*i] == GATHERED) {
            for i in writes.iter().copied().filter(|i| !lasts(&program.buffers[*i])) {
                kinds[i] = GATHERED;
            }
        }
        if let Some((sum, _)) = added(step).filter(|(sum, _)| reduced[*sum]) {
            kinds[sum] = GRADIENTS;
        }
    }
    let is_transient = |kind: &str| [ACTIVATIONS, COMMUNICATION].contains(&kind);
    for (kind, _) in kinds.iter_mut().zip(unreduced(program)).filter(|(kind, is)| *is && is_transient(kind)) {
        *kind = UNREDUCED;
    }
    kinds
}

/// Weights and running statistics, as ranks hold them.
pub const PARAMETERS: &str = "parameters";
/// Gradients as the optimizer reads them, and what sums them up over micro-batches.
pub const GRADIENTS: &str = "gradients";
/// Copies of parameters in the type that the model computes in.
pub const ROUNDED: &str = "rounded parameters";
/// Parameters that are whole for the steps that read them.
pub const GATHERED: &str = "gathered parameters";
/// Gradients of a micro-batch before they are reduced over ranks.
pub const UNREDUCED: &str = "unreduced gradients";
const ACTIVATIONS: &str = "activations";
const COMMUNICATION: &str = "communication";

/// Whether a step makes a rounded copy of a parameter.
fn rounds_parameter(program: &Program, step: &Step, read: usize, write: usize) -> bool {
    let (from, to) = (&program.buffers[read], &program.buffers[write]);
    matches!(step.kernel, Kernel::Map(_)) && kind(program, from) == PARAMETERS && to.dtype.is_half() && !lasts(to)
}

/// For each buffer, whether it is a rounded copy, or gathered from ranges, that is there for other
/// tasks than the one that makes it: as a parameter is. A range that is only gathered is none.
pub fn kept_copies(program: &Program, kinds: &[&'static str]) -> Vec<bool> {
    let mut made = vec![None; program.buffers.len()];
    let mut kept = vec![false; program.buffers.len()];
    for (t, task) in program.tasks.iter().enumerate() {
        for step in &task.steps {
            step.writes.iter().for_each(|view| made[view.buffer.index()] = Some(t));
            step.reads.iter().map(|view| view.buffer.index()).for_each(|i| kept[i] |= made[i].is_some_and(|maker| maker != t));
        }
    }
    let mut rounded: Vec<bool> = kinds.iter().map(|kind| *kind == ROUNDED).collect();
    for step in program.tasks.iter().flat_map(|task| &task.steps) {
        let made_of_them = !step.reads.is_empty() && step.reads.iter().all(|view| rounded[view.buffer.index()]);
        let gathered = step.writes.iter().map(|view| view.buffer.index()).filter(|i| kinds[*i] == GATHERED);
        gathered.for_each(|i| rounded[i] |= made_of_them);
    }
    kept.iter_mut().zip(rounded).for_each(|(kept, rounded)| *kept &= rounded);
    for step in program.tasks.iter().rev().flat_map(|task| task.steps.iter().rev()) {
        if step.writes.iter().any(|view| kept[view.buffer.index()]) {
            step.reads.iter().for_each(|view| kept[view.buffer.index()] = false);
        }
    }
    kept
}

fn is_gather(step: &Step) -> bool {
    matches!(&step.kernel, Kernel::Collective(call) if call.kind == CollectiveKind::AllGather)
}

/// Whether a buffer is a range of a parameter: nothing else is gathered from ranges.
fn is_range(program: &Program, buffer: usize) -> bool {
    !program.buffers[buffer].sharding.flat.is_empty()
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

/// The buffer that a step adds to, and those that it adds.
fn added(step: &Step) -> Option<(usize, Vec<usize>)> {
    let ([first, added @ ..], [sum]) = (&step.reads[..], &step.writes[..]) else { return None };
    let adds = matches!(step.kernel, Kernel::Map(_)) && first.buffer == sum.buffer;
    adds.then(|| (sum.buffer.index(), added.iter().map(|view| view.buffer.index()).collect()))
}

/// For each buffer, whether calls and sums make a gradient of it.
fn unreduced(program: &Program) -> Vec<bool> {
    let mut unreduced = vec![false; program.buffers.len()];
    for step in program.tasks.iter().rev().flat_map(|task| task.steps.iter().rev()) {
        let becomes = |i: usize, unreduced: &[bool]| unreduced[i] || matches!(program.buffers[i].kind, BufferKind::Gradient(_));
        let parts = match &step.kernel {
            Kernel::Collective(_) | Kernel::Move(_) => {
                let written = step.writes.iter().any(|view| becomes(view.buffer.index(), &unreduced));
                step.reads.iter().filter(|_| written).map(|view| view.buffer.index()).collect()
            }
            _ => added(step).filter(|(sum, _)| becomes(*sum, &unreduced)).map(|(_, parts)| parts).unwrap_or_default(),
        };
        parts.into_iter().for_each(|part| unreduced[part] = true);
    }
    unreduced
}

fn kind(program: &Program, buffer: &Buffer) -> &'static str {
    match buffer.kind {
        BufferKind::State(state) => match program.states.get(state as usize).map(|state| state.role) {
            Some(StateRole::Moment) => "optimizer",
            _ => PARAMETERS,
        },
        BufferKind::Gradient(_) => GRADIENTS,
        BufferKind::Activation => ACTIVATIONS,
        BufferKind::Communication => COMMUNICATION,
        BufferKind::Input(_) | BufferKind::Output(_) => "data",
        BufferKind::Constant(_) | BufferKind::Scalar(_) => "constants",
    }
}
