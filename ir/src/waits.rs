//! Which steps of a rank's two queues must wait for which.
//!
//! A rank has a queue of computation and one of communication ([`Stream`]). Each runs its steps in
//! the order of the table, and the two may run beside one another, unless two steps touch the same
//! bytes and one of them writes: then the one that comes later in the table waits for the other.
//! This follows from bytes and table; a plan holds none of it, and each backend derives it again.
//!
//! A wait is between two steps, for all micro-batches: before each launch of the first the other
//! queue has ended the last launch of the second that the table has before it, and with it all that
//! the other queue began earlier. So a wait is one event of a device, recorded anew by each launch.

use crate::plan::{Program, Step, Stream, View};
use crate::verify_plan::memory::{Memory, bytes_of};
use std::collections::VecDeque;
use std::ops::Range;

/// For each step, by its number in listings, the steps of the other queue that it waits for, in the
/// order in which they were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits(pub Vec<Vec<usize>>);

/// Two launches that touch the same bytes, of which nothing says that one ends before the other
/// begins: the steps' numbers, and the micro-batch of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Race {
    /// That which comes earlier in the table.
    pub earlier: (usize, u64),
    /// That which comes later.
    pub later: (usize, u64),
}

/// One launch of a step.
#[derive(Clone, Copy)]
struct Launch<'p> {
    /// Its place among all launches.
    at: usize,
    /// The step's number.
    number: usize,
    time: u64,
    step: &'p Step,
}

impl Launch<'_> {
    fn queue(&self) -> usize {
        usize::from(self.step.stream == Stream::Comm)
    }

    fn bytes<'a>(&'a self, program: &'a Program, views: &'a [View]) -> impl Iterator<Item = Range<u64>> + 'a {
        views.iter().map(|view| bytes_of(program, view, self.time))
    }
}

fn launches(program: &Program) -> impl Iterator<Item = Launch<'_>> {
    let firsts: Vec<usize> = (program.tasks.iter())
        .scan(0, |next, task| {
            let first = *next;
            *next += task.steps.len();
            Some(first)
        })
        .collect();
    program.turns().enumerate().map(move |(at, turn)| Launch {
        at,
        number: firsts[turn.task] + turn.step,
        time: turn.time,
        step: &program.tasks[turn.task].steps[turn.step],
    })
}

/// The work that one queue has done.
#[derive(Default)]
struct Queue {
    /// The last launch that read each byte, with its step.
    read: Memory<(usize, usize)>,
    /// The last launch that wrote each byte, with its step.
    written: Memory<(usize, usize)>,
    /// The launch of the other queue up to which that one has ended before what comes here.
    known: Option<usize>,
}

/// The waits of a program: as few as the order in which they are found allows.
pub fn derive(program: &Program) -> Waits {
    let steps = program.tasks.iter().map(|task| task.steps.len()).sum();
    let mut waits = vec![vec![]; steps];
    let mut latest: Vec<Option<usize>> = vec![None; steps];
    let mut queues = [Queue::default(), Queue::default()];
    for launch in launches(program) {
        let (own, other) = (launch.queue(), 1 - launch.queue());
        let ended = waits[launch.number].iter().filter_map(|on: &usize| latest[*on]).max();
        let known = queues[own].known.max(ended);
        let needed = needed(program, &launch, &queues[other]).filter(|(at, _)| known.is_none_or(|known| *at > known));
        queues[own].known = match needed {
            Some((_, on)) => {
                waits[launch.number].push(on);
                latest[on]
            }
            None => known,
        };
        let entry = (launch.at, launch.number);
        launch.bytes(program, &launch.step.reads).for_each(|range| queues[own].read.write(&range, entry, None));
        launch.bytes(program, &launch.step.writes).for_each(|range| queues[own].written.write(&range, entry, None));
        latest[launch.number] = Some(launch.at);
    }
    Waits(waits)
}

/// The last launch of the other queue that must have ended, and its step.
fn needed(program: &Program, launch: &Launch<'_>, other: &Queue) -> Option<(usize, usize)> {
    let last = |memory: &Memory<(usize, usize)>, range: &Range<u64>| memory.touching(range).map(|entry| entry.content).max();
    let read = launch.bytes(program, &launch.step.reads).filter_map(|range| last(&other.written, &range)).max();
    let write = |range: Range<u64>| last(&other.written, &range).max(last(&other.read, &range));
    read.max(launch.bytes(program, &launch.step.writes).filter_map(write).max())
}

/// Whether `waits` order all launches that touch the same bytes; written without what [`derive()`]
/// uses, as its judge: each launch is held against all of the other queue that may still run.
///
/// # Errors
/// The first two that are not ordered.
pub fn check(program: &Program, Waits(waits): &Waits) -> Result<(), Race> {
    let mut latest: Vec<Option<usize>> = vec![None; waits.len()];
    let mut running: [VecDeque<Launch<'_>>; 2] = [VecDeque::new(), VecDeque::new()];
    for launch in launches(program) {
        let other = 1 - launch.queue();
        let ended = waits.get(launch.number).into_iter().flatten().filter_map(|on| latest.get(*on).copied().flatten()).max();
        while running[other].front().is_some_and(|front| ended.is_some_and(|ended| front.at <= ended)) {
            running[other].pop_front();
        }
        if let Some(earlier) = running[other].iter().find(|earlier| meet(program, earlier, &launch)) {
            return Err(Race { earlier: (earlier.number, earlier.time), later: (launch.number, launch.time) });
        }
        if let Some(latest) = latest.get_mut(launch.number) {
            *latest = Some(launch.at);
        }
        running[launch.queue()].push_back(launch);
    }
    Ok(())
}

/// Whether two launches touch the same bytes, and one writes them.
fn meet(program: &Program, a: &Launch<'_>, b: &Launch<'_>) -> bool {
    let share = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
    let any = |a: &Launch<'_>, of_a: &[View], b: &Launch<'_>, of_b: &[View]| {
        a.bytes(program, of_a).any(|x| b.bytes(program, of_b).any(|y| share(&x, &y)))
    };
    any(a, &a.step.writes, b, &b.step.writes)
        || any(a, &a.step.writes, b, &b.step.reads)
        || any(a, &a.step.reads, b, &b.step.writes)
}
