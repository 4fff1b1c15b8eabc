//! Why a command did not do what was asked, and the exit code that says so.

use crate::error::Error;
use shardc_ir::diagnostic::Diagnostics;
use std::io;

/// Why a command failed. The kinds never mix.
#[derive(Debug)]
pub enum Failure {
    /// The user's files are wrong: exit code 1.
    User(Diagnostics),
    /// The comparison that was asked for fails; everything is said already: exit code 1.
    Disproved,
    /// The command line is wrong: exit code 2.
    Usage(String),
    /// The machine failed: exit code 3.
    Machine(String),
    /// A signal of that number asked for the end; what was done is said already: exit code 128 and
    /// the number, of Ctrl-C 130.
    Interrupted(i32),
    /// A rank that is a process of its own ended with that exit code; what it said is said already.
    Rank(u8),
}

impl Failure {
    /// As [`Error::io`].
    pub fn io(what: impl Into<String>, error: &io::Error) -> Failure {
        Error::io(what, error).into()
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::User(_) | Failure::Disproved => 1,
            Failure::Usage(_) => 2,
            Failure::Machine(_) => 3,
            Failure::Interrupted(signal) => 128 + *signal as u8,
            Failure::Rank(code) => *code,
        }
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        match error.into() {
            Error::User(diagnostics) => Failure::User(diagnostics),
            Error::Machine(why) => Failure::Machine(why),
        }
    }
}
