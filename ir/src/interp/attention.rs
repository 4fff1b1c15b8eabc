//! Attention as it is written in the paper: every score, then a softmax, then a weighted sum.

use super::{broadcast_positions, positions};
use crate::dtype::DType;
use crate::kernel::signature::row_major;
use crate::ops::attention::{Attention, HeadLayout, MaskKind};
use crate::types::{Tensor, Type};

/// `q, k, v, [mask] -> o, lse`
pub(super) fn forward(op: &Attention, operands: &[Tensor], results: &[Type]) -> Vec<Tensor> {
    let x = Heads::of(op, operands);
    let (p, lse) = x.probabilities(op, operands.get(3));
    let mut o = vec![0.0; (x.batch * x.heads * x.queries * x.v_width) as usize];
    x.for_each_pair(|b, h, t, s, i| {
        for e in 0..x.v_width {
            o[x.at(&[b, h, t, e], x.v_width, x.queries, x.heads)] +=
                p[i] * x.v[x.at(&[b, h / x.group, s, e], x.v_width, x.keys, x.kv())];
        }
    });
    vec![store(op.o, &o, &results[0]), Tensor::from_f64(results[1].clone(), &lse)]
}

/// `q, k, v, [mask], o, lse, do -> dq, dk, dv`
pub(super) fn gradient(op: &Attention, operands: &[Tensor], results: &[Type]) -> Vec<Tensor> {
    let x = Heads::of(op, operands);
    let mask = if op.mask == MaskKind::Operand { operands.get(3) } else { None };
    let (p, _) = x.probabilities(op, mask);
    let d_o = load(op.o, operands.last().expect("do comes last"));
    let (mut dq, mut dk, mut dv) = (vec![0.0; x.q.len()], vec![0.0; x.k.len()], vec![0.0; x.v.len()]);
    let o_at = |b, h, t, e| x.at(&[b, h, t, e], x.v_width, x.queries, x.heads);
    let v_at = |b, h, s, e| x.at(&[b, h / x.group, s, e], x.v_width, x.keys, x.kv());
    let (q_at, k_at) = (
        |b, h, t, e| x.at(&[b, h, t, e], x.width, x.queries, x.heads),
        |b, h, s, e| x.at(&[b, h / x.group, s, e], x.width, x.keys, x.kv()),
    );
    let mut dp = vec![0.0; p.len()];
    let mut dot = vec![0.0; p.len() / x.keys.max(1) as usize];
    x.for_each_pair(|b, h, t, s, i| {
        for e in 0..x.v_width {
            dp[i] += d_o[o_at(b, h, t, e)] * x.v[v_at(b, h, s, e)];
            dv[v_at(b, h, s, e)] += p[i] * d_o[o_at(b, h, t, e)];
        }
        dot[i / x.keys.max(1) as usize] += p[i] * dp[i];
    });
    x.for_each_pair(|b, h, t, s, i| {
        let ds = p[i] * (dp[i] - dot[i / x.keys.max(1) as usize]) * op.scale;
        for e in 0..x.width {
            dq[q_at(b, h, t, e)] += ds * x.k[k_at(b, h, s, e)];
            dk[k_at(b, h, s, e)] += ds * x.q[q_at(b, h, t, e)];
        }
    });
    vec![store(op.q, &dq, &results[0]), store(op.k, &dk, &results[1]), store(op.v, &dv, &results[2])]
}

/// The operands as `[batch, head, position, width]`.
struct Heads {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    batch: u64,
    heads: u64,
    group: u64,
    queries: u64,
    keys: u64,
    width: u64,
    v_width: u64,
}

impl Heads {
    fn of(op: &Attention, operands: &[Tensor]) -> Heads {
        let (q, k, v) = (
            head_major(op.q, &operands[0].ty.shape),
            head_major(op.k, &operands[1].ty.shape),
            head_major(op.v, &operands[2].ty.shape),
        );
        Heads {
            q: load(op.q, &operands[0]),
            k: load(op.k, &operands[1]),
            v: load(op.v, &operands[2]),
            batch: q[0],
            heads: q[1],
            group: q[1] / k[1],
            queries: q[2],
            keys: k[2],
            width: q[3],
            v_width: v[3],
        }
    }

