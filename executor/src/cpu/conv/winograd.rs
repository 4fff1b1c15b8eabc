//! Convolutions of 3 x 3 neighbours by Winograd's algorithm: a tile of 2 x 2 results takes 16
//! products for each channel, not 36 (Lavin and Gray: Fast Algorithms for Convolutional Neural
//! Networks, 2016).
//!
//! Lines have one position of 16 channels, so transforms are sums of whole lines. What tiles see
//! becomes a matrix of tiles x channels for each of the 16 points, which is multiplied by one of
//! channels x results that is made of the kernels once. Transforms add up to four elements with
//! factors of 1 and a half, and sums are over channels alone: of normal random numbers in 64 to 512
//! channels rounding errors were no larger than those of sums over all neighbours. An infinite
//! element makes results that see it no numbers, where a sum might be infinite.

mod transforms;
mod weight;

use crate::cpu::conv::Sizes;
use crate::cpu::conv::implicit::Sides;
use crate::cpu::lines::{self, Block, HEIGHT, LINE, Line, Terms, Vectors, WIDTH};
use crate::cpu::threads::Threads;
use crate::cpu::tiles::Tile;
use crate::cpu::window::Window;
use shardc_ir::kernel::ConvResult;
use std::ops::Range;
use transforms::{OUTSIDE, POINTS, kernel_to_points, points_to_made, seen_to_points};
use weight::Weight;

/// For fewer tiles, and for fewer than one for so many channels of both sides, it is not worth
/// transforming kernels.
const FEW: [usize; 2] = [64, 8];

/// Of fewer channels on both sides (as the harmonic mean has it, their groups filled up) transforms
/// take as long as the products that they save.
const NARROW: usize = 32;

/// The most kernels, whose points are 64 bytes each, and the most tiles of a row times channels.
const MOST: usize = 1 << 19;

/// Channels of one sum; those of several are added.
const DEPTH: usize = 128;

/// The points of so many elements of both sides stay in the second cache.
const AT_ONCE: usize = 8192;

/// So many tiles are computed together however many channels there are, as all read all kernels.
const TOGETHER: usize = 64;

/// A convolution made ready.
#[derive(Debug)]
pub enum Winograd {
    /// Of outputs or inputs.
    Planes(OfPlanes),
    /// Of kernels.
    Weight(Weight),
}

impl Winograd {
    /// The convolution, if this is a good way to compute it.
    pub fn new(sizes: Sizes, window: &Window) -> Option<Winograd> {
        match sizes.result {
            ConvResult::Weight => Weight::new(sizes, window).map(Winograd::Weight),
            _ => OfPlanes::new(sizes, window).map(Winograd::Planes),
        }
    }

    /// Runs it; `a` is what the input is not.
    pub fn run(&self, a: &[f32], b: &[f32], result: &mut [f32], threads: Threads) {
        match self {
            Winograd::Planes(planes) => planes.run(a, b, result, threads),
            Winograd::Weight(weight) => weight.run(a, b, result, threads),
        }
    }
}

/// A convolution of outputs or inputs.
#[derive(Debug)]
pub struct OfPlanes {
    cpu: Vectors,
    sizes: Sizes,
    sides: Sides,
    planes: Planes,
    /// The panels of channels that are made.
    panels: Vec<(usize, usize)>,
    /// Where the channels of a sum are, and those that are left over.
    terms: [Terms; 2],
}

/// Planes that are seen and made.
#[derive(Debug, Clone, Copy)]
pub struct Planes {
    seen: [usize; 2],
    made: [usize; 2],
    pad: [usize; 2],
}

/// A share of the work: some rows of tiles of some samples in one group.
struct Share<'r> {
    group: usize,
    /// The first sample.
    image: usize,
    rows: Range<usize>,
    /// What is made of each sample.
    made: Vec<Tile<'r, f32>>,
}

