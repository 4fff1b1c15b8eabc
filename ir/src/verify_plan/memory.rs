//! The arena without its numbers: which content each byte holds.

use super::violation::{self, Violation};
use crate::plan::overlaps::{Overlap, overlap};
use crate::plan::{Buffer, BufferKind, Program, Step, View, aligned};
use crate::reason;
use crate::reason::Reason;
use std::collections::BTreeMap;
use std::ops::Range;

/// Checks every view of every step by itself: it lies in its buffer at a whole element, a step
/// writes no byte twice, and what it writes over what it reads it writes element by element in
/// place. Slots of micro-batches share their bytes with nothing, and what the host fills with
/// nothing else that it fills.
///
/// # Errors
/// The first view that is wrong.
pub fn check_views(program: &Program) -> Result<(), Violation> {
    for (number, _, step) in violation::numbered(program) {
        for view in step.reads.iter().chain(&step.writes) {
            check_view(program, view).map_err(|why| violation::at(number, step, why))?;
        }
        own_operands(number, step, program)?;
    }
    check_apart(program, |buffer| buffer.slots > 1, |_| true, "one of them has a slot for each micro-batch")?;
    check_apart(program, is_filled, is_filled, "the host fills both")
}

/// A view lies in its buffer, and begins at a whole element.
///
/// # Errors
/// If it does not.
pub fn check_view(program: &Program, view: &View) -> Result<(), Reason> {
    let slot = &program.buffers[view.buffer.index()];
    if view.offset.checked_add(view.bytes).is_none_or(|end| end > slot.slot_bytes) {
        return Err(reason!("leaves its buffer `{}`", slot.name));
    }
    match view.offset.is_multiple_of(slot.dtype.bytes()) {
        true => Ok(()),
        false => Err(reason!("begins inside an element of `{}`", slot.name)),
    }
}

/// Slots have room for their elements and no more, and the arena for its buffers.
///
/// # Errors
/// The first that is larger or smaller.
pub fn check_sizes(program: &Program) -> Result<(), Violation> {
    for buffer in &program.buffers {
        let needed = aligned(buffer.local.iter().product::<u64>() * buffer.dtype.bytes());
        if buffer.slot_bytes != needed {
            let (name, own) = (&buffer.name, buffer.slot_bytes);
            return Err(Violation::of(format!("a slot of `{name}` has {own} bytes for {needed}")));
        }
    }
    let needed = aligned(program.buffers.iter().map(|buffer| span(buffer).end).max().unwrap_or_default());
    match program.arena_bytes == needed {
        true => Ok(()),
        false => Err(Violation::of(format!("the arena has {} bytes, its buffers need {needed}", program.arena_bytes))),
    }
}

fn is_filled(buffer: &Buffer) -> bool {
    use BufferKind::{Constant, Input, Scalar, State};
    matches!(buffer.kind, State(_) | Input(_) | Constant(_) | Scalar(_))
}

/// All bytes of a buffer.
fn span(buffer: &Buffer) -> Range<u64> {
    buffer.offset..buffer.offset + buffer.slot_bytes * buffer.slots
}

/// No buffer of the first kind shares bytes with one of the second.
fn check_apart(
    program: &Program,
    first: impl Fn(&Buffer) -> bool,
    second: impl Fn(&Buffer) -> bool,
    why: &str,
) -> Result<(), Violation> {
    let mut buffers: Vec<&Buffer> = program.buffers.iter().filter(|b| (first(b) || second(b)) && !span(b).is_empty()).collect();
    buffers.sort_by_key(|buffer| (buffer.offset, span(buffer).end));
    // Of each kind the buffer that reaches farthest so far.
    let (mut of_first, mut of_second): (Option<&Buffer>, Option<&Buffer>) = (None, None);
    for buffer in buffers {
        let against = [of_second.filter(|_| first(buffer)), of_first.filter(|_| second(buffer))];
        if let Some(other) = against.into_iter().flatten().find(|other| span(other).end > buffer.offset) {
            return Err(Violation::of(format!("`{}` and `{}` share bytes, and {why}", other.name, buffer.name)));
        }
        let farther = |other: Option<&Buffer>| other.is_none_or(|other| span(other).end < span(buffer).end);
        if first(buffer) && farther(of_first) {
            of_first = Some(buffer);
        }
        if second(buffer) && farther(of_second) {
            of_second = Some(buffer);
        }
    }
    Ok(())
}

