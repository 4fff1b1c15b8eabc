//! The files of data that is in several: those that are named, and those of a folder.

use super::files::{listed, nothing_there};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The endings of files that are data by themselves.
const SHARDS: [&str; 4] = ["npz", "safetensors", "bin", "txt"];

/// The files that the paths stand for, in their order: a file for itself, a folder of `.npy` for
/// its arrays, and any other folder for its files, in the order of the bytes of their names.
///
/// # Errors
/// Paths where nothing is, or of which it is not clear what they stand for.
pub fn parts(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Diagnostics> {
    let (mut found, mut errors) = (vec![], vec![]);
    for path in paths {
        match of_path(path) {
            Ok(files) => found.extend(files),
            Err(error) => errors.push(error.at(Place::File(path.clone()))),
        }
    }
    let other = found.iter().find(|path| kind(path) != found.first().and_then(|first| kind(first)));
    if let (Some(first), Some(other)) = (found.first(), other) {
        let named = |path: &Path| match kind(path) {
            _ if path.is_dir() => format!("`{}` is a folder of `.npy`", path.display()),
            Some(kind) => format!("`{}` is a `.{kind}`", path.display()),
            None => format!("`{}` has no ending", path.display()),
        };
        let error = Diagnostic::error(format!("the files of data are of several kinds: {}, {}", named(first), named(other)));
        errors.push(error.at(Place::File(other.clone())).help("give files of one kind"));
    }
    if found.is_empty() && errors.is_empty() {
        errors.push(Diagnostic::error("no file of data is named"));
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// The files of data in a folder that are none of `.npy`, in the order of the bytes of their names;
/// hidden ones are left out.
///
/// # Errors
/// If the folder cannot be read.
pub fn shards(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = vec![];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && ending(&path).is_some_and(|ending| SHARDS.contains(&ending)) && path.is_file() {
            files.push(path);
        }
    }
    files.sort_by(|a, b| a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes()));
    Ok(files)
}

fn of_path(path: &Path) -> Result<Vec<PathBuf>, Diagnostic> {
    if !path.exists() {
        return Err(nothing_there(path));
    }
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let cannot = |e: io::Error| Diagnostic::error(format!("cannot read the data: {e}"));
    let mut files = shards(path).map_err(cannot)?;
    let mut entries = fs::read_dir(path).map_err(cannot)?.flatten();
    let array = entries.find(|entry| ending(&entry.path()) == Some("npy"));
    if array.is_some() {
        // A text beside arrays tells people about them.
        files.retain(|file| ending(file) != Some("txt"));
    }
    let of_arrays = array.map(|array| array.path());
    let mut examples: Vec<&PathBuf> = of_arrays.iter().chain(&files).collect();
    examples.sort_by_key(|file| ending(file));
    examples.dedup_by_key(|file| ending(file));
    if examples.len() > 1 {
        let names: Vec<_> = examples.iter().filter_map(|file| file.file_name()).map(|name| name.to_string_lossy()).collect();
        let error = Diagnostic::error(format!("the folder has files of data of several kinds, such as {}", listed(&names)));
        return Err(error.help("give each kind a folder of its own, or name the files: `--data FILE --data FILE`"));
    }
    Ok(if files.is_empty() { vec![path.to_path_buf()] } else { files })
}

/// The ending of the file's name, or of those in a folder of arrays.
fn kind(path: &Path) -> Option<&str> {
    if path.is_dir() { Some("npy") } else { ending(path) }
}

fn ending(path: &Path) -> Option<&str> {
    path.extension().and_then(|ending| ending.to_str())
}
