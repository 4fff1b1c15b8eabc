//! The order of tasks, row by row: each finds what its lemma needs at its micro-batch, and leaves
//! what its lemma says. Accumulators count, so micro-batches come in their order, each once.

use super::bindings::Bindings;
use super::contents::{Content, Item};
use super::lemma::Lemma;
use super::memory::{Entry, Memory, Place, Slots, bytes_of};
use super::subject::Subject;
use super::violation::{self, Violation};
use crate::graph::ValueId;
use crate::plan::{BufferId, Row, Step, View};
use std::collections::HashSet;

/// What is known of a task: with any micro-batch, and with the last.
pub struct Lemmas {
    /// With any but the last.
    pub each: Lemma,
    /// With the last, where it then has other steps.
    pub last: Option<Lemma>,
}

/// What a row does to the arena.
struct Effect {
    /// What it leaves where somebody may read it.
    leaves: Vec<(Place, Entry<Item>)>,
    /// All else that it writes to, in few pieces.
    spoils: Vec<Place>,
}

impl Effect {
    /// Of the places in `wanted` each is told; without it, all are.
    fn of(lemma: &Lemma, wanted: Option<&HashSet<Place>>) -> Effect {
        let mut effect = Effect { leaves: vec![], spoils: vec![] };
        for (place, entry) in &lemma.leaves {
            if wanted.is_none_or(|wanted| entry.start == place.start && wanted.contains(place)) {
                effect.leaves.push((*place, *entry));
            } else if !effect.spoils.last_mut().is_some_and(|piece| piece.join(place)) {
                effect.spoils.push(*place);
            }
        }
        effect
    }
}

/// Runs one step of training; `lemmas` are of all tasks in their order. Returns how many operands
/// it reads and writes.
///
/// # Errors
/// The first row that does not find what its task needs, or the first result that is not there at
/// the end.
pub fn run(subject: &Subject<'_>, bindings: &Bindings, lemmas: &[Lemmas], slots: &Slots) -> Result<u64, Violation> {
    let wanted = wanted(subject, bindings, lemmas, slots);
    let run = |wanted: Option<&HashSet<Place>>| {
        let steps = violation::numbered(subject.program).map(|(_, _, step)| step).collect();
        Run { subject, bindings, steps, wanted, memory: Memory::default() }.all(lemmas)
    };
    // What nobody wants is forgotten as a whole; where something fails, it says what is there.
    run(Some(&wanted)).or_else(|_| run(None))
}

/// Every place that some task or the host reads.
fn wanted(subject: &Subject<'_>, bindings: &Bindings, lemmas: &[Lemmas], slots: &Slots) -> HashSet<Place> {
    let all = lemmas.iter().flat_map(|task| [Some(&task.each), task.last.as_ref()]).flatten();
    let needed = all.flat_map(|lemma| lemma.needs.iter().map(|(place, ..)| *place));
    let read = bindings.lasting(subject.program);
    let read = read.map(|(buffer, value)| Place::of(slots, &bytes_of(subject.program, &whole(subject, buffer, value), 0)));
    needed.chain(read).collect()
}

fn whole(subject: &Subject<'_>, buffer: BufferId, value: ValueId) -> View {
    View { buffer, offset: 0, bytes: subject.size_of(value).1 }
}

struct Run<'s> {
    subject: &'s Subject<'s>,
    bindings: &'s Bindings,
    steps: Vec<&'s Step>,
    wanted: Option<&'s HashSet<Place>>,
    memory: Memory<Content>,
}

impl Run<'_> {
    fn all(mut self, lemmas: &[Lemmas]) -> Result<u64, Violation> {
        self.host_fills();
        let effect = |lemma: &Lemma| Effect::of(lemma, self.wanted);
        let effects: Vec<[Option<Effect>; 2]> =
            lemmas.iter().map(|task| [Some(effect(&task.each)), task.last.as_ref().map(effect)]).collect();
        let mut accesses = 0;
        for Row::Run { task, time } in &self.subject.program.order {
            let (task, time) = (*task as usize, *time);
            let is_last = lemmas[task].last.is_some() && time + 1 == self.subject.microbatches();
            let lemma = lemmas[task].last.as_ref().filter(|_| is_last).unwrap_or(&lemmas[task].each);
            self.finds(lemma, time)?;
            if let Some(effect) = &effects[task][usize::from(is_last)] {
                self.does(effect, time);
            }
            accesses += lemma.accesses;
        }
        self.host_reads()?;
        Ok(accesses)
    }

    fn does(&mut self, effect: &Effect, time: u64) {
        for place in &effect.spoils {
            self.memory.forget(&place.at(time));
        }
        for (place, entry) in &effect.leaves {
            let range = place.at(time);
            let (start, content) = (range.start - (place.start - entry.start), entry.content.at(self.subject, time));
            self.memory.put(range.start, Entry { end: range.end, start, content, step: entry.step });
        }
    }

    /// Before a step the host has filled states, inputs, constants and scalars.
    fn host_fills(&mut self) {
        for (i, value) in self.bindings.filled.iter().enumerate() {
            let Some(value) = *value else { continue };
            let view = whole(self.subject, BufferId(i as u32), value);
            for slot in 0..self.subject.program.buffers[i].slots {
                let content = Item::Value(value).at(self.subject, slot);
                self.memory.write(&bytes_of(self.subject.program, &view, slot), content, None);
            }
        }
    }

    fn finds(&self, lemma: &Lemma, time: u64) -> Result<(), Violation> {
        for (place, item, number) in &lemma.needs {
            let content = item.at(self.subject, time);
            if let Err(found) = self.memory.holds(&place.at(time), content) {
                return Err(violation::missing(self.subject, *number, self.steps[*number], content, found));
            }
        }
        Ok(())
    }

    /// After a step the host reads gradients and outputs; states hold what they have become, and
    /// constants stay.
    fn host_reads(&self) -> Result<(), Violation> {
        let program = self.subject.program;
        for (buffer, value) in self.bindings.lasting(program) {
            let view = whole(self.subject, buffer, value);
            for slot in 0..program.buffers[buffer.index()].slots {
                let content = Item::Value(value).at(self.subject, slot);
                if let Err(found) = self.memory.holds(&bytes_of(program, &view, slot), content) {
                    let (why, ranks) = violation::in_place_of(self.subject, content, found);
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
}
