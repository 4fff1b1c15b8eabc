//! Why something cannot be: the error of everything that knows no place of its own in a file.
//!
//! A reason is a clause without a subject's name or a full stop, such as `the operand is i64`: who
//! knows the place adds it and makes a [`crate::diagnostic::Diagnostic`] of the two.

use std::error::Error;
use std::fmt::{self, Write};

/// The bytes that the words of a reason have at most, about: a list of a million numbers is never
/// put into words whole.
const MOST: usize = 1 << 14;

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

impl From<fmt::Arguments<'_>> for Reason {
    fn from(words: fmt::Arguments<'_>) -> Reason {
        let mut cut = Cut(String::new());
        // It stops where there is no more room, which the words show.
        if cut.write_fmt(words).is_err() {
            cut.0.push('…');
        }
        Reason(cut.0)
    }
}

/// Words, up to [`MOST`].
struct Cut(String);

impl Write for Cut {
    fn write_str(&mut self, words: &str) -> fmt::Result {
        let left = MOST.saturating_sub(self.0.len());
        self.0.push_str(&words[..words.floor_char_boundary(left)]);
        if words.len() <= left { Ok(()) } else { Err(fmt::Error) }
    }
}

/// A [`Reason`] in words, as [`format!`] puts them together, up to some thousand letters.
#[macro_export]
macro_rules! reason {
    ($($words:tt)*) => {
        $crate::reason::Reason::from(format_args!($($words)*))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_not_put_into_words_whole() {
        let short = reason!("{:?} is no order", [1, 0, 0]);
        assert_eq!(short.to_string(), "[1, 0, 0] is no order");
        for long in [reason!("{:?} is no order", vec![1; 1 << 20]), reason!("{} is no name", "é".repeat(MOST))] {
            let words = long.to_string();
            assert!(words.len() < MOST + 4 && words.len() > MOST - 4 && words.ends_with('…'), "{} bytes", words.len());
        }
    }
}
