//! Numbers of a training that are not finite: what is told of them, and that they replace no good
//! model.

use super::job::Job;
use crate::failure::Failure;
use shardc_executor::finite::{self, First, Op};
use shardc_executor::oddity::Oddity;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::plan::StateRole;

const HELP: &str = "a lower `lr`, `warmup=` or `clip norm=1.0` may help";

/// The error about step `step`, from 0, over `batch`, of which `what` is not finite: with the first
/// value that is not.
pub fn of_step(job: &Job, executor: Executor, step: u64, what: &str, batch: &[Tensor]) -> Failure {
    let error = Diagnostic::error(format!("{what} is not a finite number at step {}, which ends training", step + 1));
    let error = error.help(format!("nothing is exported; {HELP}"));
    match finite::first(executor, step, batch) {
        Ok(Some(First { value, oddity, rank, op: None })) => {
            let label = format!("it holds {oddity} before the step, on rank {rank}");
            error.at(job.place(format!("parameter \"{value}\""))).label(label)
        }
        Ok(Some(First { value, oddity, rank, op: Some(Op { text, microbatch: (time, times) }) })) => {
            let part = if times > 1 { format!(", of micro-batch {} of {times}", time + 1) } else { String::new() };
            let label = format!("the first value with {oddity}, on rank {rank}{part}: `{text}`");
            error.at(job.place(format!("value \"{value}\""))).label(label)
        }
        // The step can be told without the value.
        Ok(None) | Err(_) => error,
    }
    .into()
}

/// Refuses weights that training has made infinite or no numbers.
///
/// # Errors
/// The first of them; if a rank failed.
pub fn check_weights(job: &Job, executor: &Executor) -> Result<(), Failure> {
    let moved = |role| matches!(role, StateRole::Parameter | StateRole::Statistic);
    for (_, state) in executor.programs().states().into_iter().filter(|(_, state)| moved(state.role)) {
        let now = executor.get_state(&state.name)?;
        if Oddity::of(now.dtype, &now.bytes).is_none() || !job.began_finite(state.initializer()) {
            continue;
        }
        let error = Diagnostic::error(format!("training has made `{}` infinite or no number", state.name));
        return Err(error
            .at(job.place(format!("parameter \"{}\"", state.name)))
            .help(format!("nothing is exported; {HELP}"))
            .into());
    }
    Ok(())
}
