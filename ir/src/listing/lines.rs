//! Which steps of a task are told in one line.

use super::report::{StepReport, TaskReport, is_part};
use crate::plan::Stream;

/// Neighbouring steps of a task in one line of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// The first of them, by position in the task.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// What they have in common.
    pub kind: Kind,
}

/// Why steps are in one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It is one step.
    One,
    /// The second adds what the first has computed to an accumulator.
    Accumulated,
    /// All write parts of one value.
    Parts,
    /// All take a part of one value.
    Slices,
    /// All do the same with different values: fills, terms of a norm, updates.
    Alike,
}

/// Fewer steps that do the same stand by themselves.
const FEW: usize = 3;

/// A line for each step.
pub fn single(task: &TaskReport<'_>) -> Vec<Line> {
    (0..task.steps.len()).map(|first| Line { first, count: 1, kind: Kind::One }).collect()
}

/// Lines of one or more steps.
pub fn grouped(task: &TaskReport<'_>) -> Vec<Line> {
    let mut lines = vec![];
    let mut first = 0;
    while let Some(step) = task.steps.get(first) {
        let after = &task.steps[first + 1..];
        let run = |same: fn(&StepReport<'_>, &StepReport<'_>) -> bool| {
            1 + after.iter().take_while(|next| computes(step) && computes(next) && same(step, next)).count()
        };
        let (parts, slices, alike) = (run(are_parts), run(are_slices), run(are_alike));
        let (count, kind) = if after.first().is_some_and(|next| accumulates(step, next)) {
            (2, Kind::Accumulated)
        } else if parts > 1 {
            (parts, Kind::Parts)
        } else if slices > 1 {
            (slices, Kind::Slices)
        } else if alike >= FEW && !is_part(task.name) {
            (alike, Kind::Alike)
        } else {
            (1, Kind::One)
        };
        lines.push(Line { first, count, kind });
        first += count;
    }
    lines
}

fn computes(step: &StepReport<'_>) -> bool {
    step.stream == Stream::Main
}

/// The op without its attributes.
fn word<'s>(step: &StepReport<'s>) -> &'s str {
    step.op.split(' ').next().unwrap_or_default()
}

fn accumulates(step: &StepReport<'_>, next: &StepReport<'_>) -> bool {
    let [result] = &step.writes[..] else { return false };
    computes(step) && next.op.starts_with("accumulate") && next.reads.iter().any(|read| read.value == result.value)
}

fn are_parts(a: &StepReport<'_>, b: &StepReport<'_>) -> bool {
    let buffers = |step: &StepReport<'_>| step.writes.iter().map(|write| write.buffer).collect::<Vec<_>>();
    a.form == "move" && b.form == "move" && word(a) == word(b) && buffers(a) == buffers(b)
}

fn are_slices(a: &StepReport<'_>, b: &StepReport<'_>) -> bool {
    let read = |step: &StepReport<'_>| step.reads.first().map(|read| read.value.clone());
    a.form == "move" && b.form == "move" && word(a) == word(b) && read(a) == read(b)
}

fn are_alike(a: &StepReport<'_>, b: &StepReport<'_>) -> bool {
    (a.op, a.form, a.when) == (b.op, b.form, b.when)
}
