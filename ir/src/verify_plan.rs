//! What is proven of a program before it runs, for every rank at once: all ranks run the same steps in the same order, and only
//! the members of groups and the offsets of kernels depend on where a rank stands.
//!
//! 1. [`tables`]: every id is in range, every size sensible, every buffer inside the arena.
//! 2. [`memory`]: every view lies in its buffer. In a run of one whole step over all micro-batches,
//!    every byte that is read was last written as the value that is read, so that nothing is read before it is written or after
//!    its memory was given away; what lasts and what the host reads is whole at the end.
//! 3. [`collectives`]: every call names distinct axes of ranks, moves as many bytes as its operands have, and runs as often on
//!    every member of its group.
//! 4. [`state`]: what is trained is written once a step, after the last micro-batch, and nothing else that lasts is written.

mod collectives;
mod memory;
mod pieces;
mod state;
pub mod tables;

use crate::plan::{Program, Step};
use std::fmt;

/// What was proven, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// Ranks that run the program.
    pub ranks: u64,
    /// Steps, each counted once however often it runs.
    pub steps: usize,
    /// Buffers of the arena.
    pub buffers: usize,
    /// The arena.
    pub peak_bytes: u64,
    /// Operands read and written in one step of training.
    pub accesses: u64,
    /// Collective calls in one step of training.
    pub calls: u64,
    /// State variables that are written once a step.
    pub updated: usize,
}

/// A counter-example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What goes wrong, with the numbers of the steps.
    pub message: String,
    /// The line of the spec that asked for the step, from 1.
    pub spec_line: Option<u32>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Proves all of the above.
///
/// # Errors
/// The first counter-example.
pub fn verify(program: &Program) -> Result<Proof, Violation> {
    tables::check(program).map_err(|message| Violation { message, spec_line: None })?;
    let accesses = memory::check(program)?;
    let calls = collectives::check(program)?;
    let updated = state::check(program)?;
    Ok(Proof {
        ranks: program.mesh.world_size(),
        steps: program.tasks.iter().map(|t| t.steps.len()).sum(),
        buffers: program.buffers.len(),
        peak_bytes: program.arena_bytes,
        accesses,
        calls,
        updated,
    })
}

/// All steps with their numbers in listings and the positions of their tasks.
fn numbered(program: &Program) -> impl Iterator<Item = (usize, usize, &Step)> {
    let steps = program.tasks.iter().enumerate().flat_map(|(t, task)| task.steps.iter().map(move |step| (t, step)));
    steps.enumerate().map(|(number, (task, step))| (number, task, step))
}

/// A violation by step `number`.
fn violation(number: usize, step: &Step, why: impl fmt::Display) -> Violation {
    Violation { message: format!("step {number} `{}` {why}", step.text), spec_line: step.provenance.spec_line }
}
