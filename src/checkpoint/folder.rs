//! The folder of a run's checkpoints, `step-00000100` and so on. One that is not finished, or on
//! its way out, has a name that begins with a dot: whatever is killed when, each other is whole.

use super::manifest::{HASH_NAME, NAME};
use crate::error::Error;
use shardc_ir::diagnostic::{Diagnostic, Place};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The folder of a run, which no other run writes to meanwhile.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held as long as the run.
    _lock: Option<File>,
}

const LOCK: &str = ".lock";

impl Folder {
    /// Takes the folder, and makes it where there is none. What a killed run has left there is
    /// cleared away.
    ///
    /// # Errors
    /// If another run has it, or it cannot be written.
    pub fn claim(path: &Path) -> Result<Folder, Error> {
        let cannot = |e: &io::Error| Error::io(format!("cannot write checkpoints to `{}`", path.display()), e);
        if path.join(NAME).exists() {
            let error =
                Diagnostic::error("this is a checkpoint, and no folder of checkpoints").at(Place::File(path.to_path_buf()));
            return Err(error.help("name the folder that it is in, or another one").into());
        }
        fs::create_dir_all(path).map_err(|e| cannot(&e))?;
        let lock = File::create(path.join(LOCK)).map_err(|e| cannot(&e))?;
        // Where files have no locks, nobody knows of others.
        let held = match lock.try_lock() {
            Ok(()) => Some(lock),
            Err(fs::TryLockError::WouldBlock) => {
                let error = Diagnostic::error("another run writes its checkpoints here").at(Place::File(path.to_path_buf()));
                return Err(error.help("end that run, or give this one a folder of its own").into());
            }
            Err(fs::TryLockError::Error(_)) => None,
        };
        let folder = Folder { path: path.to_path_buf(), _lock: held };
        folder.clear().map_err(|e| cannot(&e))?;
        Ok(folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder in which the checkpoint of `step` is made.
    pub fn partial(path: &Path, step: u64) -> PathBuf {
        path.join(format!(".{}.new", name(step)))
    }

    /// Begins a checkpoint.
    ///
    /// # Errors
    /// What the machine says.
    pub fn begin(&self, step: u64) -> io::Result<PathBuf> {
        let partial = Folder::partial(&self.path, step);
        remove(&partial)?;
        fs::create_dir(&partial)?;
        Ok(partial)
    }

    /// Gives up a checkpoint that was begun.
    pub fn give_up(&self, step: u64) {
        // What cannot be removed has no name of a checkpoint.
        let _ = remove(&Folder::partial(&self.path, step));
    }

    /// Gives a finished checkpoint its name, for good.
    ///
    /// # Errors
    /// What the machine says; that there is one of the name.
    pub fn commit(&self, step: u64) -> io::Result<PathBuf> {
        let (partial, place) = (Folder::partial(&self.path, step), self.path.join(name(step)));
        sync(&partial)?;
        // A folder that is empty would be replaced.
        if fs::symlink_metadata(&place).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::rename(&partial, &place)?;
        sync(&self.path)?;
        Ok(place)
    }

    /// Removes a checkpoint: from the first moment on it has no name of one.
    ///
    /// # Errors
    /// What the machine says.
    pub fn remove(&self, step: u64) -> io::Result<()> {
        let gone = self.path.join(format!(".{}.gone", name(step)));
        remove(&gone)?;
        fs::rename(self.path.join(name(step)), &gone)?;
        remove(&gone)
    }

    /// Clears away what a killed run has left.
    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let file_name = entry.file_name();
            if file_name.to_str().is_some_and(is_left_over) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// The checkpoints of a folder by their steps, ascending.
///
/// # Errors
/// What the machine says of the folder; none where there is no folder.
pub fn list(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(error),
    };
    let mut found = vec![];
    for entry in entries {
        let entry = entry?;
        found.extend(entry.file_name().to_str().and_then(step_of).map(|step| (step, entry.path())));
    }
    found.sort();
    Ok(found)
}

/// The checkpoint that a user names by `path`: that folder, or the latest of those in it.
///
/// # Errors
/// What the machine says of the folder.
pub fn find(path: &Path) -> Result<Option<PathBuf>, Error> {
    if path.join(NAME).exists() {
        return Ok(Some(path.to_path_buf()));
    }
    let cannot = |e: io::Error| Error::io(format!("cannot read the checkpoints in `{}`", path.display()), &e);
    Ok(list(path).map_err(cannot)?.pop().map(|(_, path)| path))
}

/// Refuses a folder with a checkpoint of step `first` or of a later one, which none that is written
/// there would follow; `help` says what to do.
///
/// # Errors
/// That there is one; what the machine says of the folder.
pub fn refuse_later(path: &Path, first: u64, help: &str) -> Result<(), Error> {
    let cannot = |e: io::Error| Error::io(format!("cannot read the checkpoints in `{}`", path.display()), &e);
    let Some((other, _)) = list(path).map_err(cannot)?.into_iter().find(|(step, _)| *step >= first) else { return Ok(()) };
    let error = Diagnostic::error(format!("the folder has a checkpoint of step {other}, which is of another run"));
    Err(error.at(Place::File(path.to_path_buf())).help(help).into())
}

/// The name of the checkpoint after `step` steps.
pub fn name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a checkpoint's name.
fn step_of(file_name: &str) -> Option<u64> {
    let step = file_name.strip_prefix("step-")?.parse().ok()?;
    (name(step) == file_name).then_some(step)
}

/// Whether it is the name of a checkpoint that is none yet, or no longer.
fn is_left_over(file_name: &str) -> bool {
    let parts = file_name.strip_prefix('.').and_then(|rest| rest.rsplit_once('.'));
    parts.is_some_and(|(of, what)| ["new", "gone"].contains(&what) && step_of(of).is_some())
}

/// Removes the folder of a checkpoint with the files that checkpoints have, if it is there.
fn remove(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let file_name = entry.file_name();
        let is_own = file_name.to_str().is_some_and(|name| [NAME, HASH_NAME].contains(&name) || name.ends_with(".safetensors"));
        if is_own {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

/// Brings the names in a folder down to the disk, where the system has a call for that.
fn sync(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
