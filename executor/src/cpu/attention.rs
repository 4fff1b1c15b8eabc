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
use crate::cpu::small::SmallProduct;
use crate::cpu::softmax::LANES;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps, Tile};
use crate::cpu::triangle::Triangle;
use crate::cpu::{Arguments, Cpu, Launch};
use faer::{Accum, MatMut, MatRef};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Attention, AttentionMask, Implements};
use shardc_ir::reason::Reason;

/// The most queries of one block.
const QUERIES: usize = 64;

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

impl<'a, T: Real + SmallProduct> Head<'a, T> {
    /// The rows of `data` that belong to `head`, from position `from` on.
    pub fn rows(&self, data: &'a [T], strides: &[i64; 3], head: usize, from: usize, count: usize, width: u64) -> MatRef<'a, T> {
        let start = self.batch * strides[0] as usize + head * strides[1] as usize + from * strides[2] as usize;
        tiles::matrix(data, start, Steps { size: count, stride: strides[2] as usize }, Steps { size: width as usize, stride: 1 })
    }

    /// The key head that this query head reads.
    pub fn kv_head(&self) -> usize {
        self.head / (self.attention.heads / self.attention.kv_heads) as usize
    }

    /// The block of at most [`QUERIES`] queries from `from` on.
    pub fn block(&self, from: usize) -> Block {
        let (queries, keys) = (self.attention.q_len as usize, self.attention.kv_len as usize);
        let block = Block { from, queries: QUERIES.min(queries - from), keys, triangle: None };
        if self.attention.mask != AttentionMask::Causal {
            return block;
        }
        let triangle = from as isize + keys as isize + 1 - queries as isize;
        let seen = (block.queries as isize - 1 + triangle).clamp(0, keys as isize);
        Block { keys: seen as usize, triangle: Some(triangle), ..block }
    }

    /// Scaled and masked scores of a block, which are the lowest where a key is not seen.
    pub fn scores(&self, block: Block, scores: &mut [T]) {
        let a = self.attention;
        let q = self.rows(self.q, &a.q, self.head, block.from, block.queries, a.width);
        let k = self.rows(self.k, &a.k, self.kv_head(), 0, block.keys, a.width);
        let scale = <T as Number>::from_f64(a.scale);
        let triangle = block.triangle(Triangle::OfTransposedC);
        T::multiply(k, q.transpose(), block.matrix_mut(scores), Accum::Replace, scale, triangle);
        for (key, scores) in scores.chunks_exact_mut(block.stride()).enumerate() {
            scores[..block.first(key)].fill(T::LOWEST);
        }
        if let (Some(mask), AttentionMask::Operand { strides, .. }) = (self.mask, &a.mask) {
            let [batch, head, query, key] = strides.map(|stride| stride as isize);
            let start = self.batch as isize * batch + self.head as isize * head + block.from as isize * query;
            apply_mask(block, scores, mask, start, [query, key]);
        }
    }
}

/// Queries of one head, the keys that any of them sees, and how their scores lie: a row for each
/// key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// The first query.
    pub from: usize,
    pub queries: usize,
    pub keys: usize,
    /// Query `i` of the block sees the keys before `i + n`; without it, all of them.
    triangle: Option<isize>,
}

impl Block {
    /// The first query that sees `key`.
    #[inline(always)]
    pub fn first(self, key: usize) -> usize {
        self.triangle.map_or(0, |n| (key as isize + 1 - n).clamp(0, self.queries as isize) as usize)
    }

    /// How many keys any query of the lanes that begin at `query` sees.
    #[inline(always)]
    pub fn seen(self, query: usize) -> usize {
        let last = (query + LANES).min(self.queries) as isize - 1;
        self.triangle.map_or(self.keys, |n| (last + n).clamp(0, self.keys as isize) as usize)
    }

    /// The elements from a row of scores to the next.
    #[inline(always)]
    pub fn stride(self) -> usize {
        self.queries.next_multiple_of(LANES)
    }

    /// The elements of its scores.
    pub fn size(self) -> usize {
        self.keys * self.stride()
    }

    /// The triangle of a product.
    pub fn triangle(self, of: fn(isize) -> Triangle) -> Triangle {
        self.triangle.map_or(Triangle::Whole, of)
    }

    /// The scores, keys x queries.
    pub fn matrix<T>(self, scores: &[T]) -> MatRef<'_, T> {
        MatRef::from_row_major_slice_with_stride(scores, self.keys, self.queries, self.stride())
    }

    /// The same, to be written.
    pub fn matrix_mut<T>(self, scores: &mut [T]) -> MatMut<'_, T> {
        // By columns, because faer 0.24 takes the stride of rows for that of columns.
        MatMut::from_column_major_slice_with_stride_mut(scores, self.queries, self.keys, self.stride()).transpose_mut()
    }
}

