//! The gradient of kernels: for each channel and tap a row of what all outputs see there, times the
//! outputs' gradients with their channels in lines.

use super::panels::widths;
use super::{DEPTH, ELEMENTS, LARGE};
use crate::cpu::conv::Sizes;
use crate::cpu::lines::{self, Block, HEIGHT, LINE, Line, Terms, Vectors, WIDTH};
use crate::cpu::scratch;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps, Tile};
use crate::cpu::window::{Padded, Window};

/// A gradient of kernels made ready.
#[derive(Debug)]
pub struct Weight {
    cpu: Vectors,
    sizes: Sizes,
    padded: Padded,
    /// Elements from one laid sample to the next.
    laid: usize,
    /// Samples whose terms are added in one go.
    images: usize,
    /// Parts of the outputs of so many samples, and of the samples left over.
    parts: [Vec<Part>; 2],
    /// For each row, channel by channel and tap by tap, where it begins among laid planes.
    rows: Vec<usize>,
    /// Whether kernels are written once, and are too many for the caches.
    streams: bool,
    /// The first line of each panel of channels of outputs, and its lines.
    panels: Vec<(usize, usize)>,
}

/// Some outputs of each sample.
#[derive(Debug)]
struct Part {
    first: usize,
    len: usize,
    terms: Terms,
}

/// What is packed of one part: some lines of channels for each output.
#[derive(Debug)]
struct Chunk<'w> {
    /// The first sample.
    image: usize,
    part: &'w Part,
    /// The first line of channels, and how many.
    line: usize,
    width: usize,
}

/// Room for the sums of two blocks, and for the columns of a line of them.
struct Sums {
    blocks: [Block; 2],
    columns: [Line; LINE],
}

impl Chunk<'_> {
    fn lines(&self) -> usize {
        self.width * self.part.terms.len()
    }
}

impl Weight {
    /// The gradient; `None` where planes are too large.
    pub fn new(cpu: Vectors, sizes: Sizes, window: &Window) -> Option<Weight> {
        let padded = window.padded()?;
        let images = (DEPTH / sizes.output).clamp(1, sizes.batch);
        // An odd number of lines, so that those of several samples do not meet in the caches.
        let laid = (sizes.inputs.checked_mul(padded.len())?.div_ceil(LINE) | 1).checked_mul(LINE)?;
        let all = laid.checked_mul(images)?;
        if all > ELEMENTS + 16 * images * sizes.inputs * sizes.input || u32::try_from(all).is_err() {
            return None;
        }
        let parts = sizes.output.div_ceil(DEPTH);
        let parts_of = |images: usize| {
            let part = |i: usize| {
                let outputs = i * sizes.output / parts..(i + 1) * sizes.output / parts;
                let of = |n: usize| outputs.clone().map(|output| (n * laid + padded.output(output)) as u32).collect::<Vec<_>>();
                Part { first: outputs.start, len: outputs.len(), terms: Terms::new((0..images).flat_map(of).collect()) }
            };
            (0..parts).map(part).collect()
        };
        let streams = parts == 1 && images == sizes.batch && sizes.outputs * sizes.inputs * sizes.taps > LARGE;
        let row = |channel: usize| (0..sizes.taps).map(move |tap| (channel, tap));
        let rows = (0..sizes.inputs).flat_map(row).map(|(channel, tap)| channel * padded.len() + padded.tap(tap)).collect();
        let panels = widths(sizes.outputs.div_ceil(LINE)).collect();
        Some(Weight {
            cpu,
            parts: [images, sizes.batch % images].map(parts_of),
            rows,
            images,
            streams,
            panels,
            padded,
            laid,
            sizes,
        })
    }

    /// Runs it over gradients of outputs and inputs.
    pub fn run(&self, y: &[f32], x: &[f32], w: &mut [f32], threads: Threads) {
        let s = &self.sizes;
        let (kernels, lines) = (s.outputs * self.rows.len(), s.outputs.div_ceil(LINE));
        let image_elements = self.laid + lines * LINE * s.output;
        let together = (ELEMENTS / image_elements).next_multiple_of(self.images).clamp(self.images, s.batch);
        scratch::with(together * self.laid, |laid: &mut [f32]| {
            lines::with_lines(together * lines * s.output, |packed: &mut [Line]| {
                for group in 0..s.groups {
                    let w = &mut w[group * kernels..][..kernels];
                    for image in (0..s.batch).step_by(together) {
                        let images = together.min(s.batch - image);
                        let laid = &mut laid[..images * self.laid];
                        let packed = &mut packed[..images * lines * s.output];
                        let chunks = self.chunks(images);
                        self.lay(x, group, image, laid, threads);
                        self.pack(y, group, image, &chunks, packed, threads);
                        self.multiply(laid, packed, &chunks, w, image > 0, threads);
                    }
                }
            });
        });
    }

