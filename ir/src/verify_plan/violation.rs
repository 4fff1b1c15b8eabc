//! Counter-examples.

use crate::plan::{Program, Step};
use std::fmt;

/// A counter-example.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Violation {
    /// What goes wrong, with the numbers of the steps.
    pub message: String,
    /// The steps, by their numbers in listings: the one that fails, then the one that it fails by.
    pub steps: Vec<usize>,
    /// Two ranks that come to disagree, where the fault is between ranks.
    pub ranks: Option<(u64, u64)>,
    /// The line of the spec that asked for the step, from 1.
    pub spec_line: Option<u32>,
}

impl Violation {
    /// A fault of the whole program.
    pub fn of(message: impl fmt::Display) -> Violation {
        Violation { message: message.to_string(), ..Violation::default() }
    }

    /// Between those ranks.
    pub fn between(mut self, ranks: Option<(u64, u64)>) -> Violation {
        self.ranks = ranks;
        self
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.ranks {
            Some((a, b)) => write!(f, " (seen between ranks {a} and {b})"),
            None => Ok(()),
        }
    }
}

/// All steps with their numbers in listings and the positions of their tasks.
pub fn numbered(program: &Program) -> impl Iterator<Item = (usize, usize, &Step)> {
    let steps = program.tasks.iter().enumerate().flat_map(|(t, task)| task.steps.iter().map(move |step| (t, step)));
    steps.enumerate().map(|(number, (task, step))| (number, task, step))
}

/// A violation by step `number`.
pub fn at(number: usize, step: &Step, why: impl fmt::Display) -> Violation {
    let message = format!("step {number} `{}` {why}", step.text);
    Violation { message, steps: vec![number], ranks: None, spec_line: step.provenance.spec_line }
}
