//! The order, row by row: each task finds what its lemma needs at its micro-batch, and leaves what
//! its lemma says; what a message sends is there, and what it brings is there afterwards, on the
//! word of its other end ([`super::meeting`]). Accumulators count, so micro-batches come in their
//! order, each once.
//!
//! Only places that somebody reads are kept, each with its slots, and what a task does to them is
//! worked out once; so a row costs as much as its task has needs and leaves, and only this grows
//! with the number of micro-batches.

use super::bindings::Bindings;
use super::contents::{Content, Item};
use super::lemma::Lemma;
use super::memory::{Entry, Place, Slots, bytes_of};
use super::subject::Subject;
use super::violation::{self, Violation};
use crate::graph::ValueId;
use crate::plan::{BufferId, Message, Row, Step, View};
use std::collections::HashMap;
use std::ops::Range;

/// The lemmas of a task: with any micro-batch, and with the last.
pub struct Lemmas {
    /// With any but the last.
    pub each: Lemma,
    /// With the last, where it then has other steps.
    pub last: Option<Lemma>,
}

impl Lemmas {
    fn at(&self, is_last: bool) -> &Lemma {
        self.last.as_ref().filter(|_| is_last).unwrap_or(&self.each)
    }
}

/// Runs one step of training; `lemmas` are of all tasks in their order. Returns how many operands
/// it reads and writes.
///
/// # Errors
/// The first row that does not find what its task needs, or the first result that is not there at
/// the end.
pub fn run(
    subject: &Subject<'_>,
    bindings: &Bindings,
    lemmas: &[Lemmas],
    messages: &[Item],
    slots: &Slots,
) -> Result<u64, Violation> {
    let steps = violation::numbered(subject.program).map(|(_, _, step)| step).collect();
    let mut run = Run { subject, lemmas, messages, slots, steps, index: HashMap::new(), places: vec![], held: vec![] };
    let lasting: Vec<End> = bindings.lasting(subject.program).map(|(buffer, value)| run.end(buffer, value)).collect();
    let needs = |run: &mut Run<'_>, lemma: &Lemma| lemma.needs.iter().map(|(place, ..)| run.place(*place)).collect();
    let mut asked: Vec<[Vec<usize>; 2]> = vec![];
    for task in lemmas {
        let last = task.last.as_ref().map_or(vec![], |lemma| needs(&mut run, lemma));
        asked.push([needs(&mut run, &task.each), last]);
    }
    let views = subject.program.messages.iter().map(|message| Place::of(slots, &bytes_of(subject.program, &message.view, 0)));
    let ends: Vec<usize> = views.map(|place| run.place(place)).collect();
    let brought: Vec<Effect> = (0..ends.len()).map(|message| run.brought(message, ends[message])).collect();
    let effects: Vec<[Effect; 2]> = lemmas.iter().map(|task| [false, true].map(|last| run.effect(task.at(last)))).collect();
    run.host_fills(bindings);
    let mut accesses = 0;
    for row in &subject.program.order {
        match row {
            Row::Run { task, time } => {
                let (task, time) = (*task as usize, *time);
                let is_last = lemmas[task].last.is_some() && subject.program.is_last(time);
                let lemma = lemmas[task].at(is_last);
                run.finds(lemma, &asked[task][usize::from(is_last)], time)?;
                run.does(&effects[task][usize::from(is_last)], Writer::Task(task, is_last), time);
                accesses += lemma.accesses;
            }
            Row::Exchange(messages) => {
                run.check_apart(messages)?;
                for (message, time) in messages {
                    run.sends(*message as usize, ends[*message as usize], *time)?;
                }
                for (message, time) in messages {
                    run.does(&brought[*message as usize], Writer::Message(*message as usize), *time);
                }
                accesses += messages.len() as u64;
            }
        }
    }
    lasting.iter().try_for_each(|end| run.host_reads(end))?;
    Ok(accesses)
}

/// A value that the host finds after a step, with its place.
struct End {
    buffer: BufferId,
    value: ValueId,
    place: usize,
}

