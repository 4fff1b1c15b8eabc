//! The evaluation of a model over data, as often as it is wanted with one executor: the mean loss,
//! and what is told of a loss over classes.
//!
//! The executor's states are whatever its owner has set. A program of evaluation takes whole
//! batches; the last samples, which may fill none, are filled up where that changes no result of
//! theirs, and else are left to the caller, who may run them as a batch of their own.
//!
//! [`Job::evaluate`](crate::Job::evaluate) does all of it at once; this is for programs that
//! evaluate again and again, as validation does:
//!
//! ```no_run
//! use shardc::evaluation::Evaluation;
//! use shardc::{Job, Machine};
//! use shardc_executor::data::{Dataset, Options, input_specs};
//!
//! let job = Job::open("model.onnx", "dp2.shard")?;
//! let programs = &job.programs.eval;
//! let data = Dataset::open("test.npz".as_ref(), input_specs(programs), 1, &Options::default())?;
//! let mut evaluation = Evaluation::new(&job.spec, programs, job.facts.clone());
//! let mut executor = job.start(programs, &Machine::default())?;
//! if let Some(totals) = evaluation.run(&mut executor, &data, || false)? {
//!     println!("{:?}", evaluation.score(&totals));
//! }
//! # Ok::<_, shardc::Error>(())
//! ```

mod rest;
mod score;
mod totals;

pub use score::Score;
pub use totals::{Outputs, Totals};

use crate::graphs::EvaluationFacts;
use rest::{Filler, agree, arrays};
use score::Classes;
use shardc_executor::data::Dataset;
use shardc_executor::run::{ExecutionError, Executor, StepResult};
use shardc_executor::tensor::Tensor;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, ProgramInput};
use shardc_ir::spec::{Loss, Spec};
use shardc_passes::loss_outputs;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is known of programs of evaluation.
#[derive(Debug)]
pub struct Evaluation {
    /// Samples of a step.
    batch: u64,
    /// The outputs that are not the model's: the sum of the loss, and how many labels it counts.
    loss: Option<(String, String)>,
    /// The array of the data that holds the labels.
    labels: Option<String>,
    classes: Option<Classes>,
    /// Whether samples that fill up a batch may leave the results of the others as they are.
    fills_up: bool,
    /// The outputs whose dimension 0 is not the samples.
    without_samples: BTreeSet<String>,
    /// The outputs that a step is asked for; `None` where all of them are kept.
    asked: Option<Vec<String>>,
}

impl Evaluation {
    /// The evaluation by `programs`, compiled from a job of `spec`, and what their graph says.
    pub fn new(spec: &Spec, programs: &PlanSet, facts: EvaluationFacts) -> Evaluation {
        let outputs = spec.loss.as_ref().and_then(|_| loss_outputs(programs));
        let loss = outputs.map(|(sum, labels)| (sum.to_string(), labels.to_string()));
        let classes = spec.loss.as_ref().and_then(|loss| Classes::of(&loss.value, programs, outputs));
        let computes_loss = matches!(spec.loss.as_ref().map(|loss| &loss.value), Some(Loss::Output { .. }));
        let logits = classes.as_ref().and_then(Classes::logits).map(String::from);
        let asked = loss.iter().flat_map(|(sum, labels)| [sum.clone(), labels.clone()]).chain(logits).collect();
        Evaluation {
            batch: batch_size(programs),
            loss,
            labels: spec.labels().map(|labels| labels.value.clone()),
            classes,
            fills_up: !computes_loss && !facts.labels_are_inputs,
            without_samples: facts.without_samples,
            asked: Some(asked),
        }
    }

    /// Keeps the model's outputs for all samples too.
    pub fn keep_outputs(mut self) -> Evaluation {
        self.asked = None;
        self
    }

