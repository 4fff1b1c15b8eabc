//! Files and folders that appear under their names whole or not at all.
//!
//! A file or folder that is not finished stands beside its place under a name like `.NAME.new-PID`.
//! Whoever writes holds a shared lock of the folder that both are in; who gets that lock alone is
//! the only one there, and clears away what killed processes have left. An older folder and the new
//! one exchange their names at once where the system can do that; what others have put into the
//! older one is moved before, all of it, or nothing is changed.
//!
//! ```
//! use shardc::replace::write_file;
//! use std::io::Error;
//!
//! let path = std::env::temp_dir().join(format!("replace-{}.txt", std::process::id()));
//! write_file(&path, |put| put(b"whole"), |error| error)?;
//! assert_eq!(std::fs::read(&path)?, b"whole");
//! std::fs::remove_file(&path)?;
//! # Ok::<_, Error>(())
//! ```

use crate::error::Error;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The place beside a file or folder while it is replaced.
struct Beside {
    folder: PathBuf,
    name: String,
    /// Held while something is written.
    _shared: Option<File>,
}

/// Writes a file with what `fill` gives, whole or not at all.
///
/// # Errors
/// Those of `fill`, and what `failed` makes of what the machine says; the file is then as it was.
pub fn write_file<E>(
    path: &Path,
    fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let beside = Beside::of(path, &|left_over| {
        if is_named(left_over, "new") {
            // A file that cannot be removed is in nobody's way.
            let _ = fs::remove_file(left_over);
        }
    });
    let (file, partial) = beside.claim("new", |path| File::create_new(path)).map_err(&failed)?;
    let written = write_into(&file, fill, &failed)
        .and_then(|()| file.sync_all().and_then(|()| fs::rename(&partial, path)).map_err(&failed));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&partial);
    }
    written
}

/// Writes what `fill` gives piece by piece to a file, whole or not at all. A pipe or the like is
/// written to as it is.
///
/// # Errors
/// Those of `fill`; a file that cannot be written.
pub fn write_pieces(
    path: &Path,
    fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error>,
) -> Result<(), Error> {
    let failed = |error: io::Error| Error::io(format!("cannot write `{}`", path.display()), &error);
    if is_stream(path) {
        let file = File::create(path).map_err(failed)?;
        return write_into(&file, fill, failed);
    }
    write_file(path, fill, failed)
}

/// A pipe, a terminal, a device: what is written there overwrites nothing.
pub fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir())
}

/// Writes what `fill` gives to an open file.
///
/// # Errors
/// Those of `fill`, and what `failed` makes of what the machine says.
pub fn write_into<E>(
    file: &File,
    fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let mut buffered = BufWriter::new(file);
    fill(&mut |bytes| buffered.write_all(bytes).map_err(&failed))?;
    buffered.flush().map_err(&failed)
}

/// Replaces the `own` files of the folder `to` by those that `fill` puts into a new one, all of
/// them at once; what else it holds stays.
///
/// # Errors
/// Those of `fill`, and what `failed` makes of what the machine says; the folder is then as it was.
pub fn write_folder<E>(
    to: &Path,
    own: &[&str],
    fill: impl FnOnce(&Path) -> Result<(), E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let beside = Beside::of(to, &|left_over| {
        if is_named(left_over, "old") && !to.exists() {
            let _ = fs::rename(left_over, to);
        } else {
            let kept = is_named(left_over, "old").then_some(to);
            // A folder that cannot be cleared away is in nobody's way.
            let _ = dissolve(left_over, own, kept);
        }
    });
    let ((), new) = beside.claim("new", |path| fs::create_dir(path)).map_err(&failed)?;
    let written = fill(&new).and_then(|()| beside.swap(&new, to, own).map_err(&failed));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = dissolve(&new, own, None);
    }
    written
}

/// Removes the `own` files of `folder`, moves the others to `kept` if there is one, and removes the
/// folder if it is empty then.
fn dissolve(folder: &Path, own: &[&str], kept: Option<&Path>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if own.iter().any(|own| name == *own) && !entry.file_type()?.is_dir() {
            fs::remove_file(entry.path())?;
        } else if let Some(to) = kept.map(|to| to.join(&name))
            && fs::symlink_metadata(&to).is_err()
        {
            fs::rename(entry.path(), to)?;
        }
    }
    fs::remove_dir(folder).map_err(|e| io::Error::new(e.kind(), format!("`{}` is left: {e}", folder.display())))
}

