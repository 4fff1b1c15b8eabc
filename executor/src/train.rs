//! The training loop: batches in, the metrics of each step out.

use crate::data::Dataset;
use crate::guard::NORM;
use crate::run::{ExecutionError, Executor, StepResult};
use serde::Serialize;
use shardc_ir::train::{LEAST_LOSS_SCALE, LOSS_SCALE};
use std::ops::ControlFlow;
use std::time::Instant;

/// The metrics of one step: a line of the metrics file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metrics {
    /// The step, from 0.
    pub step: u64,
    /// The mean loss over the global batch, before the update; null if it is no finite number.
    pub loss: Option<f64>,
    /// The norm of all gradients, before clipping; null if it is no finite number.
    pub grad_norm: Option<f64>,
    /// The learning rate of the step.
    pub lr: f64,
    /// What the loss was scaled by, if that changes from step to step. Where the norm is no finite
    /// number, the step has changed nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// How long the step took.
    pub seconds: f64,
    /// Samples of the global batch over `seconds`.
    pub samples_per_second: f64,
}

/// The outcome of a run of steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Steps done.
    pub steps: u64,
    /// The metrics of the last one.
    pub last: Option<Metrics>,
    /// Seconds of all steps together.
    pub seconds: f64,
    /// Why there are no more.
    pub end: End,
}

/// Why training ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All steps are done.
    Done,
    /// A stop was asked for.
    Stopped,
    /// Whoever saw the metrics wanted no more.
    BrokenOff,
    /// The loss or a gradient is not finite. If it is a gradient, no parameter has changed in the
    /// step.
    NotFinite {
        /// The step, from 0.
        step: u64,
        /// In words.
        what: &'static str,
    },
}

/// Runs steps until `steps` are done in all (those before [`Executor::next_step`] count), `stop`
/// says so, `see` breaks off, or numbers are not finite. `see` gets each step's metrics, and
/// whether the step counts: the one that ends training because of its numbers does not.
///
/// # Errors
/// When a rank fails, the steps before are done; those of `see`.
pub fn train<E: From<ExecutionError>>(
    executor: &mut Executor,
    data: &Dataset,
    steps: u64,
    stop: impl Fn() -> bool,
    mut see: impl FnMut(&mut Executor, &Metrics, bool) -> Result<ControlFlow<()>, E>,
) -> Result<Summary, E> {
    let mut summary = Summary { steps: 0, last: None, seconds: 0.0, end: End::Done };
    while executor.next_step() < steps {
        if stop() {
            summary.end = End::Stopped;
            break;
        }
        let step = executor.next_step();
        let start = Instant::now();
        let result = executor.step_if_finite(data.batch(step))?;
        let line = measure(executor, step, &result, start.elapsed().as_secs_f64());
        let may_skip = line.loss_scale.is_some_and(|scale| scale > LEAST_LOSS_SCALE) && line.grad_norm.is_none();
        if let Some(what) = not_finite(&line, &result, || data.is_ignored(step)).filter(|_| !may_skip) {
            summary.end = End::NotFinite { step, what };
            let _ = see(executor, &line, false)?;
            break;
        }
        let goes_on = see(executor, &line, true)?;
        summary.steps += 1;
        summary.seconds += line.seconds;
        summary.last = Some(line);
        if goes_on.is_break() {
            summary.end = End::BrokenOff;
            break;
        }
    }
    Ok(summary)
}

/// The name of what is not finite in a step; a loss of which no label counts need not be finite.
fn not_finite(line: &Metrics, result: &StepResult, is_ignored: impl Fn() -> bool) -> Option<&'static str> {
    let has = |name| result.outputs.contains_key(name);
    let gradient = has(NORM) && line.grad_norm.is_none();
    match line.loss {
        None if has("loss") && !is_ignored() => Some("the loss"),
        None if gradient => Some("the loss or a gradient"),
        _ => gradient.then_some("a gradient"),
    }
}

fn measure(executor: &Executor, step: u64, result: &StepResult, seconds: f64) -> Metrics {
    let number = |name: &str| result.outputs.get(name).and_then(|t| t.first()).filter(|v| v.is_finite());
    Metrics {
        step,
        loss: number("loss"),
        grad_norm: number(NORM),
        loss_scale: number(LOSS_SCALE),
        lr: executor.programs().first().learning_rate.at(step),
        seconds,
        samples_per_second: executor.programs().first().batch as f64 / seconds.max(1e-9),
    }
}
