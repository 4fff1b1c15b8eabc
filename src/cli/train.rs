//! `shardc train`: runs steps over data, from a plan directory or from a model and a spec.

use super::checkpoints::CheckpointArgs;
use super::failure::Failure;
use super::interrupt::Interrupt;
use super::job::{DataArgs, JobArgs};
use super::machine::MachineArgs;
use super::metrics::{Line, MetricsFile};
use super::output::{note, writable};
use super::progress::{Progress, Unit, time_text};
use super::ranks::{self, RankArgs};
use super::validation::ValidationArgs;
use super::{checkpoints, curves::Curves, decisions, profile};
use crate::checkpoint::read::Checkpoint;
use crate::evaluation::Score;
use crate::job::{self, Batches, Job};
use crate::report;
use clap::Args;
use shardc_executor::data::{Dataset, InputSpec, input_specs};
use shardc_executor::inject::Injections;
use shardc_executor::run::Executor;
use shardc_executor::train::{End, Summary, train};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, counted};
use shardc_ir::dtype::DType;
use shardc_ir::plan::Program;
use shardc_ir::train::Decay;
use shardc_launch::environment::Environment;
use std::cell::Cell;
use std::ops::ControlFlow;
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
    #[command(flatten)]
    ranks: RankArgs,
    #[command(flatten)]
    checkpoints: CheckpointArgs,
    #[command(flatten)]
    validation: ValidationArgs,
    /// How many steps; by default those of the spec's schedule, or one pass over the data
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// How many passes over the data
    #[arg(long, value_name = "N", conflicts_with = "steps", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Compare all replicas of the state bit by bit after each K steps
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    check_replicas: Option<u64>,
    /// Make a fault on CPU ranks, such as `kill:rank=1,step=3`, to see what becomes of a run
    #[arg(long, value_name = "FAULT")]
    inject: Vec<String>,
    /// Write curves to this folder, for TensorBoard
    #[arg(long, value_name = "DIR")]
    tensorboard: Option<PathBuf>,
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
    /// Print where the time goes, by kernel form and by scope of the model, and write the last step
    /// to this file, for chrome://tracing or Perfetto
    #[arg(long, value_name = "TRACE.json")]
    profile: Option<PathBuf>,
}

