//! Places every buffer in one static arena: what lasts first, then what lives within a step,
//! sharing bytes where lives do not overlap. The peak is exact: it is the arena.
//!
//! Lives are intervals over the steps in order; whatever is touched both inside and outside a loop
//! over micro-batches lives for the whole loop. Large buffers are placed first, each at the lowest
//! offset that is free for its life. Source: Pisarchyk and Lee, Efficient Memory Management for
//! Deep Neural Net Inference (2020), greedy by size.

use super::occupied::Occupied;
use super::tasks::Repeat;
use shardc_ir::plan::{Buffer, BufferKind, Program, aligned};

/// Sets all offsets and the size of the arena.
pub fn place(program: &mut Program, repeats: &[Repeat]) {
    let bottom = place_lasting(program);
    let lives = lives(program, repeats);
    let passing = |i: &usize| !lasts(&program.buffers[*i]) && lives[*i].is_some();
    let mut transient: Vec<usize> = (0..program.buffers.len()).filter(passing).collect();
    transient.sort_by_key(|i| (std::cmp::Reverse(bytes(program, *i)), *i));
    let moments = program.tasks.iter().map(|task| task.steps.len()).sum::<usize>() + 1;
    let mut occupied = Occupied::new(moments);
    let mut top = bottom;
    for i in transient {
        let (life, bytes) = (lives[i].expect("only buffers that live"), bytes(program, i));
        let offset = occupied.lowest(life, bytes, bottom);
        occupied.take(life, offset, bytes);
        program.buffers[i].offset = offset;
        top = top.max(offset + bytes);
    }
    program.arena_bytes = aligned(top);
}

fn bytes(program: &Program, i: usize) -> u64 {
    program.buffers[i].slot_bytes * program.buffers[i].slots
}

/// Whether a buffer holds something from step to step, or what the host reads and writes.
fn lasts(buffer: &Buffer) -> bool {
    !matches!(buffer.kind, BufferKind::Activation | BufferKind::Communication)
}

/// States, gradients, inputs, constants, scalars, outputs, one after another.
fn place_lasting(program: &mut Program) -> u64 {
    let mut top = 0;
    for buffer in program.buffers.iter_mut().filter(|buffer| lasts(buffer)) {
        buffer.offset = top;
        top += buffer.slot_bytes * buffer.slots;
    }
    top
}

/// For each buffer, the first and the last step at which it holds something.
fn lives(program: &Program, repeats: &[Repeat]) -> Vec<Option<(usize, usize)>> {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; program.buffers.len()];
    let mut loops: Vec<(usize, usize)> = vec![];
    let mut at = 0;
    let mut previous = Repeat::Once;
    for (task, repeat) in program.tasks.iter().zip(repeats) {
        let start = at;
        for step in &task.steps {
            for view in step.reads.iter().chain(&step.writes) {
                let life = lives[view.buffer.index()].get_or_insert((at, at));
                life.1 = at;
            }
            at += 1;
        }
        match (*repeat, previous, loops.last_mut()) {
            (Repeat::EachMicrobatch, Repeat::EachMicrobatch, Some(open)) => open.1 = at,
            (Repeat::EachMicrobatch, ..) => loops.push((start, at)),
            _ => {}
        }
        previous = *repeat;
    }
    for life in lives.iter_mut().flatten() {
        for (start, end) in &loops {
            let touches = life.0 < *end && life.1 >= *start;
            let inside = life.0 >= *start && life.1 < *end;
            if touches && !inside {
                *life = (life.0.min(*start), life.1.max(end - 1));
            }
        }
    }
    lives
}
