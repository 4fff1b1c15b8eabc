//! Text to people and programs: results to standard output or a file, notes to standard error.

use super::failure::Failure;
use super::foot;
use crate::replace::{is_stream, write_pieces};
use serde::Serialize;
use shardc_ir::diagnostic::shown;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Writes a result to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    no_reader_is_no_failure(out.write_all(shown(text).as_bytes()).and_then(|()| out.flush()))
}

/// The result of writing to standard output. A reader that has gone away wants no more of it, which
/// is no failure.
pub fn no_reader_is_no_failure(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::io("cannot write to standard output", &error)),
        _ => Ok(()),
    }
}

/// A report for programs.
pub fn json(report: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(report);
    Ok(json.map_err(|e| Failure::Machine(format!("cannot write JSON: {e}")))? + "\n")
}

/// Writes a result to a file, whole or not at all, or to standard output.
pub fn write(text: &str, file: Option<&Path>) -> Result<(), Failure> {
    match file {
        Some(path) => write_whole(path, text.as_bytes()),
        None => print(text),
    }
}

/// Writes a file whole or not at all. A pipe or the like is written to as it is.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    Ok(write_pieces(path, |out| out(bytes))?)
}

/// Refuses a file that cannot be written, before work that would be lost with it. A path that is no
/// file is not touched: a reader of a pipe would take that for its end.
pub fn writable(path: &Path) -> Result<(), Failure> {
    if is_stream(path) {
        return Ok(());
    }
    let existed = path.exists();
    let opened = OpenOptions::new().append(true).create(true).open(path).map(drop);
    let left = if existed || opened.is_err() { Ok(()) } else { fs::remove_file(path) };
    opened.and(left).map_err(|e| Failure::io(format!("cannot write `{}`", path.display()), &e))
}

/// Writes a line to standard error, above one that redraws itself; if nobody reads it, nothing is
/// lost.
pub fn note(line: &str) {
    foot::note(&shown(line));
}