/// Keys whose scores a mask is applied to for each query in turn.
const KEYS_TOGETHER: usize = 16;

fn apply_mask<T: Real>(block: Block, scores: &mut [T], mask: Slice<'_>, start: isize, [of_query, of_key]: [isize; 2]) {
    for (part, scores) in scores.chunks_mut(KEYS_TOGETHER * block.stride()).enumerate() {
        for query in 0..block.queries {
            let at = |row: usize| (start + query as isize * of_query + (part * KEYS_TOGETHER + row) as isize * of_key) as usize;
            let scores = scores[query..].iter_mut().step_by(block.stride()).enumerate();
            if let Slice::Bool(mask) = mask {
                scores.filter(|(row, _)| mask[at(*row)] == 0).for_each(|(_, score)| *score = T::LOWEST);
            } else if let Some(mask) = T::of(mask) {
                scores.for_each(|(row, score)| *score += mask[at(row)]);
            }
        }
    }
}

fn run<T: Real + SmallProduct>(a: &Attention, reads: &[Slice<'_>], mut writes: Vec<SliceMut<'_>>, threads: Threads) {
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
    threads.for_each(work, items, |(head, from, lse, tile)| run_block(head, from, lse, tile));
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
fn run_block<T: Real + SmallProduct>(head: Head<'_, T>, from: usize, lse: &mut [T], tile: Option<Tile<'_, T>>) {
    let block = head.block(from);
    scratch::with(block.size() + 2 * block.stride(), |memory: &mut [T]| {
        let (scores, rest) = memory.split_at_mut(block.size());
        let (inverse, logs) = rest.split_at_mut(block.stride());
        head.scores(block, scores);
        softmax(block, scores, inverse, logs);
        lse.copy_from_slice(&logs[..lse.len()]);
        let Some(mut tile) = tile else { return };
        let a = head.attention;
        let v = head.rows(head.v, &a.v, head.kv_head(), 0, block.keys, a.v_width);
        let p = block.matrix(scores).transpose();
        T::multiply(p, v, tile.matrix(), Accum::Replace, <T as Number>::ONE, block.triangle(Triangle::OfA));
        scale_rows(&mut tile, inverse);
    });
}

simd! {
    /// Scores become `exp(score - max)`, 0 where a key is not seen; `inverse` gets 1 over the sum
    /// for each query (0 for one that sees nothing), and `lse` the logarithm of the sum of
    /// `exp(score)`.
    fn softmax<T: Real>(block: Block, scores: &mut [T], inverse: &mut [T], lse: &mut [T]) {
        let lanes = inverse.as_chunks_mut::<LANES>().0.iter_mut().zip(lse.as_chunks_mut::<LANES>().0);
        for (query, (inverse, lse)) in (0..).step_by(LANES).zip(lanes) {
            let (seen, others) = scores.split_at_mut(block.seen(query) * block.stride());
            let mut largest = [T::LOWEST; LANES];
            for scores in seen.chunks_exact(block.stride()).filter_map(|scores| scores[query..].first_chunk()) {
                let scores: &[T; LANES] = scores;
                for i in 0..LANES {
                    largest[i] = if scores[i] > largest[i] { scores[i] } else { largest[i] };
                }
            }
            for largest in &mut largest {
                *largest = if *largest == T::LOWEST { T::ZERO } else { *largest };
            }
            let mut sums = [T::ZERO; LANES];
            for scores in seen.chunks_exact_mut(block.stride()).filter_map(|scores| scores[query..].first_chunk_mut()) {
                let scores: &mut [T; LANES] = scores;
                for i in 0..LANES {
                    scores[i] = Functions::exp(scores[i] - largest[i]);
                    sums[i] += scores[i];
                }
            }
            for scores in others.chunks_exact_mut(block.stride()) {
                scores[query..][..LANES].fill(T::ZERO);
            }
            for i in 0..LANES {
                let seen = sums[i] != T::ZERO;
                lse[i] = if seen { largest[i] + Functions::ln(sums[i]) } else { T::LOWEST };
                inverse[i] = if seen { Functions::recip(sums[i]) } else { T::ZERO };
            }
        }
    }

    fn scale_rows<T: Real>(tile: &mut Tile<'_, T>, factors: &[T]) {
        for (row, factor) in (0..tile.rows()).zip(factors) {
            for value in tile.row(row) {
                *value *= *factor;
            }
        }
    }
}
