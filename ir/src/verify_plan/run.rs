//! Runs one step of training over the contents of the arena instead of its numbers.
//!
//! **Loops.** The first two micro-batches are run. If the second has left what the first had left,
//! moved by one micro-batch or unchanged, all others do the same: a step that read at micro-batch 1
//! what was written in it, or what had moved, finds that again at each later one, and what has not
//! moved it can only have read where it does not depend on time, since at micro-batch 1 nothing but
//! moved contents are of micro-batch 1. Then the rest is not run, and time does not grow with the
//! number of micro-batches. Else all are run.
//!
//! **Slots.** Slots of micro-batches share their bytes with nothing, those of inputs are only ever
//! filled by the host, and slot `t` is only touched at micro-batch `t`; so what holds of the slots
//! 0 and 1 holds of all by the same induction.

use super::bindings::Bindings;
use super::carried::Effect;
use super::contents::{Content, Item};
use super::memory::{Entry, Memory, bytes_of};
use super::subject::Subject;
use super::violation::{self, Violation};
use crate::plan::{BufferId, Repeat, Step, View};
use std::ops::Range;

/// Runs one step; `effects` are of all steps in their order. Returns how many operands it reads and
/// writes, over all micro-batches.
///
/// # Errors
/// The first step that does not find what it needs, or the first result that is not there at the
/// end.
pub fn run(subject: &Subject<'_>, bindings: &Bindings, effects: &[Vec<Effect>]) -> Result<u64, Violation> {
    let run = |leap: bool| {
        let steps = violation::numbered(subject.program).map(|(_, _, step)| step).collect();
        let mut run = Run { subject, bindings, effects, steps, memory: Memory::default(), accesses: 0 };
        run.host_fills();
        if run.tasks(leap)? {
            run.host_reads(leap)?;
            return Ok(Some(run.accesses));
        }
        Ok(None)
    };
    match run(true)? {
        Some(accesses) => Ok(accesses),
        None => Ok(run(false)?.unwrap_or_default()),
    }
}

struct Run<'s> {
    subject: &'s Subject<'s>,
    bindings: &'s Bindings,
    effects: &'s [Vec<Effect>],
    steps: Vec<&'s Step>,
    memory: Memory,
    accesses: u64,
}

