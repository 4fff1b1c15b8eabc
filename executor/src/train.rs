//! A step of training: a batch in, the metrics out.

use crate::data::Dataset;
use crate::guard::NORM;
use crate::run::{ExecutionError, Executor, StepResult};
use serde::Serialize;
use shardc_ir::train::{LEAST_LOSS_SCALE, LOSS_SCALE};
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

/// Runs the next step of `executor` over its batch of `data`: its metrics, and in words what of its
/// numbers is not finite, which nothing can go on from. If it is a gradient, no parameter has
/// changed in the step.
///
/// # Errors
/// When a rank fails, the steps before are done.
pub fn step(executor: &mut Executor, data: &Dataset) -> Result<(Metrics, Option<&'static str>), ExecutionError> {
    let step = executor.next_step();
    let start = Instant::now();
    let result = executor.step_if_finite(data.batch(step))?;
    let line = measure(executor, step, &result, start.elapsed().as_secs_f64());
    let may_skip = line.loss_scale.is_some_and(|scale| scale > LEAST_LOSS_SCALE) && line.grad_norm.is_none();
    let not_finite = not_finite(&line, &result, || data.is_ignored(step)).filter(|_| !may_skip);
    Ok((line, not_finite))
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
