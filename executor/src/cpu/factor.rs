//! Products of matrices of f32 and of 16-bit floats, with sums in f32.
//!
//! Where the processor has vectors of AVX-512 or AVX2, operands are packed for them: those of bf16
//! where it multiplies pairs of them itself, and those of large products of f32. With AVX-512 one
//! operand of f32 is read as it lies, but in the largest gradients of weights. Smaller products of
//! f32, and those that would have to be transposed for AVX2, are faer's; other 16-bit floats are
//! converted to f32 a block at a time (`widened`). Which way is taken follows from the processor,
//! the type, the layout and the sizes alone. A product of pairs takes subnormal elements and sums
//! as zero; the others keep them.

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
mod widened;

use crate::cpu::element::{Element, convert};
#[cfg(target_arch = "x86_64")]
use crate::cpu::packed::{self, x86};
use crate::cpu::scratch;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::Tile;
use ::half::{bf16, f16};
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

/// What a product with sums in f32 multiplies.
pub trait Factor: Element + Stored {
    /// Whether [`Factor::multiply`] gives the same results to the bit however `c` is cut into
    /// tiles.
    fn any_tile() -> bool;

    /// `c = a b`, or `c += a b`, with sums in f32; `a` is m x k, `b` k x n, and `c` m x n.
    ///
    /// # Panics
    /// If the sizes do not fit, or a row of `c` is not contiguous.
    fn multiply(a: MatRef<'_, Self>, b: MatRef<'_, Self>, c: MatMut<'_, f32>, accumulate: Accum);

    /// The same by all `threads`, to results of any type. Says whether it was done.
    ///
    /// # Panics
    /// As [`Factor::multiply`].
    fn multiply_shared<C: Stored>(
        _a: MatRef<'_, Self>,
        _b: MatRef<'_, Self>,
        _c: &mut Tile<'_, C>,
        _accumulate: Accum,
        _threads: Threads,
    ) -> bool {
        false
    }
}

/// The operations from which on a product of f32 is made here: smaller ones are faster by faer.
#[cfg(target_arch = "x86_64")]
const LARGE: usize = 160 << 20;

/// The same where columns of the first operand and rows of the second are contiguous.
#[cfg(target_arch = "x86_64")]
const LARGE_GRADIENT: usize = 80 << 20;

/// The operations from which on both operands of such a product are packed.
#[cfg(target_arch = "x86_64")]
const LARGEST_GRADIENT: usize = 512 << 20;

impl Factor for f32 {
    fn any_tile() -> bool {
        false
    }

    fn multiply(a: MatRef<'_, f32>, b: MatRef<'_, f32>, c: MatMut<'_, f32>, accumulate: Accum) {
        matmul(c, accumulate, a, b, 1.0, Par::Seq);
    }

    #[cfg(target_arch = "x86_64")]
    fn multiply_shared<C: Stored>(
        a: MatRef<'_, f32>,
        b: MatRef<'_, f32>,
        c: &mut Tile<'_, C>,
        accumulate: Accum,
        threads: Threads,
    ) -> bool {
        let flops = (c.rows() * c.cols()).saturating_mul(a.ncols()).saturating_mul(2);
        let Some(singles) = x86::Singles::detect() else { return false };
        let is_gradient = a.row_stride() == 1 && b.col_stride() == 1;
        if is_gradient && flops >= LARGEST_GRADIENT {
            return packed::shared::multiply(singles, a, b, c, accumulate, threads);
        }
        let least = if is_gradient { LARGE_GRADIENT } else { LARGE };
        flops >= least && packed::plain::multiply(singles, a, b, c, accumulate, threads)
    }
}

/// What the results of a product with sums in f32 are stored as: f32, or 16-bit floats.
pub trait Stored: Element {
    /// Whether it holds sums: it is f32.
    const HOLDS_SUMS: bool = false;

    /// The tile itself, where sums can be made in it.
    fn sums<'t>(tile: &'t mut Tile<'_, Self>) -> Option<MatMut<'t, f32>>;

    /// Runs `f` on sums in f32, whose elements are those of the tile before if they are added to;
    /// then the tile holds them, rounded once.
    fn with_sums(tile: &mut Tile<'_, Self>, accumulate: Accum, f: impl FnOnce(MatMut<'_, f32>)) {
        if let Some(sums) = Self::sums(tile) {
            return f(sums);
        }
        let mut matrix = tile.matrix();
        let (rows, cols) = (matrix.nrows(), matrix.ncols());
        scratch::with(rows * cols, |memory: &mut [f32]| {
            let mut c = MatMut::from_row_major_slice_mut(memory, rows, cols);
            if let Accum::Add = accumulate {
                for row in 0..rows {
                    (0..cols).for_each(|col| c[(row, col)] = matrix[(row, col)].cast());
                }
            }
            f(c);
            for (row, sums) in memory.chunks_exact(cols).enumerate() {
                match matrix.as_mut().row_mut(row).try_as_row_major_mut() {
                    Some(row) => Self::narrow(sums, row.as_slice_mut()),
                    None => {
                        for (col, sum) in sums.iter().enumerate() {
                            Self::narrow(std::slice::from_ref(sum), std::slice::from_mut(&mut matrix[(row, col)]));
                        }
                    }
                }
            }
        });
    }

    /// `to[i] = from[i]`, rounded to the nearest, ties to even.
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Factor for bf16 {
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

    #[cfg(target_arch = "x86_64")]
    fn multiply_shared<C: Stored>(
        a: MatRef<'_, bf16>,
        b: MatRef<'_, bf16>,
        c: &mut Tile<'_, C>,
        accumulate: Accum,
        threads: Threads,
    ) -> bool {
        x86::Pairs::detect().is_some_and(|pairs| packed::shared::multiply(pairs, a, b, c, accumulate, threads))
    }
}

impl Factor for f16 {
    fn any_tile() -> bool {
        false
    }

    fn multiply(a: MatRef<'_, f16>, b: MatRef<'_, f16>, c: MatMut<'_, f32>, accumulate: Accum) {
        widened::multiply(a, b, c, accumulate);
    }
}

impl Stored for f32 {
    const HOLDS_SUMS: bool = true;

    fn sums<'t>(tile: &'t mut Tile<'_, f32>) -> Option<MatMut<'t, f32>> {
        let matrix = tile.matrix();
        (matrix.col_stride() == 1 || matrix.ncols() <= 1).then_some(matrix)
    }

    fn narrow(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Stored for bf16 {
    fn sums<'t>(_tile: &'t mut Tile<'_, bf16>) -> Option<MatMut<'t, f32>> {
        None
    }

    fn narrow(from: &[f32], to: &mut [bf16]) {
        convert(from, to);
    }
}

impl Stored for f16 {
    fn sums<'t>(_tile: &'t mut Tile<'_, f16>) -> Option<MatMut<'t, f32>> {
        None
    }

    fn narrow(from: &[f32], to: &mut [f16]) {
        convert(from, to);
    }
}