impl Run<'_> {
    /// Before a step the host has filled states, inputs, constants and scalars; slots are not kept
    /// one by one.
    fn host_fills(&mut self) {
        for (i, value) in self.bindings.filled.iter().enumerate() {
            let buffer = &self.subject.program.buffers[i];
            if let Some(value) = value.filter(|_| buffer.slots == 1) {
                let view = View { buffer: BufferId(i as u32), offset: 0, bytes: self.subject.size_of(value).1 };
                let content = Item::Value(value).at(self.subject, 0);
                self.memory.write(&bytes_of(self.subject.program, &view, 0), content, None);
            }
        }
    }

    /// Runs all tasks; with `leap` not those micro-batches that are like the second. False if they
    /// are not alike.
    fn tasks(&mut self, leap: bool) -> Result<bool, Violation> {
        let tasks = &self.subject.program.tasks;
        let mut t = 0;
        let mut first = 0;
        while t < tasks.len() {
            let end = t + tasks[t..].iter().take_while(|task| task.repeat == tasks[t].repeat).count();
            let count: usize = tasks[t..end].iter().map(|task| task.steps.len()).sum();
            let numbers = first..first + count;
            let times = self.subject.microbatches();
            if tasks[t].repeat == Repeat::Once {
                self.body(numbers, 0)?;
            } else if leap && times > 2 {
                self.body(numbers.clone(), 0)?;
                let (before, done) = (self.memory.clone(), self.accesses);
                self.body(numbers, 1)?;
                if !self.leap(&before) {
                    return Ok(false);
                }
                self.accesses += (self.accesses - done) * (times - 2);
            } else {
                (0..times).try_for_each(|time| self.body(numbers.clone(), time))?;
            }
            if tasks[t].repeat == Repeat::EachMicrobatch {
                let slots: Vec<Range<u64>> = self.slots().map(|(range, _)| range).collect();
                for (start, entry) in &mut self.memory.ranges {
                    if !slots.iter().any(|range| range.contains(start)) && times > 1 {
                        entry.content = entry.content.past();
                    }
                }
            }
            (t, first) = (end, first + count);
        }
        Ok(true)
    }

    fn body(&mut self, numbers: Range<usize>, time: u64) -> Result<(), Violation> {
        numbers.into_iter().try_for_each(|number| self.step(number, time))
    }

    /// Goes to after the last micro-batch if the second, now over, did what the first did.
    fn leap(&mut self, before: &Memory) -> bool {
        let times = self.subject.microbatches();
        let slots: Vec<(Range<u64>, u64)> = self.slots().collect();
        let in_slots = |start: &u64| slots.iter().find(|(range, _)| range.contains(start));
        let others = |memory: &Memory| -> Vec<(u64, Entry)> {
            memory.ranges.iter().filter(|(s, _)| in_slots(s).is_none()).map(|(s, e)| (*s, *e)).collect()
        };
        let (old, new) = (others(before), others(&self.memory));
        let alike = |((a_start, a), (b_start, b)): (&(u64, Entry), &(u64, Entry))| {
            let same = a.content == b.content;
            (a_start, a.end, a.start) == (b_start, b.end, b.start) && (same || a.content.moved(1, u64::MAX) == b.content)
        };
        if old.len() != new.len() || !old.iter().zip(&new).all(alike) {
            return false;
        }
        // Slot 1 must hold what slot 0 does, of the next micro-batch.
        for (range, bytes) in &slots {
            let at = |slot: u64| range.start + slot * bytes;
            let (first, second) = (self.memory.ranges.get(&at(0)), self.memory.ranges.get(&at(1)));
            if first.map(|e| e.content.moved(1, u64::MAX)) != second.map(|e| e.content) {
                return false;
            }
        }
        for ((start, a), (_, b)) in old.iter().zip(&new) {
            if a.content != b.content
                && let Some(entry) = self.memory.ranges.get_mut(start)
            {
                entry.content = entry.content.moved(times - 2, times);
            }
        }
        true
    }

    /// The bytes of each buffer that has a slot for each micro-batch, and those of one slot.
    fn slots(&self) -> impl Iterator<Item = (Range<u64>, u64)> + '_ {
        let buffers = self.subject.program.buffers.iter().filter(|b| b.slots > 1);
        buffers.map(|b| (b.offset..b.offset + b.slots * b.slot_bytes, b.slot_bytes))
    }

    fn step(&mut self, number: usize, time: u64) -> Result<(), Violation> {
        let mut failed = None;
        for effect in &self.effects[number] {
            let missing = effect.needs.iter().find_map(|(view, item)| Some((*item, self.lacks(view, *item, time)?)));
            let Some(missing) = missing else {
                self.accesses += (effect.needs.len() + effect.gives.len()) as u64;
                for (view, item) in &effect.gives {
                    let range = bytes_of(self.subject.program, view, time);
                    self.memory.write(&range, item.at(self.subject, time), Some(number));
                }
                return Ok(());
            };
            failed.get_or_insert(missing);
        }
        let step = self.steps[number];
        let Some((item, found)) = failed else { return Err(violation::at(number, step, "does nothing that the graph has")) };
        let content = item.at(self.subject, time);
        let (why, ranks) = self.why(content, found);
        let mut violation = violation::at(number, step, format_args!("needs {}, {why}", content.text(self.subject)));
        violation.steps.extend(found.and_then(|entry| entry.step));
        violation.spec_line = violation.spec_line.or(self.subject.line_of(content.value(self.subject)));
        Err(violation.between(ranks))
    }

    /// What is there in place of what a step needs, if it is not there.
    fn lacks(&self, view: &View, item: Item, time: u64) -> Option<Option<Entry>> {
        let content = item.at(self.subject, time);
        let buffer = &self.subject.program.buffers[view.buffer.index()];
        if let Some(value) = self.bindings.filled[view.buffer.index()].filter(|_| buffer.slots > 1) {
            let filled = Content::Value(value, Some(time));
            let entry = Entry { end: buffer.slot_bytes, start: view.offset, content: filled, step: None };
            return (content != filled || view.offset != 0).then_some(Some(entry));
        }
        self.memory.holds(&bytes_of(self.subject.program, view, time), content).err()
    }

    /// After a step the host reads gradients and outputs; states hold what they have become, and
    /// constants stay.
    fn host_reads(&self, leap: bool) -> Result<(), Violation> {
        let Subject { program, .. } = *self.subject;
        // Nothing shares the bytes of slots, and only the host fills those of constants.
        let kept = program.constants.iter().filter(|c| program.buffers[c.buffer.index()].slots == 1);
        let constants = kept.filter_map(|c| Some((c.buffer, self.bindings.filled[c.buffer.index()]?)));
        for (buffer, value) in self.bindings.results.iter().copied().chain(constants) {
            let slots = program.buffers[buffer.index()].slots;
            let view = View { buffer, offset: 0, bytes: self.subject.size_of(value).1 };
            for slot in 0..if leap { slots.min(2) } else { slots } {
                let content = Item::Value(value).at(self.subject, slot);
                if let Err(found) = self.memory.holds(&bytes_of(program, &view, slot), content) {
                    let (why, ranks) = self.why(content, found);
                    let (name, needed) = (&program.buffers[buffer.index()].name, content.text(self.subject));
                    let message = format!("at the end of a step `{name}` must hold {needed}, {why}");
                    let steps = found.and_then(|entry| entry.step).into_iter().collect();
                    let spec_line = self.subject.line_of(value);
                    return Err(Violation { message, steps, ranks, spec_line });
                }
            }
        }
        Ok(())
    }

    /// What is in place of `content`, and two ranks to which that makes a difference.
    fn why(&self, content: Content, found: Option<Entry>) -> (String, Option<(u64, u64)>) {
        let Some(entry) = found else { return ("which nothing has written".to_string(), None) };
        let who = match entry.step {
            Some(step) => format!("step {step} has written"),
            None => "the host has filled".to_string(),
        };
        if entry.content == content {
            return (format!("of which only a part is left of what {who}"), None);
        }
        let ranks = self.subject.apart(content.value(self.subject), entry.content.value(self.subject));
        (format!("but its bytes hold {}, which {who}", entry.content.text(self.subject)), ranks)
    }
}
