//! Convolutions as products of matrices that are never made: what a tap sees of a few neighbouring
//! results is packed from the input just before it is multiplied (Chetlur et al.: cuDNN, 2014).
//!
//! Results of one sample after another stand side by side in lines of 16, so that narrow planes
//! fill registers too. Kernels are read where they are. Inputs of a convolution with strides are
//! computed residue by residue, for those of one residue are seen at the same taps. Each sum runs
//! over channels and taps in order, however work is shared.

mod panels;
mod samples;
mod taps;
mod weight;

use crate::cpu::conv::Sizes;
use crate::cpu::lines::{self, Block, HEIGHT, LINE, Line, Piece, Planes, Terms, Vectors, WIDTH, first_lanes};
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps, Tile};
use crate::cpu::window::Window;
use panels::{Panel, Phase, Phases};
use samples::OfSamples;
use shardc_ir::kernel::ConvResult;
use std::borrow::Cow;
use std::ops::Range;
use taps::ByTaps;
use weight::Weight;

/// About as many terms are packed at a time.
const DEPTH: usize = 1024;

/// For gradients of kernels about as many elements are packed at a time.
const ELEMENTS: usize = 4 << 20;

/// More elements than these do not stay in the second cache.
const LARGE: usize = 1 << 18;

/// The fewest strips of rows for which it is worth packing.
const STRIPS: usize = 16;

/// A convolution made ready.
#[derive(Debug)]
pub enum Implicit {
    /// Of outputs or inputs.
    Planes(Box<OfPlanes>),
    /// Of small ones.
    Samples(Box<OfSamples>),
    /// Of kernels.
    Weight(Box<Weight>),
    /// Of kernels of small planes.
    ByTaps(Box<ByTaps>),
}

impl Implicit {
    /// The convolution, if the processor can compute it so.
    pub fn new(sizes: Sizes, window: &Window) -> Option<Implicit> {
        let cpu = Vectors::detect()?;
        match sizes.result {
            ConvResult::Weight => {
                let by_taps = ByTaps::new(cpu, sizes, window).map(|by_taps| Implicit::ByTaps(Box::new(by_taps)));
                by_taps.or_else(|| Weight::new(cpu, sizes, window).map(|weight| Implicit::Weight(Box::new(weight))))
            }
            _ => {
                let samples = OfSamples::new(cpu, sizes, window).map(|samples| Implicit::Samples(Box::new(samples)));
                samples.or_else(|| OfPlanes::new(cpu, sizes, window).map(|planes| Implicit::Planes(Box::new(planes))))
            }
        }
    }

    /// Runs it; `a` is what the input is not.
    pub fn run(&self, a: &[f32], b: &[f32], result: &mut [f32], threads: Threads) {
        match self {
            Implicit::Planes(planes) => planes.run(a, b, result, threads),
            Implicit::Samples(samples) => samples.run(a, b, result, threads),
            Implicit::Weight(weight) => weight.run(a, b, result, threads),
            Implicit::ByTaps(by_taps) => by_taps.run(a, b, result, threads),
        }
    }
}

/// What a convolution makes and what it sees, where its results are planes.
#[derive(Debug, Clone, Copy)]
pub struct Sides {
    /// Channels that are made and channels that are summed over, in each group.
    pub rows: usize,
    pub channels: usize,
    /// Elements of a plane that is made, and of one that is seen.
    pub made: usize,
    pub seen: usize,
    /// Elements of the kernels from one of each to the next.
    pub row_step: usize,
    pub channel_step: usize,
}

impl Sides {
    /// Those of a convolution; `None` where kernels have more elements than offsets can name.
    pub fn of(s: &Sizes) -> Option<Sides> {
        let kernels = s.inputs * s.taps;
        u32::try_from(s.outputs * kernels).ok()?;
        let of_output =
            Sides { rows: s.outputs, channels: s.inputs, made: s.output, seen: s.input, row_step: kernels, channel_step: s.taps };
        Some(match s.result {
            ConvResult::Output => of_output,
            _ => Sides {
                rows: s.inputs,
                channels: s.outputs,
                made: s.input,
                seen: s.output,
                row_step: s.taps,
                channel_step: kernels,
            },
        })
    }

