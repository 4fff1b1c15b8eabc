//! Checkpoints of a training, and the one that it goes on from.

use super::{Options, Saving};
use crate::checkpoint::folder;
use crate::checkpoint::manifest::{DataPosition, Position};
use crate::checkpoint::read::Checkpoint;
use crate::checkpoint::restore::compare;
use crate::checkpoint::saver::{Saved, Saver};
use crate::early_stopping::EarlyStopping;
use crate::error::Error;
use shardc_executor::data::Dataset;
use shardc_executor::run::{ExecutionError, Executor};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::plan::set::PlanSet;
use shardc_launch::control::Control;
use std::path::Path;
use std::sync::Arc;

/// The checkpoints of a run.
pub struct Checkpoints {
    saver: Saver,
    every: Option<u64>,
    keeps_best: bool,
    seed: u64,
    shuffle: bool,
    /// The step of the last one that was begun, or that the run goes on from.
    begun: Option<u64>,
}

/// What a checkpoint keeps of validations.
#[derive(Debug, Clone, Copy)]
pub struct Validations {
    /// The loss of the one behind its step, if there was one.
    pub loss: Option<f64>,
    /// All so far, if there were any.
    pub so_far: Option<EarlyStopping>,
}

/// Refuses a folder with checkpoints that a run which goes on from `resumed` would mix with its
/// own.
///
/// # Errors
/// The first of them; a folder that cannot be read.
pub fn check_folder(own: &Path, resumed: Option<&Checkpoint>) -> Result<(), Error> {
    // Of this run are the one that it goes on from, if that is here, and those before.
    let first = match resumed {
        Some(resumed) if is_in(&resumed.path, own) => resumed.manifest.position.step + 1,
        Some(resumed) => resumed.manifest.position.step,
        None => 0,
    };
    folder::refuse_later(own, first, "go on from it with `--resume`, or give this run a folder of its own")
}

/// Whether the checkpoint at `path` is one of `folder`, under whatever names.
fn is_in(path: &Path, folder: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(path).is_some_and(|path| path.parent() == real(folder).as_deref())
}

/// Lets a run of `programs` over `data` go on from a checkpoint; gives warnings.
///
/// # Errors
/// If the checkpoint is of another model, or of samples in another order.
pub fn resume(checkpoint: &Checkpoint, programs: &PlanSet, data: &mut Dataset, shuffle: bool) -> Result<Diagnostics, Error> {
    let Position { step, data: before, .. } = checkpoint.manifest.position;
    let at = Place::File(checkpoint.path.clone());
    if before.shuffle != shuffle {
        let (had, help) = if before.shuffle { ("", "add") } else { ("not ", "leave out") };
        let error = Diagnostic::error(format!("samples were {had}shuffled until this checkpoint")).at(at);
        return Err(error.help(format!("{help} `--shuffle`, so that the order of samples goes on")).into());
    }
    let mut warnings = compare(checkpoint, programs)?.warnings(checkpoint);
    data.resume(step, before.epoch, before.sample);
    if before.samples != data.samples() {
        let message = format!("the data has {} samples, and had {} until this checkpoint", data.samples(), before.samples);
        warnings.push(Diagnostic::warning(message).at(at).label("the order of samples is another one from here on"));
    }
    Ok(warnings)
}

impl Checkpoints {
    /// Readies what a run saves of `executor`; `control` is the end of this process, if ranks are
    /// processes.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn start(
        saving: &Saving,
        options: &Options,
        executor: &Executor,
        control: Option<Arc<Control>>,
    ) -> Result<Checkpoints, Error> {
        let control = control.unwrap_or_else(|| Arc::new(Control::alone()));
        let own = options.resume.as_ref().filter(|resumed| is_in(&resumed.path, &saving.folder));
        let begun = own.map(|resumed| resumed.manifest.position.step);
        let saver = Saver::new(&saving.folder, saving.keep, executor, control)?;
        let (seed, shuffle) = (executor.programs().first().seed, options.shuffle);
        Ok(Checkpoints { saver, every: saving.every, keeps_best: saving.keep.best, seed, shuffle, begun })
    }

    /// Whether a checkpoint is wanted after so many steps, of which the validation `is_best`.
    pub fn is_due(&self, steps: u64, is_best: bool) -> bool {
        self.keeps_best && is_best || self.every.is_some_and(|every| steps.is_multiple_of(every))
    }

    /// Begins to save a checkpoint between two steps, unless that of the step was begun already;
    /// what became of the one before.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn save(
        &mut self,
        executor: &Executor,
        data: &Dataset,
        validations: Validations,
    ) -> Result<Option<Saved>, ExecutionError> {
        let step = executor.next_step();
        if self.begun == Some(step) {
            return Ok(self.poll());
        }
        let (epoch, sample) = data.place(step);
        let data = DataPosition { epoch, sample, samples: data.samples(), shuffle: self.shuffle };
        self.begun = Some(step);
        self.saver.settle();
        let before = self.saver.news();
        let Validations { loss: validation_loss, so_far: validations } = validations;
        self.saver.save(executor, Position { step, seed: self.seed, data, validation_loss, validations })?;
        Ok(before)
    }

    /// Goes on with what was begun; what became of it, if it has come to an end.
    pub fn poll(&mut self) -> Option<Saved> {
        self.saver.poll();
        self.saver.news()
    }

    /// Saves what is not saved yet, if the state `is_good`, and waits for what was begun: what
    /// became of it.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn finish(
        mut self,
        executor: &Executor,
        data: &Dataset,
        validations: Validations,
        is_good: bool,
    ) -> Result<Vec<Saved>, ExecutionError> {
        let before = if is_good { self.save(executor, data, validations)? } else { None };
        self.saver.settle();
        Ok(before.into_iter().chain(self.saver.news()).collect())
    }
}
