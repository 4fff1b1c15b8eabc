//! How good the model is on other data, now and then while it trains.

use super::{Options, Validating};
use crate::Job;
use crate::early_stopping::EarlyStopping;
use crate::error::Error;
use crate::evaluation::{Evaluation, Score};
use crate::job::Batches;
use crate::machine::Machine;
use shardc_executor::data::{Dataset, input_specs};
use shardc_executor::inject::Injections;
use shardc_executor::run::follow::Following;
use shardc_executor::run::{ExecutionError, Executor};
use shardc_launch::control::Control;
use std::sync::Arc;

/// A validation whose data is read, before its ranks start.
#[derive(Debug)]
pub struct Readied {
    evaluation: Evaluation,
    data: Dataset,
    every: Option<u64>,
    watch: EarlyStopping,
}

/// Validation of a run, by ranks of their own, beside those that train.
pub struct Validation {
    readied: Readied,
    executor: Executor,
    following: Following,
    /// The other processes, if ranks are processes.
    control: Option<Arc<Control>>,
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

impl Readied {
    /// Readies the validation, if it is wanted.
    ///
    /// # Errors
    /// All that is wrong with the data.
    pub fn new(job: &Job, options: &Options) -> Result<Option<Readied>, Error> {
        let Some(Validating { data, every, samples, patience }) = &options.validating else { return Ok(None) };
        let programs = &job.programs.eval;
        let batches = Batches { size: 1, samples: *samples, ..Batches::default() };
        let data = batches.of(data, options.context, input_specs(programs))?;
        let evaluation = Evaluation::new(&job.spec, programs, job.facts.clone());
        let before = options.resume.as_ref().and_then(|checkpoint| checkpoint.manifest.position.validations);
        let watch = before.unwrap_or_default().with_patience(*patience);
        Ok(Some(Readied { evaluation, data, every: *every, watch }))
    }

    /// What all ranks have to agree on.
    pub fn agreed(&self) -> String {
        format!("samples={} every={:?} watch={:?}", self.data.samples(), self.every, self.watch)
    }
}

impl Validation {
    /// Starts its ranks beside those of `training`: all of them here, or among processes the one
    /// that is here.
    ///
    /// # Errors
    /// A machine that cannot hold them.
    pub fn start(
        readied: Readied,
        job: &Job,
        machine: &Machine,
        training: &Executor,
        among: Option<(Arc<Control>, u64)>,
    ) -> Result<Validation, Error> {
        let programs = &job.programs.eval;
        // Validation is not the run that faults are made in.
        let machine = Machine { faults: Injections::default(), ..machine.clone() };
        let control = among.as_ref().map(|(control, _)| control.clone());
        let executor = match among {
            Some(among) => job.start_among(among, programs, &machine)?.beside("validation"),
            None => job.start(programs, &machine)?,
        };
        let following = Following::new(&executor, training)?;
        Ok(Validation { readied, executor, following, control })
    }

    /// Whether a validation is wanted after so many of `all` steps.
    pub fn is_due(&self, steps: u64, all: u64) -> bool {
        steps == all || self.readied.every.is_some_and(|every| steps.is_multiple_of(every))
    }

    /// The validations so far.
    pub fn so_far(&self) -> EarlyStopping {
        self.readied.watch
    }

    /// Validates the model as `training` has it; `None` once `stop` says so.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn run(&mut self, training: &Executor, stop: impl Fn() -> bool) -> Result<Option<Validated>, ExecutionError> {
        let Readied { evaluation, data, watch, .. } = &mut self.readied;
        let steps = training.next_step();
        let failed = |error: ExecutionError| ExecutionError {
            step: steps.checked_sub(1),
            message: format!("validation: {}", error.message),
            ..error
        };
        self.following.copy(&mut self.executor, training).map_err(failed)?;
        let Some(totals) = evaluation.run(&mut self.executor, data, stop).map_err(failed)? else { return Ok(None) };
        let score = evaluation.score(&totals);
        let is_best = watch.add(steps, score.loss);
        Ok(Some(Validated { score, is_best, is_over: watch.is_over() }))
    }

    /// Ends it on all ranks together.
    pub fn end(self) {
        if let Some(control) = &self.control {
            // What has failed is told by whoever needs the ranks next.
            let _ = control.barrier();
        }
    }
}
