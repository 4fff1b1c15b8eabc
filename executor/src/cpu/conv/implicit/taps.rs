//! The gradient of kernels of small planes, tap by tap: for each tap the sums over the outputs that
//! see something at it, and over no pads. Of a plane of 2 x 2 under a kernel of 3 x 3 these are 16
//! of 36 products.
//!
//! Lines have one element of 16 channels of the input; the sums of all taps of a few channels are
//! made before they are stored side by side.

use super::{ELEMENTS, LARGE};
use crate::cpu::conv::Sizes;
use crate::cpu::lines::{self, Block, HEIGHT, LINE, Line, Terms, Vectors, WIDTH};
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps};
use crate::cpu::window::Window;
use std::ops::Range;

/// The most taps, whose sums stay in the first cache.
const MOST_TAPS: usize = 9;

/// The most inputs of a plane.
const SMALL: usize = 256;

/// About as many outputs of a channel are added in one go: what they see stays in the second cache.
const DEPTH: usize = 256;

/// With fewer terms of a tap in one go, sums are stored as often as they are added to.
const FEW: usize = 4;

/// A gradient of kernels made ready.
#[derive(Debug)]
pub struct ByTaps {
    cpu: Vectors,
    sizes: Sizes,
    taps: Vec<Tap>,
    /// Samples whose terms are added in one go.
    images: usize,
    /// Whether kernels are written once, and are too many for the caches.
    streams: bool,
    /// Lines of a panel of channels of the input; the last may have fewer.
    width: usize,
}

/// A tap of the window.
#[derive(Debug)]
struct Tap {
    /// What is seen at it in a plane, and the terms of as many samples as are added in one go and
    /// of those left over.
    inputs: Vec<usize>,
    terms: [Terms; 2],
}

/// The sums of a few channels at all taps.
type Sums = [Block; MOST_TAPS];

/// The kernels of an output and the channels of a panel, and room for a line behind them.
type Kernels = [f32; (MOST_TAPS * WIDTH + 1) * LINE];

impl ByTaps {
    /// The gradient; `None` where planes are large, channels few, or pads not worth leaving out.
    pub fn new(cpu: Vectors, sizes: Sizes, window: &Window) -> Option<ByTaps> {
        let s = &sizes;
        let fits = (2..=MOST_TAPS).contains(&s.taps) && s.input <= SMALL && s.output <= DEPTH;
        if !fits || s.outputs < HEIGHT || s.inputs < LINE {
            return None;
        }
        let seen_at = |tap| (0..s.output).filter_map(move |output| Some((output, window.source(output, tap)?)));
        let taps: Vec<Vec<(usize, usize)>> = (0..s.taps).map(|tap| seen_at(tap).collect()).collect();
        let seen: usize = taps.iter().map(Vec::len).sum();
        let packed = |channels: usize, positions: usize| channels.checked_next_multiple_of(LINE)?.checked_mul(positions);
        let of_image = packed(s.outputs, s.output)?.checked_add(packed(s.inputs, seen)?)?;
        if 5 * seen > 4 * s.taps * s.output || of_image > ELEMENTS {
            return None;
        }
        let images = (DEPTH / s.output).min(ELEMENTS / of_image).clamp(1, s.batch);
        if taps.iter().any(|tap| images * tap.len() < FEW) {
            return None;
        }
        let row = s.outputs.next_multiple_of(LINE);
        u32::try_from(images * s.output * row).ok()?;
        let tap = |pairs: Vec<(usize, usize)>| {
            let terms = [images, s.batch % images].map(|images| {
                let of = |image| pairs.iter().map(move |(output, _)| ((image * s.output + output) * row) as u32);
                Terms::new((0..images).flat_map(of).collect())
            });
            Tap { inputs: pairs.into_iter().map(|(_, input)| input).collect(), terms }
        };
        let streams = images == s.batch && s.outputs * s.inputs * s.taps > LARGE;
        let width = lines::panel_width(s.inputs.div_ceil(LINE));
        Some(ByTaps { cpu, taps: taps.into_iter().map(tap).collect(), images, streams, width, sizes })
    }

    /// The terms of all taps of one sample.
    fn seen(&self) -> usize {
        self.taps.iter().map(|tap| tap.inputs.len()).sum()
    }

    /// Runs it over gradients of outputs and inputs.
    pub fn run(&self, y: &[f32], x: &[f32], w: &mut [f32], threads: Threads) {
        let s = &self.sizes;
        let of_y = s.output * s.outputs.div_ceil(LINE);
        let of_x = self.seen() * s.inputs.div_ceil(LINE);
        lines::with_lines(self.images * (of_y + of_x), |memory: &mut [Line]| {
            for (group, w) in w.chunks_mut(s.outputs * s.inputs * s.taps).enumerate() {
                for image in (0..s.batch).step_by(self.images) {
                    let images = self.images.min(s.batch - image);
                    let (turned, packed) = memory[..images * (of_y + of_x)].split_at_mut(images * of_y);
                    let items = turned.chunks_mut(of_y).enumerate().collect();
                    let turn = |(n, lines): (usize, &mut [Line])| self.turn(y, (image + n) * s.groups + group, lines);
                    threads.for_each(2 * images * of_y * LINE, items, turn);
                    self.pack(x, group, image..image + images, packed, threads);
                    self.multiply(turned.as_flattened(), packed, images, w, image > 0, threads);
                }
            }
        });
    }

