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

use crate::cpu::simd::simd;
use crate::cpu::tiles::Tile;
use ::half::slice::HalfFloatSliceExt;
use ::half::{bf16, f16};
use faer::{Accum, MatMut, MatRef};

/// A 16-bit float: what a product multiplies.
pub trait Half: HalfResult {
    /// Whether [`Half::multiply`] gives the same results to the bit however `c` is cut into tiles.
    fn any_tile() -> bool;

    /// `c = a b`, or `c += a b`, with sums in f32; `a` is m x k, `b` k x n, and `c` m x n.
    ///
    /// # Panics
    /// If the sizes do not fit, or a row of `c` is not contiguous.
    fn multiply(a: MatRef<'_, Self>, b: MatRef<'_, Self>, c: MatMut<'_, f32>, accumulate: Accum);

    /// `to[i] = from[i]`, exactly.
    fn widen(from: &[Self], to: &mut [f32]);

    /// The element as f32, exactly.
    fn to_f32(self) -> f32;

    /// Zero.
    const ZERO: Self;
}

/// What the results of a product of 16-bit floats may be: f32, or 16-bit floats.
pub trait HalfResult: Copy + Send + Sync + 'static {
    /// The tile itself, where sums can be made in it.
    fn sums<'t>(tile: &'t mut Tile<'_, Self>) -> Option<MatMut<'t, f32>>;

    /// The value as f32, exactly.
    fn value(self) -> f32;

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

    fn widen(from: &[bf16], to: &mut [f32]) {
        bf16_to_f32(from.reinterpret_cast(), to);
    }

    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    const ZERO: bf16 = bf16::ZERO;
}

impl Half for f16 {
    fn any_tile() -> bool {
        false
    }

    fn multiply(a: MatRef<'_, f16>, b: MatRef<'_, f16>, c: MatMut<'_, f32>, accumulate: Accum) {
        widened::multiply(a, b, c, accumulate);
    }

    fn widen(from: &[f16], to: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        let done = x86::f16_to_f32(from.reinterpret_cast(), to);
        #[cfg(not(target_arch = "x86_64"))]
        let done = 0;
        from[done..].convert_to_f32_slice(&mut to[done..]);
    }

    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    const ZERO: f16 = f16::ZERO;
}

impl HalfResult for f32 {
    fn sums<'t>(tile: &'t mut Tile<'_, f32>) -> Option<MatMut<'t, f32>> {
        let matrix = tile.matrix();
        (matrix.col_stride() == 1 || matrix.ncols() <= 1).then_some(matrix)
    }

    fn value(self) -> f32 {
        self
    }

    fn narrow(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl HalfResult for bf16 {
    fn sums<'t>(_tile: &'t mut Tile<'_, bf16>) -> Option<MatMut<'t, f32>> {
        None
    }

    fn value(self) -> f32 {
        self.to_f32()
    }

    fn narrow(from: &[f32], to: &mut [bf16]) {
        f32_to_bf16(from, to.reinterpret_cast_mut());
    }
}

impl HalfResult for f16 {
    fn sums<'t>(_tile: &'t mut Tile<'_, f16>) -> Option<MatMut<'t, f32>> {
        None
    }

    fn value(self) -> f32 {
        self.to_f32()
    }

    fn narrow(from: &[f32], to: &mut [f16]) {
        #[cfg(target_arch = "x86_64")]
        let done = x86::f32_to_f16(from, to.reinterpret_cast_mut());
        #[cfg(not(target_arch = "x86_64"))]
        let done = 0;
        to[done..].convert_from_f32_slice(&from[done..]);
    }
}

simd! {
    /// The upper half of an f32 is a bf16.
    fn bf16_to_f32(from: &[u16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "as many");
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(*from) << 16);
        }
    }

    /// Rounds the lower half away; what is not a number stays so, and quiet.
    fn f32_to_bf16(from: &[f32], to: &mut [u16]) {
        assert_eq!(from.len(), to.len(), "as many");
        for (to, from) in to.iter_mut().zip(from) {
            let bits = from.to_bits();
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            let quiet = (bits >> 16) | 0x40;
            *to = (if (bits & 0x7fff_ffff) > 0x7f80_0000 { quiet } else { rounded }) as u16;
        }
    }
}
