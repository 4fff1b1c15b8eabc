//! Which part of a product a triangle of zeros makes idle.

use std::ops::Range;

/// A matrix of which only a triangle matters: that of row `i` and the columns before `i + n`, where
/// `n` is the number that is given. What its zeros meet is finite: some of them are multiplied.
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
            Triangle::OfTransposedA(n) => shifted(rows.start, 1isize.saturating_sub(n), terms)..terms,
            Triangle::Whole | Triangle::OfTransposedC(_) => 0..terms,
        }
    }

    /// The columns of `c` before these matter to none of `rows`, one or more, of so many.
    pub fn first_column(self, rows: Range<usize>, cols: usize) -> usize {
        if let Triangle::OfTransposedC(n) = self { shifted(rows.start, 1isize.saturating_sub(n), cols) } else { 0 }
    }
}

/// `number + by`, at least 0 and at most `most`.
fn shifted(number: usize, by: isize, most: usize) -> usize {
    number.saturating_add_signed(by).min(most)
}
