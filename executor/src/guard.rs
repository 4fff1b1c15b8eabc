//! The point at which a step can be given up: the norm of the gradients is known, and no parameter
//! has changed.

use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferId, Program, StateRole, Turn};
use shardc_ir::train::LOSS_SCALE;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The output that is the norm of all gradients.
pub const NORM: &str = "grad_norm";

/// The points at which each program's step can be given up, because the norm of the gradients is
/// known and no parameter has changed.
#[derive(Debug)]
pub struct Guards {
    /// For each program, in the order of the set.
    pub each: Arc<Vec<Guard>>,
    /// The outputs that are known then.
    pub known: BTreeSet<String>,
}

/// The point in one program.
#[derive(Debug)]
pub struct Guard {
    /// The turn that follows, by its place in a step. Messages with the norm come before
    /// it, since other ranks wait for them.
    pub turn: usize,
    /// The buffer of the norm.
    pub norm: BufferId,
}

impl Guards {
    /// `None` where a parameter changes before some program knows the norm, and where the programs
    /// say themselves what such a step changes.
    pub fn of(programs: &PlanSet) -> Option<Guards> {
        if programs.outputs().iter().any(|(_, output)| output.name == LOSS_SCALE) {
            return None;
        }
        let each = programs.programs.iter().map(Guard::of).collect::<Option<Vec<Guard>>>()?;
        let known = |(program, guard): (&Program, &Guard)| guard.known(program).into_iter().collect::<Vec<_>>();
        let known = programs.programs.iter().zip(&each).flat_map(known).collect();
        Some(Guards { each: Arc::new(each), known })
    }
}

impl Guard {
    /// `None` where a parameter changes before the norm is known.
    fn of(program: &Program) -> Option<Guard> {
        let norm = program.outputs.iter().find(|output| output.name == NORM)?.buffer;
        let turn = last_write(program, norm)?.max(last_send(program, norm).unwrap_or(0));
        let parameters = program.states.iter().filter(|state| state.role == StateRole::Parameter);
        let parameters: BTreeSet<BufferId> = parameters.map(|state| state.buffer).collect();
        if program.turns().take(turn).any(|turn| writes(program, turn).any(|buffer| parameters.contains(&buffer))) {
            return None;
        }
        Some(Guard { turn, norm })
    }

    fn known(&self, program: &Program) -> Vec<String> {
        let is_known = |id| last_write(program, id).is_some_and(|at| at <= self.turn);
        program.outputs.iter().filter(|output| is_known(output.buffer)).map(|output| output.name.clone()).collect()
    }
}

/// How many turns of a step there are until a buffer is written for the last time.
fn last_write(program: &Program, id: BufferId) -> Option<usize> {
    last_turn(program, |turn| writes(program, turn).any(|buffer| buffer == id))
}

/// How many turns of a step there are until a buffer is sent for the last time.
fn last_send(program: &Program, id: BufferId) -> Option<usize> {
    last_turn(program, |turn| match turn {
        Turn::Launch(_) => false,
        Turn::Exchange(row) => program.exchange(row).any(|(message, _)| message.sends && message.view.buffer == id),
    })
}

/// How many turns of a step there are until the last one of a kind.
fn last_turn(program: &Program, is_one: impl Fn(Turn) -> bool) -> Option<usize> {
    Some(program.turns().enumerate().filter(|(_, turn)| is_one(*turn)).last()?.0 + 1)
}

/// The buffers that a turn writes.
fn writes(program: &Program, turn: Turn) -> impl Iterator<Item = BufferId> {
    let (launch, row) = match turn {
        Turn::Launch(launch) => (Some(launch), None),
        Turn::Exchange(row) => (None, Some(row)),
    };
    let written = launch.into_iter().flat_map(|launch| program.step(launch).writes.iter().map(|view| view.buffer));
    let messages = row.into_iter().flat_map(|row| program.exchange(row));
    written.chain(messages.filter(|(message, _)| !message.sends).map(|(message, _)| message.view.buffer))
}
