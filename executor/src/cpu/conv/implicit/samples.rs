//! Convolutions of small planes for 16 samples at a time, or for eight: a line holds one position
//! of 16 samples, or of eight two positions that see something at the same taps. A position of
//! eight that is left over has half a line.
//!
//! So every position is multiplied with the taps at which it sees something, and with no pads: of a
//! plane of 2 x 2 under a kernel of 3 x 3, these are 4 of 9.

use super::panels::widths;
use super::{DEPTH, Sides};
use crate::cpu::conv::Sizes;
use crate::cpu::lines::{self, Block, HALF, HEIGHT, LINE, Line, Terms, Vectors, WIDTH};
use crate::cpu::prefetch;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::Tile;
use crate::cpu::window::Window;
use shardc_ir::kernel::ConvResult;
use std::collections::BTreeMap;

/// The most results of a plane; larger ones have few pads.
const SMALL: usize = 64;

/// The most elements of a plane that is seen.
const MOST_SEEN: usize = 256;

/// About as many lines of what is seen are turned at a time, and no more terms are listed.
const TURNED: usize = 8192;

/// So many lines of each term are packed together: about what stays in the second cache.
const TOGETHER: usize = 2 * WIDTH;

/// Kernels of an input's gradient are far apart. Where each is multiplied with no more lines than
/// these, they are brought near a strip ahead.
const FEW: usize = 4;

/// So many channels are packed at a time there: as their kernels are often half of all sets of the
/// first cache apart, more would not stay in it.
const NEAR: usize = 14;

/// The most blocks of sums of a share: 768 KiB.
const BLOCKS: usize = 512;

/// The fewest strips of rows for which it is worth packing.
const STRIPS: usize = 8;

/// A convolution made ready whose results are planes.
#[derive(Debug)]
pub struct OfSamples {
    cpu: Vectors,
    sizes: Sizes,
    sides: Sides,
    /// Samples of a line.
    samples: usize,
    /// Channels that are packed at a time.
    depth: usize,
    /// Whether kernels are brought near a strip ahead.
    brings: bool,
    /// Panels that are packed together.
    sets: Vec<Vec<Panel>>,
}

/// A few positions that see something at the same taps.
#[derive(Debug)]
struct Panel {
    /// Those of one line after those of another.
    positions: Vec<usize>,
    width: Width,
    /// What they see, those of one tap after those of another.
    sources: Vec<usize>,
    /// The terms of the channels that are packed at a time, and of those left over.
    terms: [Terms; 2],
}

#[derive(Debug, Clone, Copy)]
enum Width {
    Half,
    Lines(usize),
}

impl Panel {
    /// The lines that it needs of a block.
    fn lines(&self) -> usize {
        match self.width {
            Width::Half => 1,
            Width::Lines(lines) => lines,
        }
    }
}

/// A share of the work: some channels of the samples of a line in one group.
struct Share<'r> {
    group: usize,
    /// The first sample and the first channel.
    image: usize,
    row: usize,
    /// The channels of each sample.
    made: Vec<Tile<'r, f32>>,
}

