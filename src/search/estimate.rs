//! How long a candidate takes, and what it holds, without a plan of it.
//!
//! A piece is a plan of the model with one and with two of its blocks, on the ranks of one stage
//! and with two micro-batches; every further block adds what the second one did. A pipeline is then
//! a sum: its stages take even parts of a micro-batch's time, and its schedule says how long they
//! wait and how many micro-batches they hold.

use super::candidate::{Again, Candidate, Order};
use super::exact::{Job, Model};
use super::in_parallel;
use shardc_ir::listing::summary;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferKind, Program, Turn};
use shardc_ir::spec::ZeroStage;
use shardc_simulator::run::{Step, step};
use std::collections::{BTreeMap, BTreeSet};

/// What is estimated at up to so much more than there is may fit all the same.
pub const ROOM: f64 = 1.15;

/// Where gradients of weights come late, what they read is held so much longer, as was measured.
const LATE: f64 = 1.5;

/// What candidates have in common that take the same piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    dp: u64,
    fsdp: u64,
    tp: u64,
    sequence: bool,
    zero: ZeroStage,
    samples: u64,
    is_loop: bool,
    again: Again,
}

/// What a candidate comes to, as far as pieces tell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Seconds of a step.
    pub seconds: f64,
    /// Bytes of the rank that holds most.
    pub bytes: f64,
}

/// Numbers of a plan of a piece.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Numbers {
    /// Seconds of a step.
    step: f64,
    /// Seconds of a micro-batch that is not the last.
    part: f64,
    /// Bytes that are held all the time.
    lasting: f64,
    /// Bytes that the backward pass reads of a micro-batch's forward pass.
    kept: f64,
    /// Bytes that are needed besides.
    passing: f64,
}

/// The numbers of a model of any number of blocks.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    blocks: [f64; 2],
    numbers: [Numbers; 2],
}

impl Piece {
    fn at(&self, blocks: f64) -> Numbers {
        let [short, long] = self.blocks;
        let along = if long > short { (blocks - short) / (long - short) } else { 0.0 };
        let [a, b] = self.numbers;
        let mix = |a: f64, b: f64| (a + (b - a) * along).max(0.0);
        Numbers {
            step: mix(a.step, b.step),
            part: mix(a.part, b.part),
            lasting: mix(a.lasting, b.lasting),
            kept: mix(a.kept, b.kept),
            passing: mix(a.passing, b.passing),
        }
    }

    /// The bytes of the shortest stage with one micro-batch.
    fn least_bytes(&self, job: &Job) -> f64 {
        let stage = self.at(job.whole.blocks as f64 / job.whole.blocks.min(job.ranks) as f64);
        stage.lasting + stage.kept + stage.passing
    }
}

impl Key {
    /// That of a candidate.
    pub fn of(candidate: &Candidate, batch: u64) -> Key {
        let Candidate { dp, fsdp, tp, sequence, zero, again, .. } = *candidate;
        let is_loop = candidate.microbatches > 1;
        Key { dp, fsdp, tp, sequence, zero, samples: candidate.samples(batch), is_loop, again }
    }

    /// The piece; `None` where there is no such plan.
    pub fn piece(&self, job: &Job) -> Option<Piece> {
        let Key { dp, fsdp, tp, sequence, zero, samples, is_loop, again } = *self;
        let microbatches = if is_loop { 2 } else { 1 };
        let candidate = Candidate { dp, fsdp, tp, sequence, zero, microbatches, again, ..Candidate::ONE_RANK };
        let text = candidate.spec_for(&job.base, samples * dp * fsdp * microbatches);
        let device = job.cluster.device(job.ranks).ok()?;
        let numbers = |model: &Model| {
            let set = model.planned(&text)?;
            let step = step(&set, device).ok()?;
            Some(numbers(&set, &step, is_loop))
        };
        let [short, long] = &job.short;
        let first = numbers(short)?;
        let second = if long.blocks > short.blocks { numbers(long)? } else { first };
        Some(Piece { blocks: [short.blocks as f64, long.blocks as f64], numbers: [first, second] })
    }
}

