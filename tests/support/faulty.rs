//! Faults of files for a program that a test runs: the environment that `testing/faultyfs` wants.
#![cfg(target_os = "linux")]
#![allow(dead_code, reason = "each test crate uses some of what is here")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where calls on files are counted, and what is written down of them.
pub struct Faulty {
    /// The files that count.
    folder: PathBuf,
    /// The folder of the counter and the trace, outside of those.
    notes: PathBuf,
}

/// A call that has the fault `how` (`enospc`, `eio`, `eintr`, `short`, `kill`, `kill-within`,
/// `kill-after`).
#[derive(Debug, Clone, Copy)]
pub struct Fault<'a> {
    /// Its number, from 1.
    pub at: u64,
    /// Whether all behind it have it too.
    pub forever: bool,
    /// The fault's name.
    pub how: &'a str,
}

impl Faulty {
    /// Counts calls on files below `folder`, which may not be there yet; `notes` is a folder that
    /// is there.
    pub fn new(folder: &Path, notes: &Path) -> Faulty {
        // The folder's own path has no links, whether it is there or not.
        let above = folder.parent().expect("a folder has one above").canonicalize().expect("it is there");
        let folder = above.join(folder.file_name().expect("a folder has a name"));
        Faulty { folder, notes: notes.canonicalize().expect("the folder is there") }
    }

    /// Sets the command's environment and begins to count at 0. Its children inherit both.
    pub fn apply(&self, command: &mut Command, fault: Option<Fault<'_>>) {
        let library = std::env::current_exe().expect("this test").with_file_name("libshardc_faultyfs.so");
        assert!(library.exists(), "{} was not built", library.display());
        for file in [self.count_file(), self.trace_file()] {
            fs::write(file, []).expect("notes can be written");
        }
        command.env("LD_PRELOAD", library).env("FAULTY_FOLDER", &self.folder);
        command.env("FAULTY_COUNT", self.count_file()).env("FAULTY_TRACE", self.trace_file());
        let Some(Fault { at, forever, how }) = fault else { return };
        command.env("FAULTY_AT", at.to_string()).env("FAULTY_HOW", how);
        command.env("FAULTY_FOREVER", if forever { "1" } else { "0" });
    }

    /// The calls so far.
    pub fn count(&self) -> u64 {
        let bytes = fs::read(self.count_file()).expect("the counter can be read");
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }

    /// A line for each call so far: number, name and path.
    pub fn trace(&self) -> Vec<String> {
        let text = fs::read_to_string(self.trace_file()).expect("the trace can be read");
        text.lines().map(str::to_string).collect()
    }

    fn count_file(&self) -> PathBuf {
        self.notes.join("faulty.count")
    }

    fn trace_file(&self) -> PathBuf {
        self.notes.join("faulty.trace")
    }
}
