//! The training loop: batches in, one line of metrics a step out.

use crate::data::Dataset;
use crate::run::{ExecutionError, Executor, StepResult};
use serde::Serialize;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// How long the step took.
    pub seconds: f64,
    /// Samples of the global batch over `seconds`.
    pub samples_per_second: f64,
}

/// What a run of steps came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Steps done.
    pub steps: u64,
    /// The metrics of the last one.
    pub last: Option<Metrics>,
    /// Whether a stop was asked for before all steps were done.
    pub stopped: bool,
    /// Seconds of all steps together.
    pub seconds: f64,
}

/// Why training ended early.
#[derive(Debug)]
pub enum TrainError {
    /// A rank failed, or data was bad.
    Execution(ExecutionError),
    /// The metrics could not be written.
    Metrics(std::io::Error),
}

impl std::fmt::Display for TrainError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TrainError::Execution(error) => error.fmt(f),
            TrainError::Metrics(error) => write!(f, "cannot write metrics: {error}"),
        }
    }
}

impl std::error::Error for TrainError {}

/// Runs steps until `steps` are done in all (those before [`Executor::next_step`] count), or `stop` is set. Each step's metrics
/// go to `metrics` as a line of JSON, which is flushed, and to `progress`.
///
/// # Errors
/// When a rank fails or metrics cannot be written; the steps before are done.
pub fn train(
    executor: &mut Executor,
    data: &Dataset,
    steps: u64,
    mut metrics: Option<&mut dyn Write>,
    stop: &AtomicBool,
    mut progress: impl FnMut(&Metrics),
) -> Result<Summary, TrainError> {
    let mut summary = Summary { steps: 0, last: None, stopped: false, seconds: 0.0 };
    while executor.next_step() < steps {
        if stop.load(Ordering::Relaxed) {
            summary.stopped = true;
            break;
        }
        let step = executor.next_step();
        let start = Instant::now();
        let result = executor.step(data.batch(step)).map_err(TrainError::Execution)?;
        let line = measure(executor, step, &result, start.elapsed().as_secs_f64());
        if let Some(metrics) = &mut metrics {
            let mut text = serde_json::to_string(&line).map_err(|e| TrainError::Metrics(e.into()))?;
            text.push('\n');
            metrics.write_all(text.as_bytes()).and_then(|()| metrics.flush()).map_err(TrainError::Metrics)?;
        }
        progress(&line);
        summary.steps += 1;
        summary.seconds += line.seconds;
        summary.last = Some(line);
    }
    Ok(summary)
}

fn measure(executor: &Executor, step: u64, result: &StepResult, seconds: f64) -> Metrics {
    let number = |name: &str| result.outputs.get(name).and_then(|t| t.first()).filter(|v| v.is_finite());
    Metrics {
        step,
        loss: number("loss"),
        grad_norm: number("grad_norm"),
        lr: executor.program().learning_rate.at(step),
        seconds,
        samples_per_second: executor.program().batch as f64 / seconds.max(1e-9),
    }
}
