//! Random: truth values from counters, in runs of elements that are neighbours in the whole tensor
//! too.

use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::simd::simd;
use crate::cpu::{Arguments, Cpu, Launch};
use shardc_ir::kernel::{Implements, Random};
use shardc_ir::philox::{MULTIPLIERS, ROUNDS, WEYL};
use shardc_ir::position::Origin;
use shardc_ir::reason::Reason;

/// Elements that are drawn together.
const BLOCK: usize = 64;

/// The work of one element, in simple operations.
const WEIGHT: usize = 24;

impl Implements<Random> for Cpu {
    fn ready(&self, random: &Random, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        Ok(Box::new(random.clone()))
    }
}

impl Launch for Random {
    fn launch(&self, Arguments { reads, mut writes, coordinates, threads }: Arguments<'_>) -> Result<(), Reason> {
        let (Slice::I64([seed, ..]), Slice::F64([step, ..]), SliceMut::Bool(out)) = (reads[0], reads[1], writes.remove(0)) else {
            return Ok(());
        };
        let total = self.shape.iter().product::<u64>() as usize;
        let stream = Stream { key: [*seed as u32, (*seed as u64 >> 32) as u32], step: *step as u64 as u32, stream: self.stream };
        let run = run(self);
        let work = total * WEIGHT;
        let step = total.div_ceil(threads.parts(work)).next_multiple_of(BLOCK).max(1);
        let items: Vec<(usize, &mut [u8])> =
            out[..total].chunks_mut(step).enumerate().map(|(i, part)| (i * step, part)).collect();
        threads.for_each(work, items, |(mut local, mut part)| {
            while !part.is_empty() {
                let (head, tail) = part.split_at_mut((run - local % run).min(part.len()));
                stream.draw(global(self, local, coordinates), self.threshold, head);
                local += head.len();
                part = tail;
            }
        });
        Ok(())
    }
}

/// How many elements from any multiple of that number on are neighbours in the whole tensor too.
fn run(random: &Random) -> usize {
    let mut run = 1;
    for d in (0..random.shape.len()).rev().filter(|d| random.shape[*d] > 1) {
        let innermost = random.origins[d].digits.last().filter(|digit| digit.divisor == 1 && digit.stride == 1);
        let Some(digit) = innermost.filter(|_| random.strides[d] == run) else { break };
        run *= digit.size;
        if digit.size < random.shape[d] {
            break;
        }
    }
    run as usize
}

/// The position in the whole tensor of local element `local`.
fn global(random: &Random, local: usize, coordinates: &[u64]) -> u64 {
    let mut rest = local as u64;
    let mut position = 0;
    for ((size, origin), stride) in random.shape.iter().zip(&random.origins).zip(&random.strides).rev() {
        let origin: &Origin = origin;
        position += origin.global(rest % size, coordinates) as u64 * stride;
        rest /= size;
    }
    position
}

/// The stream of numbers: all that they depend on beside the position.
struct Stream {
    key: [u32; 2],
    step: u32,
    stream: u32,
}

impl Stream {
    /// Draws the elements from position `from` on.
    fn draw(&self, from: u64, threshold: u32, out: &mut [u8]) {
        let lead = (from % 4) as usize;
        let mut words = [0; BLOCK];
        let (mut block, mut skip, mut out) = (from / 4, lead, out);
        while !out.is_empty() {
            self.words(block, &mut words);
            let (head, tail) = out.split_at_mut((BLOCK - skip).min(out.len()));
            for (kept, word) in head.iter_mut().zip(&words[skip..]) {
                *kept = u8::from(*word >= threshold);
            }
            (block, skip, out) = (block + (BLOCK / 4) as u64, 0, tail);
        }
    }

    /// The words of sixteen blocks from `block` on.
    fn words(&self, block: u64, words: &mut [u32; BLOCK]) {
        draw_blocks(block, self.step, self.stream, self.key, words);
    }
}

simd! {
    /// Philox4x32-10 of [`shardc_ir::philox`], sixteen blocks side by side.
    fn draw_blocks(block: u64, step: u32, stream: u32, key: [u32; 2], words: &mut [u32; BLOCK]) {
        use std::array::from_fn;
        const LANES: usize = BLOCK / 4;
        let at = |lane: usize| block + lane as u64;
        let mut first: [u32; LANES] = from_fn(|lane| at(lane) as u32);
        let mut second: [u32; LANES] = from_fn(|lane| (at(lane) >> 32) as u32);
        let (mut third, mut fourth, mut key) = ([step; LANES], [stream; LANES], key);
        for _ in 0..ROUNDS {
            let a: [u64; LANES] = from_fn(|lane| u64::from(MULTIPLIERS[0]) * u64::from(first[lane]));
            let b: [u64; LANES] = from_fn(|lane| u64::from(MULTIPLIERS[1]) * u64::from(third[lane]));
            first = from_fn(|lane| (b[lane] >> 32) as u32 ^ second[lane] ^ key[0]);
            second = b.map(|product| product as u32);
            third = from_fn(|lane| (a[lane] >> 32) as u32 ^ fourth[lane] ^ key[1]);
            fourth = a.map(|product| product as u32);
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        for (lane, words) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *words = [first[lane], second[lane], third[lane], fourth[lane]];
        }
    }
}
