//! A task for any micro-batch: its steps run once over an arena of which nothing is known, so time
//! grows with the steps alone.
//!
//! Bytes that the steps read and none of them has written are what the task *needs*; bytes that one
//! has written must hold what the step that reads them needs. The contents of the bytes at the end
//! are what the task *leaves*. All accesses of a task are of one micro-batch, and slots share their
//! bytes with nothing ([`super::memory`]); so one slot of each buffer stands for that
//! micro-batch's.

use super::carried::Effect;
use super::contents::Item;
use super::memory::{Entry, Memory, Place, Slots, bytes_of};
use super::subject::Subject;
use super::violation::{self, Violation};
use crate::plan::{Step, View};
use std::collections::HashSet;
use std::ops::Range;

/// The needs of a task and the contents that it leaves, whatever the micro-batch.
pub struct Lemma {
    /// The contents that must be there, with the step that needs each.
    pub needs: Vec<(Place, Item, usize)>,
    /// The contents that are there afterwards, byte for byte of all that was written, in the order
    /// of bytes.
    pub leaves: Vec<(Place, Entry<Item>)>,
    /// How many operands its steps read and write.
    pub accesses: u64,
}

impl Lemma {
    /// The entry that the task has written into some bytes of `place`.
    pub fn overlapping(&self, place: &Place) -> Option<&Entry<Item>> {
        let before = self.leaves.partition_point(|(written, _)| written.start < place.end);
        let (written, entry) = self.leaves[..before].last()?;
        (written.end > place.start).then_some(entry)
    }
}

/// Runs `steps`, each with its number in listings; `last` says that the micro-batch is the last
/// one, with which accumulators are complete.
///
/// # Errors
/// The first step that does not find what it needs in what others of the task have written.
pub fn of<'s>(
    subject: &Subject<'_>,
    effects: &[Vec<Effect>],
    steps: impl Iterator<Item = (usize, &'s Step)>,
    slots: &Slots,
    last: bool,
) -> Result<Lemma, Violation> {
    let mut run = Run { subject, last, memory: Memory::default(), needs: vec![], known: HashSet::new(), accesses: 0 };
    for (number, step) in steps {
        run.step(number, step, &effects[number])?;
    }
    let place = |range: Range<u64>| Place::of(slots, &range);
    let leaves = run.memory.ranges.iter().map(|(start, entry)| (place(*start..entry.end), *entry)).collect();
    let needs = run.needs.into_iter().map(|(range, item, number)| (place(range), item, number)).collect();
    Ok(Lemma { needs, leaves, accesses: run.accesses })
}

struct Run<'s> {
    subject: &'s Subject<'s>,
    last: bool,
    memory: Memory<Item>,
    needs: Vec<(Range<u64>, Item, usize)>,
    /// The needs once more, to find them.
    known: HashSet<(Range<u64>, Item)>,
    accesses: u64,
}

impl Run<'_> {
    fn step(&mut self, number: usize, step: &Step, effects: &[Effect]) -> Result<(), Violation> {
        let mut failed = None;
        for effect in effects {
            let mut needs = vec![];
            let missing = effect.needs.iter().find_map(|(view, item)| {
                let found = self.lacks(view, self.complete(*item), &mut needs)?;
                Some((*item, found))
            });
            let Some(missing) = missing else {
                self.accesses += (effect.needs.len() + effect.gives.len()) as u64;
                for (range, item) in needs {
                    if self.known.insert((range.clone(), item)) {
                        self.needs.push((range, item, number));
                    }
                }
                for (view, item) in &effect.gives {
                    self.memory.write(&bytes_of(self.subject.program, view, 0), self.complete(*item), Some(number));
                }
                return Ok(());
            };
            failed.get_or_insert(missing);
        }
        let Some((item, found)) = failed else { return Err(violation::at(number, step, "does nothing that the graph has")) };
        let time = if self.last { self.subject.microbatches() - 1 } else { 0 };
        let at = |item: Item| item.at(self.subject, time);
        let entry = Entry { end: found.end, start: found.start, content: at(found.content), step: found.step };
        Err(violation::missing(self.subject, number, step, at(item), Some(entry)))
    }

    /// The entry that is there in place of `item`, if `item` cannot be there; where no step of the
    /// task has written, it becomes a need.
    fn lacks(&self, view: &View, item: Item, needs: &mut Vec<(Range<u64>, Item)>) -> Option<Entry<Item>> {
        let range = bytes_of(self.subject.program, view, 0);
        match self.memory.holds(&range, item) {
            Ok(()) => None,
            Err(Some(found)) => Some(found),
            Err(None) => {
                needs.push((range, item));
                None
            }
        }
    }

    /// With the last micro-batch an accumulator is its value.
    fn complete(&self, item: Item) -> Item {
        match item {
            Item::After(value) if self.last => Item::Value(value),
            item => item,
        }
    }
}
