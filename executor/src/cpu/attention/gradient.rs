//! The gradient of attention: probabilities are recomputed from the saved logarithms, block by
//! block.
//!
//! With `P = exp(S - lse)` and `D = rowsum(do * o)`: `dv = P^T do`, `dS = P * (do v^T - D)`,
//! `dq = scale * dS k`, `dk = scale * dS^T q`. One item of work is one key head of one batch, so
//! that its gradients are summed over query heads and blocks in a fixed order.

use crate::cpu::attention::{Block, Head, QUERIES, cut_heads};
use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::functions::Functions;
use crate::cpu::number::{Number, Real};
use crate::cpu::scratch;
use crate::cpu::simd::simd;
use crate::cpu::small::SmallProduct;
use crate::cpu::softmax::{LANES, fold};
use crate::cpu::threads::Threads;
use crate::cpu::tiles::Tile;
use crate::cpu::triangle::Triangle;
use crate::cpu::{Arguments, Cpu, Launch};
use faer::{Accum, MatRef};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Attention, AttentionGrad, AttentionMask, Implements};
use shardc_ir::reason::Reason;

impl Implements<AttentionGrad> for Cpu {
    fn ready(&self, gradient: &AttentionGrad, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        Ok(Box::new(gradient.clone()))
    }
}

impl Launch for AttentionGrad {
    fn launch(&self, Arguments { reads, writes, threads, .. }: Arguments<'_>) -> Result<(), Reason> {
        match self.0.dtype {
            DType::F64 => run::<f64>(&self.0, reads, writes, threads),
            _ => run::<f32>(&self.0, reads, writes, threads),
        }
        Ok(())
    }
}

fn run<T: Real + SmallProduct>(a: &Attention, reads: &[Slice<'_>], mut writes: Vec<SliceMut<'_>>, threads: Threads) {
    let mask = matches!(a.mask, AttentionMask::Operand { .. }).then(|| reads[3]);
    let floats = reads.iter().enumerate().filter(|(i, _)| mask.is_none() || *i != 3);
    let floats: Vec<&[T]> = floats.filter_map(|(_, read)| T::of(*read)).collect();
    let [q, k, v, o, lse, d_o] = floats[..] else { return };
    let writes: Vec<&mut [T]> = writes.iter_mut().filter_map(T::take).collect();
    let Ok([dq, dk, dv]) = <[&mut [T]; 3]>::try_from(writes) else { return };
    let group = (a.heads / a.kv_heads) as usize;
    let mut dq = cut_heads(dq, &a.q, a.batch, a.heads, a.q_len, a.width).into_iter();
    let mut dk = cut_heads(dk, &a.k, a.batch, a.kv_heads, a.kv_len, a.width).into_iter();
    let mut dv = cut_heads(dv, &a.v, a.batch, a.kv_heads, a.kv_len, a.v_width).into_iter();
    let items: Vec<_> = (0..(a.batch * a.kv_heads) as usize)
        .map(|position| (position, Gradients { dq: dq.by_ref().take(group).collect(), dk: dk.next(), dv: dv.next() }))
        .collect();
    let work = (a.batch * a.heads * a.q_len * a.kv_len * (a.width * 3 + a.v_width * 2 + 16) / 8) as usize;
    threads.for_each(work, items, |(position, mut gradients)| {
        gradients.clear();
        let (batch, kv_head) = (position / a.kv_heads as usize, position % a.kv_heads as usize);
        for member in 0..group {
            let head = Head { attention: a, q, k, v, mask, batch, head: kv_head * group + member };
            let first = (batch * a.heads as usize + head.head) * a.q_len as usize;
            let saved = Saved { o, d_o, lse: &lse[first..first + a.q_len as usize] };
            for from in (0..a.q_len as usize).step_by(QUERIES) {
                run_block(head, saved, from, member, &mut gradients);
            }
        }
    });
}

/// The tiles that the work of one key head writes; a tile that is not there has no elements.
struct Gradients<'a, T> {
    /// One tile for each query head.
    dq: Vec<Tile<'a, T>>,
    dk: Option<Tile<'a, T>>,
    dv: Option<Tile<'a, T>>,
}

impl<T: Real> Gradients<'_, T> {
    fn clear(&mut self) {
        for tile in self.dk.iter_mut().chain(&mut self.dv) {
            tile.matrix().fill(<T as Number>::ZERO);
        }
    }
}

/// The values that the forward pass left, and the gradient that comes in.
#[derive(Clone, Copy)]
struct Saved<'a, T> {
    o: &'a [T],
    d_o: &'a [T],
    lse: &'a [T],
}

