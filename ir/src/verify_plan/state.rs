//! State moves once a step: parameters and moments are written once, after all micro-batches, and
//! nothing else that lasts is.

use super::violation::{self, Violation, numbered};
use crate::plan::{Buffer, BufferKind, Program, StateRole};

/// Checks all writes of state and returns how many variables are updated.
pub fn check(program: &Program) -> Result<usize, Violation> {
    let whole = |b: &&Buffer| {
        matches!(b.kind, BufferKind::State(_) | BufferKind::Gradient(_) | BufferKind::Output(_) | BufferKind::Input(_))
    };
    if let Some(partial) = program.buffers.iter().filter(whole).find(|b| !b.sharding.partial.is_empty()) {
        let sharding = partial.sharding.text(&partial.shape, &program.mesh);
        return Err(Violation::of(format!("`{}` is read from outside, but is {sharding}", partial.name)));
    }
    let mut writer = vec![None; program.buffers.len()];
    let times = program.times().into_iter().flatten();
    for ((number, _, step), times) in numbered(program).zip(times) {
        for view in &step.writes {
            let buffer = &program.buffers[view.buffer.index()];
            let name = &buffer.name;
            let role = match buffer.kind {
                BufferKind::State(i) => program.states[i as usize].role,
                BufferKind::Constant(_) | BufferKind::Input(_) | BufferKind::Scalar(_) => {
                    return Err(violation::at(number, step, format_args!("writes `{name}`, which only the host may write")));
                }
                _ => continue,
            };
            if role == StateRole::Frozen {
                return Err(violation::at(number, step, format_args!("writes `{name}`, which is frozen")));
            }
            if times > 1 {
                return Err(violation::at(number, step, format_args!("updates `{name}` {times} times")));
            }
            if let Some(first) = writer[view.buffer.index()].replace(number) {
                return Err(violation::at(
                    number,
                    step,
                    format_args!("updates `{name}`, which step {first} has updated already"),
                ));
            }
        }
    }
    Ok(writer.iter().flatten().count())
}
