//! How good the model is on other data, now and then while it trains.

use super::Options;
use crate::Job;
use crate::early_stopping::EarlyStopping;
use crate::error::Error;
use crate::evaluation::{Evaluation, Score};
use crate::job::Batches;
use crate::machine::Machine;
use shardc_executor::data::{Dataset, input_specs};
use shardc_executor::inject::Injections;
use shardc_executor::run::{ExecutionError, Executor};

/// Validation of a run, by ranks of their own.
pub struct Validation {
    evaluation: Evaluation,
    executor: Executor,
    data: Dataset,
    every: Option<u64>,
    watch: EarlyStopping,
}

/// What a validation came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Validated {
    /// How good the model is.
    pub score: Score,
    /// Whether it was never better.
    pub is_best: bool,
    /// Whether it has not become better for too long.
    pub is_over: bool,
}

impl Validation {
    /// Readies the validation, if it is wanted.
    ///
    /// # Errors
    /// All that is wrong with the data; a machine that cannot hold its ranks.
    pub fn start(job: &Job, options: &Options) -> Result<Option<Validation>, Error> {
        let Some(validating) = &options.validating else { return Ok(None) };
        let programs = &job.programs.eval;
        let batches = Batches { size: 1, ..Batches::default() };
        let data = batches.of(&validating.data, options.context, input_specs(programs))?;
        let evaluation = Evaluation::new(&job.spec, programs, job.labels_are_inputs);
        // Validation is not the run that faults are made in.
        let machine = Machine { faults: Injections::default(), ..options.machine.clone() };
        let executor = job.start(programs, &machine)?;
        let watch = EarlyStopping::new(validating.patience);
        Ok(Some(Validation { evaluation, executor, data, every: validating.every, watch }))
    }

    /// Whether a validation is wanted after so many of `all` steps.
    pub fn is_due(&self, steps: u64, all: u64) -> bool {
        steps == all || self.every.is_some_and(|every| steps.is_multiple_of(every))
    }

    /// Validates the model as `training` has it; `None` once `stop` says so.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn run(&mut self, training: &Executor, stop: impl Fn() -> bool) -> Result<Option<Validated>, ExecutionError> {
        let states: Vec<String> = self.executor.programs().states().iter().map(|(_, state)| state.name.clone()).collect();
        for state in states {
            self.executor.set_state(&state, &training.get_state(&state)?)?;
        }
        let Some(totals) = self.evaluation.run(&mut self.executor, &self.data, stop)? else { return Ok(None) };
        let score = self.evaluation.score(&totals);
        let is_best = self.watch.add(training.next_step(), score.loss);
        Ok(Some(Validated { score, is_best, is_over: self.watch.is_over() }))
    }
}
