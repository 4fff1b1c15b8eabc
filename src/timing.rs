//! Steps of a job over made-up data, timed turn by turn.

use crate::error::Error;
use shardc_executor::data::{InputSpec, input_specs};
use shardc_executor::profile::Timed;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps that are run before any is timed.
const WARM: usize = 2;

/// One step: how long it took, and what each rank did.
#[derive(Debug, Clone)]
pub struct TimedStep {
    /// How long it took, as whoever asked for it saw it.
    pub time: Duration,
    /// For each rank its turns.
    pub turns: Vec<Vec<Timed>>,
}

/// So many steps of the ranks that have started, or more until they have taken so long, after a few
/// that are not timed.
///
/// # Errors
/// If a rank fails.
pub fn steps(executor: &mut Executor, count: usize, at_least: Duration) -> Result<Vec<TimedStep>, Error> {
    let programs = executor.programs();
    let batch = made_up(&input_specs(programs), programs.first().batch);
    let mut all: Vec<TimedStep> = vec![];
    let mut taken = Duration::ZERO;
    while all.len() < WARM + count || taken < at_least {
        executor.start_profile();
        let start = Instant::now();
        executor.step(batch.clone()).map_err(|error| Error::Machine(error.to_string()))?;
        let time = start.elapsed();
        taken += time;
        all.push(TimedStep { time, turns: executor.profile().map(|profile| profile.last.clone()).unwrap_or_default() });
    }
    Ok(all.split_off(WARM))
}

/// A batch that the inputs allow: where they say nothing, between -1 and 1, and of integers 0.
fn made_up(inputs: &[InputSpec], batch: u64) -> Arc<Vec<Tensor>> {
    let tensor = |input: &InputSpec| {
        let shape: Vec<u64> = [&[batch], &input.sample[..]].concat();
        let count = shape.iter().product::<u64>();
        let value = |i: u64| match input.range {
            Some((low, high)) if low < high => low as f64 + (i * 7919 % high.abs_diff(low)) as f64,
            _ if input.dtype.is_float() => (i * 7919 % 1000) as f64 / 500.0 - 1.0,
            _ => 0.0,
        };
        Tensor::from_f64(&shape, &(0..count).map(value).collect::<Vec<_>>()).cast(input.dtype)
    };
    Arc::new(inputs.iter().map(tensor).collect())
}
