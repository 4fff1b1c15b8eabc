//! The order, row by row: each task finds what its lemma needs at its micro-batch, and leaves what
//! its lemma says; what a message sends is there, and what it brings is there afterwards, on the
//! word of its other end ([`super::meeting`]). Accumulators count, so micro-batches come in their
//! order, each once.
//!
//! Of a place that somebody reads, only the last write to any of its bytes is known ([`Latest`]):
//! the place holds what that write left there whole, or nothing whole. The ranges that a task
//! writes are worked out once; so a row costs as much as its task has needs and leaves, and only
//! this grows with the number of micro-batches.

use super::bindings::Bindings;
use super::contents::{Content, Item};
use super::effort;
use super::latest::{Latest, Leaves};
use super::lemma::Lemma;
use super::memory::{Entry, Place, Slots, bytes_of};
use super::subject::Subject;
use super::violation::{self, Violation};
use crate::graph::ValueId;
use crate::plan::{BufferId, Message, Row, Step, View};
use std::collections::HashMap;

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

    /// How many operands the steps read and write with any micro-batch, at most.
    pub fn accesses(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.accesses).max(self.each.accesses)
    }
}

/// Runs one step of training; `lemmas` are of all tasks in their order. Returns how many operands
/// it reads and writes.
///
/// # Errors
/// The first row that does not find what its task needs, or the first result that is not there at
/// the end; or that there is far more to look at than the graph asks for.
pub fn run(
    subject: &Subject<'_>,
    bindings: &Bindings,
    lemmas: &[Lemmas],
    messages: &[Item],
    slots: &Slots,
) -> Result<u64, Violation> {
    let steps = violation::numbered(subject.program).map(|(_, _, step)| step).collect();
    let mut run = Run {
        subject,
        lemmas,
        messages,
        slots,
        steps,
        index: HashMap::new(),
        places: vec![],
        leaves: vec![],
        latest: Latest::over(std::iter::empty()),
        effects: Effects::default(),
        filled: HashMap::new(),
        writers: vec![],
    };
    let lasting: Vec<End> = bindings.lasting(subject.program).map(|(buffer, value)| run.end(buffer, value)).collect();
    let needs = |run: &mut Run<'_>, lemma: &Lemma| lemma.needs.iter().map(|(place, ..)| run.place(*place)).collect();
    let mut asked: Vec<[Vec<usize>; 2]> = vec![];
    for task in lemmas {
        let last = task.last.as_ref().map_or(vec![], |lemma| needs(&mut run, lemma));
        asked.push([needs(&mut run, &task.each), last]);
    }
    let views = subject.program.messages.iter().map(|message| Place::of(slots, &bytes_of(subject.program, &message.view, 0)));
    let ends: Vec<usize> = views.map(|place| run.place(place)).collect();
    effort::check(subject, lemmas, run.places.iter().map(Place::slots).sum(), lasting.len())?;
    run.begins();
    run.effects = Effects {
        tasks: lemmas.iter().map(|task| [false, true].map(|last| run.effect(task.at(last)))).collect(),
        messages: (0..ends.len()).map(|message| run.brought(message, ends[message])).collect(),
    };
    run.host_fills(bindings);
    let mut accesses = 0;
    for row in &subject.program.order {
        match row {
            Row::Run { task, time } => {
                let (task, time) = (*task as usize, *time);
                let is_last = lemmas[task].last.is_some() && subject.program.is_last(time);
                let lemma = lemmas[task].at(is_last);
                run.finds(lemma, &asked[task][usize::from(is_last)], time)?;
                run.does(Writer::Task(task, is_last), time);
                accesses += lemma.accesses;
            }
            Row::Exchange(messages) => {
                run.check_apart(messages)?;
                for (message, time) in messages {
                    run.sends(*message as usize, ends[*message as usize], *time)?;
                }
                for (message, time) in messages {
                    run.does(Writer::Message(*message as usize), *time);
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

/// Who writes to a place.
#[derive(Clone, Copy)]
enum Writer {
    /// A task, run with the last micro-batch or another.
    Task(usize, bool),
    /// A message.
    Message(usize),
}

/// What a task, or a message, does to places that somebody reads.
struct Effect {
    /// What it leaves in them, whole, with the step that wrote it, by place.
    leaves: Vec<(usize, Item, Option<usize>)>,
    /// All that it writes to.
    writes: Vec<Leaves>,
}

/// The effects of all who write.
#[derive(Default)]
struct Effects {
    /// For each task those with any micro-batch but the last, and with the last.
    tasks: Vec<[Effect; 2]>,
    messages: Vec<Effect>,
}

impl Effects {
    fn of(&self, writer: Writer) -> &Effect {
        match writer {
            Writer::Task(task, is_last) => &self.tasks[task][usize::from(is_last)],
            Writer::Message(message) => &self.messages[message],
        }
    }
}

struct Run<'s> {
    subject: &'s Subject<'s>,
    lemmas: &'s [Lemmas],
    /// The content of each message.
    messages: &'s [Item],
    slots: &'s Slots,
    steps: Vec<&'s Step>,
    index: HashMap<Place, usize>,
    /// Every place that somebody reads.
    places: Vec<Place>,
    /// For each of them its leaves in `latest`.
    leaves: Vec<Leaves>,
    /// The number of the last write to each byte of them, from 1; 0 for the host.
    latest: Latest,
    effects: Effects,
    /// The places that the host fills before a step, with a value of each micro-batch.
    filled: HashMap<usize, ValueId>,
    /// For each write, who it was by, and its micro-batch.
    writers: Vec<(Writer, u64)>,
}

impl Run<'_> {
    /// The number of a place.
    fn place(&mut self, place: Place) -> usize {
        *self.index.entry(place).or_insert_with(|| {
            self.places.push(place);
            self.places.len() - 1
        })
    }

    /// All places are known, and nothing is in them.
    fn begins(&mut self) {
        self.latest = Latest::over(self.places.iter().copied());
        self.leaves = self.places.iter().map(|place| self.latest.leaves(place)).collect();
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
        let left = |(place, entry): &(Place, Entry<Item>)| Some((*self.index.get(place)?, entry.content, entry.step));
        let mut leaves: Vec<(usize, Item, Option<usize>)> = whole.filter_map(left).collect();
        leaves.sort_by_key(|(place, ..)| *place);
        let mut writes: Vec<Place> = vec![];
        for (place, _) in &lemma.leaves {
            if !writes.last_mut().is_some_and(|before| before.join(place)) {
                writes.push(*place);
            }
        }
        Effect { leaves, writes: writes.iter().map(|place| self.latest.leaves(place)).collect() }
    }

    /// The effect of a message that is received; none of one that is sent.
    fn brought(&self, message: usize, at: usize) -> Effect {
        if self.subject.program.messages[message].sends {
            return Effect { leaves: vec![], writes: vec![] };
        }
        let number = self.steps.len() + message;
        Effect { leaves: vec![(at, self.messages[message], Some(number))], writes: vec![self.leaves[at]] }
    }

    /// The messages of a row begin together: what one brings is not written over what another sends
    /// or brings.
    fn check_apart(&self, messages: &[(u32, u64)]) -> Result<(), Violation> {
        let program = self.subject.program;
        let end = |(message, time): &(u32, u64)| {
            let message = &program.messages[*message as usize];
            (message, bytes_of(program, &message.view, *time))
        };
        let mut ends: Vec<_> = messages.iter().map(end).filter(|(_, bytes)| !bytes.is_empty()).collect();
        ends.sort_by_key(|(_, bytes)| bytes.start);
        // Of those before, the ones that reach furthest: of all, and of what is brought.
        let mut furthest: [Option<(u64, &Message)>; 2] = [None, None];
        for (message, bytes) in ends {
            if let Some((end, before)) = furthest[usize::from(message.sends)]
                && bytes.start < end
            {
                let words = format!("messages `{}` and `{}` begin together and share bytes", before.value, message.value);
                return Err(Violation { spec_line: message.provenance.spec_line, ..Violation::of(words) });
            }
            for reach in &mut furthest[..=usize::from(!message.sends)] {
                *reach = reach.filter(|(end, _)| *end >= bytes.end).or(Some((bytes.end, message)));
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
            if let Some(place) = self.index.get(&self.range(buffer, value)) {
                self.filled.insert(*place, value);
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
        if self.places[place].is_empty() {
            return Ok(());
        }
        match self.whole(place, time) {
            Some(found) if found.content == content => Ok(()),
            Some(other) => Err(Some(other)),
            None => Err(self.part(place, time)),
        }
    }

    /// The content that the last write to a place left there whole.
    fn whole(&self, place: usize, time: u64) -> Option<Entry<Content>> {
        let range = &self.places[place];
        let (item, step, then) = match self.last_write(place, time) {
            None => (Item::Value(*self.filled.get(&place)?), None, time % range.slots()),
            Some((writer, then)) => {
                let leaves = &self.effects.of(writer).leaves;
                let at = leaves.binary_search_by_key(&place, |(place, ..)| *place).ok()?;
                (leaves[at].1, leaves[at].2, then)
            }
        };
        Some(Entry { end: range.end, start: range.start, content: item.at(self.subject, then), step })
    }

    /// A content that the last write to a place left in some of its bytes.
    fn part(&self, place: usize, time: u64) -> Option<Entry<Content>> {
        let range = &self.places[place];
        let (writer, then) = self.last_write(place, time)?;
        let (item, step) = match writer {
            Writer::Task(task, is_last) => {
                let found = self.lemmas[task].at(is_last).overlapping(range)?;
                (found.content, found.step)
            }
            Writer::Message(message) => (self.messages[message], Some(self.steps.len() + message)),
        };
        Some(Entry { end: range.end, start: range.start, content: item.at(self.subject, then), step })
    }

    /// Who wrote last to any byte of a place, and with which micro-batch; nobody if only the host.
    fn last_write(&self, place: usize, time: u64) -> Option<(Writer, u64)> {
        let write = self.latest.of(&self.leaves[place], time).checked_sub(1)?;
        Some(self.writers[write as usize])
    }

    fn does(&mut self, writer: Writer, time: u64) {
        self.writers.push((writer, time));
        let write = self.writers.len() as u32;
        for leaves in &self.effects.of(writer).writes {
            self.latest.write(leaves, time, write);
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
