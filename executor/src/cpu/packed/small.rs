//! Products by one thread of matrices that are in its caches, by AVX-512.
//!
//! Columns of `b` are packed a panel at a time, and rows of `a` are read as they lie, eight at a
//! time. Each sum runs over its terms in order.

use super::Panels;
use super::x86::{HEIGHT, LINE, Line, Singles, WIDTH};
use crate::cpu::lines;
use crate::cpu::triangle::Triangle;
use faer::{Accum, MatMut, MatRef};

/// The most terms of a block: those of a panel stay in the second cache.
const DEPTH: usize = 768;

/// See [`SmallProduct::multiply`](crate::cpu::small::SmallProduct::multiply).
///
/// # Panics
/// If sizes do not fit, the processor has no AVX-512, neither rows nor columns of `b` are
/// contiguous, or neither those of `c`.
pub fn multiply(
    singles: Singles,
    a: MatRef<'_, f32>,
    b: MatRef<'_, f32>,
    mut c: MatMut<'_, f32>,
    accumulate: Accum,
    factor: f32,
    triangle: Triangle,
) {
    let (rows, cols, terms) = (c.nrows(), c.ncols(), a.ncols());
    assert!(singles.are_avx512() && a.nrows() == rows && b.nrows() == terms && b.ncols() == cols, "sizes fit");
    let mut accumulate = matches!(accumulate, Accum::Add);
    if terms == 0 && !accumulate {
        c.fill(0.0);
    }
    if rows * cols * terms == 0 {
        return;
    }
    let depth = terms.div_ceil(terms.div_ceil(DEPTH));
    let width = Panels::columns::<Singles>(cols, depth).width;
    // Where the first groups are idle, slices begin that much later, and end behind the last line.
    lines::with_lines(width * depth + WIDTH, |lines: &mut [Line]| {
        for start in (0..terms).step_by(depth) {
            for col in (0..cols).step_by(width * LINE) {
                let (depth, cols) = (depth.min(terms - start), (width * LINE).min(cols - col));
                let (b, c) = (b.submatrix(start, col, depth, cols), c.as_mut().subcols_mut(col, cols));
                let panel = Panel { singles, a, start, col, accumulate, factor, triangle };
                match cols.div_ceil(LINE) {
                    1 => panel.multiply::<1>(b, lines, c),
                    2 => panel.multiply::<2>(b, lines, c),
                    _ => panel.multiply::<3>(b, lines, c),
                }
            }
            accumulate = true;
        }
    });
}

/// A block of terms of some columns.
struct Panel<'a> {
    singles: Singles,
    /// All rows and terms.
    a: MatRef<'a, f32>,
    /// The first term of the block.
    start: usize,
    /// The first column.
    col: usize,
    accumulate: bool,
    factor: f32,
    triangle: Triangle,
}

impl Panel<'_> {
    /// `b` and `c` are those of the panel.
    fn multiply<const W: usize>(&self, b: MatRef<'_, f32>, lines: &mut [Line], mut c: MatMut<'_, f32>) {
        let depth = b.nrows();
        self.singles.pack_columns::<W>(b, self.factor, &mut lines[..W * depth]);
        let of_block = |term: usize| term.clamp(self.start, self.start + depth) - self.start;
        for row in (0..c.nrows()).step_by(HEIGHT) {
            let rows = row..c.nrows().min(row + HEIGHT);
            let idle = self.triangle.first_column(rows.clone(), self.col + c.ncols()).saturating_sub(self.col);
            if idle == c.ncols() {
                continue;
            }
            let idle = idle / LINE;
            let terms = self.triangle.terms(rows.clone(), self.a.ncols());
            let (first, last) = (of_block(terms.start), of_block(terms.end));
            let lines = &lines[W * first + idle..W * last + idle];
            let a = self.a.submatrix(row, self.start + first, rows.len(), last - first);
            let c = c.as_mut().subrows_mut(row, rows.len()).split_at_col_mut(idle * LINE).1;
            match W - idle {
                1 => self.singles.tile::<W, 1>(a, lines, c, self.accumulate),
                2 => self.singles.tile::<W, 2>(a, lines, c, self.accumulate),
                _ => self.singles.tile::<W, 3>(a, lines, c, self.accumulate),
            }
        }
    }
}
