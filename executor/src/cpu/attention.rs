//! Attention: softmax of scaled scores times values, one block of queries of one head at a time.
//!
//! The scores of a block never leave the cache; of each query only the logarithm of the sum of
//! exponentials is kept for the gradient (Dao et al., "FlashAttention", 2022, with whole rows of
//! keys instead of an online softmax).

mod gradient;

use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::functions::Functions;
use crate::cpu::number::{Number, Real};
use crate::cpu::scratch;
use crate::cpu::simd::simd;
use crate::cpu::softmax::{exponentials, largest};
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps, Tile};
use crate::cpu::{Arguments, Cpu, Launch};
use faer::linalg::matmul::matmul;
use faer::{Accum, Par};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Attention, AttentionMask, Implements};
use shardc_ir::reason::Reason;

/// Queries of one block.
pub(super) const QUERIES: usize = 64;

impl Implements<Attention> for Cpu {
    fn ready(&self, attention: &Attention, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        Ok(Box::new(attention.clone()))
    }
}

impl Launch for Attention {
    fn launch(&self, Arguments { reads, writes, threads, .. }: Arguments<'_>) -> Result<(), Reason> {
        match self.dtype {
            DType::F64 => run::<f64>(self, reads, writes, threads),
            _ => run::<f32>(self, reads, writes, threads),
        }
        Ok(())
    }
}

/// The operands of one head's scores.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head<'a, T> {
    pub attention: &'a Attention,
    pub q: &'a [T],
    pub k: &'a [T],
    pub v: &'a [T],
    pub mask: Option<Slice<'a>>,
    pub batch: usize,
    pub head: usize,
}

impl<'a, T: Real> Head<'a, T> {
    /// The rows of `data` that belong to `head`, from position `from` on.
    pub fn rows(
        &self,
        data: &'a [T],
        strides: &[i64; 3],
        head: usize,
        from: usize,
        count: usize,
        width: u64,
    ) -> faer::MatRef<'a, T> {
        let start = self.batch * strides[0] as usize + head * strides[1] as usize + from * strides[2] as usize;
        tiles::matrix(data, start, Steps { size: count, stride: strides[2] as usize }, Steps { size: width as usize, stride: 1 })
    }

    /// The key head that this query head reads.
    pub fn kv_head(&self) -> usize {
        self.head / (self.attention.heads / self.attention.kv_heads) as usize
    }

    /// The number of keys that any of the queries `from..from + count` sees.
    pub fn keys(&self, from: usize, count: usize) -> usize {
        self.visible(from + count - 1)
    }

    /// The number of keys, from the first, that query `query` may see.
    pub fn visible(&self, query: usize) -> usize {
        let (queries, keys) = (self.attention.q_len as usize, self.attention.kv_len as usize);
        if self.attention.mask == AttentionMask::Causal { (query + keys + 1).saturating_sub(queries).min(keys) } else { keys }
    }

    /// Scaled and masked scores of `count` queries from `from` on over the first `keys` keys,
    /// row-major.
    pub fn scores(&self, from: usize, count: usize, keys: usize, scores: &mut [T]) {
        let a = self.attention;
        let q = self.rows(self.q, &a.q, self.head, from, count, a.width);
        let k = self.rows(self.k, &a.k, self.kv_head(), 0, keys, a.width);
        let out = faer::MatMut::from_row_major_slice_mut(&mut *scores, count, keys);
        matmul(out, Accum::Replace, q, k.transpose(), <T as Number>::from_f64(a.scale), Par::Seq);
        if let (Some(mask), AttentionMask::Operand { strides, .. }) = (self.mask, &a.mask) {
            let stride = |d: usize| strides[d] as isize;
            for (row, scores) in scores.chunks_exact_mut(keys.max(1)).enumerate() {
                let start = self.batch as isize * stride(0) + self.head as isize * stride(1) + (from + row) as isize * stride(2);
                apply_mask(scores, mask, start, stride(3));
            }
        } else {
            for (row, scores) in scores.chunks_exact_mut(keys.max(1)).enumerate() {
                scores[self.visible(from + row)..].fill(T::LOWEST);
            }
        }
    }
}

fn apply_mask<T: Real>(scores: &mut [T], mask: Slice<'_>, start: isize, stride: isize) {
    let at = |i: usize| (start + i as isize * stride) as usize;
    if let Slice::Bool(mask) = mask {
        for (i, score) in scores.iter_mut().enumerate() {
            if mask[at(i)] == 0 {
                *score = T::LOWEST;
            }
        }
    } else if let Some(mask) = T::of(mask) {
        for (i, score) in scores.iter_mut().enumerate() {
            *score += mask[at(i)];
        }
    }
}

