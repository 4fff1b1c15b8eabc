//! Products of 16-bit floats on any machine: blocks of both operands are converted to f32, and
//! multiplied as such.

use super::Factor;
use crate::cpu::element::convert;
use crate::cpu::scratch;
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

/// The most terms of the sum in one block.
const DEPTH: usize = 512;

/// `c = a b`, or `c += a b`, with sums in f32; `a` is m x k, `b` k x n, and `c` m x n.
pub fn multiply<T: Factor>(a: MatRef<'_, T>, b: MatRef<'_, T>, mut c: MatMut<'_, f32>, accumulate: Accum) {
    let (rows, cols, terms) = (a.nrows(), b.ncols(), a.ncols());
    assert!((b.nrows(), c.nrows(), c.ncols()) == (terms, rows, cols), "sizes fit");
    if terms == 0 {
        if let Accum::Replace = accumulate {
            c.fill(0.0);
        }
        return;
    }
    let depth = terms.min(DEPTH);
    scratch::with((rows + cols) * depth, |memory: &mut [f32]| {
        let (of_a, of_b) = memory.split_at_mut(rows * depth);
        let mut accumulate = accumulate;
        for start in (0..terms).step_by(depth) {
            let depth = depth.min(terms - start);
            let a = widen(a.subcols(start, depth), of_a);
            let b = widen(b.subrows(start, depth), of_b);
            matmul(c.as_mut(), accumulate, a, b, 1.0, Par::Seq);
            accumulate = Accum::Add;
        }
    });
}

/// The matrix converted into `memory`, its elements in the order of the original where that is
/// contiguous.
fn widen<'m, T: Factor>(matrix: MatRef<'_, T>, memory: &'m mut [f32]) -> MatRef<'m, f32> {
    let (rows, cols) = (matrix.nrows(), matrix.ncols());
    if matrix.row_stride() == 1 && matrix.col_stride() != 1 {
        return widen(matrix.transpose(), memory).transpose();
    }
    let memory = &mut memory[..rows * cols];
    if cols > 0 {
        for (row, to) in memory.chunks_exact_mut(cols).enumerate() {
            match matrix.row(row).try_as_row_major() {
                Some(row) => convert(row.as_slice(), to),
                None => to.iter_mut().enumerate().for_each(|(col, to)| *to = matrix[(row, col)].cast()),
            }
        }
    }
    MatRef::from_row_major_slice(memory, rows, cols)
}
