//! The names of what steps read and write, each of which stands for one thing.
//!
//! A name is that of a leaf (a parameter, an input, a constant, a number of the host), or of what
//! one step writes. Where several steps write the parts or the states of one value, all but the
//! last have a number behind it: `%g.1 = fill 0`, `%g = accumulate %g.1, %part`. What a step reads
//! follows from the bytes: it is what was last written there before the step runs for the first
//! time. What a message brings has a name of its own.

use crate::plan::{BufferKind, Program, View};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Where the content of an operand comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A buffer that no step has written before.
    Leaf(usize),
    /// A step by its number, and which of its results.
    Step(usize, usize),
}

/// The names of a program.
pub struct Names {
    /// For each buffer, the name of what it holds before any step.
    pub leaves: Vec<String>,
    /// For each step by its number, those of its results.
    pub results: Vec<Vec<String>>,
    /// For each step, where its operands come from.
    pub sources: Vec<Vec<Source>>,
}

impl Names {
    /// Of all steps of `program`.
    pub fn of(program: &Program) -> Names {
        let mut taken = HashSet::new();
        let leaf = |buffer: &crate::plan::Buffer| match buffer.kind {
            BufferKind::Scalar(scalar) => scalar.name().to_string(),
            _ => buffer.name.clone(),
        };
        let received = program.messages.iter().filter(|message| !message.sends).map(|message| message.view.buffer.index());
        let received: HashSet<usize> = received.collect();
        let is_filled = |kind: &BufferKind| {
            matches!(kind, BufferKind::State(_) | BufferKind::Input(_) | BufferKind::Constant(_) | BufferKind::Scalar(_))
        };
        let is_leaf = |(i, buffer): (usize, &crate::plan::Buffer)| is_filled(&buffer.kind) || received.contains(&i);
        let leaves = program.buffers.iter().enumerate().map(|(i, buffer)| match is_leaf((i, buffer)) {
            true => free(leaf(buffer), &mut taken),
            false => buffer.name.clone(),
        });
        let leaves = leaves.collect();
        let sources = sources(program);
        Names { leaves, results: results(program, taken), sources }
    }

    /// The name of an operand.
    pub fn name(&self, source: Source) -> &str {
        match source {
            Source::Leaf(buffer) => &self.leaves[buffer],
            Source::Step(number, result) => &self.results[number][result],
        }
    }
}

/// `name`, or `name.1` and so on where that is taken.
fn free(name: String, taken: &mut HashSet<String>) -> String {
    let mut found = name.clone();
    let mut number = 1;
    while !taken.insert(found.clone()) {
        found = format!("{name}.{number}");
        number += 1;
    }
    found
}

fn results(program: &Program, mut taken: HashSet<String>) -> Vec<Vec<String>> {
    let steps = || program.tasks.iter().flat_map(|task| &task.steps);
    let base =
        |result: Option<&String>, view: &View| result.unwrap_or_else(|| &program.buffers[view.buffer.index()].name).clone();
    let mut left: HashMap<String, usize> = HashMap::new();
    for step in steps() {
        for (i, view) in step.writes.iter().enumerate() {
            *left.entry(base(step.results.get(i), view)).or_default() += 1;
        }
    }
    let whole: HashMap<String, usize> = left.clone();
    // The last writer of a value has its name, whoever else would like it.
    let mut last: HashMap<String, String> = HashMap::new();
    let mut names: Vec<&String> = whole.keys().collect();
    names.sort();
    for name in names {
        last.insert(name.clone(), free(name.clone(), &mut taken));
    }
    let mut name = |base: String| {
        let more = left.get_mut(&base).map_or(0, |left| {
            *left -= 1;
            *left
        });
        match more {
            0 => last[&base].clone(),
            _ => free(format!("{base}.{}", whole[&base] - more), &mut taken),
        }
    };
    steps().map(|step| step.writes.iter().enumerate().map(|(i, view)| name(base(step.results.get(i), view))).collect()).collect()
}

/// What was written to a buffer, and still is there.
type Written = Vec<(Range<u64>, (usize, usize))>;

fn sources(program: &Program) -> Vec<Vec<Source>> {
    let firsts = program.first_steps();
    let mut sources: Vec<Option<Vec<Source>>> = vec![None; firsts[program.tasks.len()]];
    let mut written: Vec<Written> = vec![vec![]; program.buffers.len()];
    // Every step runs with the first micro-batch or with the last.
    for launch in program.launches().filter(|launch| launch.time == 0 || program.is_last(launch.time)) {
        let (number, step) = (firsts[launch.task] + launch.step, program.step(launch));
        let range = |view: &View| view.offset..view.offset.saturating_add(view.bytes.max(1));
        sources[number].get_or_insert_with(|| {
            let source = |view: &View| {
                let (buffer, range) = (view.buffer.index(), range(view));
                let found = written[buffer].iter().rev().find(|(other, _)| other.start < range.end && range.start < other.end);
                found.map_or(Source::Leaf(buffer), |(_, (step, result))| Source::Step(*step, *result))
            };
            step.reads.iter().map(source).collect()
        });
        for (result, view) in step.writes.iter().enumerate() {
            let range = range(view);
            let there = &mut written[view.buffer.index()];
            there.retain(|(other, _)| other.start < range.start || range.end < other.end);
            there.push((range, (number, result)));
        }
    }
    sources.into_iter().map(Option::unwrap_or_default).collect()
}