impl Planes {
    /// Those of a convolution, if tiles save a quarter of the products, and are not too `few`.
    fn of(s: &Sizes, window: &Window, [few, channels_of_one]: [usize; 2]) -> Option<Planes> {
        let window = if s.result == ConvResult::Input { window.reversed()? } else { *window };
        let [seen, made, pad] = window.three_by_three()?;
        let planes = Planes { seen, made, pad };
        let ([height, width], channels) = (planes.tiles(), s.inputs + s.outputs);
        let filled = s.inputs.next_multiple_of(LINE) + s.outputs.next_multiple_of(LINE);
        let is_wide = 2 * s.inputs * s.outputs >= NARROW * filled;
        let saves = 4 * POINTS * height * width <= 3 * planes.products();
        let fits = s.groups * s.inputs * s.outputs <= MOST && width * channels <= MOST;
        (is_wide && saves && fits && s.batch * height * width >= few.max(channels / channels_of_one)).then_some(planes)
    }

    /// The products of a plane with its kernel, without those of pads.
    fn products(&self) -> usize {
        let at_tap = |axis: usize, tap: usize| {
            let (seen, pad) = (self.seen[axis], self.pad[axis]);
            self.made[axis].min((seen + pad).saturating_sub(tap)).saturating_sub(pad.saturating_sub(tap))
        };
        (0..2).map(|axis| (0..3).map(|tap| at_tap(axis, tap)).sum::<usize>()).product()
    }

    /// Rows and columns of tiles.
    fn tiles(&self) -> [usize; 2] {
        self.made.map(|size| size.div_ceil(2))
    }

    /// How many rows of tiles, and of how many samples, are about so many tiles.
    fn rows_of(&self, tiles: usize, s: &Sizes) -> (usize, usize) {
        let [height, width] = self.tiles();
        let rows = (tiles / width).clamp(1, height);
        (height.div_ceil(height.div_ceil(rows)), (tiles / (height * width)).clamp(1, s.batch))
    }

    /// The rows that some rows of tiles see.
    fn rows_seen(&self, tiles: &Range<usize>) -> Range<usize> {
        let first = (2 * tiles.start).saturating_sub(self.pad[0]).min(self.seen[0]);
        first..(2 * tiles.end + 2).saturating_sub(self.pad[0]).clamp(first, self.seen[0])
    }

    /// The elements of a plane that some rows of tiles see.
    fn elements_seen(&self, tiles: &Range<usize>) -> Range<usize> {
        let rows = self.rows_seen(tiles);
        rows.start * self.seen[1]..rows.end * self.seen[1]
    }

    /// The elements of a plane that some rows of tiles make.
    fn elements_made(&self, tiles: &Range<usize>) -> Range<usize> {
        2 * tiles.start * self.made[1]..(2 * tiles.end).min(self.made[0]) * self.made[1]
    }

    /// For each tile of some rows the elements that it sees, from the first that any sees.
    fn seen_by(&self, tiles: &Range<usize>) -> Vec<[u32; POINTS]> {
        let rows = self.rows_seen(tiles);
        let element = |y: usize, x: usize| {
            let (y, x) = (y.checked_sub(self.pad[0])?, x.checked_sub(self.pad[1])?);
            (rows.contains(&y) && x < self.seen[1]).then(|| ((y - rows.start) * self.seen[1] + x) as u32)
        };
        self.each(tiles, |y, x| std::array::from_fn(|i| element(2 * y + i / 4, 2 * x + i % 4).unwrap_or(OUTSIDE)))
    }

    /// For each tile of some rows the elements that it makes, from the first that any makes.
    fn made_by(&self, tiles: &Range<usize>) -> Vec<[u32; 4]> {
        let [height, width] = self.made;
        let element = |y: usize, x: usize| (y < height && x < width).then(|| ((y - 2 * tiles.start) * width + x) as u32);
        self.each(tiles, |y, x| std::array::from_fn(|i| element(2 * y + i / 2, 2 * x + i % 2).unwrap_or(OUTSIDE)))
    }

    fn each<T>(&self, rows: &Range<usize>, f: impl Fn(usize, usize) -> T) -> Vec<T> {
        let f = &f;
        rows.clone().flat_map(|y| (0..self.tiles()[1]).map(move |x| f(y, x))).collect()
    }
}

