//! Convolutions as contractions: what every output sees at every tap, unfolded into the columns of
//! a matrix.
//!
//! The columns are made and used in panels of bounded size, some samples or a part of one. Panels
//! follow from the sizes alone, and come one after another; only the work inside one is shared
//! between threads. So any number of threads adds the same sums in the same order. If planes are
//! narrow, those of several samples stand side by side in one matrix.

use crate::cpu::contract::Product;
use crate::cpu::conv::{NARROW, Sizes};
use crate::cpu::number::{Number, Real};
use crate::cpu::scratch;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps};
use crate::cpu::window::{JoinedTable, Window};
use faer::Accum;
use shardc_ir::kernel::{ContractDim, ConvResult};

/// About as many elements has the unfolded matrix of one panel.
const ELEMENTS: usize = 1 << 20;

/// The fewest and the most columns of a panel.
const COLUMNS: (usize, usize) = (64, 8192);

/// A convolution cut into panels.
#[derive(Debug)]
pub struct Columns {
    sizes: Sizes,
    /// Parts of a plane's outputs; several only if a panel has no more than one sample.
    blocks: Vec<Block>,
    /// Samples of a panel.
    images: usize,
    /// Whether outputs are copied to stand side by side.
    packed: bool,
}

/// Outputs that are computed together.
#[derive(Debug)]
struct Block {
    first: usize,
    len: usize,
    table: JoinedTable,
}

/// A part of the work: some samples of a group, one block of their outputs.
#[derive(Clone, Copy)]
struct Panel<'p> {
    sizes: &'p Sizes,
    block: &'p Block,
    group: usize,
    /// The first sample and how many.
    image: usize,
    images: usize,
    packed: bool,
}

impl Columns {
    /// Chooses panels.
    pub fn new(sizes: Sizes, window: Window) -> Columns {
        let most = (ELEMENTS / (sizes.inputs * sizes.taps).max(1)).clamp(COLUMNS.0, COLUMNS.1);
        let parts = sizes.output.div_ceil(most);
        let len = if parts == 1 { sizes.output } else { sizes.output.div_ceil(parts).next_multiple_of(16) };
        let images = (most / sizes.output).clamp(1, sizes.batch.max(1));
        // Panels of equal size.
        let images = sizes.batch.max(1).div_ceil(sizes.batch.max(1).div_ceil(images));
        let block = |first: usize| {
            let len = len.min(sizes.output - first);
            Block { first, len, table: JoinedTable::new(&window, first..first + len) }
        };
        let blocks: Vec<Block> = (0..sizes.output).step_by(len.max(1)).map(block).collect();
        Columns { sizes, blocks, images, packed: images > 1 && sizes.output < NARROW }
    }

    /// Runs it; `a` is what the input is not.
    pub fn run<T: Real>(&self, a: &[T], b: &[T], result: &mut [T], threads: Threads) {
        let s = &self.sizes;
        if s.result == ConvResult::Input {
            result.fill(T::ZERO);
        }
        let rows = s.inputs * s.taps;
        for group in 0..s.groups {
            for (number, block) in self.blocks.iter().enumerate() {
                for image in (0..s.batch).step_by(self.images) {
                    let images = self.images.min(s.batch - image);
                    let panel = Panel { sizes: s, block, group, image, images, packed: self.packed };
                    let packed = if self.packed { s.outputs * panel.columns() } else { 0 };
                    scratch::with(rows * panel.columns() + packed, |memory: &mut [T]| {
                        let (columns, packed) = memory.split_at_mut(rows * panel.columns());
                        match s.result {
                            ConvResult::Output => panel.output(a, b, result, columns, packed, threads),
                            ConvResult::Input => panel.input(a, b, result, columns, packed, threads),
                            ConvResult::Weight => {
                                let first = number == 0 && image == 0;
                                panel.weight(a, b, result, first, columns, packed, threads);
                            }
                        }
                    });
                }
            }
        }
    }
}

