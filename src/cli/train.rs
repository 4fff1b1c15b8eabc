//! `shardc train`: runs steps over data, from a plan directory or from a model and a spec.

use super::job::{Batches, DataArgs, Job, JobArgs, MachineArgs};
use super::output::{note, replaces_no_input, writable};
use super::progress::{Progress, Unit, time_text};
use super::{decisions, interrupt};
use crate::failure::Failure;
use crate::report;
use clap::Args;
use shardc_executor::data::{Dataset, InputSpec, input_specs};
use shardc_executor::train::{Summary, TrainError, train};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, counted};
use shardc_ir::dtype::DType;
use shardc_ir::plan::Program;
use shardc_ir::train::Decay;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct Train {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// How many steps; by default those of the spec's schedule, or one pass over the data
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Samples in random order
    #[arg(long)]
    shuffle: bool,
    /// Seeds initial weights and the order of samples, instead of the spec's seed
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Write one JSON object a step to this file
    #[arg(long, value_name = "M.jsonl")]
    metrics: Option<PathBuf>,
    /// Write the trained model to this file
    #[arg(long, value_name = "TRAINED.onnx")]
    export: Option<PathBuf>,
    /// Not built yet
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Not built yet
    #[arg(long, value_name = "N")]
    every: Option<u64>,
    /// Not built yet
    #[arg(long)]
    resume: bool,
}

impl Train {
    /// Trains.
    ///
    /// # Errors
    /// All that is wrong with the job or its data before the first step; a failed rank; Ctrl-C, after the current step.
    pub fn run(self) -> Result<(), Failure> {
        self.refuse_later()?;
        for path in self.metrics.iter().chain(&self.export) {
            replaces_no_input(path, &[&self.data.path])?;
        }
        self.export.iter().try_for_each(|path| writable(path))?;
        let stop = interrupt::requested()?;
        let mut job = self.job.open(true)?;
        let mut program = job.training()?.program.clone();
        program.seed = self.seed.unwrap_or(program.seed);
        let batches = Batches { shuffle: self.shuffle, ..job.batches(&program) };
        let inputs = input_specs(&program);
        let unit = unit(&job, &inputs, program.batch);
        let data = self.data.open(inputs, batches)?;
        note(decisions::table(&job.decisions).trim_end());
        let steps = self.steps.unwrap_or_else(|| default_steps(&program, &data));
        if steps > 0 && data.epoch(steps - 1) > 0 {
            let samples = data.samples();
            let (samples, pass) = (counted(samples, "sample"), counted(data.steps_per_epoch(), "step"));
            note(&format!("note: the data has {samples}, {pass} a pass; it will be used again"));
        }
        report::print(&self.warnings(&job, &program, steps));
        let mut metrics = match &self.metrics {
            Some(path) => Some(BufWriter::new(
                File::create(path).map_err(|e| Failure::io(format!("cannot write `{}`", path.display()), &e))?,
            )),
            None => None,
        };
        let mut executor = job.start(&program, &self.machine)?;
        job.forget_weights(self.export.is_some())?;
        let mut progress = Progress::new(steps, unit);
        let sink = metrics.as_mut().map(|file| file as &mut dyn Write);
        let mut diverged = false;
        let result = train(&mut executor, &data, steps, sink, &stop, |metrics| {
            progress.step(metrics);
            if metrics.loss.is_none() && !std::mem::replace(&mut diverged, true) {
                note(&without_loss(metrics.step, data.is_ignored(metrics.step)));
            }
        });
        progress.finish();
        let summary = result.map_err(|error| match (error, &self.metrics) {
            (TrainError::Metrics(error), Some(path)) => {
                Failure::io(format!("cannot write metrics to `{}`", path.display()), &error)
            }
            (error, _) => error.into(),
        })?;
        if let Some(path) = &self.export {
            job.export(executor, path)?;
        }
        note(&self.closing(&summary, steps));
        if summary.stopped { Err(Failure::Interrupted) } else { Ok(()) }
    }

    fn refuse_later(&self) -> Result<(), Failure> {
        let later = [("--checkpoint", self.checkpoint.is_some()), ("--every", self.every.is_some()), ("--resume", self.resume)];
        match later.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(Failure::not_built(name)),
            None => Ok(()),
        }
    }

    /// What the user should know of a run of `steps` before it begins.
    fn warnings(&self, job: &Job, program: &Program, steps: u64) -> Diagnostics {
        let mut warnings = vec![];
        if let Decay::Cosine { steps: end, min_lr } | Decay::Linear { steps: end, min_lr } = program.learning_rate.decay
            && end < steps
        {
            let warning =
                Diagnostic::warning(format!("the schedule ends after {}, and training after {steps}", counted(end, "step")));
            let warning = warning.at_opt(job.spec.schedule.as_ref().map(|schedule| job.spec.place_of(schedule.source)));
            let rate =
                if min_lr > 0.0 { format!("stays at {min_lr}") } else { "is 0, and nothing is trained any more".to_string() };
            let help = format!("write `steps={steps}` in the `schedule` line, or train with `--steps {end}`");
            warnings.push(warning.label(format!("from step {} on the rate {rate}", end + 1)).help(help));
        }
        if self.export.is_none() && steps > 0 {
            let warning = Diagnostic::warning("the trained weights will be lost");
            warnings.push(warning.help("add `--export TRAINED.onnx` to keep them"));
        }
        warnings
    }

    /// What was done, in a line.
    fn closing(&self, summary: &Summary, steps: u64) -> String {
        let done = summary.steps;
        let mut line = match summary.stopped {
            true => format!("stopped after {done} of {}", counted(steps, "step")),
            false => counted(done, "step"),
        };
        line.push_str(&format!(" in {}", time_text(summary.seconds)));
        if let Some(loss) = summary.last.as_ref().and_then(|m| m.loss) {
            line.push_str(&format!(", loss {loss:.4}"));
        }
        if let Some(path) = &self.metrics {
            line.push_str(&format!(", metrics in `{}`", path.display()));
        }
        if let Some(path) = &self.export {
            line.push_str(&format!(", model in `{}`", path.display()));
        }
        line
    }
}

/// What to tell of a step, counted from 0, whose loss is no finite number; `ignored` says that none of its labels counts.
fn without_loss(step: u64, ignored: bool) -> String {
    let step = step + 1;
    match ignored {
        true => format!("note: no label of step {step} counts, so its loss is no number, and its gradients are 0"),
        false => {
            format!("note: the loss is not a finite number at step {step}; a lower `lr`, `warmup=` or `clip norm=1.0` may help")
        }
    }
}

/// What a step takes in: tokens where the model reads rows of them, else samples.
fn unit(job: &Job, inputs: &[InputSpec], batch: u64) -> Unit {
    let of_tokens = |input: &&InputSpec| input.dtype == DType::I64 && input.sample.len() == 1 && !job.is_label(&input.name);
    match inputs.iter().find(of_tokens) {
        Some(input) => Unit { name: "tokens", each_step: batch * input.sample[0] },
        None => Unit { name: "samples", each_step: batch },
    }
}

/// The steps of the schedule, or of one pass.
fn default_steps(program: &Program, data: &Dataset) -> u64 {
    match program.learning_rate.decay {
        Decay::Cosine { steps, .. } | Decay::Linear { steps, .. } => steps,
        Decay::Constant => data.steps_per_epoch(),
    }
}
