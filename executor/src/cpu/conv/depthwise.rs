//! Depthwise convolutions of small planes, 16 channels at a time: a line holds one position of
//! each. No pad is multiplied, and vectors are full however narrow a plane is.

use crate::cpu::conv::Sizes;
use crate::cpu::number::{Number, Real};
use crate::cpu::scratch;
use crate::cpu::simd::simd;
use crate::cpu::threads::Threads;
use crate::cpu::turned::{LINE, turn, turn_back};
use crate::cpu::window::Window;
use shardc_ir::kernel::ConvResult;
use std::ops::Range;

/// The most terms of a channel of a sample: of more, the table leaves the second cache.
const MOST_TERMS: usize = 1 << 16;

/// The most elements of planes and kernels: the lines of more leave it, too.
const MOST_ELEMENTS: usize = 1 << 12;

/// The same where whole planes are quick to add, because neighbours see neighbours.
const MOST_NEIGHBOURS: usize = 256;

/// A convolution made ready.
#[derive(Debug)]
pub struct Depthwise {
    sizes: Sizes,
    /// For each element of a channel's result, one behind its last term.
    ends: Vec<u32>,
    /// Which elements of a channel's two operands are multiplied.
    terms: Vec<[u16; 2]>,
    /// Elements of a channel's result, and of its operands.
    made: usize,
    operands: [usize; 2],
}

impl Depthwise {
    /// The convolution, if this is a good way to compute it.
    pub fn new(sizes: Sizes, window: &Window) -> Option<Depthwise> {
        let s = &sizes;
        let (made, operands) = match s.result {
            ConvResult::Output => (s.output, [s.input, s.taps]),
            ConvResult::Input => (s.input, [s.output, s.taps]),
            ConvResult::Weight => (s.taps, [s.input, s.output]),
        };
        let has_strides = window.reversed().is_none();
        let is_quick_whole = !has_strides && s.result != ConvResult::Weight;
        let most = if is_quick_whole { MOST_NEIGHBOURS } else { MOST_ELEMENTS };
        let is_small = made.saturating_mul(operands[1]) <= MOST_TERMS && made.max(operands[0]).max(operands[1]) <= most;
        if s.inputs != 1 || s.outputs != 1 || s.groups < LINE / 2 || !is_small {
            return None;
        }
        let (mut ends, mut terms) = (vec![], vec![]);
        for result in 0..made {
            for other in 0..operands[1] {
                let seen = match s.result {
                    ConvResult::Output => window.source(result, other),
                    ConvResult::Input => window.target(result, other),
                    ConvResult::Weight => window.source(other, result),
                };
                terms.extend(seen.map(|seen| [seen as u16, other as u16]));
            }
            ends.push(terms.len() as u32);
        }
        Some(Depthwise { ends, terms, made, operands, sizes })
    }

    /// Runs it; `a` is what the input is not.
    pub fn run<T: Real>(&self, a: &[T], b: &[T], result: &mut [T], threads: Threads) {
        let s = &self.sizes;
        let work = s.batch * s.groups * (self.terms.len() / 4 + 2 * (s.input + s.output));
        if s.result == ConvResult::Weight {
            let blocks: Vec<_> = result.chunks_mut(LINE * self.made).enumerate().collect();
            return threads.for_each(work, blocks, |(block, made)| self.weight(block, a, b, made));
        }
        let blocks = s.groups.div_ceil(LINE);
        // Where blocks are too few for all threads, samples are shared too; each share turns its
        // kernels by itself.
        let samples = s.batch.div_ceil(threads.parts(work).div_ceil(blocks)).max(1);
        let mut shares: Vec<Share<'_, T>> = vec![];
        for (part, result) in result.chunks_mut(samples * s.groups * self.made).enumerate() {
            let first = shares.len();
            shares.extend((0..blocks).map(|block| Share { block, sample: part * samples, made: vec![] }));
            for sample in result.chunks_mut(s.groups * self.made) {
                let parts = sample.chunks_mut(LINE * self.made).zip(&mut shares[first..]);
                parts.for_each(|(made, share)| share.made.push(made));
            }
        }
        threads.for_each(work, shares, |share| self.planes(share, a, b));
    }

    /// The elements of the channels of a block, in planes of so many.
    fn channels(&self, block: usize, sample: usize, elements: usize) -> Range<usize> {
        let (first, groups) = (block * LINE, self.sizes.groups);
        (sample * groups + first) * elements..(sample * groups + groups.min(first + LINE)) * elements
    }

    /// Runs `f` with lines for a channel's operands, and for its result.
    fn with_lines<T: Real>(&self, f: impl FnOnce(&mut [[T; LINE]], &mut [[T; LINE]], &mut [[T; LINE]])) {
        let [first, second] = self.operands;
        scratch::with((first + second + self.made) * LINE, |memory: &mut [T]| {
            let (first, memory) = memory.as_chunks_mut().0.split_at_mut(first);
            let (second, sums) = memory.split_at_mut(second);
            f(first, second, sums);
        });
    }

    fn planes<T: Real>(&self, share: Share<'_, T>, w: &[T], seen: &[T]) {
        let [of_seen, of_w] = self.operands;
        self.with_lines(|first, second, sums| {
            turn(&w[self.channels(share.block, 0, of_w)], second);
            for (sample, made) in (share.sample..).zip(share.made) {
                turn(&seen[self.channels(share.block, sample, of_seen)], first);
                add(&self.ends, &self.terms, first, second, false, sums);
                turn_back(sums, made);
            }
        });
    }

    fn weight<T: Real>(&self, block: usize, y: &[T], x: &[T], made: &mut [T]) {
        let [of_x, of_y] = self.operands;
        self.with_lines(|first, second, sums| {
            for sample in 0..self.sizes.batch {
                turn(&x[self.channels(block, sample, of_x)], first);
                turn(&y[self.channels(block, sample, of_y)], second);
                add(&self.ends, &self.terms, first, second, sample > 0, sums);
            }
            turn_back(sums, made);
        });
    }
}

/// A share of the work: 16 channels of some samples.
struct Share<'r, T> {
    block: usize,
    /// The first sample.
    sample: usize,
    /// The channels of each sample.
    made: Vec<&'r mut [T]>,
}

simd! {
    /// The sums of the terms of each result, added to what it is if `accumulate`.
    fn add<T: Real>(
        ends: &[u32],
        terms: &[[u16; 2]],
        first: &[[T; LINE]],
        second: &[[T; LINE]],
        accumulate: bool,
        sums: &mut [[T; LINE]],
    ) {
        let mut start = 0;
        for (sum, end) in sums.iter_mut().zip(ends) {
            let mut lanes = [<T as Number>::ZERO; LINE];
            for [a, b] in &terms[start..*end as usize] {
                let (a, b) = (&first[*a as usize], &second[*b as usize]);
                lanes.iter_mut().zip(a.iter().zip(b)).for_each(|(lane, (a, b))| *lane += *a * *b);
            }
            if accumulate {
                sum.iter_mut().zip(lanes).for_each(|(sum, lane)| *sum += lane);
            } else {
                *sum = lanes;
            }
            start = *end as usize;
        }
    }
}
