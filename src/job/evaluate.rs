//! The evaluation of a job over data, the last samples of which may fill no batch.

use super::{Batches, Job};
use crate::error::Error;
use crate::evaluation::{Evaluation, Outputs, Score, Totals};
use crate::machine::Machine;
use shardc_executor::data::input_specs;
#[cfg(not(feature = "onnx"))]
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::plan::set::PlanSet;
use std::path::PathBuf;
use std::sync::Arc;

/// What the samples came to.
#[derive(Debug)]
pub struct Evaluated {
    /// The mean loss, and what is told beside it.
    pub score: Score,
    /// How many samples there were.
    pub samples: u64,
    /// The model's outputs, if they were to be kept.
    pub outputs: Outputs,
}

impl Job {
    /// Evaluates all samples of the files at `data` in order, with `context` tokens in a window of
    /// text; of a model that reads nothing its one step. The model's outputs are kept where
    /// `keep_outputs` says so.
    ///
    /// # Errors
    /// All that is wrong with the data; a failed rank.
    pub fn evaluate(
        &self,
        machine: &Machine,
        data: &[PathBuf],
        context: Option<u64>,
        keep_outputs: bool,
    ) -> Result<Evaluated, Error> {
        let programs = &self.programs.eval;
        let mut evaluation = Evaluation::new(&self.spec, programs, self.facts.clone());
        if keep_outputs {
            evaluation = evaluation.keep_outputs();
        }
        let mut executor = self.start(programs, machine)?;
        if programs.inputs().is_empty() {
            let totals = evaluation.run_without_data(&mut executor)?;
            return Ok(Evaluated::of(&evaluation, totals));
        }
        let place = data.last().cloned().map(Place::File);
        let data = Batches { size: 1, ..Batches::default() }.of(data, context, input_specs(programs))?;
        let mut totals = evaluation.run(&mut executor, &data, || false)?.unwrap_or_default();
        if totals.left > 0 {
            drop(executor);
            let programs = self.programs_of_rest(totals.left, evaluation.batch(), place)?;
            let rest = Arc::new(evaluation.rest(&data, &totals));
            let result = self.start(&programs, machine)?.step(rest.clone())?;
            evaluation.add_rest(&mut totals, &rest, result);
        }
        Ok(Evaluated::of(&evaluation, totals))
    }

    /// Without models there are the sizes of the plan.
    #[cfg(not(feature = "onnx"))]
    fn resized(&self, _: u64) -> Result<PlanSet, Diagnostics> {
        Err(Diagnostic::error("this build of shardc reads no models, and so compiles none").into())
    }

    /// The programs of the model at the size of the `left` samples, on one rank.
    fn programs_of_rest(&self, left: u64, batch: u64, place: Option<Place>) -> Result<PlanSet, Error> {
        let programs = self.resized(left).map_err(|errors| {
            let message = match left {
                1 => format!("the last sample fills no batch of {batch}, and cannot be filled up"),
                _ => format!("the last {left} samples fill no batch of {batch}, and cannot be filled up"),
            };
            let why = errors.first().map_or(String::new(), |error| format!("the model has no other size: {}", error.message));
            let error = Diagnostic::error(message).at_opt(place).label(why);
            error.help(format!("evaluate a multiple of {batch} samples, or export the model with a dynamic batch"))
        })?;
        Ok(programs)
    }
}

impl Evaluated {
    fn of(evaluation: &Evaluation, totals: Totals) -> Evaluated {
        Evaluated { score: evaluation.score(&totals), samples: totals.samples, outputs: totals.outputs }
    }
}
