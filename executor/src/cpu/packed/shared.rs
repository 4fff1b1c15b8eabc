//! One product by several threads, which share the smaller operand.
//!
//! The smaller operand is packed once, a range of its terms at a time, by all threads together.
//! Each tile of results spans all of that operand, so what is packed of the other one is packed
//! once too. As each sum runs over the blocks of terms in order, tiles change no bit.

use super::x86::{LINE, Line};
use super::{Packing, Panels, depth, multiply_block};
use crate::cpu::factor::Stored;
use crate::cpu::lines;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::Tile;
use faer::{Accum, MatMut, MatRef};

/// The longest side of a product: longer ones are cut.
const LONGEST: usize = 1 << 14;

/// About the most lines of the shared operand that are packed at a time: 2 MiB, or one block.
pub(super) const SHARED: usize = (2 << 20) / size_of::<Line>();

/// The widest tile: its blocks of the operand that is not shared stay in the second cache.
const WIDEST: usize = 384;

/// A tile that takes less time than this is not worth cutting.
const FLOPS: usize = 24 << 20;

/// `c = a b`, or `c += a b`, with sums in f32; `a` is m x k, `b` k x n, and `c` m x n. Says whether
/// it was done: sums of more terms than are packed at a time are not, if `c` does not hold them.
pub fn multiply<P: Packing, C: Stored>(
    packing: P,
    a: MatRef<'_, P::Element>,
    b: MatRef<'_, P::Element>,
    c: &mut Tile<'_, C>,
    accumulate: Accum,
    threads: Threads,
) -> bool {
    let parts = c.part().split(LONGEST, LONGEST).into_iter().map(|(row, col, tile)| {
        let (a, b) = (a.subrows(row, tile.rows()), b.subcols(col, tile.cols()));
        (Product { packing, a, b, accumulate, threads }, tile)
    });
    let parts: Vec<_> = parts.collect();
    let can = parts.iter().all(|(part, _)| C::HOLDS_SUMS || part.step() >= part.a.ncols());
    parts.into_iter().filter(|_| can).for_each(|(part, tile)| part.run(tile));
    can
}

struct Product<'a, P: Packing> {
    packing: P,
    a: MatRef<'a, P::Element>,
    b: MatRef<'a, P::Element>,
    accumulate: Accum,
    threads: Threads,
}

impl<P: Packing> Product<'_, P> {
    fn shares_a(&self) -> bool {
        self.a.nrows() <= self.b.ncols()
    }

    /// How the shared operand is packed.
    fn shared(&self) -> Panels {
        let depth = depth::<P>(self.a.ncols());
        if self.shares_a() { Panels::rows::<P>(self.a.nrows(), depth) } else { Panels::columns::<P>(self.b.ncols(), depth) }
    }

    /// The terms that are packed at a time.
    fn step(&self) -> usize {
        (SHARED / self.shared().lines()).max(1) * depth::<P>(self.a.ncols())
    }

    fn run<C: Stored>(&self, c: Tile<'_, C>) {
        let (rows, cols, terms) = (self.a.nrows(), self.b.ncols(), self.a.ncols());
        let (shares_a, shared, depth, step) = (self.shares_a(), self.shared(), depth::<P>(terms), self.step());
        let side = |size: usize| side(size, [rows, cols, terms], self.threads);
        let mut tiles = match shares_a {
            true => c.split(rows, side(cols)),
            false => c.split(side(rows), cols),
        };
        let mut accumulate = self.accumulate;
        for start in (0..terms).step_by(step) {
            let step = step.min(terms - start);
            let part = Product { a: self.a.subcols(start, step), b: self.b.subrows(start, step), accumulate, ..*self };
            lines::with_lines(shared.lines() * step.div_ceil(depth), |lines: &mut [Line]| {
                let matrix = if shares_a { part.a } else { part.b.transpose() };
                pack_shared(self.packing, matrix, shared, depth, lines, self.threads);
                let work = rows.saturating_mul(cols).saturating_mul(step) / 8;
                self.threads.for_each(work, tiles.iter_mut().collect(), |(row, col, tile)| {
                    let part = Product { a: part.a.subrows(*row, tile.rows()), b: part.b.subcols(*col, tile.cols()), ..part };
                    C::with_sums(tile, accumulate, |c| part.tile(shares_a, (shared, lines), depth, c));
                });
            });
            accumulate = Accum::Add;
        }
    }

    /// One tile, whose part of the operand that is not shared is packed here.
    fn tile(&self, shares_a: bool, (shared, all): (Panels, &[Line]), depth: usize, mut c: MatMut<'_, f32>) {
        let (rows, cols, terms) = (c.nrows(), c.ncols(), self.a.ncols());
        let own = if shares_a { Panels::columns::<P>(cols, depth) } else { Panels::rows::<P>(rows, depth) };
        lines::with_lines(own.lines(), |lines: &mut [Line]| {
            let mut accumulate = matches!(self.accumulate, Accum::Add);
            for (block, all) in all.chunks(shared.lines()).enumerate() {
                let start = block * depth;
                let depth = depth.min(terms - start);
                let (of_a, of_b) = match shares_a {
                    true => {
                        own.pack(self.packing, self.b.subrows(start, depth).transpose(), lines);
                        ((shared, all), (own, &*lines))
                    }
                    false => {
                        own.pack(self.packing, self.a.subcols(start, depth), lines);
                        ((own, &*lines), (shared, all))
                    }
                };
                multiply_block(self.packing, of_a, of_b, depth.div_ceil(P::TERMS), c.as_mut(), accumulate);
                accumulate = true;
            }
        });
    }
}

/// How far a tile goes along the side of `size` that is cut, of a product of `rows x cols` results
/// of so many terms.
pub(super) fn side(size: usize, [rows, cols, terms]: [usize; 3], threads: Threads) -> usize {
    let flops = rows.saturating_mul(cols).saturating_mul(terms).saturating_mul(2);
    let wanted = (4 * threads.0).min(flops / FLOPS).max(size.div_ceil(WIDEST));
    size.div_ceil(wanted.next_multiple_of(threads.0).max(1)).next_multiple_of(LINE)
}

/// Packs the rows of `matrix`, a block of `depth` terms after the other, by all threads.
pub(super) fn pack_shared<P: Packing>(
    packing: P,
    matrix: MatRef<'_, P::Element>,
    panels: Panels,
    depth: usize,
    lines: &mut [Line],
    threads: Threads,
) {
    let (rows, terms) = (matrix.nrows(), matrix.ncols());
    let count = panels.count.div_ceil(2 * threads.0);
    let mut items = vec![];
    for (block, lines) in lines.chunks_mut(panels.lines()).enumerate() {
        let matrix = matrix.subcols(block * depth, depth.min(terms - block * depth));
        for (part, lines) in lines.chunks_mut(count * panels.stride).enumerate() {
            let first = part * count * panels.width * LINE;
            items.push((matrix.subrows(first, (count * panels.width * LINE).min(rows - first)), lines));
        }
    }
    threads.for_each(rows * terms, items, |(matrix, lines)| panels.pack(packing, matrix, lines));
}
