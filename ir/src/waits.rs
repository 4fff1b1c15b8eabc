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

use crate::plan::{Message, Program, Row, Step, Stream, Turn, View};
use crate::verify_plan::memory::{Memory, bytes_of};
use std::collections::VecDeque;
use std::ops::Range;

/// For each step, by its number in listings, and then for each message, the steps of the other
/// queue that it waits for, in the order in which they were found. A message waits for steps as its
/// queue would; steps wait for messages by numbers beyond those of steps.
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

/// One launch of a step, or one message.
#[derive(Clone, Copy)]
struct Launch<'p> {
    /// Its place among all launches.
    at: usize,
    /// The step's number; messages follow all steps.
    number: usize,
    time: u64,
    stream: Stream,
    reads: &'p [View],
    writes: &'p [View],
}

impl<'p> Launch<'p> {
    fn of_step(number: usize, time: u64, step: &'p Step) -> Launch<'p> {
        Launch { at: 0, number, time, stream: step.stream, reads: &step.reads, writes: &step.writes }
    }

    fn of_message(number: usize, time: u64, message: &'p Message) -> Launch<'p> {
        let view = std::slice::from_ref(&message.view);
        let (reads, writes): (&[View], &[View]) = if message.sends { (view, &[]) } else { (&[], view) };
        Launch { at: 0, number, time, stream: Stream::Comm, reads, writes }
    }

    fn queue(&self) -> usize {
        usize::from(self.stream == Stream::Comm)
    }

    fn bytes<'a>(&'a self, program: &'a Program, views: &'a [View]) -> impl Iterator<Item = Range<u64>> + 'a {
        views.iter().map(|view| bytes_of(program, view, self.time))
    }
}

fn launches(program: &Program) -> impl Iterator<Item = Launch<'_>> {
    let firsts = program.first_steps();
    let steps = firsts[program.tasks.len()];
    let of = move |turn: Turn| match turn {
        Turn::Launch(launch) => vec![Launch::of_step(firsts[launch.task] + launch.step, launch.time, program.step(launch))],
        Turn::Exchange(row) => match &program.order[row] {
            Row::Exchange(messages) => {
                let message =
                    |(m, time): &(u32, u64)| Launch::of_message(steps + *m as usize, *time, &program.messages[*m as usize]);
                messages.iter().map(message).collect()
            }
            Row::Run { .. } => vec![],
        },
    };
    program.turns().flat_map(of).enumerate().map(|(at, launch)| Launch { at, ..launch })
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

/// What runs in one of the queues, and touches bytes.
#[derive(Debug, Clone)]
pub struct Queued {
    /// Its number: that of a step or the like, which may run several times.
    pub number: usize,
    /// Its queue.
    pub stream: Stream,
    /// The bytes that it reads.
    pub reads: Vec<Range<u64>>,
    /// The bytes that it writes.
    pub writes: Vec<Range<u64>>,
}

/// The waits of a program: as few as the order in which they are found allows.
pub fn derive(program: &Program) -> Waits {
    let steps = program.first_steps()[program.tasks.len()] + program.messages.len();
    let queued = |launch: Launch<'_>| Queued {
        number: launch.number,
        stream: launch.stream,
        reads: launch.bytes(program, launch.reads).collect(),
        writes: launch.bytes(program, launch.writes).collect(),
    };
    of(launches(program).map(queued), steps)
}

/// The waits of what runs in two queues, given in the order of the table, whose numbers are below
/// `numbers`.
pub fn of(all: impl Iterator<Item = Queued>, numbers: usize) -> Waits {
    let mut waits = vec![vec![]; numbers];
    let mut latest: Vec<Option<usize>> = vec![None; numbers];
    let mut queues = [Queue::default(), Queue::default()];
    for (at, queued) in all.enumerate() {
        let own = usize::from(queued.stream == Stream::Comm);
        let other = 1 - own;
        let ended = waits[queued.number].iter().filter_map(|on: &usize| latest[*on]).max();
        let known = queues[own].known.max(ended);
        let needed = needed(&queued, &queues[other]).filter(|(at, _)| known.is_none_or(|known| *at > known));
        queues[own].known = match needed {
            Some((_, on)) => {
                waits[queued.number].push(on);
                latest[on]
            }
            None => known,
        };
        let entry = (at, queued.number);
        queued.reads.iter().for_each(|range| queues[own].read.write(range, entry, None));
        queued.writes.iter().for_each(|range| queues[own].written.write(range, entry, None));
        latest[queued.number] = Some(at);
    }
    Waits(waits)
}

/// The last launch of the other queue that must have ended, and its number.
fn needed(queued: &Queued, other: &Queue) -> Option<(usize, usize)> {
    let last = |memory: &Memory<(usize, usize)>, range: &Range<u64>| memory.touching(range).map(|entry| entry.content).max();
    let read = queued.reads.iter().filter_map(|range| last(&other.written, range)).max();
    let write = |range: &Range<u64>| last(&other.written, range).max(last(&other.read, range));
    read.max(queued.writes.iter().filter_map(write).max())
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
    // An empty range touches nothing, wherever it is.
    let share = |a: &Range<u64>, b: &Range<u64>| a.start.max(b.start) < a.end.min(b.end);
    let any = |a: &Launch<'_>, of_a: &[View], b: &Launch<'_>, of_b: &[View]| {
        a.bytes(program, of_a).any(|x| b.bytes(program, of_b).any(|y| share(&x, &y)))
    };
    any(a, a.writes, b, b.writes) || any(a, a.writes, b, b.reads) || any(a, a.reads, b, b.writes)
}
