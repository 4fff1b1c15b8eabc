//! `shardc train`: runs steps over data, from a plan directory or from a model and a spec.

use super::checkpoints::CheckpointArgs;
use super::curves::Curves;
use super::failure::Failure;
use super::interrupt::Interrupt;
use super::job::{DataArgs, JobArgs};
use super::machine::MachineArgs;
use super::metrics::MetricsFile;
use super::output::{note, writable};
use super::progress::{Progress, Unit, time_text};
use super::ranks::{self, RankArgs};
use super::told::Told;
use super::validation::ValidationArgs;
use super::{decisions, profile};
use crate::machine::{Device, Machine};
use crate::report;
use crate::training::{End, Options, Prepared, Summary, Trained};
use clap::Args;
use shardc_executor::bench::Peaks;
use shardc_executor::inject::Injections;
use shardc_ir::diagnostic::{Diagnostic, counted};
use shardc_launch::control::Control;
use shardc_launch::environment::Environment;
use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

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
    /// Compare all replicas of the state bit by bit after each K steps; each rank has its own then
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
        if self.checkpoints.every.is_some() && self.checkpoints.checkpoint.is_none() && self.validation.validate.is_empty() {
            return Err(Failure::Usage("`--every` needs `--checkpoint` or `--validate`".into()));
        }
        machine.faults = Injections::parse(&self.inject)?;
        let rank = self.ranks.read()?;
        if rank.is_some() {
            self.allow_processes()?;
        }
        // Rank 0 speaks and writes for all.
        let speaks = rank.as_ref().is_none_or(|rank| rank.rank == 0);
        if !speaks {
            (self.metrics, self.export, self.tensorboard) = (None, None, None);
        }
        let files = self.job.files().reads_data(&self.data.path).reads_data(&self.validation.validate);
        let files = files.writes("--metrics", self.metrics.as_deref()).writes("--export", self.export.as_deref());
        let files = files.writes("--checkpoint", self.checkpoints.checkpoint.as_deref());
        files.writes("--profile", self.profile.as_deref()).check()?;
        self.metrics.iter().chain(&self.export).chain(&self.profile).try_for_each(|path| writable(path))?;
        let interrupt = Interrupt::watch()?;
        let job = self.job.open(true)?;
        let threads = machine.threads();
        let is_on_cpu = machine.device == Device::Cpu;
        let prepared = Prepared::new(job, self.options(machine)?)?;
        let (from, steps) = (prepared.from(), prepared.steps());
        if speaks {
            self.tell(&prepared);
        }
        let unit = unit(&prepared);
        let mut rates = prepared.rates();
        if speaks && is_on_cpu {
            rates.peak = peak(threads, &prepared, rank.is_some());
        }
        let among = rank.as_ref().map(|rank| Ok::<_, Failure>((self.meet(rank, &prepared, &interrupt)?, rank.local_rank)));
        let among = among.transpose()?;
        let asked = Rc::new(Cell::new(None));
        let stop = {
            let (asked, interrupt, control) = (asked.clone(), interrupt.clone(), among.as_ref().map(|among| among.0.clone()));
            move || {
                let own = interrupt.signal();
                asked.set(control.as_ref().map_or(own, |control| ranks::agreed(control, own)));
                asked.get().is_some()
            }
        };
        let goes_on = prepared.resumed().map(|resumed| format!("going on after step {from}, from `{}`", resumed.path.display()));
        let mut training = prepared.start(among, stop)?;
        let mut told = Told::of(speaks);
        told.rates = rates;
        goes_on.iter().for_each(|text| told.note(text));
        // What an earlier run has left is touched when nothing else can be wrong any more.
        let metrics_file = |path| if from > 0 { MetricsFile::resume(path, from) } else { MetricsFile::create(path) };
        told.metrics = self.metrics.clone().map(metrics_file).transpose()?;
        told.curves = self.tensorboard.as_deref().map(Curves::create).transpose()?;
        told.progress = speaks.then(|| Progress::new(steps, unit));
        if self.profile.is_some() {
            training.executor().start_profile();
        }
        let result = loop {
            match training.step() {
                Ok(Some(step)) => told.step(&step, training.data()),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if training.summary().end == Some(End::NoBetter) {
            told.note("training ends: the last validations were not the best");
        }
        told.progress.iter_mut().for_each(Progress::finish);
        let trained = training.finish();
        result?;
        let trained = trained?;
        if speaks {
            return self.end(trained, told, (from, steps), threads, asked.get());
        }
        trained.executor.part()?;
        asked.get().map_or(Ok(()), |signal| Err(Failure::Interrupted(signal)))
    }

    /// Refuses what ranks that are processes cannot do.
    fn allow_processes(&self) -> Result<(), Failure> {
        self.machine.allow_processes()?;
        if self.profile.is_some() {
            return Err(Failure::Usage("`--profile` times ranks of one process: leave it out".into()));
        }
        Ok(())
    }

    /// What is asked of the training.
    fn options(&self, machine: Machine) -> Result<Options, Failure> {
        Ok(Options {
            data: self.data.path.clone(),
            context: self.data.context,
            shuffle: self.shuffle,
            seed: self.seed,
            steps: self.steps,
            epochs: self.epochs,
            validating: self.validation.read(self.checkpoints.every),
            saving: self.checkpoints.read(self.validation.keep_best),
            resume: self.checkpoints.resumed()?,
            check_replicas: self.check_replicas,
            exports: self.export.is_some(),
            machine,
        })
    }

    /// Tells what there is to say before the first step.
    fn tell(&self, prepared: &Prepared) {
        note(decisions::table(&prepared.job().decisions).trim_end());
        let (data, steps) = (prepared.data(), prepared.steps());
        if steps > 0 && data.epoch(steps - 1) > 0 {
            let (samples, pass) = (counted(data.samples(), "sample"), counted(data.steps_per_epoch(), "step"));
            note(&format!("note: the data has {samples}, {pass} a pass; it will be used again"));
        }
        report::print(&prepared.warnings);
        if self.export.is_none() && self.checkpoints.checkpoint.is_none() && steps > 0 {
            let warning = Diagnostic::warning("the trained weights will be lost");
            report::print(&[warning.help("add `--export TRAINED.onnx` or `--checkpoint DIR` to keep them")]);
        }
    }

    /// Meets the other ranks, which are to train the same.
    fn meet(&self, rank: &Environment, prepared: &Prepared, interrupt: &Interrupt) -> Result<Arc<Control>, Failure> {
        ranks::meet(rank, prepared.programs(), &prepared.agreed(), interrupt)
    }

    /// Writes what is wanted of the model that was trained, and tells what was done.
    fn end(
        &self,
        trained: Trained,
        told: Told,
        (from, steps): (u64, u64),
        threads: usize,
        asked: Option<i32>,
    ) -> Result<(), Failure> {
        let mut written = vec![];
        let mut lost = None;
        let (last, before) = trained.saved.split_last().unzip();
        before.into_iter().flatten().for_each(|saved| told.saved(saved));
        if let Some(saved) = last {
            saved.left.iter().for_each(|left| note(&format!("warning: {left}")));
            match &saved.result {
                Ok(path) => written.push(format!("checkpoint in `{}`", path.display())),
                Err(why) => lost = Some(Failure::Machine(format!("no checkpoint of step {}: {why}", saved.step))),
            }
        }
        if let (Some(path), Some(file)) = (&self.metrics, &told.metrics)
            && file.is_whole()
        {
            written.push(format!("metrics in `{}`", path.display()));
        }
        written.extend(self.keep(&trained)?);
        if told.skipped > 0 {
            let skipped = counted(told.skipped, "step");
            note(&format!("note: gradients overflowed in {skipped}, which changed nothing but the loss scale"));
        }
        if let (Some(path), Some(profile)) = (&self.profile, trained.executor.profile().filter(|profile| profile.steps > 0)) {
            profile::finish(trained.executor.programs(), profile, path, threads)?;
            written.push(format!("the last step in `{}`", path.display()));
        }
        trained.executor.part()?;
        note(&closing(&trained.summary, from, steps, &written));
        told.metrics.map_or(Ok(()), MetricsFile::finish)?;
        told.curves.map_or(Ok(()), Curves::finish)?;
        match (lost, trained.summary.end, asked) {
            (Some(lost), ..) => Err(lost),
            (None, Some(End::Stopped), Some(signal)) => Err(Failure::Interrupted(signal)),
            _ => Ok(()),
        }
    }

    /// Exports the model, if it is wanted and anything was trained; says where it is.
    fn keep(&self, trained: &Trained) -> Result<Option<String>, Failure> {
        let Some(path) = &self.export else { return Ok(None) };
        if trained.summary.end == Some(End::Stopped) && trained.summary.steps == 0 {
            return Ok(Some(format!("`{}` is not written", path.display())));
        }
        let weights = trained.export(path)?;
        let weights = weights.map(|weights| format!(" and `{}`", weights.display())).unwrap_or_default();
        Ok(Some(format!("model in `{}`{weights}", path.display())))
    }
}

/// A line that says what a run that went on after `from` of `steps` steps has done and `written`.
fn closing(summary: &Summary, from: u64, steps: u64, written: &[String]) -> String {
    let done = summary.steps;
    let mut line = match summary.end == Some(End::Stopped) {
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

/// What the threads of all ranks reach at most, as this process measures it.
fn peak(threads: usize, prepared: &Prepared, is_among_processes: bool) -> Option<f64> {
    let ranks = prepared.programs().mesh().world_size();
    match is_among_processes {
        true => Some(Peaks::products((threads / ranks as usize).max(1)).ok()? * ranks as f64),
        false => Peaks::products(threads).ok(),
    }
}

/// The unit of what a step takes in: tokens where the model reads rows of them, else samples.
fn unit(prepared: &Prepared) -> Unit {
    match prepared.tokens() {
        Some(tokens) => Unit { name: "tokens", each_step: tokens },
        None => Unit { name: "samples", each_step: prepared.programs().first().batch },
    }
}
