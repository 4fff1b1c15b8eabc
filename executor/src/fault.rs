//! Why a rank cannot go on: because of what it was given, or for a failure of its own.

use std::fmt;

/// What stops a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub message: String,
    /// Whether the data or the weights are wrong, and not the machine.
    pub of_data: bool,
}

impl Fault {
    /// Wrong data or weights.
    pub fn of_data(message: String) -> Fault {
        Fault { message, of_data: true }
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

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
