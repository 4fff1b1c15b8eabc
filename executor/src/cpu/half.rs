//! Products of matrices of 16-bit floats, with sums in 32 bits.
//!
//! Where the processor multiplies pairs of bf16 itself, operands are packed for it (`packed`).
//! Elsewhere, and for f16, they are converted to f32 a block at a time (`widened`). Which way is
//! taken follows from the processor and the type alone. A product of pairs takes subnormal elements
//! and sums as zero; the other way keeps them.

#[cfg(target_arch = "x86_64")]
mod packed;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
mod widened;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::cpu::element::{Element, convert};
use crate::cpu::tiles::Tile;
use ::half::{bf16, f16};
use faer::{Accum, MatMut, MatRef};

/// A 16-bit float: what a product multiplies.
pub trait Half: Element + HalfResult {
    /// Whether [`Half::multiply`] gives the same results to the bit however `c` is cut into tiles.
    fn any_tile() -> bool;

    /// `c = a b`, or `c += a b`, with sums in f32; `a` is m x k, `b` k x n, and `c` m x n.
    ///
    /// # Panics
    /// If the sizes do not fit, or a row of `c` is not contiguous.
    fn multiply(a: MatRef<'_, Self>, b: MatRef<'_, Self>, c: MatMut<'_, f32>, accumulate: Accum);
}

/// What the results of a product of 16-bit floats may be: f32, or 16-bit floats.
pub trait HalfResult: Element {
    /// The tile itself, where sums can be made in it.
    fn sums<'t>(tile: &'t mut Tile<'_, Self>) -> Option<MatMut<'t, f32>>;

    /// `to[i] = from[i]`, rounded to the nearest, ties to even.
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Half for bf16 {
    fn any_tile() -> bool {
        #[cfg(target_arch = "x86_64")]
        return x86::Pairs::detect().is_some();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    fn multiply(a: MatRef<'_, bf16>, b: MatRef<'_, bf16>, c: MatMut<'_, f32>, accumulate: Accum) {
        #[cfg(target_arch = "x86_64")]
        if let Some(pairs) = x86::Pairs::detect() {
            return packed::multiply(pairs, a, b, c, accumulate);
        }
        widened::multiply(a, b, c, accumulate);
    }
}

impl Half for f16 {
    fn any_tile() -> bool {
        false
    }

    fn multiply(a: MatRef<'_, f16>, b: MatRef<'_, f16>, c: MatMut<'_, f32>, accumulate: Accum) {
        widened::multiply(a, b, c, accumulate);
    }
}

impl HalfResult for f32 {
    fn sums<'t>(tile: &'t mut Tile<'_, f32>) -> Option<MatMut<'t, f32>> {
        let matrix = tile.matrix();
        (matrix.col_stride() == 1 || matrix.ncols() <= 1).then_some(matrix)
    }

    fn narrow(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl HalfResult for bf16 {
    fn sums<'t>(_tile: &'t mut Tile<'_, bf16>) -> Option<MatMut<'t, f32>> {
        None
    }

    fn narrow(from: &[f32], to: &mut [bf16]) {
        convert(from, to);
    }
}

impl HalfResult for f16 {
    fn sums<'t>(_tile: &'t mut Tile<'_, f16>) -> Option<MatMut<'t, f32>> {
        None
    }

    fn narrow(from: &[f32], to: &mut [f16]) {
        convert(from, to);
    }
}
