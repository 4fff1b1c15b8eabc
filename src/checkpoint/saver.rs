//! Saves checkpoints while training goes on: between two steps the state is only copied; files are
//! written by a thread.

use super::folder::{self, Folder};
use super::made::{Described, finish};
use super::manifest::{Manifest, Position};
use super::read::Checkpoint;
use super::write::Written;
use crate::error::Error;
use shardc_executor::run::{ExecutionError, Executor};
use shardc_executor::snapshot::{Copied, Snapshots};
use shardc_ir::reason::Reason;
use shardc_launch::control::Control;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Which checkpoints stay when a new one is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// So many of the latest; at least one.
    pub latest: usize,
    /// The one with the least loss of a validation too.
    pub best: bool,
}

/// What became of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The steps that it has.
    pub step: u64,
    /// Where it is; or why it is not there, in which case those before it are as they were.
    pub result: Result<PathBuf, String>,
    /// Why an older one is still there that should be gone.
    pub left: Option<String>,
}

/// Saves the checkpoints of a run.
#[derive(Debug)]
pub struct Saver {
    path: PathBuf,
    /// On rank 0, which gives checkpoints their names.
    folder: Option<Arc<Folder>>,
    keep: Keep,
    /// The best checkpoint of runs before this one, which may have kept it for that.
    spared: Option<u64>,
    control: Arc<Control>,
    snapshots: Snapshots,
    described: Arc<Described>,
    /// How many bytes each file may have, where a full disk was asked for.
    room: Option<u64>,
    writing: Option<Writing>,
    naming: Option<(u64, JoinHandle<Result<Named, String>>)>,
    /// The last that came to an end, and whether that was told.
    last: Option<Saved>,
    is_told: bool,
}

/// Where a checkpoint is, and why an older one could not be removed.
type Named = (PathBuf, Option<String>);

/// The memory of copies, and what became of the files of the ranks that are here.
type WrittenHere = (Vec<Vec<u8>>, Result<Vec<Written>, String>);

/// Files that are written by a thread.
#[derive(Debug)]
struct Writing {
    position: Position,
    thread: JoinHandle<WrittenHere>,
}

/// A rank's answer may be that long.
const MOST: u64 = 1 << 32;

