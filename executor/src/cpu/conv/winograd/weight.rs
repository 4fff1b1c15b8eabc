//! The gradient of kernels of 3 x 3 by Winograd's algorithm: the sums over tiles of the products of
//! what each sees and makes, point by point.

use super::transforms::{POINTS, made_to_points, points_to_kernel, seen_to_points};
use super::{Planes, groups, odd, panels, turn};
use crate::cpu::conv::Sizes;
use crate::cpu::lines::{self, Block, HEIGHT, LINE, Line, Terms, Vectors, WIDTH};
use crate::cpu::threads::Threads;
use crate::cpu::window::Window;
use std::ops::Range;

/// For fewer tiles, and for fewer than one for so many channels of both sides, it is not worth
/// adding up all points of all kernels.
const FEW: [usize; 2] = [32, 16];

/// The points of so many elements of both sides are made together, but of at least and at most so
/// many tiles.
const TOGETHER: usize = 1 << 16;
const TILES: [usize; 2] = [64, 128];

/// The points of so many elements of both sides are held at a time.
const HELD: usize = 1 << 17;

/// The gradient of kernels made ready.
#[derive(Debug)]
pub struct Weight {
    cpu: Vectors,
    sizes: Sizes,
    planes: Planes,
    /// All tiles, in parts that are transformed together, and how many parts are held at a time at
    /// least.
    parts: Vec<Part>,
    held: usize,
    /// The panels of channels of the input.
    panels: Vec<(usize, usize)>,
    /// For each number of tiles that a part has where its terms are.
    terms: Vec<Terms>,
}

/// Some rows of tiles of some samples in one group.
#[derive(Debug, Clone)]
struct Part {
    images: Range<usize>,
    rows: Range<usize>,
    tiles: usize,
    /// Which terms are its own.
    terms: usize,
}

impl Weight {
    /// The gradient, if this is a good way to compute it.
    pub fn new(sizes: Sizes, window: &Window) -> Option<Weight> {
        let cpu = Vectors::detect()?;
        let planes = Planes::of(&sizes, window, FEW)?;
        let [height, width] = planes.tiles();
        let channels = sizes.inputs + sizes.outputs;
        let (rows, images) = planes.rows_of((TOGETHER / channels).clamp(TILES[0], TILES[1]), &sizes);
        let step = sizes.outputs.next_multiple_of(LINE);
        let (mut parts, mut terms): (Vec<Part>, Vec<Terms>) = (vec![], vec![]);
        for image in (0..sizes.batch).step_by(images) {
            for row in (0..height).step_by(rows) {
                let (images, rows) = (image..(image + images).min(sizes.batch), row..(row + rows).min(height));
                let tiles = images.len() * rows.len() * width;
                let known = terms.iter().position(|known| known.len() == tiles);
                if known.is_none() {
                    let offsets = (0..tiles).map(|tile| u32::try_from(tile * step).ok());
                    terms.push(Terms::new(offsets.collect::<Option<_>>()?));
                }
                parts.push(Part { images, rows, tiles, terms: known.unwrap_or(terms.len() - 1) });
            }
        }
        let most = images * rows * width;
        let held = (HELD / channels / most).max(1);
        Some(Weight { cpu, sizes, planes, parts, held, panels: panels(sizes.inputs), terms })
    }

    /// Runs it.
    pub fn run(&self, y: &[f32], x: &[f32], result: &mut [f32], threads: Threads) {
        let s = &self.sizes;
        let most = self.parts.iter().map(|part| part.tiles).max().unwrap_or(0);
        let (of_part, of_point) = (self.seen(most) + self.made(most), s.outputs * groups(s.inputs));
        let work = s.batch * s.outputs * s.inputs * s.taps * s.output / 8;
        // However many parts are held, they are added one after another.
        let held = self.held.max(threads.0).min(self.parts.len());
        lines::with_lines(held * of_part + POINTS * of_point, |memory: &mut [Line]| {
            let (sums, memory) = memory.split_at_mut(POINTS * of_point);
            for (group, result) in result.chunks_mut(s.outputs * s.inputs * s.taps).enumerate() {
                for (number, parts) in self.parts.chunks(held).enumerate() {
                    let items = parts.iter().zip(memory.chunks_mut(of_part)).collect();
                    threads.for_each(work, items, |(part, points)| self.transform(part, group, y, x, points));
                    let held: Vec<(&Part, &[Line])> = parts.iter().zip(memory.chunks(of_part)).collect();
                    let (of_strip, points) = (HEIGHT * groups(s.inputs), sums.chunks_mut(of_point).enumerate());
                    let items = points.flat_map(|(point, sums)| strips(point, sums, of_strip)).collect();
                    threads.for_each(work, items, |strip| self.add(strip, &held, number > 0));
                }
                let rows = result.chunks_mut(s.inputs * s.taps).enumerate().collect();
                let finish = |(row, kernels)| self.finish(&sums[row * groups(s.inputs)..], of_point, kernels);
                threads.for_each(POINTS * of_point * LINE, rows, finish);
            }
        });
    }

