//! Which steps and messages of a rank's queues must wait for which.
//!
//! A rank has a queue of computation, one of calls and one for each way of messages ([`Stream`]).
//! Each runs what it has in the order of the table, and they may run beside one another, unless two
//! steps touch the same bytes and one of them writes: then the one that comes later in the table
//! waits for the other. This follows from bytes and table; a plan holds none of it, and each
//! backend derives it again. (A message ends when the other rank has come to it, so whatever stood
//! behind it in its queue would wait for another position of a pipeline: calls, or messages of
//! other ways. Those of the same way must keep their order, and lose nothing.)
//!
//! A wait is between two steps, for all micro-batches: before each launch of the first the other
//! queue has ended the last launch of the second that the table has before it, and with it all that
//! the other queue began earlier, and all that it had waited for. So a wait is one event of a
//! device, recorded anew by each launch.

use crate::plan::{Message, Program, Row, Step, Stream, Turn, View};
use crate::verify_plan::memory::{Memory, bytes_of};
use std::collections::BTreeSet;
use std::ops::Range;

/// For each step, by its number in listings, and then for each message, what of other queues it
/// waits for, in the order in which it was found: steps by their numbers, and messages by numbers
/// beyond those of steps.
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
    /// The step's number; messages follow all steps.
    number: usize,
    time: u64,
    stream: Stream,
    reads: &'p [View],
    writes: &'p [View],
}

impl<'p> Launch<'p> {
    fn of_step(number: usize, time: u64, step: &'p Step) -> Launch<'p> {
        Launch { number, time, stream: step.stream, reads: &step.reads, writes: &step.writes }
    }

    fn of_message(number: usize, time: u64, message: &'p Message) -> Launch<'p> {
        let view = std::slice::from_ref(&message.view);
        let (reads, writes): (&[View], &[View]) = if message.sends { (view, &[]) } else { (&[], view) };
        Launch { number, time, stream: Stream::Messages(message.way()), reads, writes }
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
    program.turns().flat_map(of)
}

/// For each queue, how many of all launches have ended as far as they are its own: those with
/// places below that number; none where it says nothing of a queue.
type Ended = Vec<usize>;

/// Takes in what `other` knows.
fn join(known: &mut Ended, other: &Ended) {
    known.iter_mut().zip(other).for_each(|(known, other)| *known = (*known).max(*other));
}

/// The bytes that one queue has touched.
#[derive(Default)]
struct Touched {
    /// The last launch that read each byte, with its number.
    read: Memory<(usize, usize)>,
    /// The last launch that wrote each byte, with its number.
    written: Memory<(usize, usize)>,
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

/// The waits of what runs in queues, given in the order of the table, whose numbers are below
/// `numbers`.
pub fn of(all: impl Iterator<Item = Queued>, numbers: usize) -> Waits {
    let mut waits: Vec<Vec<usize>> = vec![vec![]; numbers];
    // What has ended once the last launch of each number has.
    let mut behind: Vec<Ended> = vec![vec![]; numbers];
    let mut streams: Vec<Stream> = vec![];
    let mut queues: Vec<Touched> = vec![];
    // What has ended before what each queue begins next.
    let mut known: Vec<Ended> = vec![];
    for (at, queued) in all.enumerate() {
        let own = place(&mut streams, queued.stream);
        queues.resize_with(streams.len(), Touched::default);
        known.resize_with(streams.len(), Ended::default);
        let known = &mut known[own];
        known.resize(streams.len(), 0);
        waits[queued.number].iter().for_each(|on| join(known, &behind[*on]));
        let others = (0..queues.len()).filter(|other| *other != own);
        let mut needed: Vec<(usize, usize, usize)> =
            others.filter_map(|other| needed(&queued, &queues[other]).map(|(at, on)| (at, on, other))).collect();
        // The latest first: it may have waited for the others.
        needed.sort_unstable_by(|a, b| b.cmp(a));
        for (at, on, other) in needed {
            if at >= known[other] {
                waits[queued.number].push(on);
                join(known, &behind[on]);
            }
        }
        let entry = (at, queued.number);
        queued.reads.iter().for_each(|range| queues[own].read.write(range, entry, None));
        queued.writes.iter().for_each(|range| queues[own].written.write(range, entry, None));
        known[own] = at + 1;
        behind[queued.number].clone_from(known);
    }
    Waits(waits)
}

/// The place of a queue among those that there are, with which it is from now on.
fn place(streams: &mut Vec<Stream>, stream: Stream) -> usize {
    streams.iter().position(|known| *known == stream).unwrap_or_else(|| {
        streams.push(stream);
        streams.len() - 1
    })
}

/// The last launch of another queue that must have ended, and its number.
fn needed(queued: &Queued, other: &Touched) -> Option<(usize, usize)> {
    let last = |memory: &Memory<(usize, usize)>, range: &Range<u64>| memory.touching(range).map(|entry| entry.content).max();
    let read = queued.reads.iter().filter_map(|range| last(&other.written, range)).max();
    let write = |range: &Range<u64>| last(&other.written, range).max(last(&other.read, range));
    read.max(queued.writes.iter().filter_map(write).max())
}

/// Whether `waits` order all launches that touch the same bytes; written without what [`derive()`]
/// uses, as its judge: each launch is held against all of the other queues that may still run.
///
/// # Errors
/// The first two that are not ordered.
pub fn check(program: &Program, Waits(waits): &Waits) -> Result<(), Race> {
    let count = program.first_steps()[program.tasks.len()] + program.messages.len();
    let streams: BTreeSet<Stream> = launches(program).map(|launch| launch.stream).collect();
    // For each pair of queues how many launches of the second have ended, as the first one knows;
    // for each number the same of its own queue, once its last launch has ended.
    let mut seen = vec![vec![0; streams.len()]; streams.len()];
    let mut then: Vec<Vec<usize>> = vec![vec![0; streams.len()]; count.max(waits.len())];
    let mut begun: Vec<Vec<Launch<'_>>> = vec![vec![]; streams.len()];
    for launch in launches(program) {
        let (own, number) = (streams.range(..launch.stream).count(), launch.number);
        for on in waits.get(number).into_iter().flatten() {
            for (queue, ended) in then.get(*on).into_iter().flatten().enumerate() {
                seen[own][queue] = seen[own][queue].max(*ended);
            }
        }
        for other in (0..streams.len()).filter(|other| *other != own) {
            let mut running = begun[other][seen[own][other]..].iter();
            if let Some(earlier) = running.find(|earlier| meet(program, earlier, &launch)) {
                return Err(Race { earlier: (earlier.number, earlier.time), later: (number, launch.time) });
            }
        }
        begun[own].push(launch);
        seen[own][own] = begun[own].len();
        then[number].clone_from(&seen[own]);
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
