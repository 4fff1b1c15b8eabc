//! Why a job could not be done.
//!
//! The library prints nothing and ends no process: whoever calls it decides what becomes of an
//! error.
//!
//! ```
//! use shardc::{Error, Job};
//!
//! match Job::open("no-such-model.onnx", "no-such-job.shard") {
//!     Err(Error::User(diagnostics)) => {
//!         let first = &diagnostics[0];
//!         println!("{} at {:?}; help: {:?}", first.message, first.place, first.help);
//!     }
//!     Err(Error::Machine(why)) => panic!("the machine failed: {why}"),
//!     Ok(_) => panic!("there are no such files"),
//! }
//! ```

use shardc_executor::run::ExecutionError;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use std::{error, fmt, io};

/// Why something was not done. The kinds never mix.
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    /// What the user gave is wrong: a model, a spec, a plan, data, a checkpoint; at least one
    /// message, with place, cause and help.
    User(Diagnostics),
    /// The machine failed: a disk, memory, a rank.
    Machine(String),
}

impl Error {
    /// `error` while doing `what` (`cannot write PLAN/`): a user's mistake where the path or its
    /// rights are, else the machine's.
    pub fn io(what: impl Into<String>, error: &io::Error) -> Error {
        use io::ErrorKind::{AlreadyExists, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
        let message = format!("{}: {error}", what.into());
        match error.kind() {
            NotFound | PermissionDenied | NotADirectory | IsADirectory | AlreadyExists | ReadOnlyFilesystem => {
                Diagnostic::error(message).into()
            }
            _ => Error::Machine(message),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::User(diagnostics) => {
                let lines: Vec<String> = diagnostics.iter().map(|diagnostic| diagnostic.to_string()).collect();
                f.write_str(&lines.join("\n"))
            }
            Error::Machine(why) => write!(f, "failure of the machine: {why}"),
        }
    }
}

impl error::Error for Error {}

impl From<Diagnostics> for Error {
    fn from(diagnostics: Diagnostics) -> Error {
        Error::User(diagnostics)
    }
}

impl From<Diagnostic> for Error {
    fn from(diagnostic: Diagnostic) -> Error {
        Error::User(diagnostic.into())
    }
}

impl From<ExecutionError> for Error {
    fn from(error: ExecutionError) -> Error {
        if error.of_data {
            let help = "the model cannot take this data or these weights; `shardc data FILE` shows the range of each array";
            return Diagnostic::error(error.to_string()).help(help).into();
        }
        Error::Machine(error.to_string())
    }
}