impl Saver {
    /// Checkpoints of `executor` in the folder `path`, which is made where there is none; `control`
    /// is the end of this process.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn new(path: &Path, keep: Keep, executor: &Executor, control: Arc<Control>) -> Result<Saver, Error> {
        let folder = if control.rank() == 0 { Some(Arc::new(Folder::claim(path)?)) } else { None };
        let cannot = |e| Error::io(format!("cannot read checkpoints in `{}`", path.display()), &e);
        let before = folder.as_ref().map_or(Ok(vec![]), |folder| folder::list(folder.path())).map_err(cannot)?;
        Ok(Saver {
            path: path.to_path_buf(),
            folder,
            keep,
            spared: best_of(&before),
            control,
            snapshots: Snapshots::new(executor)?,
            described: Arc::new(Described::of(executor.programs())),
            room: executor.world().injections().disk_full(),
            writing: None,
            naming: None,
            last: None,
            is_told: true,
        })
    }

    /// Copies the state as it is at `position`, and begins to write it; waits for the checkpoint
    /// before, if that is not there yet. All ranks call it between the same two steps.
    ///
    /// # Errors
    /// If a rank failed, or there is no thread. What is wrong with files is told by
    /// [`Saver::news`].
    pub fn save(&mut self, executor: &Executor, position: Position) -> Result<(), ExecutionError> {
        self.settle();
        let copies = self.snapshots.take(executor)?;
        let step = position.step;
        let made = self.folder.as_ref().map_or(Ok(PathBuf::new()), |folder| folder.begin(step));
        let why = made.err().map(|e| format!("cannot make a folder in `{}`: {e}", self.path.display())).unwrap_or_default();
        // Where ranks do not meet, the next step says why.
        let why = self.control.broadcast(why.as_bytes(), MOST).unwrap_or_default();
        if why.is_empty() {
            let (partial, described, room) = (Folder::partial(&self.path, step), self.described.clone(), self.room);
            let work = move || write_all(&partial, copies, &described, room);
            // All ranks are in the same call next, so a rank without a thread ends all.
            let none = |e: io::Error| ExecutionError {
                rank: Some(self.control.rank()),
                step: Some(step),
                message: format!("there is no thread for a checkpoint: {e}"),
                of_data: false,
            };
            let thread = thread::Builder::new().name("checkpoint".into()).spawn(work).map_err(none)?;
            self.writing = Some(Writing { position, thread });
        } else {
            self.snapshots.give_back(copies.into_iter().map(|copied| copied.bytes));
            self.fail(step, String::from_utf8_lossy(&why).into_owned());
        }
        Ok(())
    }

    /// Goes on with a checkpoint as far as that costs no time. All ranks call it between the same
    /// two steps.
    pub fn poll(&mut self) {
        if let Some(writing) = &self.writing {
            let own = u8::from(writing.thread.is_finished());
            let all = self.control.all_gather(&[own], 1).unwrap_or_default();
            if !all.is_empty() && all.iter().all(|done| *done == [1]) {
                self.name();
            }
        }
        if self.naming.as_ref().is_some_and(|(_, thread)| thread.is_finished()) {
            self.named();
        }
    }

    /// What became of the last checkpoint that came to an end, once.
    pub fn news(&mut self) -> Option<Saved> {
        if std::mem::replace(&mut self.is_told, true) { None } else { self.last.clone() }
    }

    /// Waits until the last checkpoint that was begun is there, or is not. All ranks call it
    /// together.
    pub fn settle(&mut self) {
        if self.writing.is_some() {
            self.name();
        }
        if self.naming.is_some() {
            self.named();
        }
    }

    /// Waits until all ranks have written, and begins to give the checkpoint its name.
    fn name(&mut self) {
        let Some(Writing { position, thread }) = self.writing.take() else { return };
        let (spare, written) = thread.join().unwrap_or_else(|_| (vec![], Err("the thread that writes it has failed".into())));
        self.snapshots.give_back(spare);
        let step = position.step;
        let written = match self.gathered(&written) {
            Ok(written) => written,
            Err(why) => return self.fail(step, why),
        };
        let Some(folder) = self.folder.clone() else { return };
        let (manifest, keep, spared) = (self.described.manifest(position, written), self.keep, self.spared);
        let work = move || end(&folder, &manifest, keep, spared).map_err(String::from);
        match thread::Builder::new().name("checkpoint".into()).spawn(work) {
            Ok(thread) => self.naming = Some((step, thread)),
            Err(error) => self.fail(step, format!("there is no thread for it: {error}")),
        }
    }

    /// The files of all ranks, if each has written its own.
    fn gathered(&self, own: &Result<Vec<Written>, String>) -> Result<Vec<Written>, String> {
        let text = serde_json::to_vec(own).map_err(|e| format!("its answer has no text: {e}"))?;
        let all = self.control.all_gather(&text, MOST).map_err(|failure| failure.what())?;
        let read = |of: &Vec<u8>| match serde_json::from_slice(of) {
            Ok(written) => written,
            Err(error) => Err(format!("a rank's answer has no meaning: {error}")),
        };
        let all: Result<Vec<Vec<Written>>, String> = all.iter().map(read).collect();
        Ok(all?.into_iter().flatten().collect())
    }

    fn named(&mut self) {
        let Some((step, thread)) = self.naming.take() else { return };
        match thread.join().unwrap_or_else(|_| Err("the thread that ends it has failed".into())) {
            Ok((path, left)) => self.end(Saved { step, result: Ok(path), left }),
            Err(why) => self.fail(step, why),
        }
    }

    fn fail(&mut self, step: u64, why: String) {
        self.folder.iter().for_each(|folder| folder.give_up(step));
        self.end(Saved { step, result: Err(why), left: None });
    }

    fn end(&mut self, saved: Saved) {
        self.last = Some(saved);
        self.is_told = false;
    }
}

/// Writes the files of all ranks that are here, and reads each again; gives their memory back.
fn write_all(partial: &Path, copies: Vec<Copied>, described: &Described, room: Option<u64>) -> WrittenHere {
    let written = copies.iter().map(|copied| described.write(partial, copied, room));
    let written: Result<Vec<Option<Written>>, Reason> = written.collect();
    let written = written.map(|written| written.into_iter().flatten().collect()).map_err(String::from);
    (copies.into_iter().map(|copied| copied.bytes).collect(), written)
}

/// Gives a checkpoint its name, and removes those that are not to stay.
///
/// # Errors
/// As [`finish`].
fn end(folder: &Folder, manifest: &Manifest, keep: Keep, spared: Option<u64>) -> Result<Named, Reason> {
    let named = finish(folder, manifest)?;
    let left = prune(folder, manifest.position.step, keep, spared).err();
    Ok((named, left.map(|e| format!("an older checkpoint cannot be removed from `{}`: {e}", folder.path().display()))))
}

/// Removes the checkpoints before `step` that are not to stay.
fn prune(folder: &Folder, step: u64, keep: Keep, spared: Option<u64>) -> io::Result<()> {
    let all = folder::list(folder.path())?;
    let best = if keep.best { best_of(&all) } else { spared };
    let older = all.iter().map(|(step, _)| *step).filter(|other| *other <= step).rev();
    older.skip(keep.latest.max(1)).filter(|other| Some(*other) != best).try_for_each(|other| folder.remove(other))
}

/// The step of the checkpoint with the least loss of a validation.
fn best_of(all: &[(u64, PathBuf)]) -> Option<u64> {
    let loss = |at: &Path| Checkpoint::open(at).ok().and_then(|checkpoint| checkpoint.manifest.position.validation_loss);
    let losses = all.iter().filter_map(|(step, at)| Some((*step, loss(at)?)));
    losses.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(step, _)| step)
}