fn run<T: Real>(a: &Attention, reads: &[Slice<'_>], mut writes: Vec<SliceMut<'_>>, threads: Threads) {
    let operands: Vec<&[T]> = reads[..3].iter().filter_map(|read| T::of(*read)).collect();
    let [q, k, v] = operands[..] else { return };
    let [o, lse] = &mut writes[..] else { return };
    let (Some(o), Some(lse)) = (T::take(o), T::take(lse)) else { return };
    let queries = a.q_len as usize;
    if a.batch * a.heads * a.q_len == 0 {
        return;
    }
    let o = cut_heads(o, &a.o, a.batch, a.heads, a.q_len, a.v_width);
    let mut items = vec![];
    for (position, lse) in lse.chunks_mut(queries).take((a.batch * a.heads) as usize).enumerate() {
        let (batch, head) = (position / a.heads as usize, position % a.heads as usize);
        let head = Head { attention: a, q, k, v, mask: reads.get(3).copied(), batch, head };
        items.extend(lse.chunks_mut(QUERIES).enumerate().map(|(block, lse)| (head, block * QUERIES, lse, None)));
    }
    let blocks = o.into_iter().flat_map(|tile| tile.split(QUERIES, usize::MAX));
    for (item, (_, _, tile)) in items.iter_mut().zip(blocks) {
        item.3 = Some(tile);
    }
    let work = (a.batch * a.heads * a.q_len * a.kv_len * (a.width + a.v_width + 16) / 8) as usize;
    threads.for_each(work, items, |(head, from, lse, tile)| block(head, from, lse, tile));
}

/// Cuts rows of `width` over (batch, head, position) into one tile for each batch and head.
pub(super) fn cut_heads<'a, T>(
    data: &'a mut [T],
    strides: &[i64; 3],
    batch: u64,
    heads: u64,
    positions: u64,
    width: u64,
) -> Vec<Tile<'a, T>> {
    let steps = |size: u64, stride: i64| Steps { size: size as usize, stride: stride as usize };
    tiles::cut(
        data,
        &[steps(batch, strides[0]), steps(heads, strides[1])],
        steps(positions, strides[2]),
        Steps { size: width as usize, stride: 1 },
    )
}

/// One block of queries.
fn block<T: Real>(head: Head<'_, T>, from: usize, lse: &mut [T], tile: Option<Tile<'_, T>>) {
    let count = lse.len();
    let keys = head.keys(from, count);
    scratch::with(count * keys + count, |memory: &mut [T]| {
        let (scores, sums) = memory.split_at_mut(count * keys);
        head.scores(from, count, keys, scores);
        softmax_rows(scores, keys, sums, lse);
        let Some(mut tile) = tile else { return };
        let a = head.attention;
        let v = head.rows(head.v, &a.v, head.kv_head(), 0, keys, a.v_width);
        let p = faer::MatRef::from_row_major_slice(&*scores, count, keys);
        matmul(tile.matrix(), Accum::Replace, p, v, <T as Number>::ONE, Par::Seq);
        for (row, sum) in sums.iter().enumerate() {
            scale(tile.row(row), *sum);
        }
    });
}

simd! {
    /// Each row of `keys` scores becomes `exp(score - max)`; `inverse` gets 1 over each row's sum
    /// (0 for a row that sees nothing), and `lse` the logarithm of the sum of `exp(score)`.
    fn softmax_rows<T: Real>(scores: &mut [T], keys: usize, inverse: &mut [T], lse: &mut [T]) {
        for (row, (sum, lse)) in inverse.iter_mut().zip(&mut *lse).enumerate() {
            let scores = &mut scores[row * keys..(row + 1) * keys];
            *lse = largest(scores);
            if *lse == T::LOWEST && !scores.iter().any(|s| Number::is_nan(*s)) {
                scores.fill(T::ZERO);
                *sum = T::ZERO;
            } else {
                *sum = exponentials(scores, *lse);
            }
        }
        for (sum, lse) in inverse.iter_mut().zip(lse) {
            let seen = *sum != T::ZERO;
            *lse = if seen { *lse + Functions::ln(*sum) } else { T::LOWEST };
            *sum = if seen { Functions::recip(*sum) } else { T::ZERO };
        }
    }

    fn scale<T: Real>(row: &mut [T], factor: T) {
        for value in row {
            *value *= factor;
        }
    }
}
