//! Contractions of 16-bit floats, with sums in f32.

use super::{Letter, Product, TileProduct, starts};
use crate::cpu::half::{Half, HalfResult};
use crate::cpu::scratch;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps};
use faer::{Accum, MatMut};

/// Cuts the sides of `m x n` results of `k` terms each until a block of the operands of a tile fits
/// the second cache, and until the `outer` products are shared evenly between threads, as long as a
/// tile is worth packing its operands. The sums are the same to the bit in any tile.
fn tile([m, n, k]: [usize; 3], outer: usize, threads: usize) -> (usize, usize) {
    const BLOCK: usize = 192 << 10;
    const WIDTH: usize = 768;
    const FLOPS: usize = 16 << 20;
    let highest = BLOCK / k.clamp(256, 512);
    let (mut across, mut along) = (m.div_ceil(highest).max(1), n.div_ceil(WIDTH).max(1));
    loop {
        let height = m.div_ceil(across).next_multiple_of(16);
        let width = n.div_ceil(along).next_multiple_of(48);
        let flops = height.saturating_mul(width).saturating_mul(k).saturating_mul(2);
        let count = outer.saturating_mul(across * along);
        let even = count >= 4 * threads || count >= threads && count.is_multiple_of(threads);
        if even || flops < 2 * FLOPS {
            return (height, width);
        }
        let side = if height >= width { &mut across } else { &mut along };
        *side *= 2;
    }
}

impl Product {
    /// `c = a b`, or `c += a b`, where the sums are made in f32, and results of 16 bits rounded
    /// once, to the nearest, ties to even, after all of them.
    pub fn run_half<T: Half, C: HalfResult>(&self, a: &[T], b: &[T], c: &mut [C], accumulate: Accum, threads: Threads) {
        if self.m.c == 1 && self.n.c > 1 {
            return self.transposed().run_half(b, a, c, accumulate, threads);
        }
        let outer: usize = self.outer.iter().map(|l| l.size).product();
        let sums = self.summed.iter().map(|l| l.size).product::<usize>() * self.k.size;
        let tile = if T::any_tile() { tile([self.m.size, self.n.size, sums], outer, threads.0) } else { self.tile };
        let products = self.tiles(c, tile);
        let work = outer.saturating_mul(self.m.size * self.n.size).saturating_mul(sums) / 8;
        threads.for_each(work, products, |product| self.multiply_half(product, a, b, accumulate));
    }

    /// The product `b^T a^T`, which is `c^T`.
    fn transposed(&self) -> Product {
        let letter = |l: &Letter| Letter { a: l.b, b: l.a, ..*l };
        let letters = |letters: &[Letter]| letters.iter().map(letter).collect();
        Product {
            outer: letters(&self.outer),
            summed: letters(&self.summed),
            m: letter(&self.n),
            n: letter(&self.m),
            k: letter(&self.k),
            tile: (self.tile.1, self.tile.0),
        }
    }

    /// One tile, through f32 where it is not itself that.
    fn multiply_half<T: Half, C: HalfResult>(&self, product: TileProduct<'_, C>, a: &[T], b: &[T], accumulate: Accum) {
        let TileProduct { a: a_start, b: b_start, mut tile } = product;
        let starts = (a_start, b_start);
        if let Some(c) = C::sums(&mut tile) {
            return self.sums(starts, a, b, c, accumulate);
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
            self.sums(starts, a, b, c, accumulate);
            for (row, sums) in memory.chunks_exact(cols).enumerate() {
                match matrix.as_mut().row_mut(row).try_as_row_major_mut() {
                    Some(row) => C::narrow(sums, row.as_slice_mut()),
                    None => {
                        for (col, sum) in sums.iter().enumerate() {
                            C::narrow(std::slice::from_ref(sum), std::slice::from_mut(&mut matrix[(row, col)]));
                        }
                    }
                }
            }
        });
    }

    /// One tile of sums, over all letters of the sum in order.
    fn sums<T: Half>(&self, (a_start, b_start): (usize, usize), a: &[T], b: &[T], mut c: MatMut<'_, f32>, mut accumulate: Accum) {
        let (rows, cols, size) = (c.nrows(), c.ncols(), self.k.size);
        let sums: usize = self.summed.iter().map(|l| l.size).product();
        if sums * size == 0 {
            if let Accum::Replace = accumulate {
                c.fill(0.0);
            }
            return;
        }
        for position in 0..sums {
            let (a_sum, b_sum) = starts(&self.summed, position);
            let a = tiles::matrix(a, a_start + a_sum, Steps { size: rows, stride: self.m.a }, Steps { size, stride: self.k.a });
            let b = tiles::matrix(b, b_start + b_sum, Steps { size, stride: self.k.b }, Steps { size: cols, stride: self.n.b });
            T::multiply(a, b, c.as_mut(), accumulate);
            accumulate = Accum::Add;
        }
    }
}