    /// The planes of a result: for each sample and group a tile with a row for each channel.
    pub fn tiles<'r>(&self, s: &Sizes, result: &'r mut [f32]) -> Vec<Tile<'r, f32>> {
        let steps = |size, stride| Steps { size, stride };
        let group = self.rows * self.made;
        let outer = [steps(s.batch, s.groups * group), steps(s.groups, group)];
        tiles::cut(result, &outer, steps(self.rows, self.made), steps(self.made, 1))
    }

    /// Where the kernels of each row of a strip begin, from `channel` on. A strip with fewer rows
    /// has its last one several times.
    fn kernels(&self, s: &Sizes, group: usize, rows: Range<usize>, strip: usize, channel: usize) -> [usize; HEIGHT] {
        let start = group * s.outputs * s.inputs * s.taps + channel * self.channel_step;
        let row = |i: usize| (rows.start + strip * HEIGHT + i).min(rows.end - 1);
        std::array::from_fn(|i| start + row(i) * self.row_step)
    }

    /// The terms at some taps of so many channels, and of those left over.
    fn terms(&self, taps: &[usize], depth: usize) -> [Terms; 2] {
        [depth, self.channels % depth].map(|channels| {
            let of = |channel| taps.iter().map(move |tap| (channel * self.channel_step + tap) as u32);
            Terms::new((0..channels).flat_map(of).collect())
        })
    }
}

/// A convolution whose results are planes.
#[derive(Debug)]
pub struct OfPlanes {
    cpu: Vectors,
    sizes: Sizes,
    phases: Phases,
    sides: Sides,
    /// Channels that are packed at a time, and for each phase the terms of so many channels and of
    /// those left over.
    depth: usize,
    terms: Vec<[Terms; 2]>,
}

/// A share of the work: some channels of some samples in one group.
struct Share<'r> {
    group: usize,
    /// The first sample and the first channel.
    image: usize,
    row: usize,
    range: usize,
    /// The channels of each sample.
    made: Vec<Tile<'r, f32>>,
}

impl OfPlanes {
    fn new(cpu: Vectors, sizes: Sizes, window: &Window) -> Option<OfPlanes> {
        let sides = Sides::of(&sizes)?;
        // Of fewer channels most rows of a block would be empty.
        if sides.rows < HEIGHT / 2 {
            return None;
        }
        let phases = Phases::new(&sizes, window)?;
        let parts = (sides.channels * sizes.taps).div_ceil(DEPTH).min(sides.channels);
        let depth = sides.channels.div_ceil(parts);
        let terms = phases.phases.iter().map(|phase| sides.terms(&phase.taps, depth)).collect();
        Some(OfPlanes { cpu, sizes, phases, sides, depth, terms })
    }

    fn run(&self, kernels: &[f32], seen: &[f32], result: &mut [f32], threads: Threads) {
        let s = &self.sizes;
        let (images, width) = (self.phases.images, self.phases.range.min(self.sides.made));
        let (blocks, ranges) = (s.batch.div_ceil(images), self.sides.made.div_ceil(width));
        let height = self.height(blocks * s.groups * ranges, threads);
        let parts = self.sides.rows.div_ceil(height);
        let mut shares: Vec<Share<'_>> = vec![];
        for image in (0..s.batch).step_by(images) {
            for group in 0..s.groups {
                let share = |i: usize| Share { group, image, range: i / parts, row: i % parts * height, made: vec![] };
                shares.extend((0..ranges * parts).map(share));
            }
        }
        for (position, tile) in self.sides.tiles(s, result).into_iter().enumerate() {
            let first = (position / s.groups / images * s.groups + position % s.groups) * ranges;
            for (row, col, tile) in tile.split(height, width) {
                shares[(first + col / width) * parts + row / height].made.push(tile);
            }
        }
        let work = s.batch * s.groups * s.outputs * s.inputs * s.taps * s.output / 4;
        threads.for_each(work, shares, |share| self.share(share, kernels, seen));
    }

