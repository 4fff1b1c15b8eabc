//! The gradient of attention: probabilities are recomputed from the saved logarithms, block by
//! block.
//!
//! With `P = exp(S - lse)` and `D = rowsum(do * o)`: `dv = P^T do`, `dS = P * (do v^T - D)`,
//! `dq = scale * dS k`, `dk = scale * dS^T q`. One item of work is one key head of one batch, so
//! that its gradients are summed over query heads and blocks in a fixed order.

use crate::cpu::attention::{Head, QUERIES, cut_heads};
use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::functions::Functions;
use crate::cpu::number::{Number, Real};
use crate::cpu::scratch;
use crate::cpu::simd::simd;
use crate::cpu::softmax::fold;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::Tile;
use crate::cpu::{Arguments, Cpu, Launch};
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
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

fn run<T: Real>(a: &Attention, reads: &[Slice<'_>], mut writes: Vec<SliceMut<'_>>, threads: Threads) {
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
                block(head, saved, from, member, &mut gradients);
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

fn block<T: Real>(head: Head<'_, T>, saved: Saved<'_, T>, from: usize, member: usize, gradients: &mut Gradients<'_, T>) {
    let a = head.attention;
    let count = QUERIES.min(a.q_len as usize - from);
    let keys = head.keys(from, count);
    let one = <T as Number>::ONE;
    scratch::with(2 * count * keys + count, |memory: &mut [T]| {
        let (p, rest) = memory.split_at_mut(count * keys);
        let (ds, inner) = rest.split_at_mut(count * keys);
        head.scores(from, count, keys, p);
        let d_o = head.rows(saved.d_o, &a.o, head.head, from, count, a.v_width);
        let o = head.rows(saved.o, &a.o, head.head, from, count, a.v_width);
        let v = head.rows(head.v, &a.v, head.kv_head(), 0, keys, a.v_width);
        matmul(MatMut::from_row_major_slice_mut(&mut *ds, count, keys), Accum::Replace, d_o, v.transpose(), one, Par::Seq);
        for (row, inner) in inner.iter_mut().enumerate() {
            *inner = product_sum(row_of(d_o, row), row_of(o, row));
        }
        score_gradients(p, ds, &saved.lse[from..from + count], inner, T::from_f64(a.scale));
        let p = MatRef::from_row_major_slice(&*p, count, keys);
        let ds = MatRef::from_row_major_slice(&*ds, count, keys);
        let q = head.rows(head.q, &a.q, head.head, from, count, a.width);
        let k = head.rows(head.k, &a.k, head.kv_head(), 0, keys, a.width);
        if let Some(dv) = &mut gradients.dv {
            matmul(dv.matrix().subrows_mut(0, keys), Accum::Add, p.transpose(), d_o, one, Par::Seq);
        }
        if let Some(dk) = &mut gradients.dk {
            matmul(dk.matrix().subrows_mut(0, keys), Accum::Add, ds.transpose(), q, one, Par::Seq);
        }
        if let Some(dq) = gradients.dq.get_mut(member) {
            matmul(dq.matrix().subrows_mut(from, count), Accum::Replace, ds, k, one, Par::Seq);
        }
    });
}

fn row_of<T>(matrix: MatRef<'_, T>, row: usize) -> &[T] {
    matrix.row(row).try_as_row_major().map(|row| row.as_slice()).unwrap_or_default()
}

simd! {
    fn product_sum<T: Real>(a: &[T], b: &[T]) -> T {
        let mut lanes = [T::ZERO; 32];
        for (a, b) in a.chunks(32).zip(b.chunks(32)) {
            for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
                *lane += *a * *b;
            }
        }
        fold(lanes, |a, b| a + b)
    }

    /// Scores in `p` become probabilities, and products in `ds` become gradients of the unscaled
    /// scores.
    fn score_gradients<T: Real>(p: &mut [T], ds: &mut [T], lse: &[T], inner: &[T], scale: T) {
        let keys = p.len() / lse.len();
        for (row, (lse, inner)) in lse.iter().zip(inner).enumerate() {
            let (p, ds) = (&mut p[row * keys..(row + 1) * keys], &mut ds[row * keys..(row + 1) * keys]);
            if *lse == T::LOWEST {
                p.fill(T::ZERO);
                ds.fill(T::ZERO);
                continue;
            }
            for (p, ds) in p.iter_mut().zip(ds) {
                *p = Functions::exp(*p - *lse);
                *ds = *p * (*ds - *inner) * scale;
            }
        }
    }
}
