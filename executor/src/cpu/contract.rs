//! Contract: matrix products over any strides.
//!
//! Letters that all operands step through alike are merged. The largest letter of each group goes
//! to one GEMM; the others become loops, those of the sum accumulating in order. Which tiles the
//! result is cut into follows from the sizes alone, so that any number of threads computes the same
//! sums in the same order.

mod single;

use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::factor::Factor;
use crate::cpu::number::{Number, Real};
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps, Tile};
use crate::cpu::{Arguments, Cpu, Launch};
use ::half::{bf16, f16};
use faer::linalg::matmul::matmul;
use faer::{Accum, Par};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Contract, ContractDim, Implements};
use shardc_ir::reason::Reason;

/// A contraction made ready.
#[derive(Debug)]
struct Prepared {
    dtype: DType,
    product: Product,
}

/// The loops of a contraction.
#[derive(Debug, Clone)]
pub struct Product {
    /// Loops over results.
    outer: Vec<Letter>,
    /// Loops over the sum.
    summed: Vec<Letter>,
    m: Letter,
    n: Letter,
    k: Letter,
    /// The largest tile of one GEMM.
    tile: (usize, usize),
}

/// A letter with its strides.
#[derive(Debug, Clone, Copy)]
struct Letter {
    size: usize,
    a: usize,
    b: usize,
    c: usize,
}

const UNIT: Letter = Letter { size: 1, a: 0, b: 0, c: 0 };

impl Implements<Contract> for Cpu {
    fn ready(&self, contract: &Contract, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        let dims = [&contract.batch, &contract.m, &contract.n, &contract.k].map(|dims| dims.as_slice());
        Ok(Box::new(Prepared { dtype: contract.dtype, product: Product::new(dims) }))
    }
}

impl Launch for Prepared {
    fn launch(&self, Arguments { reads, mut writes, threads, .. }: Arguments<'_>) -> Result<(), Reason> {
        match self.dtype {
            DType::F64 => run::<f64>(&self.product, reads, writes.remove(0), threads),
            DType::BF16 => run_single::<bf16>(&self.product, reads, writes.remove(0), threads),
            DType::F16 => run_single::<f16>(&self.product, reads, writes.remove(0), threads),
            _ => run_single::<f32>(&self.product, reads, writes.remove(0), threads),
        }
        Ok(())
    }
}

