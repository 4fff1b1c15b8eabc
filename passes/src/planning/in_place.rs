//! Results that are written over an operand which nobody reads any more.
//!
//! Before: a bundle reads `%logits` for the last time and writes `%grad`, of the same type, beside
//! it. After: both are in one buffer. The kernel says where it may work so ([`Kernel::in_place`]);
//! less is held at that moment. What a call or a message reads is left alone: the result would have
//! to wait until it is done. So are maps, which may become a part of the product before them where
//! they alone read its result, and what is rounded to TF32, which a buffer holds all the time or
//! not at all.
//!
//! [`Kernel::in_place`]: shardc_ir::kernel::Kernel::in_place

use shardc_ir::kernel::{Kernel, Member, MemberKernel};
use shardc_ir::plan::lives::lives;
use shardc_ir::plan::{BufferId, BufferKind, Program, Step, Stream, View};
use shardc_ir::scalar::{Instr, Rounding};
use std::collections::BTreeSet;

/// Joins the buffers of such operands and results.
pub fn join(program: &mut Program) {
    let lives = lives(program);
    let called = called(program);
    let mut joined: Vec<BufferId> = (0..program.buffers.len() as u32).map(BufferId).collect();
    for (moment, step) in program.tasks.iter().flat_map(|task| &task.steps).enumerate().filter(|(_, step)| is_tried(step)) {
        let passes = |view: &View| {
            let buffer = &program.buffers[view.buffer.index()];
            buffer.kind == BufferKind::Activation && buffer.slots == 1
        };
        let life = |view: &View| lives[view.buffer.index()].filter(|_| passes(view));
        let ends = |view: &&View| life(view).is_some_and(|(_, last)| last == moment) && !called.contains(&view.buffer);
        let mut ending: Vec<&View> = step.reads.iter().filter(ends).collect();
        for (place, write) in step.writes.iter().enumerate() {
            let begins = life(write).is_some_and(|(first, _)| first == moment);
            let over = |read: &&View| begins && may_be_over(program, step, read, place);
            if let Some(read) = ending.iter().copied().find(over) {
                ending.retain(|other| other.buffer != read.buffer);
                joined[write.buffer.index()] = joined[read.buffer.index()];
            }
        }
    }
    keep(program, &joined);
}

/// Whether a step is a bundle that rounds nothing to TF32.
fn is_tried(step: &Step) -> bool {
    let Kernel::Bundle(bundle) = &step.kernel else { return false };
    let rounds = |member: &Member| match &member.kernel {
        MemberKernel::Map(map) => map.program.code.iter().any(|code| matches!(code, Instr::Round(Rounding::Tf32, _))),
        MemberKernel::Reduce(_) => false,
    };
    !bundle.members.iter().any(rounds)
}

/// The buffers that another queue than that of computation touches.
fn called(program: &Program) -> BTreeSet<BufferId> {
    let steps = program.tasks.iter().flat_map(|task| &task.steps).filter(|step| step.stream != Stream::Main);
    let views = steps.flat_map(|step| step.reads.iter().chain(&step.writes));
    views.chain(program.messages.iter().map(|message| &message.view)).map(|view| view.buffer).collect()
}

/// Whether a result may be written over an operand, wherever the step reads it.
fn may_be_over(program: &Program, step: &Step, read: &View, place: usize) -> bool {
    let write = &step.writes[place];
    let [old, new] = [read, write].map(|view| &program.buffers[view.buffer.index()]);
    let is_alike = (&old.shape, &old.local, &old.sharding, old.dtype) == (&new.shape, &new.local, &new.sharding, new.dtype);
    let is_written_once = step.writes.iter().filter(|other| other.buffer == write.buffer).count() == 1;
    let mut reads = step.reads.iter().enumerate().filter(|(_, other)| other.buffer == read.buffer);
    old.slot_bytes > 0
        && is_alike
        && is_written_once
        && reads.all(|(at, other)| (other.offset, other.bytes) == (write.offset, write.bytes) && step.kernel.in_place(at, place))
}

/// Puts the buffer that each one has joined in its place, and drops those that have joined another.
fn keep(program: &mut Program, joined: &[BufferId]) {
    let stays = |id: usize| joined[id].index() == id;
    let mut count = 0;
    let mut new: Vec<BufferId> = vec![];
    for id in 0..joined.len() {
        new.push(BufferId(count));
        count += u32::from(stays(id));
    }
    let to = |id: &mut BufferId| *id = new[joined[id.index()].index()];
    let mut id = 0..;
    program.buffers.retain(|_| id.next().is_some_and(stays));
    for step in program.tasks.iter_mut().flat_map(|task| &mut task.steps) {
        step.reads.iter_mut().chain(&mut step.writes).for_each(|view| to(&mut view.buffer));
    }
    program.messages.iter_mut().for_each(|message| to(&mut message.view.buffer));
    program.states.iter_mut().for_each(|state| to(&mut state.buffer));
    program.inputs.iter_mut().for_each(|input| to(&mut input.buffer));
    program.constants.iter_mut().for_each(|constant| to(&mut constant.buffer));
    program.outputs.iter_mut().for_each(|output| to(&mut output.buffer));
}