impl OfSamples {
    /// The convolution; `None` where planes or kernels are too large, channels are few, or samples
    /// come neither by 16 nor by eight.
    pub fn new(cpu: Vectors, sizes: Sizes, window: &Window) -> Option<OfSamples> {
        let s = &sizes;
        let sides = Sides::of(s)?;
        let Sides { rows, channels, made, seen, .. } = sides;
        let samples = [LINE, HALF].into_iter().find(|samples| s.batch.is_multiple_of(*samples))?;
        let fits = s.taps > 1 && made <= SMALL && seen <= MOST_SEEN;
        if !fits || rows < HEIGHT || made.saturating_mul(s.taps) > TURNED {
            return None;
        }
        let source = |position, tap| match s.result {
            ConvResult::Output => window.source(position, tap),
            _ => window.target(position, tap),
        };
        let mut alike = BTreeMap::<Vec<usize>, Vec<usize>>::new();
        for position in 0..made {
            let taps = (0..s.taps).filter(|tap| source(position, *tap).is_some()).collect();
            alike.entry(taps).or_default().push(position);
        }
        let each = LINE / samples;
        let products: usize = alike.iter().map(|(taps, positions)| taps.len() * positions.len()).sum();
        let brings = sides.row_step < sides.channel_step && products * samples <= FEW * s.taps * LINE;
        let most = if brings { NEAR } else { channels };
        let parts = (channels * s.taps).div_ceil(DEPTH).max((channels * seen).div_ceil(TURNED)).max(channels.div_ceil(most));
        let depth = channels.div_ceil(parts.min(channels));
        let panel = |taps: &[usize], positions: &[usize], width: Width| Panel {
            positions: positions.to_vec(),
            width,
            sources: taps.iter().flat_map(|tap| positions.iter().filter_map(|position| source(*position, *tap))).collect(),
            terms: sides.terms(taps, depth),
        };
        let mut panels = vec![];
        for (taps, positions) in &alike {
            let (whole, rest) = positions.split_at(positions.len() / each * each);
            let part = |(first, width): (usize, usize)| &whole[first * each..(first + width) * each];
            panels.extend(widths(whole.len() / each).map(|at| panel(taps, part(at), Width::Lines(at.1))));
            panels.extend((!rest.is_empty()).then(|| panel(taps, rest, Width::Half)));
        }
        Some(OfSamples { cpu, sides, samples, depth, brings, sets: sets(panels), sizes })
    }

    /// How many panels there are.
    fn panels(&self) -> usize {
        self.sets.iter().map(Vec::len).sum()
    }

    /// Runs it.
    pub fn run(&self, kernels: &[f32], seen: &[f32], result: &mut [f32], threads: Threads) {
        let s = &self.sizes;
        let strips = self.sides.rows.div_ceil(HEIGHT);
        let others = s.batch / self.samples * s.groups;
        let wanted = if threads.0 == 1 { 1 } else { (4 * threads.0).div_ceil(others) };
        let most = strips.min((BLOCKS / self.panels()).max(STRIPS));
        let height = strips.div_ceil(wanted).max(STRIPS).min(most) * HEIGHT;
        let parts = self.sides.rows.div_ceil(height);
        let mut shares: Vec<Share<'_>> = vec![];
        for image in (0..s.batch).step_by(self.samples) {
            for group in 0..s.groups {
                shares.extend((0..parts).map(|part| Share { group, image, row: part * height, made: vec![] }));
            }
        }
        for (position, tile) in self.sides.tiles(s, result).into_iter().enumerate() {
            let first = position / s.groups / self.samples * s.groups + position % s.groups;
            for (row, _, tile) in tile.split(height, self.sides.made) {
                shares[first * parts + row / height].made.push(tile);
            }
        }
        let work = s.batch * s.groups * s.outputs * s.inputs * s.taps * s.output / 4;
        threads.for_each(work, shares, |share| self.share(share, kernels, seen));
    }

    fn share(&self, mut share: Share<'_>, kernels: &[f32], seen: &[f32]) {
        let Some(rows) = share.made.first().map(Tile::rows) else { return };
        let strips = rows.div_ceil(HEIGHT);
        let sums = self.panels() * strips * HEIGHT * WIDTH;
        let turned = self.depth * self.sides.seen;
        lines::with_lines(sums + turned + self.depth * self.sizes.taps * TOGETHER, |memory: &mut [Line]| {
            let (sums, memory) = memory.split_at_mut(sums);
            let (turned, packed) = memory.split_at_mut(turned);
            let sums: &mut [Block] = bytemuck::cast_slice_mut(sums);
            for first in (0..self.sides.channels).step_by(self.depth) {
                let channels = self.depth.min(self.sides.channels - first);
                self.turn(&share, first, channels, seen, turned);
                let mut rest = &mut sums[..];
                for panels in &self.sets {
                    let (blocks, others) = rest.split_at_mut(panels.len() * strips);
                    self.multiply(panels, &share, [first, channels], turned, packed, kernels, rows, blocks);
                    rest = others;
                }
            }
            let mut rest = &sums[..];
            for panels in &self.sets {
                let (blocks, others) = rest.split_at(panels.len() * strips);
                rest = others;
                for (strip, blocks) in blocks.chunks(panels.len()).enumerate() {
                    for (panel, block) in panels.iter().zip(blocks) {
                        for (row, lines) in (strip * HEIGHT..rows).zip(block) {
                            let sums = lines.as_flattened().chunks_exact(self.samples);
                            for (position, sums) in panel.positions.iter().zip(sums) {
                                share.made.iter_mut().zip(sums).for_each(|(made, sum)| made.row(row)[*position] = *sum);
                            }
                        }
                    }
                }
            }
        });
    }

