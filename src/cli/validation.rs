//! `--validate`: how good the model is on other data, now and then while it trains.

use super::failure::Failure;
use super::job::DataArgs;
use crate::early_stopping::EarlyStopping;
use crate::evaluation::{Evaluation, Score};
use crate::job::{Batches, Job};
use crate::machine::Machine;
use clap::Args;
use shardc_executor::data::{Dataset, input_specs};
use shardc_executor::run::{ExecutionError, Executor};
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct ValidationArgs {
    /// Validate with this data, after each --every steps and at the end
    #[arg(long, value_name = "DATA")]
    validate: Vec<PathBuf>,
    /// Validate after each N steps, whatever --every says
    #[arg(long, value_name = "N", requires = "validate", value_parser = clap::value_parser!(u64).range(1..))]
    validate_every: Option<u64>,
    /// Save and keep the checkpoint with the least validation loss too
    #[arg(long, requires = "validate", requires = "checkpoint")]
    pub keep_best: bool,
    /// Stop once so many validations in a row were not the best
    #[arg(long, value_name = "N", requires = "validate", value_parser = clap::value_parser!(u64).range(1..))]
    patience: Option<u64>,
}

/// Validation of a run, by ranks of their own.
pub struct Validation {
    evaluation: Evaluation,
    executor: Executor,
    data: Dataset,
    every: Option<u64>,
    watch: EarlyStopping,
}

/// What a validation came to.
#[derive(Debug, Clone, Copy)]
pub struct Validated {
    /// How good the model is.
    pub score: Score,
    /// Whether it was never better.
    pub is_best: bool,
    /// Whether it has not become better for too long.
    pub is_over: bool,
}

impl ValidationArgs {
    /// The files of the data.
    pub fn files(&self) -> &[PathBuf] {
        &self.validate
    }

    /// Readies the validation, if it is wanted.
    ///
    /// # Errors
    /// All that is wrong with the data; a machine that cannot hold its ranks.
    pub fn start(
        &self,
        job: &Job,
        data: &DataArgs,
        machine: &Machine,
        every: Option<u64>,
    ) -> Result<Option<Validation>, Failure> {
        if self.validate.is_empty() {
            return Ok(None);
        }
        let programs = &job.programs.eval;
        let batches = Batches { size: 1, ..Batches::default() };
        let data = DataArgs { path: self.validate.clone(), context: data.context }.open(input_specs(programs), batches)?;
        let evaluation = Evaluation::new(&job.spec, programs, job.labels_are_inputs);
        let (executor, every) = (job.start(programs, machine)?, self.validate_every.or(every));
        Ok(Some(Validation { evaluation, executor, data, every, watch: EarlyStopping::new(self.patience) }))
    }
}

impl Validation {
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