impl Beside {
    /// Beside `path`. If nobody else writes in its folder, each left-over of `path` is given to
    /// `clear`.
    fn of(path: &Path, clear: &dyn Fn(&Path)) -> Beside {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut beside = Beside { folder, name, _shared: None };
        // If folders have no locks, left-overs stay.
        let Ok(lock) = File::open(&beside.folder) else { return beside };
        if lock.try_lock().is_ok() {
            beside.left_overs().iter().for_each(|left_over| clear(left_over));
            let _ = lock.unlock();
        }
        beside._shared = lock.try_lock_shared().is_ok().then_some(lock);
        beside
    }

    fn left_overs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut found: Vec<PathBuf> = entries.filter(|path| self.is_left_over(path)).collect();
        found.sort();
        found
    }

    fn is_left_over(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let number = ["new", "old"].iter().find_map(|what| name.strip_prefix(&format!(".{}.{what}-", self.name)));
        number.is_some_and(|number| number.split('-').all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit())))
    }

    /// Makes what stands beside, under a name that nothing has yet.
    fn claim<T>(&self, what: &str, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(T, PathBuf)> {
        let first = format!(".{}.{what}-{}", self.name, std::process::id());
        let mut path = self.folder.join(&first);
        let mut taken = 0;
        loop {
            match make(&path) {
                Ok(made) => return Ok((made, path)),
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                Err(_) => taken += 1,
            }
            path = self.folder.join(format!("{first}-{taken}"));
        }
    }

    /// Gives the folder `new` the name `to`, and takes over what the folder of that name holds
    /// beside its `own` files; nothing is changed where that cannot be taken over.
    fn swap(&self, new: &Path, to: &Path, own: &[&str]) -> io::Result<()> {
        if !to.exists() {
            return fs::rename(new, to);
        }
        // An empty folder may be replaced. Under the name of an older folder, what others have put
        // there is found again if the process is killed.
        let ((), beside) = self.claim("old", |path| fs::create_dir(path))?;
        fs::rename(new, &beside)?;
        let taken =
            take_over(to, &beside, own).and_then(|()| exchange(&beside, to).or_else(|_| self.exchange_in_turn(&beside, to)));
        // The older files, or, where that failed, the new ones: they are in nobody's way.
        let _ = dissolve(&beside, own, Some(to));
        taken
    }

    /// [`exchange`] by two renames, between which nothing has the name `to`.
    fn exchange_in_turn(&self, beside: &Path, to: &Path) -> io::Result<()> {
        let ((), older) = self.claim("old", |path| fs::create_dir(path))?;
        fs::rename(to, &older)?;
        match fs::rename(beside, to) {
            Ok(()) => fs::rename(&older, beside),
            Err(error) => fs::rename(&older, to).and(Err(error)),
        }
    }
}

/// Moves all but the `own` files of a folder to another, all of it or nothing.
fn take_over(from: &Path, to: &Path, own: &[&str]) -> io::Result<()> {
    let mut moved = vec![];
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if own.iter().any(|own| name == *own) {
            continue;
        }
        if let Err(error) = fs::rename(entry.path(), to.join(&name)) {
            // What has come can go back.
            moved.iter().for_each(|name| drop(fs::rename(to.join(name), from.join(name))));
            return Err(io::Error::new(error.kind(), format!("`{}` is in it, and cannot be moved: {error}", name.display())));
        }
        moved.push(name);
    }
    Ok(())
}

/// Exchanges the names of two folders at once, where the system can.
#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_a: &Path, _b: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Whether a left-over is one of that kind.
fn is_named(left_over: &Path, what: &str) -> bool {
    let name = left_over.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('.').is_some_and(|(_, end)| end.starts_with(&format!("{what}-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is done where the system cannot exchange names at once.
    #[test]
    fn names_are_exchanged_in_turn() {
        let here = std::env::temp_dir().join(format!("exchanged-{}", std::process::id()));
        let [beside, to] = ["beside", "p"].map(|name| here.join(name));
        for (folder, words) in [(&beside, "new"), (&to, "old")] {
            fs::create_dir_all(folder).expect("a folder can be made");
            fs::write(folder.join("file"), words).expect("a file can be written");
        }
        Beside::of(&to, &|_| {}).exchange_in_turn(&beside, &to).expect("folders can be renamed");
        let words = |folder: &Path| fs::read_to_string(folder.join("file")).expect("the file is there");
        assert_eq!((words(&to), words(&beside)), ("new".to_string(), "old".to_string()));
        assert_eq!(fs::read_dir(&here).expect("a folder").count(), 2, "something is left over");
        fs::remove_dir_all(here).expect("the folder can be removed");
    }
}
