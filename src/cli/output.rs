//! Text to people and programs: results to standard output or a file, notes to standard error.

use super::foot;
use crate::failure::Failure;
use shardc_ir::diagnostic::{Diagnostic, Place, shown};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process;

/// Writes a result to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    no_reader_is_no_failure(out.write_all(shown(text).as_bytes()).and_then(|()| out.flush()))
}

/// What came of writing to standard output. A reader that has gone away wants no more of it, which is no failure.
pub fn no_reader_is_no_failure(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::io("cannot write to standard output", &error)),
        _ => Ok(()),
    }
}

/// Writes a result to a file, or to standard output.
pub fn write(text: &str, file: Option<&Path>) -> Result<(), Failure> {
    match file {
        Some(path) => fs::write(path, text).map_err(|e| Failure::io(format!("cannot write `{}`", path.display()), &e)),
        None => print(text),
    }
}

/// Writes a file whole or not at all: under another name first. What is no file, such as a pipe, is written to as it is.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return fs::write(path, bytes).map_err(|e| Failure::io(format!("cannot write `{}`", path.display()), &e));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.new-{}", process::id()));
    let written = fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&partial);
    }
    written.map_err(|e| Failure::io(format!("cannot write `{}`", path.display()), &e))
}

/// Refuses a file that cannot be written, before work that would be lost with it.
pub fn writable(path: &Path) -> Result<(), Failure> {
    let existed = path.exists();
    let opened = OpenOptions::new().append(true).create(true).open(path).map(drop);
    let left = if existed || opened.is_err() { Ok(()) } else { fs::remove_file(path) };
    opened.and(left).map_err(|e| Failure::io(format!("cannot write `{}`", path.display()), &e))
}

/// Refuses an output that would replace one of the `inputs`, or a file inside one that is a folder.
pub fn replaces_no_input(output: &Path, inputs: &[&Path]) -> Result<(), Failure> {
    let Ok(target) = output.canonicalize() else { return Ok(()) };
    for input in inputs {
        if input.canonicalize().is_ok_and(|input| target.starts_with(input)) {
            let error = Diagnostic::error(format!("`{}` would replace what is read", output.display()));
            return Err(error.at(Place::File(input.to_path_buf())).help("choose another file").into());
        }
    }
    Ok(())
}

/// Writes a line to standard error, above one that redraws itself; if nobody reads it, nothing is lost.
pub fn note(line: &str) {
    foot::note(&shown(line));
}
