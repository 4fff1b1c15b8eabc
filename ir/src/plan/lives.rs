//! How long buffers hold something within a step of training, as the order of the table says.
//!
//! A life of a buffer begins where a row writes it that does not read it before, or where it is
//! received, and ends with the last row that reads it before the next life. A buffer that is one of
//! each micro-batch has such lives for each; it needs as many slots as keep those apart. Bytes are
//! shared by steps: a buffer with one slot is taken from the first to the last step, by their
//! numbers, that runs while it lives; with more slots it is taken all the time.

use super::{Buffer, BufferKind, Program, Row, View};
use std::collections::{BTreeMap, HashMap};

/// Whether a buffer holds something from step to step of training, or what the host writes, or
/// reads as a result.
pub fn lasts(buffer: &Buffer) -> bool {
    !matches!(buffer.kind, BufferKind::Activation | BufferKind::Communication | BufferKind::Gradient(_))
}

/// For each buffer, the first and the last step at which it holds something, by their numbers; none
/// of what neither a step nor a message touches. A gradient is there to the end, where it can be
/// looked at. A program that only hands messages on has one
/// moment, as if it had a step.
pub fn lives(program: &Program) -> Vec<Option<(usize, usize)>> {
    let table = Table::of(program);
    let mut known: HashMap<Signature, Vec<Life>> = HashMap::new();
    let of = |(buffer, touches): (&Buffer, &Touches)| {
        let signature = touches.signature(program, buffer);
        match (touches.is_empty(), table.steps(), buffer.slots) {
            (true, ..) => None,
            (_, 0, _) => Some((0, 0)),
            (_, _, 1) => {
                let lives = known.entry(signature.clone()).or_insert_with(|| table.lives(&signature));
                let hull = table.hull(touches, lives);
                let stays = matches!(buffer.kind, BufferKind::Gradient(_));
                hull.map(|(first, last)| (first, if stays { table.steps() - 1 } else { last }))
            }
            (_, steps, _) => Some((0, steps - 1)),
        }
    };
    program.buffers.iter().zip(&touches(program)).map(of).collect()
}

/// For each buffer the least number of slots with which no two micro-batches are in one slot at a
/// time; 1 for what is not one of each micro-batch.
pub fn slots(program: &Program) -> Vec<u64> {
    let table = Table::of(program);
    let mut known: HashMap<Signature, u64> = HashMap::new();
    let of = |(buffer, touches): (&Buffer, &Touches)| {
        let signature = touches.signature(program, buffer);
        *known.entry(signature.clone()).or_insert_with(|| table.slots(&signature))
    };
    program.buffers.iter().zip(&touches(program)).map(of).collect()
}

/// Where a buffer is touched.
#[derive(Default)]
struct Touches {
    /// For each task that touches it the first and the last such step, and whether the first writes
    /// it without reading.
    tasks: BTreeMap<usize, (usize, usize, bool)>,
    /// The messages, each with whether it is received.
    messages: Vec<(u32, bool)>,
}

/// What tells of a buffer when it lives: whether there is one of each micro-batch, the tasks that
/// touch it, each with whether it begins a life, and the messages.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Signature {
    timed: bool,
    tasks: Vec<(usize, bool)>,
    messages: Vec<(u32, bool)>,
}

/// The first and the last row of a life, for a micro-batch.
struct Life {
    time: u64,
    first: usize,
    last: usize,
}

impl Touches {
    fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.messages.is_empty()
    }

    fn signature(&self, program: &Program, buffer: &Buffer) -> Signature {
        Signature {
            timed: program.mesh.microbatches() > 1 && buffer.sharding.depends_on(program.mesh.microbatch_axis()),
            tasks: self.tasks.iter().map(|(task, (_, _, begins))| (*task, *begins)).collect(),
            messages: self.messages.clone(),
        }
    }
}

fn touches(program: &Program) -> Vec<Touches> {
    let mut all: Vec<Touches> = program.buffers.iter().map(|_| Touches::default()).collect();
    for (t, task) in program.tasks.iter().enumerate() {
        for (s, step) in task.steps.iter().enumerate() {
            let mut touch = |view: &View, begins: bool| {
                all[view.buffer.index()].tasks.entry(t).or_insert((s, s, begins)).1 = s;
            };
            step.reads.iter().for_each(|view| touch(view, false));
            step.writes.iter().for_each(|view| touch(view, true));
        }
    }
    for (number, message) in (0..).zip(&program.messages) {
        all[message.view.buffer.index()].messages.push((number, !message.sends));
    }
    all
}