fn own_operands(number: usize, step: &Step, program: &Program) -> Result<(), Violation> {
    let bytes = |views: &[View]| views.iter().map(|view| bytes_of(program, view, 0)).collect::<Vec<_>>();
    let (reads, writes) = (bytes(&step.reads), bytes(&step.writes));
    let name = |view: &View| &program.buffers[view.buffer.index()].name;
    let why = match overlap(&reads, &writes, |r, w| reads[r] == writes[w] && step.kernel.in_place(r, w)) {
        None => return Ok(()),
        Some(Overlap::Writes(a, b)) => {
            format!("writes `{}` and `{}` to the same bytes", name(&step.writes[a]), name(&step.writes[b]))
        }
        Some(Overlap::ReadAndWrite(r, w)) => {
            format!("writes `{}` over bytes of `{}` that it still reads", name(&step.writes[w]), name(&step.reads[r]))
        }
    };
    Err(violation::at(number, step, why))
}

/// The bytes of a view at micro-batch `time`.
pub fn bytes_of(program: &Program, view: &View, time: u64) -> Range<u64> {
    let buffer = &program.buffers[view.buffer.index()];
    let start = buffer.offset + time % buffer.slots * buffer.slot_bytes + view.offset;
    start..start + view.bytes
}

/// The bytes of some view at any micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The first byte at micro-batch 0.
    pub start: u64,
    /// The byte after the last, at micro-batch 0.
    pub end: u64,
    /// The first byte of the slots, where there are several.
    buffer: Option<u64>,
    slots: u64,
}

impl Place {
    /// The bytes of `range` in one of `slots`, as [`slots`] finds them.
    pub fn of(slots: &Slots, range: &Range<u64>) -> Place {
        let around = slots.range(..=range.start).next_back().filter(|(_, slot)| slot.end > range.start);
        let (buffer, slots) = around.map_or((None, 1), |(start, slot)| (Some(*start), slot.count));
        Place { start: range.start, end: range.end, buffer, slots }
    }

    /// Takes in `next` if that goes on where it ends.
    pub fn join(&mut self, next: &Place) -> bool {
        let goes_on = self.end == next.start && self.buffer == next.buffer;
        if goes_on {
            self.end = next.end;
        }
        goes_on
    }

    /// The first byte of its buffer, if that has several slots, which share bytes with nothing.
    pub fn buffer(&self) -> Option<u64> {
        self.buffer
    }

    /// How many slots it has.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }
}

/// The first slot of a buffer with several.
pub struct Slot {
    /// The byte after it.
    pub end: u64,
    /// How many slots follow one another.
    pub count: u64,
}

/// The first slots of all buffers with several, by their first byte.
pub type Slots = BTreeMap<u64, Slot>;

/// The first slots of a program's buffers.
pub fn slots(program: &Program) -> Slots {
    let several = program.buffers.iter().filter(|buffer| buffer.slots > 1 && buffer.slot_bytes > 0);
    let slot = |b: &Buffer| (b.offset, Slot { end: b.offset + b.slot_bytes, count: b.slots });
    several.map(slot).collect()
}

/// The content of a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<C> {
    /// The byte after the last.
    pub end: u64,
    /// The first byte of the whole content: a later write may have left an end of it.
    pub start: u64,
    /// The content.
    pub content: C,
    /// The step that wrote it; `None` for the host.
    pub step: Option<usize>,
}

/// The contents of the arena: disjoint ranges by their first byte.
#[derive(Debug, Clone)]
pub struct Memory<C> {
    /// The ranges that something was written to.
    pub ranges: BTreeMap<u64, Entry<C>>,
}

impl<C> Default for Memory<C> {
    fn default() -> Self {
        Memory { ranges: BTreeMap::new() }
    }
}

impl<C: Copy + PartialEq> Memory<C> {
    /// Whether `range` holds `content`, whole; else what is there instead: nothing, or the first
    /// entry that is not it.
    pub fn holds(&self, range: &Range<u64>, content: C) -> Result<(), Option<Entry<C>>> {
        if range.is_empty() {
            return Ok(());
        }
        match self.ranges.get(&range.start) {
            Some(found) if (found.content, found.start, found.end) == (content, range.start, range.end) => Ok(()),
            _ => Err(self.first_other(range, content)),
        }
    }

    /// Everything that holds a byte of `range`, in the order of bytes.
    pub fn touching(&self, range: &Range<u64>) -> impl Iterator<Item = Entry<C>> + '_ {
        let (start, is_empty) = (range.start, range.is_empty());
        let before = self.ranges.range(..start).next_back().filter(|(_, entry)| entry.end > start);
        let inside = self.ranges.range(start..range.end.max(start));
        before.into_iter().chain(inside).filter(move |_| !is_empty).map(|(_, entry)| *entry)
    }

    /// For the message: what is in the way of `content`.
    fn first_other(&self, range: &Range<u64>, content: C) -> Option<Entry<C>> {
        let all: Vec<Entry<C>> = self.touching(range).collect();
        all.iter().find(|entry| entry.content != content || entry.start != range.start).or(all.first()).copied()
    }

    /// Puts `content` into `range`.
    pub fn write(&mut self, range: &Range<u64>, content: C, step: Option<usize>) {
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
