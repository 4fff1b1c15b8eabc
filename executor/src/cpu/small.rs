//! Products by one thread of matrices that are in its caches, such as the blocks of attention.

#[cfg(target_arch = "x86_64")]
use crate::cpu::packed::{self, x86::Singles};
use crate::cpu::triangle::Triangle;
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

/// What is multiplied.
pub trait SmallProduct: Sized {
    /// `c = factor a b`, or `c += factor a b`; `a` is m x k, `b` k x n, and `c` m x n. With AVX-512
    /// it is `a (factor b)` of f32, and what the triangle makes idle is left out; else all is
    /// computed.
    ///
    /// # Panics
    /// If the sizes do not fit, or neither rows nor columns of `b` are contiguous, or of `c`.
    fn multiply(
        a: MatRef<'_, Self>,
        b: MatRef<'_, Self>,
        c: MatMut<'_, Self>,
        accumulate: Accum,
        factor: Self,
        triangle: Triangle,
    );
}

impl SmallProduct for f32 {
    fn multiply(a: MatRef<'_, f32>, b: MatRef<'_, f32>, c: MatMut<'_, f32>, accumulate: Accum, factor: f32, triangle: Triangle) {
        #[cfg(target_arch = "x86_64")]
        if let Some(singles) = Singles::detect().filter(|singles| singles.are_avx512()) {
            return packed::small::multiply(singles, a, b, c, accumulate, factor, triangle);
        }
        let _ = triangle;
        matmul(c, accumulate, a, b, factor, Par::Seq);
    }
}

impl SmallProduct for f64 {
    fn multiply(a: MatRef<'_, f64>, b: MatRef<'_, f64>, c: MatMut<'_, f64>, accumulate: Accum, factor: f64, _triangle: Triangle) {
        matmul(c, accumulate, a, b, factor, Par::Seq);
    }
}

#[cfg(test)]
mod tests;
