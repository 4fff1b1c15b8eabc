//! Numbers of a training that are not finite: what is told of them, and that they replace no good
//! model.

use super::{EachPiece, Job};
use crate::error::Error;
use shardc_executor::data::Number;
use shardc_executor::finite::{self, First, Input, Op};
use shardc_executor::oddity::{Oddity, Spread};
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::{Diagnostic, counted};
use shardc_ir::plan::StateRole;
use shardc_ir::plan::set::PlanSet;

const HELP: &str = "a lower `lr`, `warmup=` or `clip norm=1.0` may help";

/// The error about step `step`, from 0, over `batch`, of which `what` is not finite: with the first
/// value that is not.
pub fn of_step(job: &Job, executor: Executor, step: u64, what: &str, batch: &[Tensor]) -> Error {
    let error = Diagnostic::error(format!("{what} is not a finite number at step {}, which ends training", step + 1));
    let error = error.help(format!("nothing is exported; {HELP}"));
    match finite::first(executor, step, batch) {
        Ok(Some(First { value, oddity, rank, op: None })) => {
            let label = format!("it holds {oddity} before the step, on rank {rank}");
            error.at(job.place(format!("parameter \"{value}\""))).label(label)
        }
        Ok(Some(First { value, oddity, rank, op: Some(op) })) => {
            let (time, times) = op.microbatch;
            let part = if times > 1 { format!(", of micro-batch {} of {times}", time + 1) } else { String::new() };
            let scope = op.scope.as_ref().map(|scope| format!(", in `{scope}`")).unwrap_or_default();
            let head = format!("the first value with {oddity}, on rank {rank}{part}{scope}: `{}`", op.text);
            error.at(job.place(format!("value \"{value}\""))).label(format!("{head}{}", inputs(&op)))
        }
        // The step can be told without the value.
        Ok(None) | Err(_) => error,
    }
    .into()
}

/// Inputs that are told.
const MOST: usize = 6;

/// What an op read, a line for each input, the ones with numbers that are not finite first.
fn inputs(op: &Op) -> String {
    let mut inputs: Vec<&Input> = op.inputs.iter().collect();
    inputs.sort_by_key(|input| input.spread.is_none_or(|spread| spread.not_finite == 0));
    let row = |input: &&Input| {
        let Input { value, dtype, spread } = input;
        let (range, odd) = match spread {
            None => ("written over by the result".to_string(), String::new()),
            Some(Spread { ends, count, not_finite }) => {
                let range = ends.map(|(least, most)| format!("{} to {}", Number::Real(least), Number::Real(most)));
                let odd = if *not_finite > 0 { format!("{not_finite} of {count} not finite") } else { String::new() };
                (range.unwrap_or_default(), odd)
            }
        };
        [format!("%{value}"), dtype.to_string(), range, odd]
    };
    let rows: Vec<[String; 4]> = inputs.iter().take(MOST).map(row).collect();
    let more = match inputs.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!("\n  and {} more", counted(more, "input")),
    };
    let words = Column::WORDS;
    if rows.is_empty() { String::new() } else { format!("\nit read\n{}{more}", align(&rows, [words; 4]).trim_end()) }
}

impl Job {
    /// Refuses weights that training has made infinite or no numbers. `pieces` hands over the
    /// elements of a state variable of `programs`, in any number of arrays.
    ///
    /// # Errors
    /// The first of them; those of `pieces`.
    pub fn check_weights(
        &self,
        programs: &PlanSet,
        pieces: impl Fn(&str, EachPiece<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let moved = |role| matches!(role, StateRole::Parameter | StateRole::Statistic);
        for (_, state) in programs.states().into_iter().filter(|(_, state)| moved(state.role)) {
            let mut is_finite = true;
            pieces(&state.name, &mut |piece| {
                is_finite &= Oddity::of(piece.dtype, &piece.bytes).is_none();
                Ok(())
            })?;
            if is_finite || !self.began_finite(state.initializer()) {
                continue;
            }
            let error = Diagnostic::error(format!("training has made `{}` infinite or no number", state.name));
            return Err(error
                .at(self.place(format!("parameter \"{}\"", state.name)))
                .help(format!("nothing is exported; {HELP}"))
                .into());
        }
        Ok(())
    }
}