/// The rows of a program.
struct Table<'p> {
    program: &'p Program,
    /// The number of each task's first step, and of all steps.
    firsts: Vec<usize>,
    /// For each task the rows that run it, with their micro-batches.
    runs: Vec<Vec<(usize, u64)>>,
    /// For each message the rows that exchange it.
    exchanges: Vec<Vec<(usize, u64)>>,
    /// For each row the last one up to it that runs a task; before all of them the first.
    at: Vec<usize>,
}

impl Table<'_> {
    fn of(program: &Program) -> Table<'_> {
        let mut table = Table {
            program,
            firsts: program.first_steps(),
            runs: vec![vec![]; program.tasks.len()],
            exchanges: vec![vec![]; program.messages.len()],
            at: vec![],
        };
        let mut latest = program.order.iter().position(|row| matches!(row, Row::Run { .. })).unwrap_or(0);
        for (at, row) in program.order.iter().enumerate() {
            match row {
                Row::Run { task, time } => {
                    table.runs[*task as usize].push((at, *time));
                    latest = at;
                }
                Row::Exchange(messages) => messages.iter().for_each(|(m, time)| table.exchanges[*m as usize].push((at, *time))),
            }
            table.at.push(latest);
        }
        table
    }

    fn steps(&self) -> usize {
        self.firsts[self.firsts.len() - 1]
    }

    /// All lives of buffers like this, those of one micro-batch in the order of rows.
    fn lives(&self, signature: &Signature) -> Vec<Life> {
        let tasks = signature.tasks.iter().flat_map(|(task, begins)| self.runs[*task].iter().map(move |run| (run, *begins)));
        let messages = signature.messages.iter();
        let messages = messages.flat_map(|(m, received)| self.exchanges[*m as usize].iter().map(move |at| (at, *received)));
        let time = |time: u64| if signature.timed { time } else { 0 };
        // In one exchange what is received comes after what is sent.
        let mut touched: Vec<(u64, usize, bool)> =
            tasks.chain(messages).map(|((row, at), begins)| (time(*at), *row, begins)).collect();
        touched.sort_unstable();
        let mut lives: Vec<Life> = vec![];
        for (time, row, begins) in touched {
            match lives.last_mut() {
                Some(life) if life.time == time && !begins => life.last = row,
                _ => lives.push(Life { time, first: row, last: row }),
            }
        }
        lives
    }

    /// From the first to the last step that runs while a buffer lives.
    fn hull(&self, touches: &Touches, lives: &[Life]) -> Option<(usize, usize)> {
        let mut hull: Option<(usize, usize)> = None;
        let mut cover = |first: usize, last: usize| {
            let (low, high) = hull.get_or_insert((first, last));
            (*low, *high) = ((*low).min(first), (*high).max(last));
        };
        for life in lives {
            let (first, last) = (self.at[life.first], self.at[life.last]);
            for row in first..=last {
                let Row::Run { task, .. } = &self.program.order[row] else { continue };
                let task = *task as usize;
                let (begin, end) = (self.firsts[task], self.firsts[task + 1]);
                let own = touches.tasks.get(&task);
                // A message is exchanged after the row that it follows.
                let low = match own {
                    Some((low, ..)) if row == life.first => begin + low,
                    _ if row == first && row != life.first && row <= life.first => end.saturating_sub(1),
                    _ => begin,
                };
                let high = match own {
                    Some((_, high, _)) if row == life.last => begin + high,
                    _ => end.saturating_sub(1),
                };
                if begin < end {
                    cover(low, high);
                }
            }
        }
        hull.or(self.steps().checked_sub(1).map(|last| (0, last)))
    }

    fn slots(&self, signature: &Signature) -> u64 {
        if !signature.timed {
            return 1;
        }
        let mut lives = self.lives(signature);
        lives.sort_by_key(|life| life.first);
        let mut ends: Vec<usize> = lives.iter().map(|life| life.last).collect();
        ends.sort_unstable();
        // As many as live at once at least.
        let alive = |(i, life): (usize, &Life)| i + 1 - ends.partition_point(|end| *end < life.first);
        let least = lives.iter().enumerate().map(alive).max().unwrap_or(1).max(1) as u64;
        let apart = |slots: &u64| {
            let mut taken: HashMap<u64, (u64, usize)> = HashMap::new();
            lives.iter().all(|life| {
                let before = taken.insert(life.time % slots, (life.time, life.last));
                before.is_none_or(|(time, last)| time == life.time || last < life.first)
            })
        };
        (least..self.program.mesh.microbatches()).find(apart).unwrap_or(self.program.mesh.microbatches())
    }
}