    /// All that is packed of some samples, in order.
    fn chunks(&self, images: usize) -> Vec<Chunk<'_>> {
        let mut chunks = vec![];
        for image in (0..images).step_by(self.images) {
            for part in &self.parts[usize::from(images - image < self.images)] {
                chunks.extend(self.panels.iter().map(|(line, width)| Chunk { image, part, line: *line, width: *width }));
            }
        }
        chunks
    }

    /// Lays the inputs of some samples out with their pads.
    fn lay(&self, x: &[f32], group: usize, image: usize, laid: &mut [f32], threads: Threads) {
        let s = &self.sizes;
        let work = laid.len();
        let items: Vec<_> = laid.chunks_mut(self.laid).enumerate().collect();
        threads.for_each(work, items, |(n, laid)| {
            let x = &x[((image + n) * s.groups + group) * s.inputs * s.input..][..s.inputs * s.input];
            for (x, laid) in x.chunks_exact(s.input).zip(laid.chunks_exact_mut(self.padded.len())) {
                self.padded.lay(x, laid);
            }
        });
    }

    /// Packs gradients of outputs: for each chunk, for each output a line of channels.
    fn pack(&self, y: &[f32], group: usize, image: usize, chunks: &[Chunk<'_>], mut packed: &mut [Line], threads: Threads) {
        let s = &self.sizes;
        let work = 2 * packed.len() * LINE;
        let mut items = vec![];
        for chunk in chunks {
            let (lines, rest) = packed.split_at_mut(chunk.lines());
            let of_images = lines.chunks_mut(chunk.width * chunk.part.len).enumerate();
            items.extend(of_images.map(|(n, lines)| (chunk, image + chunk.image + n, lines)));
            packed = rest;
        }
        threads.for_each(work, items, |(chunk, image, lines)| {
            let y = &y[(image * s.groups + group) * s.outputs * s.output..][..s.outputs * s.output];
            for v in 0..chunk.width {
                let start = |i: usize| ((chunk.line + v) * LINE + i) * s.output + chunk.part.first;
                let rows = std::array::from_fn(|i| y.get(start(i)..start(i) + chunk.part.len).unwrap_or_default());
                self.cpu.interleave(&rows, &mut lines[v..], chunk.width);
            }
        });
    }

    fn multiply(&self, laid: &[f32], packed: &[Line], chunks: &[Chunk<'_>], w: &mut [f32], accumulate: bool, threads: Threads) {
        let (s, rows) = (&self.sizes, self.rows.len());
        let steps = |size, stride| Steps { size, stride };
        let strips = rows.div_ceil(2 * HEIGHT);
        let each = strips.div_ceil(8 * threads.0) * 2 * HEIGHT;
        let tiles = tiles::cut(w, &[], steps(s.outputs, rows), steps(rows, 1));
        let items: Vec<_> = tiles.into_iter().flat_map(|tile| tile.split(s.outputs, each)).collect();
        let work = rows * packed.len() * LINE / 4;
        threads.for_each(work, items, |(_, first, mut tile)| {
            let mut packed = packed;
            let mut sums = Sums { blocks: [[[[0.0; LINE]; WIDTH]; HEIGHT]; 2], columns: [[0.0; LINE]; LINE] };
            for chunk in chunks {
                let (panel, rest) = packed.split_at(chunk.lines());
                packed = rest;
                let accumulate = accumulate || chunk.image > 0 || chunk.part.first > 0;
                for row in (first..rows.min(first + each)).step_by(2 * HEIGHT) {
                    let at = (row - first, row);
                    match chunk.width {
                        1 => self.blocks::<1>(laid, panel, chunk, at, &mut sums, &mut tile, accumulate),
                        2 => self.blocks::<2>(laid, panel, chunk, at, &mut sums, &mut tile, accumulate),
                        _ => self.blocks::<3>(laid, panel, chunk, at, &mut sums, &mut tile, accumulate),
                    }
                }
            }
            self.cpu.settle();
        });
    }

    /// The sums of two blocks of rows, so that what is stored together fills a line.
    #[expect(clippy::too_many_arguments, reason = "two operands, a result, room, and where they are")]
    fn blocks<const W: usize>(
        &self,
        laid: &[f32],
        packed: &[Line],
        chunk: &Chunk<'_>,
        (col, row): (usize, usize),
        Sums { blocks, columns }: &mut Sums,
        tile: &mut Tile<'_, f32>,
        accumulate: bool,
    ) {
        for (first, block) in (row..).step_by(HEIGHT).zip(&mut *blocks) {
            let image = chunk.image * self.laid;
            let at = std::array::from_fn(|i| image + self.rows[(first + i).min(self.rows.len() - 1)]);
            self.cpu.multiply::<W>(laid, at, &chunk.part.terms, packed, block, false);
        }
        for v in 0..W {
            self.cpu.columns(blocks, v, columns);
            let line = chunk.line + v;
            let outputs = line * LINE..self.sizes.outputs.min((line + 1) * LINE);
            for (output, column) in outputs.zip(&*columns) {
                let sums = &mut tile.row(output)[col..];
                let sums = &mut sums[..LINE.min(self.rows.len() - row)];
                if let (true, Ok(sums)) = (self.streams, <&mut Line>::try_from(&mut *sums)) {
                    self.cpu.stream(column, sums);
                } else if accumulate {
                    sums.iter_mut().zip(column).for_each(|(sum, term)| *sum += term);
                } else {
                    sums.copy_from_slice(&column[..sums.len()]);
                }
            }
        }
    }
}
