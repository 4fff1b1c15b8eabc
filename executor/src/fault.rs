//! Why a rank cannot go on: because of what it was given, or for a failure of its own.

use shardc_ir::reason::Reason;
use std::fmt;

/// The reason why a rank stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The error, in words.
    pub message: String,
    /// Whether the data or the weights are wrong, and not the machine.
    pub of_data: bool,
}

impl Fault {
    /// Wrong data or weights.
    pub fn of_data(message: impl Into<String>) -> Fault {
        Fault { message: message.into(), of_data: true }
    }
}

impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault { message, of_data: false }
    }
}

impl From<&str> for Fault {
    fn from(message: &str) -> Fault {
        Fault::from(message.to_string())
    }
}

impl From<Reason> for Fault {
    fn from(reason: Reason) -> Fault {
        Fault::from(String::from(reason))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