    /// Samples of a step.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// Runs over all samples of `data` in order; `None` once `stop` says so. Where the model is
    /// seen to mix the samples of a batch, this and later runs leave out those that fill none
    /// ([`Totals::left`]).
    ///
    /// # Errors
    /// When a rank fails.
    pub fn run(
        &mut self,
        executor: &mut Executor,
        data: &Dataset,
        stop: impl Fn() -> bool,
    ) -> Result<Option<Totals>, ExecutionError> {
        let mut totals = Totals::default();
        let whole = data.samples() - data.samples() % self.batch;
        for from in (0..whole).step_by(self.batch as usize) {
            if stop() {
                return Ok(None);
            }
            let batch = Arc::new(data.rows(&data.in_order(from, from + self.batch)));
            let result = self.step(executor, batch.clone())?;
            self.add(&mut totals, &batch, result, self.batch);
        }
        totals.left = data.samples() - whole;
        if totals.left > 0 && self.fills_up {
            if stop() {
                return Ok(None);
            }
            self.fill_up(executor, data, &mut totals)?;
        }
        Ok(Some(totals))
    }

    /// Runs the step of a model that reads nothing.
    ///
    /// # Errors
    /// When a rank fails.
    pub fn run_without_data(&self, executor: &mut Executor) -> Result<Totals, ExecutionError> {
        let mut totals = Totals::default();
        let result = self.step(executor, Arc::new(vec![]))?;
        self.add(&mut totals, &[], result, self.batch);
        totals.samples = 0;
        Ok(totals)
    }

    /// The samples of `data` that a run has left out, an array for each input.
    pub fn rest(&self, data: &Dataset, totals: &Totals) -> Vec<Tensor> {
        data.rows(&data.in_order(data.samples() - totals.left, data.samples()))
    }

    /// Adds what a program of evaluation of that size has made of [`Evaluation::rest`].
    pub fn add_rest(&self, totals: &mut Totals, rest: &[Tensor], result: StepResult) {
        let left = std::mem::take(&mut totals.left);
        totals.add(self, rest, result, (left, left));
    }

    /// The score of a run.
    pub fn score(&self, totals: &Totals) -> Score {
        totals.score(self)
    }

    /// Runs a step for what is added up of it.
    fn step(&self, executor: &mut Executor, batch: Arc<Vec<Tensor>>) -> Result<StepResult, ExecutionError> {
        match &self.asked {
            Some(asked) => executor.step_for(batch, asked),
            None => executor.step(batch),
        }
    }

    /// Whether dimension 0 of an output of a step of `batch` samples is the samples.
    fn is_by_sample(&self, name: &str, output: &Tensor, batch: u64) -> bool {
        output.shape.first() == Some(&batch) && !self.without_samples.contains(name)
    }

    /// Adds a step of the first `real` samples of a batch.
    fn add(&self, totals: &mut Totals, batch: &[Tensor], result: StepResult, real: u64) {
        totals.add(self, batch, result, (self.batch, real));
    }

    /// Runs the samples that are left with others behind them that do not count, twice; where the
    /// results differ, the model mixes the samples of a batch.
    fn fill_up(&mut self, executor: &mut Executor, data: &Dataset, totals: &mut Totals) -> Result<(), ExecutionError> {
        let real = totals.left;
        let fill =
            |filler, programs: &PlanSet| Arc::new(arrays(data, programs, (self.batch, real), self.labels.as_deref(), filler));
        let batch = fill(Filler::LastSample, executor.programs());
        let one = executor.step(batch.clone())?;
        let other = executor.step(fill(Filler::Another, executor.programs()))?;
        let by_sample = |name: &str, output: &Tensor| self.is_by_sample(name, output, self.batch);
        if agree(&one, &other, (self.batch, real), by_sample) {
            totals.left = 0;
            self.add(totals, &batch, one, real);
        } else {
            self.fills_up = false;
        }
        Ok(())
    }
}

/// Samples of a step: the spec's batch, or the model's own size.
fn batch_size(programs: &PlanSet) -> u64 {
    let first = |(program, input): &(&Program, &ProgramInput)| program.buffers[input.buffer.index()].shape.first().copied();
    let own = programs.inputs().first().and_then(first);
    own.unwrap_or(programs.first().batch).max(1)
}
