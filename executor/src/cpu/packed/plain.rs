//! Products of f32 whose operand with more rows or columns is not packed beforehand.
//!
//! `a b` has the transposed `b^T a^T`, so either operand may be the one whose rows are taken term
//! by term, where its terms are neighbours. The other one is packed by all threads together; or, if
//! rows of `b` are neighbours, by each for its own columns as it multiplies them. Each sum runs over
//! the blocks of terms in order, so tiles change no bit.

use super::Panels;
use super::shared::{SHARED, pack_shared, side};
use super::x86::{LINE, Line, Singles};
use crate::cpu::factor::Stored;
use crate::cpu::lines;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::Tile;
use faer::{Accum, MatMut, MatRef};

/// The most terms of a block: those of a panel stay in the second cache.
const DEPTH: usize = 768;

/// Rows of more terms are not read by more tiles than there are threads.
const LONG: usize = 8 * DEPTH;

/// `c = a b`, or `c += a b`; `a` is m x k, `b` k x n, and `c` m x n, none of them 0. Says whether it
/// was done, which depends on the processor, the layout and the sizes.
pub fn multiply<C: Stored>(
    singles: Singles,
    a: MatRef<'_, f32>,
    b: MatRef<'_, f32>,
    c: &mut Tile<'_, C>,
    accumulate: Accum,
    threads: Threads,
) -> bool {
    let (rows, cols, terms) = (c.rows(), c.cols(), a.ncols());
    let product = Product { singles, rows: a, columns: b, depth: terms.div_ceil(terms.div_ceil(DEPTH)), accumulate, threads };
    let part = |size: usize| side(size, [rows, cols, terms], threads);
    match (a.col_stride() == 1, b.row_stride() == 1) {
        _ if !singles.are_avx512() => false,
        (_, true) if rows < cols => {
            let tiles = c.part().split(rows, part(cols)).into_iter().map(|(_, col, tile)| (col, tile));
            Product { rows: b.transpose(), columns: a.transpose(), ..product }.shared(tiles.collect(), true)
        }
        (true, true) => {
            product.shared(c.part().split(part(rows), cols).into_iter().map(|(row, _, tile)| (row, tile)).collect(), false)
        }
        (true, false) if b.col_stride() == 1 => {
            // Each tile goes through all of the rows, block by block.
            let width = if terms > LONG { cols.div_ceil(threads.0).next_multiple_of(LINE) } else { part(cols) };
            product.packing(c.part().split(rows, width).into_iter().map(|(_, col, tile)| (col, tile)).collect());
            true
        }
        _ => false,
    }
}

/// A product of rows that are taken term by term, and columns that are packed.
struct Product<'a> {
    singles: Singles,
    rows: MatRef<'a, f32>,
    columns: MatRef<'a, f32>,
    /// The terms of a block.
    depth: usize,
    accumulate: Accum,
    threads: Threads,
}

impl Product<'_> {
    /// All threads pack the columns, a range of terms at a time; a tile has the rows from a number
    /// on, as its columns if they are `transposed`. Sums of more terms are not made where tiles do
    /// not hold them.
    fn shared<C: Stored>(&self, mut tiles: Vec<(usize, Tile<'_, C>)>, transposed: bool) -> bool {
        let (rows, cols, terms) = (self.rows.nrows(), self.columns.ncols(), self.rows.ncols());
        let panels = Panels::columns::<Singles>(cols, self.depth);
        let step = (SHARED / panels.lines()).max(1) * self.depth;
        if step < terms && !C::HOLDS_SUMS {
            return false;
        }
        let mut accumulate = self.accumulate;
        for start in (0..terms).step_by(step) {
            let step = step.min(terms - start);
            lines::with_lines(panels.lines() * step.div_ceil(self.depth), |lines: &mut [Line]| {
                let columns = self.columns.subrows(start, step);
                pack_shared(self.singles, columns.transpose(), panels, self.depth, lines, self.threads);
                let work = rows.saturating_mul(cols).saturating_mul(step) / 8;
                self.threads.for_each(work, tiles.iter_mut().collect(), |(first, tile)| {
                    let rows = if transposed { tile.cols() } else { tile.rows() };
                    let rows = self.rows.submatrix(*first, start, rows, step);
                    C::with_sums(tile, accumulate, |c| {
                        let c = if transposed { c.transpose_mut() } else { c };
                        self.by_panels(rows, (panels, lines), c, matches!(accumulate, Accum::Add));
                    });
                });
            });
            accumulate = Accum::Add;
        }
        true
    }

    fn by_panels(&self, rows: MatRef<'_, f32>, (panels, lines): (Panels, &[Line]), mut c: MatMut<'_, f32>, mut accumulate: bool) {
        for (block, lines) in lines.chunks(panels.lines()).enumerate() {
            let start = block * self.depth;
            let rows = rows.subcols(start, self.depth.min(rows.ncols() - start));
            for (panel, col) in (0..c.ncols()).step_by(panels.width * LINE).enumerate() {
                let width = (panels.width * LINE).min(c.ncols() - col);
                let (lines, c) =
                    (&lines[panel * panels.stride..][..panels.width * rows.ncols()], c.as_mut().subcols_mut(col, width));
                match panels.width {
                    1 => self.singles.rows_by_panel::<1>(rows, lines, c, accumulate, None),
                    2 => self.singles.rows_by_panel::<2>(rows, lines, c, accumulate, None),
                    _ => self.singles.rows_by_panel::<3>(rows, lines, c, accumulate, None),
                }
            }
            accumulate = true;
        }
    }

    /// Each tile, which has the columns from a number on, packs them as it multiplies its first
    /// rows.
    fn packing<C: Stored>(&self, tiles: Vec<(usize, Tile<'_, C>)>) {
        let (rows, cols, terms) = (self.rows.nrows(), self.columns.ncols(), self.rows.ncols());
        let work = rows.saturating_mul(cols).saturating_mul(terms) / 8;
        self.threads.for_each(work, tiles, |(first, mut tile)| {
            let columns = self.columns.subcols(first, tile.cols());
            let panel = Panels::columns::<Singles>(tile.cols(), self.depth).width;
            C::with_sums(&mut tile, self.accumulate, |mut c| {
                lines::with_lines(panel * self.depth, |lines: &mut [Line]| {
                    let parts = |start| (0..columns.ncols()).step_by(panel * LINE).map(move |col| (start, col));
                    let mut parts = (0..terms).step_by(self.depth).flat_map(parts).peekable();
                    let of = |(start, col): (usize, usize)| {
                        let (depth, width) = (self.depth.min(terms - start), (panel * LINE).min(columns.ncols() - col));
                        columns.submatrix(start, col, depth, width)
                    };
                    while let Some((start, col)) = parts.next() {
                        let (columns, soon) = (of((start, col)), parts.peek().map(|next| of(*next)));
                        let (rows, c) = (self.rows.subcols(start, columns.nrows()), c.as_mut().subcols_mut(col, columns.ncols()));
                        let accumulate = start > 0 || matches!(self.accumulate, Accum::Add);
                        self.singles.rows_by_columns(rows, columns, lines, c, accumulate, soon);
                    }
                });
            });
        });
    }
}
