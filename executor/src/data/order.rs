//! Which samples each step takes.

use super::Options;
use super::source::Source;
use crate::random::{Permutation, Stream};

/// The order of samples, a function of the step alone.
#[derive(Debug)]
pub struct Order {
    batch: u64,
    samples: u64,
    kind: Kind,
    origin: Origin,
}

/// A step whose place in the data is given; that of every later one follows.
#[derive(Debug, Clone, Copy, Default)]
struct Origin {
    step: u64,
    epoch: u64,
    sample: u64,
}

#[derive(Debug)]
enum Kind {
    /// As in the files.
    InOrder,
    /// Another permutation in every epoch.
    Shuffled(Stream),
    /// Windows of a text that begin at any of so many places.
    RandomStarts(Stream, u64),
}

impl Order {
    pub(super) fn new(options: &Options, source: &Source, batch: u64) -> Order {
        let stream = Stream::new(options.seed, "data");
        let kind = match source.starts() {
            _ if !options.shuffle => Kind::InOrder,
            None => Kind::Shuffled(stream),
            Some(starts) => Kind::RandomStarts(stream, starts.max(1)),
        };
        Order { batch: batch.max(1), samples: source.samples(), kind, origin: Origin::default() }
    }

    /// Whole batches in one pass; what is left over is dropped.
    pub fn steps_per_epoch(&self) -> u64 {
        (self.samples / self.batch).max(1)
    }

    /// The pass that `step` belongs to.
    pub fn epoch(&self, step: u64) -> u64 {
        if let Kind::RandomStarts(..) = self.kind { 0 } else { self.place(step).0 }
    }

    /// The pass that `step` belongs to, and how many samples of the pass come before it.
    pub fn place(&self, step: u64) -> (u64, u64) {
        let Origin { step: from, epoch, sample } = self.origin;
        let (steps, left) = (step.saturating_sub(from), self.samples.saturating_sub(sample) / self.batch);
        if steps < left {
            return (epoch, sample + steps * self.batch);
        }
        let (steps, pass) = (steps - left, self.steps_per_epoch());
        (epoch + 1 + steps / pass, steps % pass * self.batch)
    }

    /// Lets `step` begin behind `sample` samples of the pass `epoch`, and later ones follow.
    pub fn resume(&mut self, step: u64, epoch: u64, sample: u64) {
        self.origin = Origin { step, epoch, sample };
    }

    /// The numbers of the samples of `step`.
    pub fn rows(&self, step: u64, source: &Source) -> Vec<u64> {
        let (epoch, first) = self.place(step);
        let positions = first..first + self.batch;
        match &self.kind {
            Kind::InOrder => positions.map(|p| source.in_order(p)).collect(),
            Kind::Shuffled(stream) => {
                let permutation = Permutation::new(stream.part(epoch), self.samples);
                positions.map(|p| source.in_order(permutation.at(p))).collect()
            }
            Kind::RandomStarts(stream, starts) => {
                let place = |i| stream.below(step.wrapping_mul(self.batch).wrapping_add(i), *starts);
                (0..self.batch).map(|i| source.window_at(place(i))).collect()
            }
        }
    }
}