    /// The channels of a share, of which there are at least `others`. Results do not depend on how
    /// channels are shared, but each share packs for itself.
    fn height(&self, others: usize, threads: Threads) -> usize {
        let strips = self.sides.rows.div_ceil(HEIGHT);
        let shares = if threads.0 == 1 { 1 } else { (8 * threads.0).div_ceil(others) };
        strips.div_ceil(shares).max(STRIPS).min(strips) * HEIGHT
    }

    fn share(&self, mut share: Share<'_>, kernels: &[f32], seen: &[f32]) {
        if self.phases.phases.iter().any(|phase| phase.taps.is_empty()) {
            share.made.iter_mut().for_each(|tile| (0..tile.rows()).for_each(|row| tile.row(row).fill(0.0)));
        }
        for (phase, terms) in self.phases.phases.iter().zip(&self.terms).filter(|(phase, _)| !phase.taps.is_empty()) {
            let (columns, range) = (share.made.len() * phase.positions, share.range);
            for panel in phase.panels.iter().filter(|panel| panel.range == range && panel.column < columns) {
                match panel.width {
                    1 => self.panel::<1>(phase, panel, terms, columns, &mut share, kernels, seen),
                    2 => self.panel::<2>(phase, panel, terms, columns, &mut share, kernels, seen),
                    _ => self.panel::<3>(phase, panel, terms, columns, &mut share, kernels, seen),
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "two operands, a result and where they are")]
    fn panel<const W: usize>(
        &self,
        phase: &Phase,
        panel: &Panel,
        terms: &[Terms; 2],
        columns: usize,
        share: &mut Share<'_>,
        kernels: &[f32],
        seen: &[f32],
    ) {
        // The last samples may be fewer than there is room for.
        let lanes = |line: u16| first_lanes(columns.saturating_sub(panel.column + usize::from(line) % W * LINE));
        let there = |piece: &Piece| Piece { mask: piece.mask & lanes(piece.line), ..*piece };
        let is_full = share.made.len() == self.phases.images;
        let sources: Cow<'_, [Piece]> = if is_full { (&panel.sources).into() } else { panel.sources.iter().map(there).collect() };
        let Some(rows) = share.made.first().map(Tile::rows) else { return };
        let (strips, lines) = (rows.div_ceil(HEIGHT), phase.taps.len() * W);
        let (sums, packed) = (strips * HEIGHT * WIDTH, self.depth * lines);
        lines::with_lines(sums + packed, |memory: &mut [Line]| {
            let (sums, packed) = memory.split_at_mut(sums);
            let sums: &mut [Block] = bytemuck::cast_slice_mut(sums);
            for first in (0..self.sides.channels).step_by(self.depth) {
                let channels = self.depth.min(self.sides.channels - first);
                let packed = &mut packed[..channels * lines];
                let start = ((share.image * self.sizes.groups + share.group) * self.sides.channels + first) * self.sides.seen;
                let planes = Planes { data: seen, start, plane: self.sides.seen, step: self.phases.source_step };
                self.cpu.pack(&planes, &sources, packed, lines);
                let terms = &terms[usize::from(channels < self.depth)];
                for (strip, block) in sums.iter_mut().enumerate() {
                    let at = self.sides.kernels(&self.sizes, share.group, share.row..share.row + rows, strip, first);
                    self.cpu.multiply::<W>(kernels, at, terms, packed, block, first > 0);
                }
            }
            let column = (share.range * self.phases.range) as i32;
            for (row, lines) in sums.iter().flatten().enumerate().take(rows) {
                for (image, piece) in &panel.targets {
                    let Some(made) = share.made.get_mut(*image) else { continue };
                    let piece = Piece { offset: piece.offset - column, ..*piece };
                    self.cpu.store(&lines[usize::from(piece.line)], &piece, self.phases.target_step, made.row(row));
                }
            }
        });
    }
}