impl Train {
    /// Trains.
    ///
    /// # Errors
    /// All that is wrong with the job or its data before the first step; a failed rank; numbers
    /// that are not finite; after the current step what ends it, such as Ctrl-C; at the end metrics
    /// that could not be written.
    pub fn run(mut self) -> Result<(), Failure> {
        let of_cpu = self.profile.as_ref().map(|_| "--profile").or(self.inject.first().map(|_| "--inject"));
        let mut machine = self.machine.read(of_cpu)?;
        if self.checkpoints.every.is_some() && self.checkpoints.checkpoint.is_none() && self.validation.files().is_empty() {
            return Err(Failure::Usage("`--every` needs `--checkpoint` or `--validate`".into()));
        }
        let faults = Injections::parse(&self.inject)?;
        let rank = self.ranks.read()?;
        if rank.is_some() {
            self.machine.allow_processes()?;
            if self.profile.is_some() {
                return Err(Failure::Usage("`--profile` times ranks of one process: leave it out".into()));
            }
            if !self.validation.files().is_empty() {
                return Err(Failure::Usage("`--validate` needs all ranks in one process: leave it out".into()));
            }
        }
        // Rank 0 speaks and writes for all.
        let speaks = rank.as_ref().is_none_or(|rank| rank.rank == 0);
        if !speaks {
            (self.metrics, self.export, self.tensorboard) = (None, None, None);
        }
        let files = self.job.files().reads_data(&self.data.path).reads_data(self.validation.files());
        let files = files.writes("--metrics", self.metrics.as_deref()).writes("--export", self.export.as_deref());
        files.writes("--profile", self.profile.as_deref()).check()?;
        self.metrics.iter().chain(&self.export).chain(&self.profile).try_for_each(|path| writable(path))?;
        let interrupt = Interrupt::watch()?;
        let mut job = self.job.open(true)?;
        let mut programs = job.training()?.clone();
        let resumed = self.checkpoints.resumed()?;
        let seed = self.seed(resumed.as_ref())?;
        programs.programs.iter_mut().for_each(|program| program.seed = seed.unwrap_or(program.seed));
        faults.check(&programs)?;
        let batches = Batches { shuffle: self.shuffle, ..job.batches(&programs) };
        let inputs = input_specs(&programs);
        let unit = unit(&job, &inputs, programs.first().batch);
        let mut data = self.data.open(inputs, batches)?;
        if let Some(checkpoint) = &resumed {
            checkpoints::resume(checkpoint, &programs, &mut data, self.shuffle)?;
        }
        let say = |text: &str| {
            if speaks {
                note(text)
            }
        };
        say(decisions::table(&job.decisions).trim_end());
        let steps = self.steps.or(self.epochs.map(|epochs| epochs.saturating_mul(data.steps_per_epoch())));
        let steps = steps.unwrap_or_else(|| default_steps(programs.first(), &data));
        if steps > 0 && data.epoch(steps - 1) > 0 {
            let samples = data.samples();
            let (samples, pass) = (counted(samples, "sample"), counted(data.steps_per_epoch(), "step"));
            say(&format!("note: the data has {samples}, {pass} a pass; it will be used again"));
        }
        if speaks {
            report::print(&self.warnings(&job, programs.first(), steps));
        }
        let from = resumed.as_ref().map_or(0, |checkpoint| checkpoint.manifest.position.step);
        let agreed = format!("steps={steps} shuffle={} samples={} from={from}", self.shuffle, data.samples());
        let meet = |rank: &Environment| ranks::meet(rank, &programs, &agreed, &interrupt);
        let control = rank.as_ref().map(meet).transpose()?;
        // Validation is not the run that faults are made in.
        let mut validation = self.validation.start(&job, &self.data, &machine, self.checkpoints.every)?;
        machine.faults = faults;
        let mut executor = match control.clone().zip(rank.map(|rank| rank.local_rank)) {
            Some(among) => job.start_among(among, &programs, &machine)?,
            None => job.start(&programs, &machine)?,
        };
        if let Some(checkpoint) = &resumed {
            checkpoints::load(checkpoint, &mut executor)?;
            say(&format!("going on after step {from}, from `{}`", checkpoint.path.display()));
        }
        let keep_best = self.validation.keep_best;
        let mut saving = self.checkpoints.start(&executor, resumed.as_ref(), control.clone(), self.shuffle, keep_best)?;
        // What an earlier run has left is touched when nothing else can be wrong any more.
        let metrics_file = |path| if from > 0 { MetricsFile::resume(path, from) } else { MetricsFile::create(path) };
        let mut metrics = self.metrics.clone().map(metrics_file).transpose()?;
        let mut curves = self.tensorboard.as_deref().map(Curves::create).transpose()?;
        let check_replicas = self.check_replicas;
        job.forget_weights(self.export.is_some())?;
        if self.profile.is_some() {
            executor.start_profile();
        }
        let mut progress = speaks.then(|| Progress::new(steps, unit));
        let asked = Cell::new(None);
        let (mut told, mut skipped, mut last_loss) = (false, 0, None);
        let result = train(
            &mut executor,
            &data,
            steps,
            || {
                let own = interrupt.signal();
                asked.set(control.as_ref().map_or(own, |control| ranks::agreed(control, own)));
                asked.get().is_some()
            },
            |executor, line, counts| {
                let done = executor.next_step();
                let due = counts && validation.as_ref().is_some_and(|validation| validation.is_due(done, steps));
                let validated = match validation.as_mut().filter(|_| due) {
                    Some(validation) => validation.run(executor, || interrupt.signal().is_some())?,
                    None => None,
                };
                let score = validated.map(|validated| validated.score).unwrap_or_default();
                last_loss = score.loss;
                let line = Line::new(line, &score);
                metrics.iter_mut().for_each(|file| file.write(&line));
                curves.iter_mut().for_each(|curves| curves.write(&line));
                let line = line.step;
                progress.iter_mut().for_each(|progress| progress.step(line));
                if let Some(text) = validated.map(|_| validation_text(done, &score)) {
                    say(&text);
                }
                skipped += u64::from(line.grad_norm.is_none() && line.loss_scale.is_some());
                if line.loss.is_none() && data.is_ignored(line.step) && !std::mem::replace(&mut told, true) {
                    say(&without_labels(line.step));
                }
                if !counts {
                    return Ok(ControlFlow::Continue(()));
                }
                if check_replicas.is_some_and(|every| done.is_multiple_of(every))
                    && let Some(differing) = executor.replicas()?
                {
                    return Err(Failure::Machine(format!("after step {done}: {differing}")));
                }
                let is_best = keep_best && validated.is_some_and(|validated| validated.is_best);
                if let Some(saving) = &mut saving {
                    saving.poll();
                    if saving.is_due(done) || is_best {
                        saving.save(executor, &data, score.loss)?;
                    }
                }
                let is_over = done < steps && validated.is_some_and(|validated| validated.is_over);
                if is_over {
                    say("training ends: the last validations were not the best");
                }
                Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            },
        );
        progress.iter_mut().for_each(Progress::finish);
        // What was begun is whole, whatever has ended training.
        let is_good = matches!(&result, Ok(summary) if !matches!(summary.end, End::NotFinite { .. }));
        let saved = saving.map_or(Ok(None), |saving| saving.finish(&executor, &data, last_loss, is_good));
        let summary: Summary = result?;
        if !speaks {
            executor.part()?;
            return asked.get().map_or(Ok(()), |signal| Err(Failure::Interrupted(signal)));
        }
        if let End::NotFinite { step, what } = summary.end {
            return Err(job::of_step(&job, executor, step, what, &data.batch(step)).into());
        }
        let mut written = vec![];
        if let Ok(Some(path)) = &saved {
            written.push(format!("checkpoint in `{}`", path.display()));
        }
        if let (Some(path), Some(file)) = (&self.metrics, &metrics)
            && file.is_whole()
        {
            written.push(format!("metrics in `{}`", path.display()));
        }
        written.extend(self.keep(&job, &executor, &summary)?);
        if skipped > 0 {
            let skipped = counted(skipped, "step");
            note(&format!("note: gradients overflowed in {skipped}, which changed nothing but the loss scale"));
        }
        if let (Some(path), Some(profile)) = (&self.profile, executor.profile().filter(|profile| profile.steps > 0)) {
            profile::finish(executor.programs(), profile, path, machine.threads())?;
            written.push(format!("the last step in `{}`", path.display()));
        }
        executor.part()?;
        note(&closing(&summary, from, steps, &written));
        metrics.map_or(Ok(()), MetricsFile::finish)?;
        curves.map_or(Ok(()), Curves::finish)?;
        saved?;
        match (summary.end, asked.get()) {
            (End::Stopped, Some(signal)) => Err(Failure::Interrupted(signal)),
            _ => Ok(()),
        }
    }

