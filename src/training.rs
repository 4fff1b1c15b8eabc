//! Training of a job: step by step, or whole.
//!
//! | to | call |
//! |---|---|
//! | begin, or go on from a checkpoint | [`Job::train`] with [`Options`] |
//! | run one step, and what is due behind it: validation, checkpoint | [`Training::step`] |
//! | run all that are left | [`Training::run`] |
//! | save now | [`Training::checkpoint`] |
//! | end: wait for the last checkpoint | [`Training::finish`] |
//! | export what was trained | [`Trained::export`] |
//! | train one rank of several processes, or stop from outside | [`Prepared`] |
//!
//! ```no_run
//! use shardc::training::{Options, Saving};
//! use shardc::Job;
//!
//! let job = Job::open("model.onnx", "dp2.shard")?;
//! let saving = Saving { every: Some(50), ..Saving::to("checkpoints") };
//! let options = Options { steps: Some(200), saving: Some(saving), ..Options::over("train.npz") };
//! let mut training = job.train(options)?;
//! while let Some(step) = training.step()? {
//!     println!("step {}: loss {:?}", step.metrics.step + 1, step.metrics.loss);
//! }
//! training.finish()?.export("trained.onnx")?;
//! # Ok::<_, shardc::Error>(())
//! ```

mod checkpoints;
mod options;
mod prepared;
mod rates;
mod trained;
mod validation;

pub use options::{Options, Saving, Validating};
pub use prepared::Prepared;
pub use rates::{Rates, tokens};
pub use trained::Trained;
pub use validation::Validated;

use crate::Job;
use crate::checkpoint::saver::Saved;
use crate::error::Error;
use checkpoints::{Checkpoints, Validations};
use shardc_executor::data::Dataset;
use shardc_executor::run::Executor;
use shardc_executor::train::{self, Metrics};
use shardc_ir::diagnostic::Diagnostic;
use validation::Validation;

/// A run of steps.
pub struct Training {
    job: Job,
    executor: Executor,
    data: Dataset,
    options: Options,
    /// The steps of the whole training, those before this run among them.
    steps: u64,
    validation: Option<Validation>,
    checkpoints: Option<Checkpoints>,
    stop: Box<dyn Fn() -> bool>,
    summary: Summary,
    /// The loss of the validation after the last step, if there was one.
    validation_loss: Option<f64>,
    /// What failed behind a step that is done, until it is told.
    failed: Option<Error>,
    /// Whether this process speaks for all ranks.
    leads: bool,
}

/// What a step came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its metrics.
    pub metrics: Metrics,
    /// The validation behind it, if one was due.
    pub validated: Option<Validated>,
    /// What became of checkpoints that came to an end meanwhile.
    pub saved: Vec<Saved>,
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
    /// Why there are no more; `None` as long as there are.
    pub end: Option<End>,
}

/// Why training ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All steps are done.
    Done,
    /// A stop was asked for.
    Stopped,
    /// The last validations were not the best.
    NoBetter,
    /// The loss or a gradient is not finite. If it is a gradient, no parameter has changed in the
    /// step.
    NotFinite {
        /// The step, from 0.
        step: u64,
        /// In words.
        what: &'static str,
    },
    /// A rank failed, or what replicas hold differs.
    Failed,
}

impl Job {
    /// Begins to train, with all ranks in this process.
    ///
    /// # Errors
    /// All that is wrong with the options, before the first step.
    pub fn train(self, options: Options) -> Result<Training, Error> {
        Prepared::new(self, options)?.start(None, || false)
    }
}

