//! Products of f32 of which one operand is read as it lies.
//!
//! `a b` has the transposed `b^T a^T`, so either operand may be the one whose rows are taken term
//! by term. The other one has columns in registers: where its rows are contiguous, each thread
//! packs its own columns as it multiplies them first; else all threads pack it together. Each sum
//! runs over the blocks of terms in order, so tiles change no bit.

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

/// The most columns that are packed for all threads: a block of them has 3 MiB.
const MOST: usize = 1024;

/// Rows of more terms take long to read.
const LONG: usize = 8 * DEPTH;

/// `c = a b`, or `c += a b`; `a` is m x k, `b` k x n, and `c` m x n, none of them 0. Says whether
/// it was done, which depends on the processor, the layout and the sizes.
pub fn multiply<C: Stored>(
    singles: Singles,
    a: MatRef<'_, f32>,
    b: MatRef<'_, f32>,
    c: &mut Tile<'_, C>,
    accumulate: Accum,
    threads: Threads,
) -> bool {
    if !singles.are_avx512() {
        return false;
    }
    let (rows, cols, terms) = (c.rows(), c.cols(), a.ncols());
    let depth = terms.div_ceil(terms.div_ceil(DEPTH));
    let product = Product { singles, rows: a, columns: b, depth, accumulate, threads };
    let turned = || Product { rows: b.transpose(), columns: a.transpose(), ..product };
    let side = |size: usize| side(size, [rows, cols, terms], threads);
    // Rows of many terms are read by as few tiles as share the work.
    let few = |size: usize| if terms > LONG { size.div_ceil(threads.0).next_multiple_of(LINE) } else { side(size) };
    let has_rows = |matrix: MatRef<'_, f32>| matrix.col_stride() == 1;
    let c = c.part();
    if has_rows(b) && (has_rows(a) || rows <= cols) {
        product.packing(by_columns(c, few(cols)), false);
        true
    } else if has_rows(b) && has_rows(a.transpose()) {
        turned().packing(by_rows(c, few(rows)), true);
        true
    } else if has_rows(b.transpose()) && rows < cols {
        by_rows(c, MOST).into_iter().all(|(first, part)| {
            let columns = a.transpose().subcols(first, part.rows());
            Product { columns, ..turned() }.shared(by_columns(part, side(cols)), true)
        })
    } else {
        has_rows(a)
            && has_rows(b.transpose())
            && by_columns(c, MOST).into_iter().all(|(first, part)| {
                Product { columns: b.subcols(first, part.cols()), ..product }.shared(by_rows(part, side(rows)), false)
            })
    }
}

/// Tiles of so many rows, with the first one's number.
fn by_rows<C>(c: Tile<'_, C>, rows: usize) -> Vec<(usize, Tile<'_, C>)> {
    let cols = c.cols();
    c.split(rows, cols).into_iter().map(|(row, _, tile)| (row, tile)).collect()
}

/// Tiles of so many columns, with the first one's number.
fn by_columns<C>(c: Tile<'_, C>, cols: usize) -> Vec<(usize, Tile<'_, C>)> {
    let rows = c.rows();
    c.split(rows, cols).into_iter().map(|(_, col, tile)| (col, tile)).collect()
}

/// A product of rows that are taken term by term, and columns that are packed.
#[derive(Clone, Copy)]
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
    fn packing<C: Stored>(&self, tiles: Vec<(usize, Tile<'_, C>)>, transposed: bool) {
        let (rows, cols, terms) = (self.rows.nrows(), self.columns.ncols(), self.rows.ncols());
        let work = rows.saturating_mul(cols).saturating_mul(terms) / 8;
        self.threads.for_each(work, tiles, |(first, mut tile)| {
            let columns = self.columns.subcols(first, if transposed { tile.rows() } else { tile.cols() });
            C::with_sums(&mut tile, self.accumulate, |c| self.tile(columns, if transposed { c.transpose_mut() } else { c }));
        });
    }

    fn tile(&self, columns: MatRef<'_, f32>, mut c: MatMut<'_, f32>) {
        let terms = columns.nrows();
        let panel = Panels::columns::<Singles>(columns.ncols(), self.depth).width;
        let parts = |start| (0..columns.ncols()).step_by(panel * LINE).map(move |col| (start, col));
        let mut parts = (0..terms).step_by(self.depth).flat_map(parts).peekable();
        let of = |(start, col): (usize, usize)| {
            let (depth, width) = (self.depth.min(terms - start), (panel * LINE).min(columns.ncols() - col));
            columns.submatrix(start, col, depth, width)
        };
        lines::with_lines(panel * self.depth, |lines: &mut [Line]| {
            while let Some((start, col)) = parts.next() {
                let (columns, soon) = (of((start, col)), parts.peek().map(|next| of(*next)));
                let (rows, c) = (self.rows.subcols(start, columns.nrows()), c.as_mut().subcols_mut(col, columns.ncols()));
                let accumulate = start > 0 || matches!(self.accumulate, Accum::Add);
                self.singles.rows_by_columns(rows, columns, lines, c, accumulate, soon);
            }
        });
    }
}