/// The content of a place.
#[derive(Clone, Copy)]
enum Held {
    /// Nothing yet.
    Nothing,
    /// That, by a step or by the host.
    Whole(Content, Option<usize>),
    /// That has written something else into it at that micro-batch.
    Other(Writer, u64),
}

/// Who writes to a place.
#[derive(Clone, Copy)]
enum Writer {
    /// A task, run with the last micro-batch or another.
    Task(usize, bool),
    /// A message.
    Message(usize),
}

/// The effect of a task, or of a message, on places that somebody reads.
struct Effect {
    leaves: Vec<(usize, Item, Option<usize>)>,
    spoils: Vec<usize>,
}

struct Run<'s> {
    subject: &'s Subject<'s>,
    lemmas: &'s [Lemmas],
    /// The content of each message.
    messages: &'s [Item],
    slots: &'s Slots,
    steps: Vec<&'s Step>,
    index: HashMap<Place, usize>,
    /// Every place that somebody reads, and where its slots begin in `held`.
    places: Vec<(Place, usize)>,
    held: Vec<Held>,
}

impl Run<'_> {
    /// The number of a place.
    fn place(&mut self, place: Place) -> usize {
        *self.index.entry(place).or_insert_with(|| {
            self.places.push((place, self.held.len()));
            self.held.resize(self.held.len() + place.slots() as usize, Held::Nothing);
            self.places.len() - 1
        })
    }

    fn at(&self, place: usize, time: u64) -> usize {
        let (place, first) = self.places[place];
        first + (time % place.slots()) as usize
    }

    fn range(&self, buffer: BufferId, value: ValueId) -> Place {
        let view = View { buffer, offset: 0, bytes: self.subject.size_of(value).1 };
        Place::of(self.slots, &bytes_of(self.subject.program, &view, 0))
    }

    fn end(&mut self, buffer: BufferId, value: ValueId) -> End {
        let place = self.range(buffer, value);
        End { buffer, value, place: self.place(place) }
    }

    fn effect(&self, lemma: &Lemma) -> Effect {
        let whole = lemma.leaves.iter().filter(|(place, entry)| entry.start == place.start);
        let leaves: Vec<(usize, Item, Option<usize>)> =
            whole.filter_map(|(place, entry)| Some((*self.index.get(place)?, entry.content, entry.step))).collect();
        let mut kept = vec![false; self.places.len()];
        leaves.iter().for_each(|(place, ..)| kept[*place] = true);
        let written = |place: &Place| !place.is_empty() && lemma.overlapping(place).is_some();
        let spoils = (0..kept.len()).filter(|p| !kept[*p] && written(&self.places[*p].0)).collect();
        Effect { leaves, spoils }
    }

    /// The effect of a message that is received; none of one that is sent.
    fn brought(&self, message: usize, at: usize) -> Effect {
        if self.subject.program.messages[message].sends {
            return Effect { leaves: vec![], spoils: vec![] };
        }
        let (own, _) = self.places[at];
        let touched = |place: &usize| {
            let (place, _) = self.places[*place];
            place.start < own.end && own.start < place.end
        };
        let spoils = (0..self.places.len()).filter(|place| *place != at).filter(touched).collect();
        let number = violation::number_of_message(self.subject.program, message);
        Effect { leaves: vec![(at, self.messages[message], Some(number))], spoils }
    }

    /// The messages of a row begin together: what one brings is not written over what another sends
    /// or brings.
    fn check_apart(&self, messages: &[(u32, u64)]) -> Result<(), Violation> {
        let program = self.subject.program;
        let end = |(message, time): &(u32, u64)| {
            let message = &program.messages[*message as usize];
            (message, bytes_of(program, &message.view, *time))
        };
        let ends: Vec<_> = messages.iter().map(end).collect();
        for (i, (a, of_a)) in ends.iter().enumerate() {
            let meets =
                |(b, of_b): &&(&Message, Range<u64>)| !(a.sends && b.sends) && of_a.start < of_b.end && of_b.start < of_a.end;
            if let Some((b, _)) = ends[..i].iter().find(meets) {
                let message = format!("messages `{}` and `{}` begin together and share bytes", b.value, a.value);
                return Err(Violation { spec_line: a.provenance.spec_line, ..Violation::of(message) });
            }
        }
        Ok(())
    }

    /// What a message sends is there.
    fn sends(&self, number: usize, place: usize, time: u64) -> Result<(), Violation> {
        let message = &self.subject.program.messages[number];
        let content = self.messages[number].at(self.subject, time);
        match self.holds(place, content, time) {
            Err(found) if message.sends => {
                let (why, ranks) = violation::in_place_of(self.subject, content, found);
                let words = format!("message `{}` must send {}, {why}", message.value, content.text(self.subject));
                let spec_line = message.provenance.spec_line;
                Err(Violation { spec_line, ..Violation::of(words) }.between(ranks))
            }
            _ => Ok(()),
        }
    }

    /// Before a step the host has filled states, inputs, constants and scalars.
    fn host_fills(&mut self, bindings: &Bindings) {
        for (i, value) in bindings.filled.iter().enumerate() {
            let Some(value) = *value else { continue };
            let buffer = BufferId(i as u32);
            let Some(place) = self.index.get(&self.range(buffer, value)).copied() else { continue };
            for slot in 0..self.subject.program.buffers[i].slots {
                let at = self.at(place, slot);
                self.held[at] = Held::Whole(Item::Value(value).at(self.subject, slot), None);
            }
        }
    }

    fn finds(&self, lemma: &Lemma, asked: &[usize], time: u64) -> Result<(), Violation> {
        for ((_, item, number), place) in lemma.needs.iter().zip(asked) {
            let content = item.at(self.subject, time);
            if let Err(found) = self.holds(*place, content, time) {
                return Err(violation::missing(self.subject, *number, self.steps[*number], content, found));
            }
        }
        Ok(())
    }

    fn holds(&self, place: usize, content: Content, time: u64) -> Result<(), Option<Entry<Content>>> {
        let (range, _) = self.places[place];
        let entry = |content, step| Entry { end: range.end, start: range.start, content, step };
        match self.held[self.at(place, time)] {
            _ if range.is_empty() => Ok(()),
            Held::Whole(found, _) if found == content => Ok(()),
            Held::Whole(found, step) => Err(Some(entry(found, step))),
            Held::Other(Writer::Task(task, is_last), then) => {
                let found = self.lemmas[task].at(is_last).overlapping(&range);
                Err(found.map(|found| entry(found.content.at(self.subject, then), found.step)))
            }
            Held::Other(Writer::Message(message), then) => {
                let number = violation::number_of_message(self.subject.program, message);
                Err(Some(entry(self.messages[message].at(self.subject, then), Some(number))))
            }
            Held::Nothing => Err(None),
        }
    }

    fn does(&mut self, effect: &Effect, writer: Writer, time: u64) {
        for place in &effect.spoils {
            let at = self.at(*place, time);
            self.held[at] = Held::Other(writer, time);
        }
        for (place, item, step) in &effect.leaves {
            let at = self.at(*place, time);
            self.held[at] = Held::Whole(item.at(self.subject, time), *step);
        }
    }

    /// After a step the host reads gradients and outputs; states hold what they have become, and
    /// constants stay.
    fn host_reads(&self, end: &End) -> Result<(), Violation> {
        let End { buffer, value, place } = *end;
        let buffer = &self.subject.program.buffers[buffer.index()];
        for slot in 0..buffer.slots {
            let content = Item::Value(value).at(self.subject, slot);
            if let Err(found) = self.holds(place, content, slot) {
                let (why, ranks) = violation::in_place_of(self.subject, content, found);
                let (name, needed) = (&buffer.name, content.text(self.subject));
                let message = format!("at the end of a step `{name}` must hold {needed}, {why}");
                let steps = found.and_then(|entry| entry.step).into_iter().collect();
                let spec_line = self.subject.line_of(value);
                return Err(Violation { message, steps, ranks, spec_line });
            }
        }
        Ok(())
    }
}
