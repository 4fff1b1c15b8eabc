//! `--checkpoint` and `--resume`: checkpoints of a run, and the one that it goes on from.

use super::failure::Failure;
use super::output::note;
use crate::checkpoint::folder;
use crate::checkpoint::manifest::{DataPosition, Position};
use crate::checkpoint::read::Checkpoint;
use crate::checkpoint::restore::{compare, restore};
use crate::checkpoint::saver::{Keep, Saved, Saver};
use crate::report;
use clap::Args;
use shardc_executor::data::Dataset;
use shardc_executor::run::{ExecutionError, Executor};
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::plan::set::PlanSet;
use shardc_launch::control::Control;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The arguments.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// Keep checkpoints in this folder: one at the end, on Ctrl-C too, and those of --every
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Save a checkpoint and validate after each N steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: Option<u64>,
    /// Save a checkpoint after each N steps, whatever --every says
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: Option<u64>,
    /// How many of the latest checkpoints stay
    #[arg(long, value_name = "K", requires = "checkpoint", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    keep: u64,
    /// Go on from a checkpoint: the latest of --checkpoint, the latest of another folder, or this
    /// one
    #[arg(long, value_name = "CHECKPOINT", num_args = 0..=1, default_missing_value = LATEST)]
    resume: Option<PathBuf>,
}

/// What `--resume` says by itself: the latest checkpoint of `--checkpoint`.
const LATEST: &str = "latest";

/// The checkpoints of a run.
pub struct Checkpoints {
    saver: Saver,
    every: Option<u64>,
    seed: u64,
    shuffle: bool,
    speaks: bool,
    /// The step of the last one that was begun, or that the run goes on from.
    begun: Option<u64>,
}

impl CheckpointArgs {
    /// The checkpoint that training goes on from; `None` where it begins.
    ///
    /// # Errors
    /// If it is damaged; if there are checkpoints that this run would mix with its own.
    pub fn resumed(&self) -> Result<Option<Checkpoint>, Failure> {
        let list = |path: &Path| {
            folder::list(path).map_err(|e| Failure::io(format!("cannot read the checkpoints in `{}`", path.display()), &e))
        };
        let named = match (&self.resume, &self.checkpoint) {
            (Some(path), Some(own)) if path.as_os_str() == LATEST => Some(own),
            (Some(path), None) if path.as_os_str() == LATEST => {
                return Err(Failure::Usage("`--resume` needs a checkpoint, or `--checkpoint DIR` with some".into()));
            }
            (named, _) => named.as_ref(),
        };
        let found = match named {
            Some(path) if path.join(crate::checkpoint::manifest::NAME).exists() => Some(path.clone()),
            Some(path) => {
                let latest = list(path)?.pop().map(|(_, path)| path);
                if latest.is_none() && Some(path) != self.checkpoint.as_ref() {
                    let error = Diagnostic::error("there is no checkpoint").at(Place::File(path.clone()));
                    return Err(error.help("name a folder `step-…`, or the one that has them").into());
                }
                latest
            }
            None => None,
        };
        let resumed = found.map(|path| Checkpoint::open(&path)).transpose()?;
        let Some(own) = &self.checkpoint else { return Ok(resumed) };
        // Of this run are the one that it goes on from, if that is here, and those before.
        let first = match &resumed {
            Some(resumed) if is_in(&resumed.path, own) => resumed.manifest.position.step + 1,
            Some(resumed) => resumed.manifest.position.step,
            None => 0,
        };
        if let Some((other, _)) = list(own)?.into_iter().find(|(step, _)| *step >= first) {
            let error = Diagnostic::error(format!("the folder has a checkpoint of step {other}, which is of another run"));
            let error = error.at(Place::File(own.clone()));
            return Err(error.help("go on from it with `--resume`, or give this run a folder of its own").into());
        }
        Ok(resumed)
    }

