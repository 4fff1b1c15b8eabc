//! The first value of a step that is not finite.
//!
//! Minus infinity is often meant: it masks scores before a softmax. So the first value that is no
//! number, or above every number, is told; one below them all only where there is no other.

use crate::fault::Fault;
use crate::oddity::{Oddity, Spread};
use crate::replay::Replay;
use crate::run::{ExecutionError, Executor};
use crate::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::plan::set::Name;
use shardc_ir::plan::{Launch, Turn, View};
use shardc_ir::reason::Reason;

/// The first value of a step that is not finite.
#[derive(Debug, Clone, PartialEq)]
pub struct First {
    /// Its name.
    pub value: String,
    /// The worst of its numbers that are not finite.
    pub oddity: Oddity,
    /// The rank that has it.
    pub rank: u64,
    /// The launch that computed it; `None` of a state variable before the step.
    pub op: Option<Op>,
}

/// A launch of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Op {
    /// Its text.
    pub text: String,
    /// The micro-batch, from 0, and how many there are.
    pub microbatch: (u64, u64),
    /// The module of the model that it belongs to.
    pub scope: Option<String>,
    /// What it read.
    pub inputs: Vec<Input>,
}

/// A value that a launch read.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Its name.
    pub value: String,
    /// Its type.
    pub dtype: DType,
    /// Its numbers on the rank; `None` where the launch has written over them.
    pub spread: Option<Spread>,
}

/// The values seen so far that are not finite.
#[derive(Default)]
struct Seen {
    worst: Option<First>,
    below: Option<First>,
}

impl Seen {
    fn add(&mut self, first: First) {
        let place = if first.oddity == Oddity::Below { &mut self.below } else { &mut self.worst };
        place.get_or_insert(first);
    }
}

/// Runs step `number` over `batch` again, from the state that `executor` has, and gives the first
/// value that is not finite.
///
/// # Errors
/// If the machine lacks memory, or a rank failed.
pub fn first(executor: Executor, number: u64, batch: &[Tensor]) -> Result<Option<First>, ExecutionError> {
    let mut seen = Seen::default();
    let programs = executor.programs().clone();
    for (_, state) in programs.states().into_iter().filter(|(_, state)| state.role.is_of_model()) {
        for (rank, oddity) in (0..).zip(executor.oddities(&Name::State(state.name.clone()))?) {
            if let Some(oddity) = oddity {
                seen.add(First { value: state.name.clone(), oddity, rank, op: None });
            }
        }
    }
    if seen.worst.is_none() {
        Replay::in_place_of(executor)?.step_while(number, batch, |replay, taken| {
            let launches = taken.iter().filter_map(|(rank, turn)| match turn {
                Turn::Launch(launch) => Some((*rank, *launch)),
                Turn::Exchange(_) => None,
            });
            for (rank, launch) in launches {
                after(replay, rank, launch)?.into_iter().for_each(|first| seen.add(first));
            }
            Ok(seen.worst.is_none())
        })?;
    }
    Ok(seen.worst.or(seen.below))
}

/// The values that a rank has computed in a launch and that are not finite.
fn after(replay: &Replay, number: u64, turn: Launch) -> Result<Vec<First>, (u64, Fault)> {
    let rank = &replay.ranks()[number as usize];
    let program = rank.program();
    let step = program.step(turn);
    let failed = |message: Reason| (number, message.into());
    let oddities = rank.oddities(turn).map_err(failed)?;
    if oddities.is_empty() {
        return Ok(vec![]);
    }
    let buffer = |view: &View| &program.buffers[view.buffer.index()];
    let input = |(view, spread)| Input { value: buffer(view).name.clone(), dtype: buffer(view).dtype, spread };
    let op = Op {
        text: program.text_of(step),
        microbatch: (turn.time, program.mesh.microbatches()),
        scope: step.provenance.scope.clone(),
        inputs: step.reads.iter().zip(rank.read_by(turn).map_err(failed)?).map(input).collect(),
    };
    let first = |(write, oddity): (usize, Oddity)| {
        let value = buffer(&step.writes[write]).name.clone();
        First { value, oddity, rank: number, op: Some(op.clone()) }
    };
    Ok(oddities.into_iter().map(first).collect())
}
