//! Which samples each step takes.

use crate::data::{Options, Source};
use crate::random::{Permutation, Stream};

/// The order of samples, a function of the step alone.
#[derive(Debug)]
pub struct Order {
    batch: u64,
    samples: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// As in the file; samples begin that far apart.
    InOrder { stride: u64 },
    /// Another permutation in every epoch.
    Shuffled(Stream),
    /// Windows of a text that begin anywhere below that position.
    RandomStarts(Stream, u64),
}

impl Order {
    pub(super) fn new(options: &Options, source: &Source, batch: u64) -> Order {
        let stream = Stream::new(options.seed, "data");
        let kind = match (source, options.shuffle) {
            (Source::Arrays(_), false) => Kind::InOrder { stride: 1 },
            (Source::Arrays(_), true) => Kind::Shuffled(stream),
            (Source::Tokens { context, .. }, false) => Kind::InOrder { stride: *context },
            (Source::Tokens { tokens, context }, true) => {
                Kind::RandomStarts(stream, tokens.len().saturating_sub(*context).max(1))
            }
        };
        Order { batch: batch.max(1), samples: source.samples(), kind }
    }

    /// Whole batches in one pass; what is left over is dropped.
    pub fn steps_per_epoch(&self) -> u64 {
        (self.samples / self.batch).max(1)
    }

    /// The pass that `step` belongs to.
    pub fn epoch(&self, step: u64) -> u64 {
        if let Kind::RandomStarts(..) = self.kind { 0 } else { step / self.steps_per_epoch() }
    }

    /// The samples of `step`.
    pub fn rows(&self, step: u64) -> Vec<u64> {
        let first = step % self.steps_per_epoch() * self.batch;
        let positions = first..first + self.batch;
        match &self.kind {
            Kind::InOrder { stride } => positions.map(|p| p * stride).collect(),
            Kind::Shuffled(stream) => {
                let permutation = Permutation::new(stream.part(self.epoch(step)), self.samples);
                positions.map(|p| permutation.at(p)).collect()
            }
            Kind::RandomStarts(stream, starts) => {
                (0..self.batch).map(|i| stream.below(step.wrapping_mul(self.batch).wrapping_add(i), *starts)).collect()
            }
        }
    }
}