impl Panel<'_> {
    /// Columns of the unfolded matrix: for each sample the block's outputs.
    fn columns(&self) -> usize {
        self.images * self.block.len
    }

    /// The first element of the group's input in `x`, for the first sample.
    fn x_start(&self) -> usize {
        (self.image * self.sizes.groups + self.group) * self.sizes.inputs * self.sizes.input
    }

    /// The range of the group's kernels in `w`.
    fn kernels(&self) -> std::ops::Range<usize> {
        let len = self.sizes.outputs * self.sizes.inputs * self.sizes.taps;
        self.group * len..(self.group + 1) * len
    }

    /// The first element of the block's outputs in `y`, for the first sample.
    fn y_start(&self) -> usize {
        (self.image * self.sizes.groups + self.group) * self.sizes.outputs * self.sizes.output + self.block.first
    }

    /// The contraction of two of the kernels `w[o, k]`, the unfolded inputs `columns[k, p]` and the
    /// outputs `y[o, p]` to the third.
    fn product(&self) -> Product {
        let s = self.sizes;
        let (columns, rows) = (self.columns(), s.inputs * s.taps);
        // Samples are a letter of their own unless outputs are packed; strides in `y` of outputs
        // and samples.
        let (images, width) = if self.packed { (1, columns) } else { (self.images, self.block.len) };
        let (y, y_image) = if self.packed { (columns, 0) } else { (s.output, s.y_image()) };
        let dim = |size: usize, a: usize, b: usize, c: usize| {
            [ContractDim { size: size as u64, a: a as i64, b: b as i64, c: c as i64 }]
        };
        match s.result {
            ConvResult::Output => Product::new([
                &dim(images, 0, width, y_image),
                &dim(s.outputs, rows, 0, y),
                &dim(width, 0, 1, 1),
                &dim(rows, 1, columns, 0),
            ]),
            ConvResult::Input => Product::new([
                &dim(images, 0, y_image, width),
                &dim(rows, 1, 0, columns),
                &dim(width, 0, 1, 1),
                &dim(s.outputs, rows, y, 0),
            ]),
            ConvResult::Weight => Product::new([
                &[],
                &dim(s.outputs, y, 0, rows),
                &dim(rows, 0, columns, 1),
                &[dim(images, y_image, width, 0), dim(width, 1, 1, 0)].concat(),
            ]),
        }
    }

    fn output<T: Real>(&self, w: &[T], x: &[T], y: &mut [T], columns: &mut [T], packed: &mut [T], threads: Threads) {
        self.unfold(x, columns, threads);
        let (w, y) = (&w[self.kernels()], &mut y[self.y_start()..]);
        if self.packed {
            self.product().run(w, columns, packed, Accum::Replace, threads);
            self.unpack(packed, y, threads);
        } else {
            self.product().run(w, columns, y, Accum::Replace, threads);
        }
    }

    fn input<T: Real>(&self, w: &[T], y: &[T], x: &mut [T], columns: &mut [T], packed: &mut [T], threads: Threads) {
        let (w, y) = (&w[self.kernels()], &y[self.y_start()..]);
        let y = if self.packed { self.pack(y, packed, threads) } else { y };
        self.product().run(w, y, columns, Accum::Replace, threads);
        self.fold(columns, x, threads);
    }

    #[expect(clippy::too_many_arguments, reason = "two operands, a result and scratch")]
    fn weight<T: Real>(&self, y: &[T], x: &[T], w: &mut [T], first: bool, columns: &mut [T], packed: &mut [T], threads: Threads) {
        self.unfold(x, columns, threads);
        let (w, y) = (&mut w[self.kernels()], &y[self.y_start()..]);
        let y = if self.packed { self.pack(y, packed, threads) } else { y };
        self.product().run(y, columns, w, if first { Accum::Replace } else { Accum::Add }, threads);
    }

    /// For each input channel and tap a row of what the block's outputs see.
    fn unfold<T: Number>(&self, x: &[T], columns: &mut [T], threads: Threads) {
        let (s, width, table) = (self.sizes, self.block.len, &self.block.table);
        let work = columns.len();
        let channels: Vec<(usize, &mut [T])> = columns.chunks_mut(s.taps * self.columns()).enumerate().collect();
        threads.for_each(work, channels, |(channel, rows)| {
            for (tap, row) in rows.chunks_mut(self.columns()).enumerate() {
                for (image, out) in row.chunks_mut(width).enumerate() {
                    let plane = &x[self.x_start() + image * s.x_image() + channel * s.input..][..s.input];
                    let mut filled = 0;
                    for run in table.table.tap(tap) {
                        let (at, from, len) = (run.output as usize, run.input as usize, run.len as usize);
                        out[filled..at].fill(T::ZERO);
                        copy(&mut out[at..at + len], &plane[from..], table.table.step);
                        filled = at + len;
                    }
                    out[filled..].fill(T::ZERO);
                    clear(out, &table.holes[tap]);
                }
            }
        });
    }

    /// The inverse of [`Panel::unfold`]: adds each element to the input that it was seen as.
    fn fold<T: Number>(&self, columns: &mut [T], x: &mut [T], threads: Threads) {
        let (s, width, table) = (self.sizes, self.block.len, &self.block.table);
        let images = Steps { size: self.images, stride: s.x_image() };
        let channels = Steps { size: s.inputs, stride: s.input };
        let planes = tiles::cut(&mut x[self.x_start()..], &[channels], images, Steps { size: s.input, stride: 1 });
        let work = columns.len();
        let items: Vec<_> = planes.into_iter().zip(columns.chunks_mut(s.taps * self.columns())).collect();
        threads.for_each(work, items, |(mut planes, rows)| {
            for (tap, row) in rows.chunks_mut(self.columns()).enumerate() {
                for (image, seen) in row.chunks_mut(width).enumerate() {
                    clear(seen, &table.holes[tap]);
                    let plane = planes.row(image);
                    for run in table.table.tap(tap) {
                        let seen = &seen[run.output as usize..][..run.len as usize];
                        add(&mut plane[run.input as usize..], seen, table.table.step);
                    }
                }
            }
        });
    }

    /// The panel's outputs with those of all samples side by side.
    fn pack<'t, T: Number>(&self, y: &[T], packed: &'t mut [T], threads: Threads) -> &'t [T] {
        let (s, width) = (self.sizes, self.block.len);
        let rows: Vec<(usize, &mut [T])> = packed.chunks_mut(self.columns()).enumerate().collect();
        threads.for_each(s.outputs * self.columns(), rows, |(channel, row)| {
            for (image, out) in row.chunks_mut(width).enumerate() {
                copy(out, &y[image * s.y_image() + channel * s.output..], 1);
            }
        });
        packed
    }

    /// The inverse of [`Panel::pack`].
    fn unpack<T: Number>(&self, packed: &[T], y: &mut [T], threads: Threads) {
        let (s, width) = (self.sizes, self.block.len);
        let channels = Steps { size: s.outputs, stride: s.output };
        let images = Steps { size: self.images, stride: s.y_image() };
        let planes = tiles::cut(y, &[channels], images, Steps { size: width, stride: 1 });
        let items: Vec<_> = planes.into_iter().zip(packed.chunks(self.columns())).collect();
        threads.for_each(packed.len(), items, |(mut planes, row)| {
            for (image, from) in row.chunks(width).enumerate() {
                copy(planes.row(image), from, 1);
            }
        });
    }
}

/// Shorter runs are not worth a call of the system's copy.
const SHORT: usize = 16;

/// `to[i] = from[i * step]`
#[inline(always)]
fn copy<T: Copy>(to: &mut [T], from: &[T], step: usize) {
    if step == 1 && to.len() >= SHORT {
        to.copy_from_slice(&from[..to.len()]);
    } else {
        to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, from)| *to = *from);
    }
}

/// Makes what sees nothing 0.
#[inline(always)]
fn clear<T: Number>(seen: &mut [T], holes: &[(u32, u32)]) {
    for (first, count) in holes {
        seen[*first as usize..][..*count as usize].iter_mut().for_each(|x| *x = T::ZERO);
    }
}

/// `to[i * step] += from[i]`
#[inline(always)]
fn add<T: Number>(to: &mut [T], from: &[T], step: usize) {
    if step == 1 {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = to.add(*from));
    } else {
        to.iter_mut().step_by(step).zip(from).for_each(|(to, from)| *to = to.add(*from));
    }
}
