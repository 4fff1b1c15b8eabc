//! Products by one thread of matrices that are in its caches, by AVX-512.
//!
//! Columns of `b` are packed a panel at a time, and rows of `a` are read as they lie, eight at a
//! time. Each sum runs over its terms in order.
#![expect(unsafe_code, reason = "instructions are used that were looked for, on elements that were looked at")]

use super::Panels;
use super::rows::{Rows, Soon, by_lines, put};
use super::x86::{HEIGHT, LINE, Line, Singles, WIDTH};
use crate::cpu::lines::{self, avx512, first_lanes};
use crate::cpu::near::Triangle;
use faer::{Accum, MatMut, MatRef};
use std::arch::x86_64::*;

/// The most terms of a block: those of a panel stay in the second cache.
const DEPTH: usize = 768;

/// See [`Near::multiply`](crate::cpu::near::Near::multiply).
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
    // Behind the last line are some that are not looked at.
    lines::with_lines(width * depth + WIDTH, |lines: &mut [Line]| {
        for start in (0..terms).step_by(depth) {
            for col in (0..cols).step_by(width * LINE) {
                let (depth, cols) = (depth.min(terms - start), (width * LINE).min(cols - col));
                let (b, c) = (b.submatrix(start, col, depth, cols), c.as_mut().subcols_mut(col, cols));
                let panel = Panel { a, start, col, accumulate, factor, triangle };
                // SAFETY: the instructions are there.
                unsafe {
                    match cols.div_ceil(LINE) {
                        1 => panel.multiply::<1>(b, lines, c),
                        2 => panel.multiply::<2>(b, lines, c),
                        _ => panel.multiply::<3>(b, lines, c),
                    }
                }
            }
            accumulate = true;
        }
    });
}

/// A block of terms of some columns.
struct Panel<'a> {
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
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn multiply<const W: usize>(&self, b: MatRef<'_, f32>, lines: &mut [Line], mut c: MatMut<'_, f32>) {
        let depth = b.nrows();
        pack::<W>(b, self.factor, &mut lines[..W * depth]);
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
            let of_a = Rows::of(self.a.subcols(self.start + first, last - first), row);
            let c = c.as_mut().subrows_mut(row, rows.len()).split_at_col_mut(idle * LINE).1;
            // SAFETY: the rows are those of a matrix.
            unsafe {
                match W - idle {
                    1 => put(by_lines::<W, 1>(of_a, lines, [Soon::NOTHING; 2]), c, self.accumulate),
                    2 => put(by_lines::<W, 2>(of_a, lines, [Soon::NOTHING; 2]), c, self.accumulate),
                    _ => put(by_lines::<W, 3>(of_a, lines, [Soon::NOTHING; 2]), c, self.accumulate),
                }
            }
        }
    }
}

/// Packs the columns of `b` times a factor, `W` groups, missing ones zero.
///
/// # Panics
/// If there are more or fewer columns or lines, or neither rows nor columns are contiguous.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn pack<const W: usize>(b: MatRef<'_, f32>, factor: f32, lines: &mut [Line]) {
    let (terms, cols, start) = (b.nrows(), b.ncols(), b.as_ptr());
    assert!(cols.div_ceil(LINE) == W && lines.len() == W * terms, "columns fit");
    let factor = _mm512_set1_ps(factor);
    let put = |line: &mut Line, elements: __m512| {
        // SAFETY: a line is as long as a register.
        unsafe { _mm512_storeu_ps(line.as_mut_ptr().cast(), _mm512_mul_ps(elements, factor)) }
    };
    if b.col_stride() == 1 || cols == 1 {
        let last = first_lanes(cols - (W - 1) * LINE);
        for (row, lines) in (0..terms).zip(lines.as_chunks_mut::<W>().0) {
            let row = start.wrapping_offset(row as isize * b.row_stride());
            for (w, line) in lines.iter_mut().enumerate() {
                let mask = if w + 1 == W { last } else { !0 };
                // SAFETY: the mask takes elements of the row only.
                put(line, unsafe { _mm512_maskz_loadu_ps(mask, row.wrapping_add(w * LINE)) });
            }
        }
        return;
    }
    assert!(b.row_stride() == 1 || terms == 1, "rows or columns of neighbours");
    for (block, lines) in lines.chunks_mut(LINE * W).enumerate() {
        let mask = first_lanes(terms - block * LINE);
        for w in 0..W {
            let mut columns = [_mm512_setzero_si512(); LINE];
            for (col, column) in (w * LINE..cols).zip(&mut columns) {
                let at = start.wrapping_offset(col as isize * b.col_stride()).wrapping_add(block * LINE);
                // SAFETY: the mask takes elements of the column only.
                *column = _mm512_castps_si512(unsafe { _mm512_maskz_loadu_ps(mask, at) });
            }
            for (line, terms) in lines.iter_mut().skip(w).step_by(W).zip(avx512::transposed(columns)) {
                put(line, _mm512_castsi512_ps(terms));
            }
        }
    }
}