    /// Turns the gradients of a sample's outputs: for each output the lines of its channels.
    fn turn(&self, y: &[f32], image: usize, lines: &mut [Line]) {
        let s = &self.sizes;
        let y = &y[image * s.outputs * s.output..][..s.outputs * s.output];
        let width = s.outputs.div_ceil(LINE);
        for v in 0..width {
            let rows = std::array::from_fn(|i| plane(y, v * LINE + i, s.output));
            self.cpu.interleave(&rows, &mut lines[v..], width);
        }
    }

    /// Packs what is seen in some samples: panel by panel and tap by tap the lines of each term.
    fn pack(&self, x: &[f32], group: usize, images: Range<usize>, mut packed: &mut [Line], threads: Threads) {
        let s = &self.sizes;
        let (work, lines) = (2 * packed.len() * LINE, s.inputs.div_ceil(LINE));
        let mut items = vec![];
        for line in (0..lines).step_by(self.width) {
            let width = self.width.min(lines - line);
            let mut of_images: Vec<Vec<&mut [Line]>> = images.clone().map(|_| vec![]).collect();
            for tap in &self.taps {
                for of_image in &mut of_images {
                    let (lines, rest) = packed.split_at_mut(width * tap.inputs.len());
                    of_image.push(lines);
                    packed = rest;
                }
            }
            items.extend(images.clone().zip(of_images).map(|(image, packed)| (image, line, width, packed)));
        }
        threads.for_each(work, items, |(image, line, width, mut packed)| {
            let x = &x[(image * s.groups + group) * s.inputs * s.input..][..s.inputs * s.input];
            lines::with_lines(s.input, |turned: &mut [Line]| {
                for v in 0..width {
                    let rows = std::array::from_fn(|i| plane(x, (line + v) * LINE + i, s.input));
                    self.cpu.interleave(&rows, turned, 1);
                    for (tap, lines) in self.taps.iter().zip(&mut packed) {
                        lines.iter_mut().skip(v).step_by(width).zip(&tap.inputs).for_each(|(line, input)| *line = turned[*input]);
                    }
                }
            });
        });
    }

    fn multiply(&self, y: &[f32], packed: &[Line], images: usize, w: &mut [f32], accumulate: bool, threads: Threads) {
        let s = &self.sizes;
        let steps = |size, stride| Steps { size, stride };
        let (row, of_panel) = (s.inputs * s.taps, self.width * LINE * s.taps);
        let parts = (8 * threads.0).div_ceil(row.div_ceil(of_panel));
        let height = s.outputs.div_ceil(HEIGHT).div_ceil(parts) * HEIGHT;
        let tiles = tiles::cut(w, &[], steps(s.outputs, row), steps(row, 1));
        let items: Vec<_> = tiles.into_iter().flat_map(|tile| tile.split(height, of_panel)).collect();
        threads.for_each(s.outputs * packed.len() * LINE / 4, items, |(output, column, mut tile)| {
            let line = column / (LINE * s.taps);
            let width = self.width.min(s.inputs.div_ceil(LINE) - line);
            let terms = images * self.seen();
            let packed = &packed[line * terms..][..width * terms];
            let mut sums: Sums = [[[[0.0; LINE]; WIDTH]; HEIGHT]; MOST_TAPS];
            let mut kernels: [Kernels; HEIGHT] = [[0.0; (MOST_TAPS * WIDTH + 1) * LINE]; HEIGHT];
            for row in (0..tile.rows()).step_by(HEIGHT) {
                let rows = std::array::from_fn(|i| output + (row + i).min(tile.rows() - 1));
                let mut rest = packed;
                for (tap, block) in self.taps.iter().zip(&mut sums) {
                    let terms = &tap.terms[usize::from(images < self.images)];
                    let (lines, others) = rest.split_at(width * terms.len());
                    rest = others;
                    self.cpu.multiply_lines(width, y, rows, terms, lines, block, false);
                }
                let count = HEIGHT.min(tile.rows() - row);
                self.put_together(&sums, count, &mut kernels);
                kernels[..count].iter().enumerate().for_each(|(i, kernels)| self.store(kernels, tile.row(row + i), accumulate));
            }
            self.cpu.settle();
        });
    }

    /// Puts the sums of some outputs together: the taps of one channel after those of another.
    fn put_together(&self, sums: &Sums, outputs: usize, kernels: &mut [Kernels; HEIGHT]) {
        let mut lines = [[0.0; LINE]; MOST_TAPS];
        for (i, kernels) in kernels.iter_mut().enumerate().take(outputs) {
            for v in 0..self.width {
                lines.iter_mut().zip(sums).for_each(|(line, block)| *line = block[i][v]);
                self.cpu.side_by_side(&lines[..self.sizes.taps], &mut kernels[v * self.sizes.taps * LINE..]);
            }
        }
    }

    /// Stores the kernels of an output and the channels of a panel.
    fn store(&self, own: &Kernels, kernels: &mut [f32], accumulate: bool) {
        if accumulate {
            return kernels.iter_mut().zip(own).for_each(|(kernel, own)| *kernel += own);
        }
        for (own, kernels) in own.as_chunks().0.iter().zip(kernels.chunks_mut(LINE)) {
            match <&mut Line>::try_from(&mut *kernels) {
                Ok(kernels) if self.streams => self.cpu.stream(own, kernels),
                _ => kernels.copy_from_slice(&own[..kernels.len()]),
            }
        }
    }
}

/// A plane of some channel, if there is one.
fn plane(data: &[f32], channel: usize, len: usize) -> &[f32] {
    data.get(channel * len..(channel + 1) * len).unwrap_or_default()
}
