//! Why something cannot be: the error of everything that knows no place of its own in a file.
//!
//! A reason is a clause without a subject's name or a full stop, such as `the operand is i64`: who
//! knows the place adds it and makes a [`crate::diagnostic::Diagnostic`] of the two.

use std::error::Error;
use std::fmt;

/// Why something cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason(String);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Reason {}

impl From<String> for Reason {
    fn from(words: String) -> Reason {
        Reason(words)
    }
}

impl From<&str> for Reason {
    fn from(words: &str) -> Reason {
        Reason(words.to_string())
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> String {
        reason.0
    }
}

/// A [`Reason`] in words, as [`format!`] puts them together.
#[macro_export]
macro_rules! reason {
    ($($words:tt)*) => {
        $crate::reason::Reason::from(format!($($words)*))
    };
}