fn run_block<T: Real + SmallProduct>(
    head: Head<'_, T>,
    saved: Saved<'_, T>,
    from: usize,
    member: usize,
    gradients: &mut Gradients<'_, T>,
) {
    let a = head.attention;
    let block = head.block(from);
    let (keys, one) = (block.keys, <T as Number>::ONE);
    scratch::with(2 * block.size() + 2 * block.stride(), |memory: &mut [T]| {
        let (p, rest) = memory.split_at_mut(block.size());
        let (ds, rest) = rest.split_at_mut(block.size());
        let (lse, inner) = rest.split_at_mut(block.stride());
        head.scores(block, p);
        let d_o = head.rows(saved.d_o, &a.o, head.head, from, block.queries, a.v_width);
        let o = head.rows(saved.o, &a.o, head.head, from, block.queries, a.v_width);
        let v = head.rows(head.v, &a.v, head.kv_head(), 0, keys, a.v_width);
        let triangle = block.triangle(Triangle::OfTransposedC);
        T::multiply(v, d_o.transpose(), block.matrix_mut(ds), Accum::Replace, one, triangle);
        // Beyond the last query, and of those that see nothing, probabilities are 0.
        lse.fill(T::HIGHEST);
        inner.fill(T::ZERO);
        for (lse, saved) in lse.iter_mut().zip(&saved.lse[from..from + block.queries]) {
            *lse = if *saved == T::LOWEST { T::HIGHEST } else { *saved };
        }
        row_products(d_o, o, &mut inner[..block.queries]);
        score_gradients(block, p, ds, lse, inner, T::from_f64(a.scale));
        let (p, ds) = (block.matrix(p), block.matrix(ds));
        let q = head.rows(head.q, &a.q, head.head, from, block.queries, a.width);
        let k = head.rows(head.k, &a.k, head.kv_head(), 0, keys, a.width);
        let triangle = block.triangle(Triangle::OfTransposedA);
        if let Some(dv) = &mut gradients.dv {
            T::multiply(p, d_o, dv.matrix().subrows_mut(0, keys), Accum::Add, one, triangle);
        }
        if let Some(dk) = &mut gradients.dk {
            T::multiply(ds, q, dk.matrix().subrows_mut(0, keys), Accum::Add, one, triangle);
        }
        if let Some(dq) = gradients.dq.get_mut(member) {
            let dq = dq.matrix().subrows_mut(from, block.queries);
            T::multiply(ds.transpose(), k, dq, Accum::Replace, one, block.triangle(Triangle::OfA));
        }
    });
}

#[inline(always)]
fn row_of<T>(matrix: MatRef<'_, T>, row: usize) -> &[T] {
    matrix.row(row).try_as_row_major().map(|row| row.as_slice()).unwrap_or_default()
}

simd! {
    /// The sums of products of the rows of `a` and `b`.
    fn row_products<T: Real>(a: MatRef<'_, T>, b: MatRef<'_, T>, sums: &mut [T]) {
        for (row, sum) in sums.iter_mut().enumerate() {
            let mut lanes = [T::ZERO; LANES];
            let ((a, a_rest), (b, b_rest)) = (row_of(a, row).as_chunks::<LANES>(), row_of(b, row).as_chunks::<LANES>());
            for (a, b) in a.iter().zip(b) {
                for i in 0..LANES {
                    lanes[i] += a[i] * b[i];
                }
            }
            let rest = a_rest.iter().zip(b_rest).fold(T::ZERO, |sum, (a, b)| sum + *a * *b);
            *sum = fold(lanes, |a, b| a + b) + rest;
        }
    }

    /// Scores in `p` become probabilities, and products in `ds` become gradients of the unscaled
    /// scores; those of keys that are not seen become zero.
    fn score_gradients<T: Real>(block: Block, p: &mut [T], ds: &mut [T], lse: &[T], inner: &[T], scale: T) {
        let rows = p.chunks_exact_mut(block.stride()).zip(ds.chunks_exact_mut(block.stride()));
        for (key, (p, ds)) in rows.enumerate() {
            let first = block.first(key);
            let lanes = p.as_chunks_mut::<LANES>().0.iter_mut().zip(ds.as_chunks_mut::<LANES>().0);
            let saved = lse.as_chunks::<LANES>().0.iter().zip(inner.as_chunks::<LANES>().0);
            for ((p, ds), (lse, inner)) in lanes.zip(saved).skip(first / LANES) {
                for i in 0..LANES {
                    // Computed before anything is chosen: else lanes go one by one.
                    let probability = Functions::exp(p[i] - lse[i]);
                    let gradient = probability * (ds[i] - inner[i]) * scale;
                    p[i] = probability;
                    ds[i] = if lse[i] == T::HIGHEST { T::ZERO } else { gradient };
                }
            }
            p[..first].fill(T::ZERO);
            ds[..first].fill(T::ZERO);
        }
    }
}