    fn kv(&self) -> u64 {
        self.heads / self.group
    }

    fn at(&self, [b, h, t, e]: &[u64; 4], width: u64, positions: u64, heads: u64) -> usize {
        (((b * heads + h) * positions + t) * width + e) as usize
    }

    fn for_each_pair(&self, mut f: impl FnMut(u64, u64, u64, u64, usize)) {
        let mut i = 0;
        for b in 0..self.batch {
            for h in 0..self.heads {
                for t in 0..self.queries {
                    for s in 0..self.keys {
                        f(b, h, t, s, i);
                        i += 1;
                    }
                }
            }
        }
    }

    /// The probability of each key for each query, and the logarithm of each query's sum of
    /// exponentials.
    fn probabilities(&self, op: &Attention, mask: Option<&Tensor>) -> (Vec<f64>, Vec<f64>) {
        let full = [self.batch, self.heads, self.queries, self.keys];
        let added = mask.map(|m| {
            let hidden = |v: f64| if v == 0.0 { f64::NEG_INFINITY } else { 0.0 };
            let values: Vec<f64> =
                if m.ty.dtype == DType::Bool { m.to_f64().into_iter().map(hidden).collect() } else { m.to_f64() };
            broadcast_positions(&m.ty.shape, &full).map(|p| values[p]).collect::<Vec<f64>>()
        });
        let mut scores = vec![0.0; full.iter().product::<u64>() as usize];
        self.for_each_pair(|b, h, t, s, i| {
            let dot: f64 = (0..self.width)
                .map(|e| {
                    self.q[self.at(&[b, h, t, e], self.width, self.queries, self.heads)]
                        * self.k[self.at(&[b, h / self.group, s, e], self.width, self.keys, self.kv())]
                })
                .sum();
            let seen = op.mask != MaskKind::Causal || s + self.queries <= t + self.keys;
            scores[i] = if seen { dot * op.scale } else { f64::NEG_INFINITY } + added.as_ref().map_or(0.0, |a| a[i]);
        });
        let mut lse = vec![f64::NEG_INFINITY; (self.batch * self.heads * self.queries) as usize];
        for (lse, row) in lse.iter_mut().zip(scores.chunks_mut(self.keys.max(1) as usize)) {
            if row.iter().all(|score| *score == f64::NEG_INFINITY) {
                row.fill(0.0);
                continue;
            }
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
            row.iter_mut().for_each(|v| *v = (*v - max).exp() / sum);
            *lse = max + sum.ln();
        }
        (scores, lse)
    }
}

/// The shape of a tensor in `layout` as (batch, head, position, width).
fn head_major(layout: HeadLayout, shape: &[u64]) -> Vec<u64> {
    order(layout).iter().map(|d| shape[*d]).collect()
}

/// The dimensions that hold batch, head, position and width; the order is its own inverse.
fn order(layout: HeadLayout) -> [usize; 4] {
    match layout {
        HeadLayout::HeadMajor => [0, 1, 2, 3],
        HeadLayout::TokenMajor => [0, 2, 1, 3],
    }
}

fn load(layout: HeadLayout, x: &Tensor) -> Vec<f64> {
    let (own, values) = (row_major(&x.ty.shape), x.to_f64());
    let strides: Vec<i64> = order(layout).iter().map(|d| own[*d]).collect();
    positions(&head_major(layout, &x.ty.shape), &strides, 0).map(|p| values[p]).collect()
}

fn store(layout: HeadLayout, values: &[f64], ty: &Type) -> Tensor {
    let own = row_major(&head_major(layout, &ty.shape));
    let strides: Vec<i64> = order(layout).iter().map(|d| own[*d]).collect();
    let ordered: Vec<f64> = positions(&ty.shape, &strides, 0).map(|p| values[p]).collect();
    Tensor::from_f64(ty.clone(), &ordered)
}
