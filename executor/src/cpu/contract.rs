//! Contract: matrix products over any strides.
//!
//! Letters that all operands step through alike are merged. The largest letter of each group goes to one GEMM; the others
//! become loops, those of the sum accumulating in order. Which tiles the result is cut into follows from the sizes alone, so
//! that any number of threads computes the same sums in the same order.

use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::number::{Number, Real};
use crate::cpu::signature::{Signature, float};
use crate::cpu::space;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps, Tile};
use faer::linalg::matmul::matmul;
use faer::{Accum, Par};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Contract, ContractDim};

/// A contraction made ready.
#[derive(Debug)]
pub struct Prepared {
    dtype: DType,
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

/// What `contract` demands of its operands; an error if it is not well formed.
pub fn signature(contract: &Contract) -> Result<Signature, String> {
    float(contract.dtype)?;
    let dims: Vec<&ContractDim> = [&contract.batch, &contract.m, &contract.n, &contract.k].into_iter().flatten().collect();
    let shape: Vec<u64> = dims.iter().map(|d| d.size).collect();
    if dims.iter().any(|d| d.a < 0 || d.b < 0 || d.c < 0) {
        return Err("a contraction has negative strides".to_string());
    }
    let extent = |stride: fn(&ContractDim) -> i64| {
        let strides: Vec<i64> = dims.iter().map(|d| stride(d)).collect();
        space::extent(&shape, &strides, (0, 0))
    };
    let results = [&contract.batch, &contract.m, &contract.n].into_iter().flatten();
    let stores: Vec<Steps> = results.map(|d| Steps { size: d.size as usize, stride: d.c as usize }).collect();
    if !stores.iter().any(|s| s.size == 0) && !tiles::distinct(&stores) {
        return Err("results of a contraction share elements".to_string());
    }
    if contract.k.iter().any(|d| d.c != 0) {
        return Err("a summed letter has a stride in the result".to_string());
    }
    // With an empty sum the results are still written.
    let written: Vec<u64> = [&contract.batch, &contract.m, &contract.n].into_iter().flatten().map(|d| d.size).collect();
    let c_strides: Vec<i64> = [&contract.batch, &contract.m, &contract.n].into_iter().flatten().map(|d| d.c).collect();
    Ok(Signature::default()
        .reads(contract.dtype, extent(|d| d.a)?)
        .reads(contract.dtype, extent(|d| d.b)?)
        .writes(contract.dtype, space::extent(&written, &c_strides, (0, 0))?))
}

/// Makes `contract` ready.
pub fn prepare(contract: &Contract) -> Prepared {
    let (m, mut outer) = largest(merged(&contract.m));
    let (n, n_rest) = largest(merged(&contract.n));
    let (k, summed) = largest(merged(&contract.k));
    outer.extend(n_rest);
    outer.extend(merged(&contract.batch));
    outer.sort_by_key(|l| std::cmp::Reverse(l.c));
    Prepared { dtype: contract.dtype, outer, summed, m, n, k, tile: tile(m.size, n.size, k.size) }
}

/// Runs it.
pub fn launch(prepared: &Prepared, reads: &[Slice<'_>], write: SliceMut<'_>, threads: Threads) {
    match prepared.dtype {
        DType::F64 => run::<f64>(prepared, reads, write, threads),
        _ => run::<f32>(prepared, reads, write, threads),
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

/// Halves the larger side until a tile is a small part of a millisecond, or too small to be worth a GEMM of its own.
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

fn run<T: Real>(p: &Prepared, reads: &[Slice<'_>], mut write: SliceMut<'_>, threads: Threads) {
    let (Some(a), Some(b), Some(c)) = (T::of(reads[0]), T::of(reads[1]), T::take(&mut write)) else { return };
    let steps = |l: &Letter, stride: fn(&Letter) -> usize| Steps { size: l.size, stride: stride(l) };
    let outer: Vec<Steps> = p.outer.iter().map(|l| steps(l, |l| l.c)).collect();
    let tiles = tiles::cut(c, &outer, steps(&p.m, |l| l.c), steps(&p.n, |l| l.c));
    let mut products = vec![];
    for (position, tile) in tiles.into_iter().enumerate() {
        let (a, b) = starts(&p.outer, position);
        products.extend(tile.split(p.tile.0, p.tile.1).into_iter().map(|(row, col, tile)| Product {
            a: a + row * p.m.a,
            b: b + col * p.n.b,
            tile,
        }));
    }
    let sums = p.summed.iter().map(|l| l.size).product::<usize>() * p.k.size;
    let work = products.len().saturating_mul(p.tile.0 * p.tile.1).saturating_mul(sums) / 4;
    threads.for_each(work, products, |product| multiply::<T>(p, product, a, b));
}

/// One tile of results, and where its operands begin.
struct Product<'a, T> {
    a: usize,
    b: usize,
    tile: Tile<'a, T>,
}

fn multiply<T: Real>(p: &Prepared, product: Product<'_, T>, a: &[T], b: &[T]) {
    let Product { a: a_start, b: b_start, mut tile } = product;
    let (rows, cols) = {
        let c = tile.matrix();
        (c.nrows(), c.ncols())
    };
    let sums: usize = p.summed.iter().map(|l| l.size).product();
    if sums * p.k.size == 0 {
        tile.matrix().fill(T::ZERO);
        return;
    }
    for position in 0..sums {
        let (a_sum, b_sum) = starts(&p.summed, position);
        let a = tiles::matrix(a, a_start + a_sum, Steps { size: rows, stride: p.m.a }, Steps { size: p.k.size, stride: p.k.a });
        let b = tiles::matrix(b, b_start + b_sum, Steps { size: p.k.size, stride: p.k.b }, Steps { size: cols, stride: p.n.b });
        let accumulate = if position == 0 { Accum::Replace } else { Accum::Add };
        matmul(tile.matrix(), accumulate, a, b, <T as Number>::ONE, Par::Seq);
    }
}

/// Where `a` and `b` begin at the row-major `position` over `letters`.
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
