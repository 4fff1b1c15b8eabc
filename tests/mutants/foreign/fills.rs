//! Bytes that the host fills: shared, used as scratch, said to be something else, filled twice.

use super::arena::{is_filled, lives};
use super::{Plan, at_the_end, fit_arena};
use crate::jobs::Job;
use crate::mutate::places;
use crate::ranks::launches;
use shardc_ir::plan::{Buffer, BufferId, BufferKind, HostScalar, Program};
use shardc_testkit::random::Random;
use std::sync::Arc;

fn ids(program: &Program, of: impl Fn(&Buffer) -> bool) -> Vec<usize> {
    (0..program.buffers.len()).filter(|i| of(&program.buffers[*i])).collect()
}

fn size(buffer: &Buffer) -> u64 {
    buffer.slot_bytes * buffer.slots
}

/// Two buffers that the host fills share some bytes.
pub fn overlap(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let filled = ids(program, is_filled);
    let (a, b) = (random.pick(&filled)?, random.pick(&filled)?);
    if a == b {
        return None;
    }
    let (at, reach) = (program.buffers[b].offset, size(&program.buffers[b]) / 64);
    let to = at + 64 * random.below(reach as usize) as u64;
    let to = if random.below(2) == 0 { to } else { to.saturating_sub(size(&program.buffers[a]) - 64) };
    program.buffers[a].offset = to;
    fit_arena(program);
    Some(format!("buffer {a} on {b}, at {to}"))
}

/// What lives within a step lies on what the host fills, before or after that is read, partly or
/// whole.
pub fn share(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let filled = random.pick(&ids(program, is_filled))?;
    let transient = random.pick(&ids(program, |b| !is_filled(b)))?;
    let (a, b) = if random.below(2) == 0 { (filled, transient) } else { (transient, filled) };
    let reach = size(&program.buffers[b]) / 64;
    program.buffers[a].offset = program.buffers[b].offset + 64 * random.below(reach.min(3) as usize) as u64;
    fit_arena(program);
    Some(format!("buffer {a} on {b}, {filled} is filled"))
}

/// What is over before the host's bytes are read lies on them.
pub fn scratch(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let lives = lives(program, &launches(program));
    let filled = random.pick(&ids(program, is_filled))?;
    let end = lives[filled].last()?.1;
    let early = |i: &usize| !is_filled(&program.buffers[*i]) && lives[*i].last().is_some_and(|(_, last)| *last < end);
    let early: Vec<usize> = ids(program, |_| true).into_iter().filter(early).collect();
    let transient = random.pick(&early)?;
    program.buffers[transient].offset = program.buffers[filled].offset;
    fit_arena(program);
    Some(format!("buffer {transient} on {filled} before it is read"))
}

/// A buffer is said to be something else; what its table said goes with it, or stays.
pub fn kinds(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let (rate, step, seed) = (HostScalar::LearningRate, HostScalar::StepCount, HostScalar::Seed);
    let how = random.below(5);
    let id = match how {
        0 => {
            let id = random.pick(&ids(program, |b| b.shape.is_empty() && b.kind == BufferKind::Activation))?;
            program.buffers[id].kind = BufferKind::Scalar(random.pick(&[rate, step, seed])?);
            id
        }
        1 => {
            let id = random.pick(&ids(program, |b| matches!(b.kind, BufferKind::Scalar(_))))?;
            program.buffers[id].kind = random.pick(&[BufferKind::Activation, BufferKind::Communication])?;
            id
        }
        2 => {
            let id = random.pick(&ids(program, is_filled))?;
            program.buffers[id].kind = BufferKind::Activation;
            if random.below(2) == 0 {
                remove(program, BufferId(id as u32));
            }
            id
        }
        3 => {
            let (a, b) = (random.pick(&ids(program, is_filled))?, random.pick(&ids(program, |b| !is_filled(b)))?);
            let (first, second) = (program.buffers[a].kind.clone(), program.buffers[b].kind.clone());
            (program.buffers[a].kind, program.buffers[b].kind) = (second, first);
            a
        }
        _ => {
            let (a, b) = (random.pick(&ids(program, is_filled))?, random.pick(&ids(program, is_filled))?);
            let (first, second) = (program.buffers[a].kind.clone(), program.buffers[b].kind.clone());
            (program.buffers[a].kind, program.buffers[b].kind) = (second, first);
            a
        }
    };
    Some(format!("buffer {id} is {:?}, way {how}", program.buffers[id].kind))
}

/// Takes the entry of a buffer out of the table that has it; those behind it move up.
fn remove(program: &mut Program, id: BufferId) {
    let kind = |make: fn(u32) -> BufferKind, buffers: Vec<BufferId>, all: &mut Vec<Buffer>| {
        (0..).zip(buffers).for_each(|(i, id)| all[id.index()].kind = make(i));
    };
    program.inputs.retain(|entry| entry.buffer != id);
    program.constants.retain(|entry| entry.buffer != id);
    kind(BufferKind::Input, program.inputs.iter().map(|e| e.buffer).collect(), &mut program.buffers);
    kind(BufferKind::Constant, program.constants.iter().map(|e| e.buffer).collect(), &mut program.buffers);
}

/// A scalar or a constant is filled twice: into another buffer that some read, with other bytes, or
/// by a second entry.
pub fn twice(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let filled = ids(program, |b| matches!(b.kind, BufferKind::Scalar(_) | BufferKind::Constant(_)));
    let id = random.pick(&filled)?;
    let mut copy = program.buffers[id].clone();
    let how = random.below(4);
    let mut entry = match copy.kind {
        BufferKind::Constant(at) => program.constants.get(at as usize).cloned(),
        _ => None,
    };
    let other = BufferId(program.buffers.len() as u32);
    if let Some(entry) = &mut entry {
        if how < 3 {
            let at = random.below(entry.bytes.len());
            Arc::make_mut(&mut entry.bytes)[at] ^= 1 << random.below(7);
        }
        if how > 0 {
            copy.kind = BufferKind::Constant(program.constants.len() as u32);
            entry.buffer = other;
        }
        program.constants.push(entry.clone());
    }
    if entry.is_none() || how > 0 {
        if entry.is_none() && how < 3 {
            copy.kind = BufferKind::Scalar(random.pick(&[HostScalar::LearningRate, HostScalar::StepCount])?);
        }
        program.buffers.push(copy);
        at_the_end(program, other);
        let readers = places(program, |s| s.reads.iter().any(|view| view.buffer.index() == id));
        let (t, s) = random.pick(&readers)?;
        let views = program.tasks[t].steps[s].reads.iter_mut();
        views.filter(|view| view.buffer.index() == id).for_each(|view| view.buffer = other);
    }
    Some(format!("buffer {id} again, way {how}"))
}
