//! Places every buffer in one static arena: what lasts first, then what lives within a step,
//! sharing bytes where lives do not overlap. The peak is exact: it is the arena.
//!
//! Large buffers are placed first, each at the lowest offset that is free for its life. Source:
//! Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference (2020), greedy by
//! size.

use super::occupied::Occupied;
use shardc_ir::plan::lives::{lasts, lives};
use shardc_ir::plan::{Program, aligned};

/// Sets all offsets and the size of the arena.
pub fn place(program: &mut Program) {
    let bottom = place_lasting(program);
    let lives = lives(program);
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

/// States, inputs, constants, scalars, outputs, one after another.
fn place_lasting(program: &mut Program) -> u64 {
    let mut top = 0;
    for buffer in program.buffers.iter_mut().filter(|buffer| lasts(buffer)) {
        buffer.offset = top;
        top += buffer.slot_bytes * buffer.slots;
    }
    top
}