    /// Lines of the points of what `tiles` tiles see.
    fn seen(&self, tiles: usize) -> usize {
        self.panels.iter().map(|(_, width)| POINTS * odd(width * tiles)).sum()
    }

    /// Lines of the points of what `tiles` tiles make.
    fn made(&self, tiles: usize) -> usize {
        POINTS * odd(groups(self.sizes.outputs) * tiles)
    }

    /// The points of what the tiles of a part see, panel by panel, and of what they make.
    fn transform(&self, part: &Part, group: usize, y: &[f32], x: &[f32], points: &mut [Line]) {
        let (s, tiles) = (&self.sizes, part.tiles / part.images.len());
        let (seen, made) = (self.planes.seen_by(&part.rows), self.planes.made_by(&part.rows));
        let (of_seen, of_made) = (self.planes.elements_seen(&part.rows), self.planes.elements_made(&part.rows));
        lines::with_lines(of_seen.len().max(of_made.len()), |elements: &mut [Line]| {
            for (i, image) in part.images.clone().enumerate() {
                let first = (image * s.groups + group) * s.inputs;
                let mut start = 0;
                for (panel, width) in &self.panels {
                    let stride = odd(width * part.tiles);
                    for w in 0..*width {
                        let channels = (panel + w) * LINE..s.inputs.min((panel + w + 1) * LINE);
                        let elements = &mut elements[..of_seen.len()];
                        turn(self.cpu, x, first + channels.start..first + channels.end, (s.input, &of_seen), elements);
                        seen_to_points(elements, &seen, &mut points[start + i * tiles * width + w..], *width, stride);
                    }
                    start += POINTS * stride;
                }
                let (first, step) = ((image * s.groups + group) * s.outputs, groups(s.outputs));
                for block in 0..step {
                    let channels = block * LINE..s.outputs.min((block + 1) * LINE);
                    let elements = &mut elements[..of_made.len()];
                    turn(self.cpu, y, first + channels.start..first + channels.end, (s.output, &of_made), elements);
                    made_to_points(
                        elements,
                        &made,
                        &mut points[start + i * tiles * step + block..],
                        step,
                        odd(step * part.tiles),
                    );
                }
            }
        });
    }

    /// Adds the products of the tiles of some parts to the sums of a strip.
    fn add(&self, strip: Strip<'_>, parts: &[(&Part, &[Line])], accumulate: bool) {
        let Strip { point, row, sums } = strip;
        let of_x = groups(self.sizes.inputs);
        let last = self.sizes.outputs - 1;
        for (first, width) in &self.panels {
            let mut block: Block = [[[0.0; LINE]; WIDTH]; HEIGHT];
            if accumulate {
                block
                    .iter_mut()
                    .zip(sums.chunks(of_x))
                    .for_each(|(row, sums)| row[..*width].copy_from_slice(&sums[*first..][..*width]));
            }
            for (number, (part, points)) in parts.iter().enumerate() {
                let (seen, made) = points.split_at(self.seen(part.tiles));
                let stride = odd(width * part.tiles);
                let before: usize =
                    self.panels.iter().take_while(|panel| panel.0 < *first).map(|panel| POINTS * odd(panel.1 * part.tiles)).sum();
                let seen = &seen[before + point * stride..][..width * part.tiles];
                let made = made[point * odd(groups(self.sizes.outputs) * part.tiles)..].as_flattened();
                let rows = std::array::from_fn(|i| (row + i).min(last));
                let accumulate = accumulate || number > 0;
                self.cpu.multiply_lines(*width, made, rows, &self.terms[part.terms], seen, &mut block, accumulate);
            }
            sums.chunks_mut(of_x).zip(&block).for_each(|(sums, row)| sums[*first..][..*width].copy_from_slice(&row[..*width]));
        }
    }

    /// The kernels of a channel that is made, of whose sums the points lie so far apart.
    fn finish(&self, sums: &[Line], of_point: usize, kernels: &mut [f32]) {
        let (mut taps, mut turned) = ([[0.0; LINE]; 9], [0.0; 10 * LINE]);
        for (block, kernels) in kernels.chunks_mut(LINE * taps.len()).enumerate() {
            points_to_kernel(&sums[block..], of_point, &mut taps);
            self.cpu.side_by_side(&taps, &mut turned);
            kernels.copy_from_slice(&turned[..kernels.len()]);
        }
    }
}

/// The sums of some rows at a point.
struct Strip<'m> {
    point: usize,
    row: usize,
    sums: &'m mut [Line],
}

/// The strips of the sums at a point, of so many lines each.
fn strips<'m>(point: usize, sums: &'m mut [Line], lines: usize) -> impl Iterator<Item = Strip<'m>> {
    sums.chunks_mut(lines).enumerate().map(move |(strip, sums)| Strip { point, row: strip * HEIGHT, sums })
}