fn run<T: Real>(product: &Product, reads: &[Slice<'_>], mut write: SliceMut<'_>, threads: Threads) {
    let (Some(a), Some(b), Some(c)) = (T::of(reads[0]), T::of(reads[1]), T::take(&mut write)) else { return };
    product.run(a, b, c, Accum::Replace, threads);
}

fn run_single<T: Factor>(product: &Product, reads: &[Slice<'_>], mut write: SliceMut<'_>, threads: Threads) {
    let (Some(a), Some(b)) = (T::of(reads[0]), T::of(reads[1])) else { return };
    if let SliceMut::F32(c) = write {
        product.run_single(a, b, c, Accum::Replace, threads);
    } else if let Some(c) = T::take(&mut write) {
        product.run_single(a, b, c, Accum::Replace, threads);
    }
}

/// Merges letters that every operand steps through as through one, whatever their order.
fn merged(dims: &[ContractDim]) -> Vec<Letter> {
    let letters = dims.iter().filter(|d| d.size != 1);
    let mut letters: Vec<Letter> =
        letters.map(|d| Letter { size: d.size as usize, a: d.a as usize, b: d.b as usize, c: d.c as usize }).collect();
    let joins = |outer: &Letter, inner: &Letter| {
        outer.a == inner.a * inner.size && outer.b == inner.b * inner.size && outer.c == inner.c * inner.size
    };
    'again: loop {
        for outer in 0..letters.len() {
            for inner in 0..letters.len() {
                if outer != inner && joins(&letters[outer], &letters[inner]) {
                    letters[inner].size *= letters[outer].size;
                    letters.remove(outer);
                    continue 'again;
                }
            }
        }
        return letters;
    }
}

/// The largest letter (1 if there is none), and the others.
fn largest(mut letters: Vec<Letter>) -> (Letter, Vec<Letter>) {
    match (0..letters.len()).max_by_key(|i| letters[*i].size) {
        Some(largest) => (letters.remove(largest), letters),
        None => (UNIT, letters),
    }
}

/// Halves the larger side until a tile is a small part of a millisecond, or too small to be worth a
/// GEMM of its own.
fn tile(m: usize, n: usize, k: usize) -> (usize, usize) {
    const FLOPS: usize = 16 << 20;
    const SIDE: usize = 192;
    let (mut height, mut width) = (m.max(1), n.max(1));
    while height.saturating_mul(width).saturating_mul(k) * 2 > FLOPS && height.max(width) > 2 * SIDE {
        let side = if height >= width { &mut height } else { &mut width };
        *side = side.div_ceil(2).next_multiple_of(48);
    }
    (height, width)
}

/// The tile of a product that is alone: there are several where that is worth it, so that threads
/// may share it.
fn shared_tile(m: usize, n: usize, k: usize) -> (usize, usize) {
    const FLOPS: usize = 4 << 20;
    const SIDE: usize = 96;
    let (height, width) = tile(m, n, k);
    let alone = (height, width) == (m, n) && m.saturating_mul(n).saturating_mul(k) * 2 > FLOPS;
    match (alone, height >= width) {
        (true, true) if height > SIDE => (height.div_ceil(2).next_multiple_of(16), width),
        (true, false) if width > SIDE => (height, width.div_ceil(2).next_multiple_of(16)),
        _ => (height, width),
    }
}

impl Product {
    /// The loops over letters batch, m, n, k; see [`Contract`].
    pub fn new([batch, m, n, k]: [&[ContractDim]; 4]) -> Product {
        let (m, mut outer) = largest(merged(m));
        let (n, n_rest) = largest(merged(n));
        let (k, summed) = largest(merged(k));
        outer.extend(n_rest);
        outer.extend(merged(batch));
        outer.sort_by_key(|l| std::cmp::Reverse(l.c));
        let sums = summed.iter().fold(k.size, |n, l| n.saturating_mul(l.size));
        let tile = if outer.is_empty() { shared_tile(m.size, n.size, sums) } else { tile(m.size, n.size, k.size) };
        Product { outer, summed, m, n, k, tile }
    }

    /// `c = a b`, or `c += a b`.
    pub fn run<T: Real>(&self, a: &[T], b: &[T], c: &mut [T], accumulate: Accum, threads: Threads) {
        if let (Slice::F32(a), Slice::F32(b), SliceMut::F32(c)) = (T::wrap(a), T::wrap(b), T::wrap_mut(&mut *c)) {
            self.run_single(a, b, c, accumulate, threads);
        } else {
            self.run_double(a, b, c, accumulate, threads);
        }
    }

    /// The same, with sums of the type.
    fn run_double<T: Real>(&self, a: &[T], b: &[T], c: &mut [T], accumulate: Accum, threads: Threads) {
        let products = self.tiles(c, self.tile);
        let sums = self.summed.iter().map(|l| l.size).product::<usize>() * self.k.size;
        let work = products.len().saturating_mul(self.tile.0 * self.tile.1).saturating_mul(sums) / 4;
        threads.for_each(work, products, |product| self.multiply::<T>(product, a, b, accumulate));
    }

    /// The tiles of `c`, of at most `height` and `width`.
    fn tiles<'c, C>(&self, c: &'c mut [C], (height, width): (usize, usize)) -> Vec<TileProduct<'c, C>> {
        let steps = |l: &Letter, stride: fn(&Letter) -> usize| Steps { size: l.size, stride: stride(l) };
        let outer: Vec<Steps> = self.outer.iter().map(|l| steps(l, |l| l.c)).collect();
        let tiles = tiles::cut(c, &outer, steps(&self.m, |l| l.c), steps(&self.n, |l| l.c));
        let mut products = vec![];
        for (position, tile) in tiles.into_iter().enumerate() {
            let (a, b) = starts(&self.outer, position);
            products.extend(tile.split(height, width).into_iter().map(|(row, col, tile)| TileProduct {
                a: a + row * self.m.a,
                b: b + col * self.n.b,
                tile,
            }));
        }
        products
    }

    fn multiply<T: Real>(&self, product: TileProduct<'_, T>, a: &[T], b: &[T], accumulate: Accum) {
        let TileProduct { a: a_start, b: b_start, mut tile } = product;
        let (rows, cols) = {
            let c = tile.matrix();
            (c.nrows(), c.ncols())
        };
        let sums: usize = self.summed.iter().map(|l| l.size).product();
        if sums * self.k.size == 0 {
            if let Accum::Replace = accumulate {
                tile.matrix().fill(T::ZERO);
            }
            return;
        }
        let size = self.k.size;
        for position in 0..sums {
            let (a_sum, b_sum) = starts(&self.summed, position);
            let a = tiles::matrix(a, a_start + a_sum, Steps { size: rows, stride: self.m.a }, Steps { size, stride: self.k.a });
            let b = tiles::matrix(b, b_start + b_sum, Steps { size, stride: self.k.b }, Steps { size: cols, stride: self.n.b });
            let accumulate = if position == 0 { accumulate } else { Accum::Add };
            matmul(tile.matrix(), accumulate, a, b, <T as Number>::ONE, Par::Seq);
        }
    }
}

/// One tile of results, and where its operands begin.
struct TileProduct<'a, T> {
    a: usize,
    b: usize,
    tile: Tile<'a, T>,
}

/// The first elements of `a` and `b` at the row-major `position` over `letters`.
fn starts(letters: &[Letter], position: usize) -> (usize, usize) {
    let (mut a, mut b, mut rest) = (0, 0, position);
    for letter in letters.iter().rev() {
        let index = rest % letter.size;
        rest /= letter.size;
        a += index * letter.a;
        b += index * letter.b;
    }
    (a, b)
}
