//! The arena without its numbers: which content each byte holds.

use super::contents::Content;
use super::violation::{self, Violation};
use crate::plan::{Program, Step, View};
use std::collections::BTreeMap;
use std::ops::Range;

/// Checks every view of every step by itself: it lies in its buffer, a step writes no byte twice,
/// and what it writes over what it reads it writes element by element in place. Slots of
/// micro-batches share their bytes with nothing.
///
/// # Errors
/// The first view that is wrong.
pub fn check_views(program: &Program) -> Result<(), Violation> {
    for (number, _, step) in violation::numbered(program) {
        for view in step.reads.iter().chain(&step.writes) {
            let slot = &program.buffers[view.buffer.index()];
            if view.offset.checked_add(view.bytes).is_none_or(|end| end > slot.slot_bytes) {
                return Err(violation::at(number, step, format_args!("leaves its buffer `{}`", slot.name)));
            }
        }
        own_operands(number, step, program)?;
    }
    let mut ranges: Vec<(u64, u64, usize)> =
        program.buffers.iter().enumerate().map(|(i, b)| (b.offset, b.offset + b.slot_bytes * b.slots, i)).collect();
    ranges.sort();
    /// The byte after a buffer, and its number.
    type Reach = Option<(u64, usize)>;
    // The buffer that reaches farthest so far, and the farthest of those with slots.
    let (mut any, mut slotted): (Reach, Reach) = (None, None);
    for (start, end, i) in ranges.into_iter().filter(|(start, end, _)| start < end) {
        let against = if program.buffers[i].slots > 1 { any } else { slotted };
        if let Some((_, other)) = against.filter(|(reach, _)| *reach > start) {
            let (a, b) = (&program.buffers[other].name, &program.buffers[i].name);
            return Err(Violation::of(format!("`{a}` and `{b}` share bytes, and one of them has a slot for each micro-batch")));
        }
        any = any.max(Some((end, i)));
        if program.buffers[i].slots > 1 {
            slotted = slotted.max(Some((end, i)));
        }
    }
    Ok(())
}

fn own_operands(number: usize, step: &Step, program: &Program) -> Result<(), Violation> {
    let name = |view: &View| &program.buffers[view.buffer.index()].name;
    for (w, write) in step.writes.iter().enumerate() {
        let place = bytes_of(program, write, 0);
        if let Some(other) = step.writes[..w].iter().find(|other| overlap(&place, &bytes_of(program, other, 0))) {
            let why = format!("writes `{}` and `{}` to the same bytes", name(other), name(write));
            return Err(violation::at(number, step, why));
        }
        for (r, read) in step.reads.iter().enumerate() {
            let from = bytes_of(program, read, 0);
            if overlap(&place, &from) && !(from == place && step.kernel.in_place(r, w)) {
                let why = format!("writes `{}` over bytes of `{}` that it still reads", name(write), name(read));
                return Err(violation::at(number, step, why));
            }
        }
    }
    Ok(())
}

/// The bytes of a view at micro-batch `time`.
pub fn bytes_of(program: &Program, view: &View, time: u64) -> Range<u64> {
    let buffer = &program.buffers[view.buffer.index()];
    let slot = if buffer.slots > 1 { time * buffer.slot_bytes } else { 0 };
    let start = buffer.offset + slot + view.offset;
    start..start + view.bytes
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end && !a.is_empty() && !b.is_empty()
}

/// What a range of bytes holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The byte after the last.
    pub end: u64,
    /// The first byte of the whole content: a later write may have left an end of it.
    pub start: u64,
    /// What.
    pub content: Content,
    /// The step that wrote it; `None` for the host.
    pub step: Option<usize>,
}

/// The contents of the arena: disjoint ranges by their first byte.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// The ranges that something was written to.
    pub ranges: BTreeMap<u64, Entry>,
}

impl Memory {
    /// Whether `range` holds `content`, whole; else what is there instead: nothing, or the first
    /// entry that is not it.
    pub fn holds(&self, range: &Range<u64>, content: Content) -> Result<(), Option<Entry>> {
        if range.is_empty() {
            return Ok(());
        }
        match self.ranges.get(&range.start) {
            Some(found) if (found.content, found.start, found.end) == (content, range.start, range.end) => Ok(()),
            _ => Err(self.first_other(range, content)),
        }
    }

    /// For the message: what is in the way of `content`.
    fn first_other(&self, range: &Range<u64>, content: Content) -> Option<Entry> {
        let at_start = self.ranges.range(..=range.start).next_back().map(|(_, entry)| *entry);
        let inside = self.ranges.range(range.clone()).map(|(_, entry)| *entry);
        let touching = at_start.into_iter().chain(inside).filter(|entry| entry.end > range.start);
        let all: Vec<Entry> = touching.collect();
        all.iter().find(|entry| entry.content != content || entry.start != range.start).or(all.first()).copied()
    }

    /// Puts `content` into `range`.
    pub fn write(&mut self, range: &Range<u64>, content: Content, step: Option<usize>) {
        if range.is_empty() {
            return;
        }
        let entry = Entry { end: range.end, start: range.start, content, step };
        if let Some(there) = self.ranges.get_mut(&range.start)
            && there.end == range.end
        {
            *there = entry;
            return;
        }
        self.split_at(range.start);
        self.split_at(range.end);
        let inside: Vec<u64> = self.ranges.range(range.clone()).map(|(start, _)| *start).collect();
        for start in inside {
            self.ranges.remove(&start);
        }
        self.ranges.insert(range.start, entry);
    }

    /// Cuts the range that holds `at` in two.
    fn split_at(&mut self, at: u64) {
        if let Some((_, entry)) = self.ranges.range_mut(..at).next_back()
            && entry.end > at
        {
            let rest = *entry;
            entry.end = at;
            self.ranges.insert(at, rest);
        }
    }
}
