//! Products by one thread of matrices that are in its caches, such as the blocks of attention.

#[cfg(target_arch = "x86_64")]
use crate::cpu::packed::{self, x86::Singles};
use faer::linalg::matmul::matmul;
use faer::traits::ComplexField;
use faer::{Accum, MatMut, MatRef, Par};
use std::ops::Range;

/// A matrix of which only a triangle matters: that of row `i` and the columns before `i + n`, where
/// `n` is the number that is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Triangle {
    /// There is none: everything matters.
    Whole,
    /// Of `a`, whose other elements are zero.
    OfA(isize),
    /// Of the transposed `a`, whose other elements are zero.
    OfTransposedA(isize),
    /// Of the transposed `c`, whose other elements may become anything.
    OfTransposedC(isize),
}

impl Triangle {
    /// The terms that matter to any of `rows`, one or more, of so many.
    pub fn terms(self, rows: Range<usize>, terms: usize) -> Range<usize> {
        match self {
            Triangle::OfA(n) => 0..shifted(rows.end, n.saturating_sub(1), terms),
            Triangle::OfTransposedA(n) => shifted(rows.start, 1 - n, terms)..terms,
            Triangle::Whole | Triangle::OfTransposedC(_) => 0..terms,
        }
    }

    /// The columns of `c` before these matter to none of `rows`, one or more, of so many.
    pub fn first_column(self, rows: Range<usize>, cols: usize) -> usize {
        if let Triangle::OfTransposedC(n) = self { shifted(rows.start, 1 - n, cols) } else { 0 }
    }
}

/// `number + by`, at least 0 and at most `most`.
fn shifted(number: usize, by: isize, most: usize) -> usize {
    number.saturating_add_signed(by).min(most)
}

/// What is multiplied.
pub trait Near: ComplexField {
    /// `c = factor a b`, or `c += factor a b`, as far as the triangle says; `a` is m x k, `b` k x
    /// n, and `c` m x n.
    ///
    /// # Panics
    /// If the sizes do not fit, or neither rows nor columns of `c` are contiguous.
    fn multiply(
        a: MatRef<'_, Self>,
        b: MatRef<'_, Self>,
        c: MatMut<'_, Self>,
        accumulate: Accum,
        factor: Self,
        triangle: Triangle,
    );
}

impl Near for f32 {
    fn multiply(a: MatRef<'_, f32>, b: MatRef<'_, f32>, c: MatMut<'_, f32>, accumulate: Accum, factor: f32, triangle: Triangle) {
        #[cfg(target_arch = "x86_64")]
        if let Some(singles) = Singles::detect().filter(|singles| singles.are_avx512()) {
            return packed::near::multiply(singles, a, b, c, accumulate, factor, triangle);
        }
        let _ = triangle;
        matmul(c, accumulate, a, b, factor, Par::Seq);
    }
}

impl Near for f64 {
    fn multiply(a: MatRef<'_, f64>, b: MatRef<'_, f64>, c: MatMut<'_, f64>, accumulate: Accum, factor: f64, _triangle: Triangle) {
        matmul(c, accumulate, a, b, factor, Par::Seq);
    }
}

#[cfg(test)]
mod tests;
