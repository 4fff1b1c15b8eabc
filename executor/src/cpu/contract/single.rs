//! Contractions of f32 and of 16-bit floats, with sums in f32.

use super::{Letter, Product, TileProduct, starts};
use crate::cpu::factor::{Factor, Stored};
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
    pub fn run_single<T: Factor, C: Stored>(&self, a: &[T], b: &[T], c: &mut [C], accumulate: Accum, threads: Threads) {
        if self.m.c == 1 && self.n.c > 1 {
            return self.transposed().run_single(b, a, c, accumulate, threads);
        }
        if self.outer.is_empty() && self.summed.is_empty() && self.run_shared(a, b, c, accumulate, threads) {
            return;
        }
        let outer: usize = self.outer.iter().map(|l| l.size).product();
        let sums = self.summed.iter().map(|l| l.size).product::<usize>() * self.k.size;
        let tile = if T::any_tile() { tile([self.m.size, self.n.size, sums], outer, threads.0) } else { self.tile };
        let products = self.tiles(c, tile);
        let work = outer.saturating_mul(self.m.size * self.n.size).saturating_mul(sums) / (16 / size_of::<T>());
        threads.for_each(work, products, |product| self.multiply_single(product, a, b, accumulate));
    }

    /// The one product by all threads together. Says whether it was done.
    fn run_shared<T: Factor, C: Stored>(&self, a: &[T], b: &[T], c: &mut [C], accumulate: Accum, threads: Threads) -> bool {
        let (m, n, k) = (&self.m, &self.n, &self.k);
        if m.size * n.size * k.size == 0 {
            return false;
        }
        let steps = |letter: &Letter, stride: usize| Steps { size: letter.size, stride };
        let a = tiles::matrix(a, 0, steps(m, m.a), steps(k, k.a));
        let b = tiles::matrix(b, 0, steps(k, k.b), steps(n, n.b));
        let mut tiles = tiles::cut(c, &[], steps(m, m.c), steps(n, n.c));
        tiles.iter_mut().all(|tile| T::multiply_shared(a, b, tile, accumulate, threads))
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
    fn multiply_single<T: Factor, C: Stored>(&self, product: TileProduct<'_, C>, a: &[T], b: &[T], accumulate: Accum) {
        let TileProduct { a: a_start, b: b_start, mut tile } = product;
        C::with_sums(&mut tile, accumulate, |c| self.sums((a_start, b_start), a, b, c, accumulate));
    }

    /// One tile of sums, over all letters of the sum in order.
    fn sums<T: Factor>(
        &self,
        (a_start, b_start): (usize, usize),
        a: &[T],
        b: &[T],
        mut c: MatMut<'_, f32>,
        mut accumulate: Accum,
    ) {
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
