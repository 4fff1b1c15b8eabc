//! How long buffers hold something within a step of training.
//!
//! Lives are intervals over the steps in order; whatever is touched both inside and outside a loop
//! over micro-batches lives for the whole loop.

use super::{Buffer, BufferKind, Program, Row};

/// Whether a buffer holds something from step to step, or what the host reads and writes.
pub fn lasts(buffer: &Buffer) -> bool {
    !matches!(buffer.kind, BufferKind::Activation | BufferKind::Communication)
}

/// For each buffer, the first and the last step at which it holds something, by their numbers; none
/// of what no step touches.
pub fn lives(program: &Program) -> Vec<Option<(usize, usize)>> {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; program.buffers.len()];
    let mut firsts = vec![0];
    for task in &program.tasks {
        let first = firsts[firsts.len() - 1];
        for (number, step) in (first..).zip(&task.steps) {
            for view in step.reads.iter().chain(&step.writes) {
                lives[view.buffer.index()].get_or_insert((number, number)).1 = number;
            }
        }
        firsts.push(first + task.steps.len());
    }
    let loops = loops(program);
    for life in lives.iter_mut().flatten() {
        for (first, last) in &loops {
            let (start, end) = (firsts[*first], firsts[*last + 1]);
            let touches = life.0 < end && life.1 >= start;
            let inside = life.0 >= start && life.1 < end;
            if touches && !inside {
                *life = (life.0.min(start), life.1.max(end - 1));
            }
        }
    }
    lives
}

/// The first and the last task of each loop over micro-batches.
fn loops(program: &Program) -> Vec<(usize, usize)> {
    let mut times = vec![0; program.tasks.len()];
    program.order.iter().for_each(|Row::Run { task, .. }| times[*task as usize] += 1);
    let mut loops: Vec<(usize, usize)> = vec![];
    for (task, _) in times.iter().enumerate().filter(|(_, times)| **times > 1) {
        match loops.last_mut() {
            Some(open) if open.1 + 1 == task => open.1 = task,
            _ => loops.push((task, task)),
        }
    }
    loops
}