impl OfPlanes {
    fn new(sizes: Sizes, window: &Window) -> Option<OfPlanes> {
        let cpu = Vectors::detect()?;
        let planes = Planes::of(&sizes, window, FEW)?;
        let sides = Sides::of(&sizes)?;
        let terms = [DEPTH, sides.channels % DEPTH].map(|channels| Terms::new((0..channels as u32).collect()));
        Some(OfPlanes { cpu, sizes, sides, planes, panels: panels(sides.rows), terms })
    }

    fn run(&self, kernels: &[f32], seen: &[f32], result: &mut [f32], threads: Threads) {
        let s = &self.sizes;
        let [height, width] = self.planes.tiles();
        // However tiles are shared, each is computed alike.
        let at_once = (AT_ONCE / (s.inputs + s.outputs)).max(TOGETHER);
        let at_once = at_once.min(s.groups * s.batch * height * width / (2 * threads.0)).max(LINE);
        let (rows, images) = self.planes.rows_of(at_once, s);
        let (parts, run) = (height.div_ceil(rows), rows * 2 * self.planes.made[1]);
        let mut shares: Vec<Share<'_>> = vec![];
        for image in (0..s.batch).step_by(images) {
            for (group, row) in (0..s.groups).flat_map(|group| (0..height).step_by(rows).map(move |row| (group, row))) {
                shares.push(Share { group, image, rows: row..height.min(row + rows), made: vec![] });
            }
        }
        for (position, tile) in self.sides.tiles(s, result).into_iter().enumerate() {
            let (image, group) = (position / s.groups, position % s.groups);
            for (_, col, tile) in tile.split(self.sides.rows, run) {
                shares[(image / images * s.groups + group) * parts + col / run].made.push(tile);
            }
        }
        let of_kernels = POINTS * self.sides.channels;
        let of_group = of_kernels * groups(self.sides.rows);
        lines::with_lines(s.groups * of_group, |points: &mut [Line]| {
            let mut items = vec![];
            for (group, mut rest) in points.chunks_mut(of_group).enumerate() {
                for (first, width) in &self.panels {
                    let (own, others) = rest.split_at_mut(of_kernels * width);
                    items.push((group, *first, *width, own));
                    rest = others;
                }
            }
            let work = s.groups * of_group * LINE;
            threads.for_each(work, items, |(group, first, width, points)| self.kernels(kernels, group, first, width, points));
            let work = s.batch * s.groups * s.outputs * s.inputs * s.taps * s.output / 8;
            threads.for_each(work, shares, |share| self.share(share, &points[..], seen));
        });
    }

    /// The points of a panel of kernels: for each point the lines of its channels in turn.
    fn kernels(&self, kernels: &[f32], group: usize, first: usize, width: usize, points: &mut [Line]) {
        let (s, sides) = (&self.sizes, &self.sides);
        let start = group * s.outputs * s.inputs * s.taps;
        let mut taps = [[0.0; LINE]; 9];
        for channel in 0..sides.channels {
            for w in 0..width {
                let mut rows: [&[f32]; LINE] = [&[]; LINE];
                for (row, taps) in ((first + w) * LINE..sides.rows).zip(&mut rows) {
                    *taps = &kernels[start + row * sides.row_step + channel * sides.channel_step..][..s.taps];
                }
                self.cpu.interleave(&rows, &mut taps, 1);
                let backwards = s.result == ConvResult::Input;
                kernel_to_points(&taps, backwards, &mut points[channel * width + w..], sides.channels * width);
            }
        }
    }