fn numbers(set: &PlanSet, step: &Step, is_loop: bool) -> Numbers {
    let program = set.fullest();
    let held = summary(program);
    let kept = kept(program) as f64;
    let begin = |time: u64| {
        let events = step.lanes.iter().flat_map(|lane| &lane.events);
        let of_time = events.filter(|event| match event.turn {
            Turn::Launch(launch) => launch.time == time && program.tasks[launch.task].name.starts_with('F'),
            Turn::Exchange(_) => false,
        });
        of_time.map(|event| event.start).fold(f64::INFINITY, f64::min)
    };
    let part = if is_loop { begin(1) - begin(0) } else { 0.0 };
    Numbers {
        step: step.seconds,
        part: if part.is_finite() { part } else { 0.0 },
        lasting: held.peak_bytes.saturating_sub(held.activation_bytes) as f64,
        kept,
        passing: (held.activation_bytes as f64 - kept).max(0.0),
    }
}

/// Bytes of what forward tasks write and backward tasks read.
fn kept(program: &Program) -> u64 {
    let touched = |first: char, writes: bool| -> BTreeSet<usize> {
        let tasks = program.tasks.iter().filter(|task| task.name.starts_with(first));
        let steps = tasks.flat_map(|task| &task.steps);
        steps.flat_map(|step| if writes { &step.writes } else { &step.reads }).map(|view| view.buffer.index()).collect()
    };
    let (written, mut read) = (touched('F', true), touched('B', false));
    read.extend(touched('W', false));
    let is_passing =
        |buffer: &&usize| matches!(program.buffers[**buffer].kind, BufferKind::Activation | BufferKind::Communication);
    written.intersection(&read).filter(is_passing).map(|buffer| program.buffers[*buffer].slot_bytes).sum()
}

/// What a candidate comes to by its piece, for a job of so many blocks.
pub fn estimate(candidate: &Candidate, piece: &Piece, job: &Job) -> Estimate {
    let blocks = job.whole.blocks as f64;
    let (pp, parts) = (candidate.pp as f64, candidate.microbatches as f64);
    let whole = piece.at(blocks);
    if candidate.pp == 1 {
        let seconds = if candidate.microbatches > 1 { whole.step + (parts - 2.0) * whole.part } else { whole.step };
        return Estimate { seconds, bytes: whole.lasting + whole.kept + whole.passing };
    }
    let stage = piece.at(blocks / pp);
    let fixed = (stage.step - 2.0 * stage.part).max(0.0);
    let (waits, held) = match candidate.order {
        Order::Plain => (pp - 1.0, pp.min(parts)),
        Order::ZeroBubble => ((pp - 1.0) / 3.0, LATE * pp.min(parts)),
        Order::Interleaved(chunks) => {
            let chunks = chunks as f64;
            ((pp - 1.0) / chunks, ((2.0 * (pp - 1.0) + (chunks - 1.0) * pp + 1.0) / chunks).min(parts))
        }
    };
    let sent = job.message_bytes(candidate);
    let hops = match candidate.order {
        Order::Interleaved(chunks) => pp * chunks as f64 - 1.0,
        _ => pp - 1.0,
    };
    let message = job.cluster.device(job.ranks).map_or(0.0, |device| device.message_seconds(0, job.ranks - 1, sent));
    let seconds = whole.part / pp * (parts + waits) + fixed + 2.0 * hops * message;
    Estimate { seconds, bytes: stage.lasting + held * stage.kept + stage.passing }
}

/// The pieces of several keys, made by so many threads. Keys that differ in samples alone are made
/// from few samples to many; of `many` only until even the stages of the longest pipeline do not
/// fit.
pub fn pieces(job: &Job, keys: &BTreeSet<Key>, many: bool, threads: usize) -> BTreeMap<Key, Piece> {
    let mut groups: BTreeMap<Key, Vec<Key>> = BTreeMap::new();
    keys.iter().for_each(|key| groups.entry(Key { samples: 0, ..*key }).or_default().push(*key));
    let groups: Vec<Vec<Key>> = groups.into_values().collect();
    let made = in_parallel(&groups, threads, |group| {
        let mut made = vec![];
        for key in group {
            let Some(piece) = key.piece(job) else { continue };
            if many && piece.least_bytes(job) > job.memory as f64 * ROOM {
                break;
            }
            made.push((*key, piece));
        }
        made
    });
    made.into_iter().flatten().collect()
}
