//! Counter-examples.

use super::contents::Content;
use super::memory::Entry;
use super::subject::Subject;
use crate::plan::{Program, Step};
use std::fmt;

/// A counter-example.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Violation {
    /// The error, with the numbers of the steps.
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
    let message = format!("step {number} `{}` {why}", step.text());
    Violation { message, steps: vec![number], ranks: None, spec_line: step.provenance.spec_line }
}

/// Step `number` does not find what it needs, but `found`.
pub fn missing(subject: &Subject<'_>, number: usize, step: &Step, needed: Content, found: Option<Entry<Content>>) -> Violation {
    let (why, ranks) = in_place_of(subject, needed, found);
    let mut violation = at(number, step, format_args!("needs {}, {why}", needed.text(subject)));
    violation.steps.extend(found.and_then(|entry| entry.step));
    violation.spec_line = violation.spec_line.or(subject.line_of(needed.value(subject)));
    violation.between(ranks)
}

/// The content found in place of `needed`, and two ranks to which that makes a difference.
pub fn in_place_of(subject: &Subject<'_>, needed: Content, found: Option<Entry<Content>>) -> (String, Option<(u64, u64)>) {
    let Some(entry) = found else { return ("which nothing has written".to_string(), None) };
    // The numbers of messages follow those of steps.
    let steps: usize = subject.program.tasks.iter().map(|task| task.steps.len()).sum();
    let who = match entry.step {
        Some(step) if step >= steps => format!("message `{}` has brought", subject.program.messages[step - steps].value),
        Some(step) => format!("step {step} has written"),
        None => "the host has filled".to_string(),
    };
    if entry.content == needed {
        return (format!("of which only a part is left of what {who}"), None);
    }
    let ranks = subject.apart(needed.value(subject), entry.content.value(subject));
    (format!("but its bytes hold {}, which {who}", entry.content.text(subject)), ranks)
}