    /// Readies what this run saves of `executor`; `control` is the end of this process, if ranks
    /// are processes.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn start(
        &self,
        executor: &Executor,
        resumed: Option<&Checkpoint>,
        control: Option<Arc<Control>>,
        shuffle: bool,
        keep_best: bool,
    ) -> Result<Option<Checkpoints>, Failure> {
        let Some(path) = &self.checkpoint else { return Ok(None) };
        let control = control.unwrap_or_else(|| Arc::new(Control::alone()));
        let (keep, speaks) = (Keep { latest: self.keep as usize, best: keep_best }, control.rank() == 0);
        let own = resumed.filter(|resumed| is_in(&resumed.path, path));
        let begun = own.map(|resumed| resumed.manifest.position.step);
        let (saver, seed) = (Saver::new(path, keep, executor, control)?, executor.programs().first().seed);
        Ok(Some(Checkpoints { saver, every: self.checkpoint_every.or(self.every), seed, shuffle, speaks, begun }))
    }
}

/// Whether the checkpoint at `path` is one of `folder`, under whatever names.
fn is_in(path: &Path, folder: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(path).is_some_and(|path| path.parent() == real(folder).as_deref())
}

/// Lets a run of `programs` over `data` go on from a checkpoint.
///
/// # Errors
/// If the checkpoint is of another model, or of samples in another order.
pub fn resume(checkpoint: &Checkpoint, programs: &PlanSet, data: &mut Dataset, shuffle: bool) -> Result<(), Failure> {
    let Position { step, data: before, .. } = checkpoint.manifest.position;
    let at = Place::File(checkpoint.path.clone());
    if before.shuffle != shuffle {
        let (had, help) = if before.shuffle { ("", "add") } else { ("not ", "leave out") };
        let error = Diagnostic::error(format!("samples were {had}shuffled until this checkpoint")).at(at);
        return Err(error.help(format!("{help} `--shuffle`, so that the order of samples goes on")).into());
    }
    report::print(&compare(checkpoint, programs)?.warnings(checkpoint));
    data.resume(step, before.epoch, before.sample);
    if before.samples != data.samples() {
        let message = format!("the data has {} samples, and had {} until this checkpoint", data.samples(), before.samples);
        report::print(&[Diagnostic::warning(message).at(at).label("the order of samples is another one from here on")]);
    }
    Ok(())
}

/// Gives ranks the state of a checkpoint.
///
/// # Errors
/// If a piece is damaged, or a rank fails.
pub fn load(checkpoint: &Checkpoint, executor: &mut Executor) -> Result<(), Failure> {
    Ok(restore(checkpoint, executor).map(drop)?)
}

impl Checkpoints {
    /// Whether a checkpoint is wanted after so many steps.
    pub fn is_due(&self, steps: u64) -> bool {
        self.every.is_some_and(|every| steps.is_multiple_of(every))
    }

    /// Begins to save a checkpoint between two steps.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn save(&mut self, executor: &Executor, data: &Dataset, validation_loss: Option<f64>) -> Result<(), ExecutionError> {
        let step = executor.next_step();
        let (epoch, sample) = data.place(step);
        let data = DataPosition { epoch, sample, samples: data.samples(), shuffle: self.shuffle };
        self.begun = Some(step);
        self.saver.settle();
        self.tell();
        self.saver.save(executor, Position { step, seed: self.seed, data, validation_loss })
    }

    /// Goes on with what was begun.
    pub fn poll(&mut self) {
        self.saver.poll();
        self.tell();
    }

    /// Tells of a checkpoint that could not be saved, or removed.
    fn tell(&mut self) {
        let Some(Saved { step, result, left }) = self.saver.news().filter(|_| self.speaks) else { return };
        if let Err(why) = result {
            note(&format!("warning: no checkpoint of step {step}: {why}; training goes on"));
        }
        left.iter().for_each(|left| note(&format!("warning: {left}")));
    }

    /// Saves what is not saved yet, if the state `is_good`, and waits for what was begun: where the
    /// last checkpoint is.
    ///
    /// # Errors
    /// If it is not there.
    pub fn finish(
        mut self,
        executor: &Executor,
        data: &Dataset,
        validation_loss: Option<f64>,
        is_good: bool,
    ) -> Result<Option<PathBuf>, Failure> {
        if is_good && self.begun != Some(executor.next_step()) {
            self.save(executor, data, validation_loss)?;
        }
        self.saver.settle();
        let Some(Saved { step, result, left }) = self.saver.news().filter(|_| self.speaks) else { return Ok(None) };
        left.iter().for_each(|left| note(&format!("warning: {left}")));
        result.map(Some).map_err(|why| Failure::Machine(format!("no checkpoint of step {step}: {why}")))
    }
}