    /// Turns some channels of what the samples of a share see: a line for each element of a sample.
    fn turn(&self, share: &Share<'_>, first: usize, channels: usize, seen: &[f32], turned: &mut [Line]) {
        let start =
            |i: usize| (((share.image + i) * self.sizes.groups + share.group) * self.sides.channels + first) * self.sides.seen;
        let row = |i: usize| &seen[start(i)..][..channels * self.sides.seen];
        let rows = std::array::from_fn(|i| if i < self.samples { row(i) } else { &[] });
        self.cpu.interleave(&rows, turned, 1);
    }

    /// Brings the kernels of rows that follow one another near.
    fn bring(&self, kernels: &[f32], rows: [usize; HEIGHT], channels: usize) {
        let len = rows[HEIGHT - 1] - rows[0] + self.sizes.taps;
        let starts = (0..channels).map(|channel| rows[0] + channel * self.sides.channel_step);
        starts.for_each(|start| kernels[start..start + len].chunks(LINE).for_each(prefetch::near));
    }

    /// Sums of some panels over some channels; kernels are read once for all of them.
    #[expect(clippy::too_many_arguments, reason = "two operands, a result, and where they are")]
    fn multiply(
        &self,
        panels: &[Panel],
        share: &Share<'_>,
        [first, channels]: [usize; 2],
        turned: &[Line],
        packed: &mut [Line],
        kernels: &[f32],
        rows: usize,
        blocks: &mut [Block],
    ) {
        let mut rest = packed;
        let mut parts: Vec<&[Line]> = vec![];
        for panel in panels {
            let each = panel.sources.len() * self.samples;
            let (part, others) = rest.split_at_mut((channels * each).div_ceil(LINE));
            if each > 0 {
                let planes = turned.chunks_exact(self.sides.seen).zip(part.as_flattened_mut().chunks_exact_mut(each));
                planes.take(channels).for_each(|(plane, part)| match self.samples {
                    LINE => gather::<LINE>(plane, &panel.sources, part),
                    _ => gather::<HALF>(plane, &panel.sources, part),
                });
            }
            parts.push(part);
            rest = others;
        }
        let strips = |strip| self.sides.kernels(&self.sizes, share.group, share.row..share.row + rows, strip, first);
        for (strip, blocks) in blocks.chunks_mut(panels.len()).enumerate() {
            let at = strips(strip);
            if self.brings {
                self.bring(kernels, strips(strip + 1), channels);
            }
            for ((panel, part), block) in panels.iter().zip(&parts).zip(blocks) {
                let terms = &panel.terms[usize::from(channels < self.depth)];
                match panel.width {
                    Width::Half => self.cpu.multiply_halves(kernels, at, terms, part.as_flattened(), block, first > 0),
                    Width::Lines(width) => self.cpu.multiply_lines(width, kernels, at, terms, part, block, first > 0),
                }
            }
        }
    }
}

/// Panels of no more than [`TOGETHER`] lines in each set.
fn sets(panels: Vec<Panel>) -> Vec<Vec<Panel>> {
    let mut sets: Vec<Vec<Panel>> = vec![];
    let mut room = 0;
    for panel in panels {
        let lines = panel.lines();
        match sets.last_mut() {
            Some(set) if lines <= room => {
                room -= lines;
                set.push(panel);
            }
            _ => {
                room = TOGETHER - lines;
                sets.push(vec![panel]);
            }
        }
    }
    sets
}

/// Some elements of a plane, of `N` samples each, one after the other.
fn gather<const N: usize>(plane: &[Line], sources: &[usize], part: &mut [f32]) {
    for (to, from) in part.as_chunks_mut::<N>().0.iter_mut().zip(sources) {
        to.copy_from_slice(&plane[*from][..N]);
    }
}