    /// The seed that the command line or the checkpoint gives.
    fn seed(&self, resumed: Option<&Checkpoint>) -> Result<Option<u64>, Failure> {
        match (self.seed, resumed.map(|checkpoint| checkpoint.manifest.position.seed)) {
            (Some(given), Some(had)) if given != had => {
                Err(Failure::Usage(format!("the checkpoint was trained with `--seed {had}`: leave `--seed {given}` out")))
            }
            (given, had) => Ok(given.or(had)),
        }
    }

    /// Exports the model, if it is wanted and anything was trained; says where it is.
    fn keep(&self, job: &Job, executor: &Executor, summary: &Summary) -> Result<Option<String>, Failure> {
        let Some(path) = &self.export else { return Ok(None) };
        if summary.end == End::Stopped && summary.steps == 0 {
            return Ok(Some(format!("`{}` is not written", path.display())));
        }
        job::check_weights(job, executor)?;
        let weights = job.export(executor, path)?;
        let weights = weights.map(|weights| format!(" and `{}`", weights.display())).unwrap_or_default();
        Ok(Some(format!("model in `{}`{weights}", path.display())))
    }

    /// The warnings about a run of `steps` before it begins.
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
        if self.export.is_none() && self.checkpoints.checkpoint.is_none() && steps > 0 {
            let warning = Diagnostic::warning("the trained weights will be lost");
            warnings.push(warning.help("add `--export TRAINED.onnx` or `--checkpoint DIR` to keep them"));
        }
        warnings
    }
}

/// A line that says what a run that went on after `from` of `steps` steps has done and `written`.
fn closing(summary: &Summary, from: u64, steps: u64, written: &[String]) -> String {
    let done = summary.steps;
    let mut line = match summary.end == End::Stopped {
        true => format!("stopped after {} of {}", from + done, counted(steps, "step")),
        false => counted(done, "step"),
    };
    line.push_str(&format!(" in {}", time_text(summary.seconds)));
    if let Some(loss) = summary.last.as_ref().and_then(|m| m.loss) {
        line.push_str(&format!(", loss {loss:.4}"));
    }
    written.iter().for_each(|file| line.push_str(&format!(", {file}")));
    line
}

/// The note on a step, counted from 0, none of whose labels counts.
fn without_labels(step: u64) -> String {
    format!("note: no label of step {} counts, so its loss is no number, and its gradients are 0", step + 1)
}

/// What a validation after `done` steps came to.
fn validation_text(done: u64, score: &Score) -> String {
    let number = |name: &str, value: Option<f64>| value.map(|value| format!(", {name} {value:.4}")).unwrap_or_default();
    let loss = score.loss.map_or("no loss".to_string(), |loss| format!("loss {loss:.4}"));
    let rest = number("accuracy", score.accuracy) + &number("perplexity", score.perplexity);
    format!("validation after step {done}: {loss}{rest}")
}

/// The unit of what a step takes in: tokens where the model reads rows of them, else samples.
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