    fn share(&self, share: Share<'_>, kernels: &[Line], seen: &[f32]) {
        let (s, sides) = (&self.sizes, &self.sides);
        let rows = &share.rows;
        let (tiles_seen, tiles_made) = (self.planes.seen_by(rows), self.planes.made_by(rows));
        let (of_seen, of_made) = (self.planes.elements_seen(rows), self.planes.elements_made(rows));
        let (tiles, groups) = (tiles_made.len(), [sides.channels, sides.rows].map(groups));
        let [of_point, to_point] = groups.map(|groups| odd(share.made.len() * tiles * groups));
        let elements = of_seen.len().max(of_made.len());
        lines::with_lines(elements + POINTS * (of_point + to_point), |memory: &mut [Line]| {
            let (elements, memory) = memory.split_at_mut(elements);
            let (before, behind) = memory.split_at_mut(POINTS * of_point);
            for i in 0..share.made.len() {
                let first = ((share.image + i) * s.groups + share.group) * sides.channels;
                for group in 0..groups[0] {
                    let channels = first + group * LINE..first + sides.channels.min((group + 1) * LINE);
                    let elements = &mut elements[..of_seen.len()];
                    turn(self.cpu, seen, channels, (sides.seen, &of_seen), elements);
                    seen_to_points(elements, &tiles_seen, &mut before[i * tiles * groups[0] + group..], groups[0], of_point);
                }
            }
            let kernels = &kernels[share.group * POINTS * sides.channels * groups[1]..];
            self.multiply(kernels, before.as_flattened(), of_point * LINE, share.made.len() * tiles, behind, to_point);
            for (i, made) in share.made.into_iter().enumerate() {
                for (row, _, mut made) in made.split(LINE, of_made.len()) {
                    let elements = &mut elements[..made.cols()];
                    let points = &behind[i * tiles * groups[1] + row / LINE..];
                    points_to_made(points, groups[1], to_point, &tiles_made, elements);
                    self.turn_back(elements, &mut made);
                }
            }
        });
    }

    /// Multiplies the points of tiles and kernels.
    fn multiply(&self, kernels: &[Line], before: &[f32], of_point: usize, tiles: usize, behind: &mut [Line], to_point: usize) {
        let (channels, groups) = (self.sides.channels, groups(self.sides.rows));
        for point in 0..POINTS {
            let (before, behind) = (&before[point * of_point..][..of_point], &mut behind[point * to_point..]);
            for (first, width) in &self.panels {
                let kernels = &kernels[(first * POINTS + point * width) * channels..][..width * channels];
                let row = channels.next_multiple_of(LINE);
                for tile in (0..tiles).step_by(HEIGHT) {
                    let rows = std::array::from_fn(|i| (tile + i).min(tiles - 1) * row);
                    let mut block: Block = [[[0.0; LINE]; WIDTH]; HEIGHT];
                    for (depth, kernels) in kernels.chunks(DEPTH * width).enumerate() {
                        let (before, terms) = (&before[depth * DEPTH..], &self.terms[usize::from(kernels.len() < DEPTH * width)]);
                        self.cpu.multiply_lines(*width, before, rows, terms, kernels, &mut block, depth > 0);
                    }
                    for (tile, row) in (tile..tiles).zip(&block) {
                        behind[tile * groups + first..][..*width].copy_from_slice(&row[..*width]);
                    }
                }
            }
        }
    }

    /// Puts lines where their channels are.
    fn turn_back(&self, lines: &[Line], made: &mut Tile<'_, f32>) {
        for (block, lines) in lines.chunks(LINE).enumerate() {
            for (channel, elements) in (0..made.rows()).zip(&self.cpu.columns_of(lines)) {
                made.row(channel)[block * LINE..][..lines.len()].copy_from_slice(&elements[..lines.len()]);
            }
        }
    }
}

/// Groups of 16 channels.
fn groups(channels: usize) -> usize {
    channels.div_ceil(LINE)
}

/// The panels of channels: the first group of each, and how many it has.
fn panels(channels: usize) -> Vec<(usize, usize)> {
    let groups = groups(channels);
    let most = lines::panel_width(groups);
    (0..groups).step_by(most).map(|first| (first, most.min(groups - first))).collect()
}

/// An odd number of lines, so that points of a tile, which lie so far apart, are in different sets
/// of the caches.
fn odd(lines: usize) -> usize {
    lines | 1
}

/// Elements of at most 16 planes, of so many elements each, side by side.
fn turn(cpu: Vectors, data: &[f32], planes: Range<usize>, (plane, elements): (usize, &Range<usize>), lines: &mut [Line]) {
    let mut rows: [&[f32]; LINE] = [&[]; LINE];
    for (number, row) in planes.zip(&mut rows) {
        *row = &data[number * plane..][elements.clone()];
    }
    cpu.interleave(&rows, lines, 1);
}