impl Training {
    /// Runs a step, the validation behind it, and begins the checkpoint that is due; `None` when
    /// there are no more ([`Summary::end`]). A step of numbers that are not finite is given, and is
    /// the last.
    ///
    /// # Errors
    /// When a rank fails, or replicas differ; the steps that were given are done.
    pub fn step(&mut self) -> Result<Option<Step>, Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.summary.end.is_some() {
            return Ok(None);
        }
        if self.executor.next_step() >= self.steps || (self.stop)() {
            let is_done = self.executor.next_step() >= self.steps;
            self.summary.end = Some(if is_done { End::Done } else { End::Stopped });
            return Ok(None);
        }
        let (metrics, not_finite) = train::step(&mut self.executor, &self.data).inspect_err(|_| {
            self.summary.end = Some(End::Failed);
        })?;
        let mut step = Step { metrics, validated: None, saved: vec![] };
        if let Some(what) = not_finite {
            self.summary.end = Some(End::NotFinite { step: step.metrics.step, what });
            return Ok(Some(step));
        }
        self.summary.steps += 1;
        self.summary.seconds += step.metrics.seconds;
        self.summary.last = Some(step.metrics.clone());
        // The step is done, and is given whatever fails behind it.
        if let Err(error) = self.follow(&mut step) {
            (self.summary.end, self.failed) = (Some(End::Failed), Some(error));
        }
        Ok(Some(step))
    }

    /// What is due behind a step.
    fn follow(&mut self, step: &mut Step) -> Result<(), Error> {
        let done = self.executor.next_step();
        let validated = match self.validation.as_mut().filter(|validation| validation.is_due(done, self.steps)) {
            Some(validation) => validation.run(&self.executor, &self.stop)?,
            None => None,
        };
        step.validated = validated;
        self.validation_loss = validated.and_then(|validated| validated.score.loss);
        if self.options.check_replicas.is_some_and(|every| done.is_multiple_of(every))
            && let Some(differing) = self.executor.replicas()?
        {
            return Err(Error::Machine(format!("after step {done}: {differing}")));
        }
        let validations = self.validations();
        if let Some(checkpoints) = &mut self.checkpoints {
            step.saved.extend(checkpoints.poll());
            let is_best = validated.is_some_and(|validated| validated.is_best);
            if checkpoints.is_due(done, is_best) {
                step.saved.extend(checkpoints.save(&self.executor, &self.data, validations)?);
            }
        }
        if done < self.steps && validated.is_some_and(|validated| validated.is_over) {
            self.summary.end = Some(End::NoBetter);
        }
        Ok(())
    }

    /// Begins a checkpoint of the state as it is now, beside those that are due; what became of the
    /// one before.
    ///
    /// # Errors
    /// If no checkpoints are kept ([`Options::saving`]), or a rank failed.
    pub fn checkpoint(&mut self) -> Result<Option<Saved>, Error> {
        let validations = self.validations();
        let Some(checkpoints) = &mut self.checkpoints else {
            return Err(Diagnostic::error("this training keeps no checkpoints").help("set `Options::saving`").into());
        };
        Ok(checkpoints.save(&self.executor, &self.data, validations)?)
    }

    /// Runs all steps that are left, shows each to `see`, and ends.
    ///
    /// # Errors
    /// As [`Training::step`] and [`Training::finish`].
    pub fn run(mut self, mut see: impl FnMut(&Step)) -> Result<Trained, Error> {
        let result = loop {
            match self.step() {
                Ok(Some(step)) => see(&step),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let trained = self.finish();
        result.and(trained)
    }

    /// Saves what no checkpoint has yet, if checkpoints are kept and the state is good, and waits
    /// for the one that was begun.
    ///
    /// # Errors
    /// Numbers that are not finite, with the first op that made them, where this process speaks for
    /// all ranks. That no checkpoint was saved is told by [`Trained::saved`].
    pub fn finish(self) -> Result<Trained, Error> {
        let validations = self.validations();
        let Training { job, executor, data, checkpoints, summary, validation, leads, .. } = self;
        let is_good = !matches!(summary.end, Some(End::NotFinite { .. } | End::Failed));
        validation.into_iter().for_each(Validation::end);
        let saved = checkpoints.map(|checkpoints| checkpoints.finish(&executor, &data, validations, is_good));
        if let Some(End::NotFinite { step, what }) = summary.end
            && leads
        {
            return Err(crate::job::of_step(&job, executor, step, what, &data.batch(step)));
        }
        let saved = saved.transpose()?.unwrap_or_default();
        Ok(Trained { job, executor, summary, saved })
    }

    /// What a checkpoint keeps of validations; those before this run are kept by a run without any.
    fn validations(&self) -> Validations {
        let before = || self.options.resume.as_ref()?.manifest.position.validations;
        let so_far = self.validation.as_ref().map(Validation::so_far).or_else(before);
        Validations { loss: self.validation_loss, so_far }
    }

    /// The steps of the whole training, those before this run among them.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What was done so far.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The data that it trains with.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// The ranks.
    pub fn executor(&mut self) -> &mut Executor {
        &mut self.executor
    }
}
