//! Attention and its gradient: plain loops, random instances, other sizes.

use super::draw::{Draw, mesh, tolerance};
use super::{Judged, Try, at, indices};
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Attention, AttentionGrad, AttentionMask, Kernel};

impl Judged for Attention {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], _coordinates: &[u64]) {
        for index in indices(&[self.batch, self.heads, self.q_len]) {
            let (b, h, t) = (index[0], index[1], index[2]);
            let (p, lse) = probabilities(self, reads, b, h, t);
            out[1][((b * self.heads + h) * self.q_len + t) as usize] = lse;
            for e in 0..self.v_width {
                let kv = h / (self.heads / self.kv_heads);
                let value = (0..self.kv_len).map(|s| p[s as usize] * reads[2][at(&[b, kv, s, e], &with_unit(self.v))]).sum();
                out[0][at(&[b, h, t, e], &with_unit(self.o))] = value;
            }
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        let group = self.heads / self.kv_heads;
        for size in [&mut self.batch, &mut self.kv_heads, &mut self.q_len, &mut self.kv_len] {
            *size = to(*size);
        }
        self.heads = self.kv_heads * group;
        let rows = |heads: u64, positions: u64, width: u64| {
            [heads * positions * width, width, heads * width].map(|stride| stride as i64)
        };
        self.q = rows(self.heads, self.q_len, self.width);
        self.k = rows(self.kv_heads, self.kv_len, self.width);
        self.v = rows(self.kv_heads, self.kv_len, self.v_width);
        self.o = rows(self.heads, self.q_len, self.v_width);
        let sizes = [self.batch, self.heads, self.q_len, self.kv_len];
        if let AttentionMask::Operand { strides, .. } = &mut self.mask {
            let mut below = 1;
            for (stride, size) in strides.iter_mut().zip(sizes).rev().filter(|(stride, _)| **stride != 0) {
                *stride = below;
                below *= size as i64;
            }
        }
    }

    fn instances(each: &mut Try<'_>) {
        pairs(|attention, reads, _| {
            each(&Kernel::Attention(attention.clone()), reads, tolerance(attention.dtype) * 8.0);
        });
    }
}

impl Judged for AttentionGrad {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], _coordinates: &[u64]) {
        let results = [
            (self.0.heads, self.0.q_len, self.0.width, self.0.q),
            (self.0.kv_heads, self.0.kv_len, self.0.width, self.0.k),
            (self.0.kv_heads, self.0.kv_len, self.0.v_width, self.0.v),
        ];
        for (result, (heads, positions, width, strides)) in out.iter_mut().zip(results) {
            for index in indices(&[self.0.batch, heads, positions, width]) {
                result[at(&index, &with_unit(strides))] = 0.0;
            }
        }
        terms(&self.0, reads, |result, to, weight, by| out[result][to] += weight * by);
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        self.0.resize(to);
    }

    fn instances(each: &mut Try<'_>) {
        pairs(|attention, reads, d_o| {
            let signature = Kernel::Attention(attention.clone()).signature(&mesh()).unwrap();
            let mut results: Vec<Vec<f64>> = signature.writes.iter().map(|write| vec![0.0; write.elements as usize]).collect();
            attention.run(reads, &mut results, &[]);
            let rounded = signature
                .writes
                .iter()
                .zip(results)
                .map(|(write, values)| Tensor::from_f64(&[write.elements], &values).cast(write.dtype).to_f64());
            let reads: Vec<Vec<f64>> = reads.iter().cloned().chain(rounded).chain([d_o]).collect();
            each(&Kernel::AttentionGrad(AttentionGrad(attention.clone())), &reads, tolerance(attention.dtype) * 64.0);
        });
    }
}

/// Random attention, its operands, and gradients of its output.
fn pairs(mut each: impl FnMut(&Attention, &[Vec<f64>], Vec<f64>)) {
    let mut random = Draw::new(6);
    for case in 0..200 {
        let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let attention = drawn(&mut random, dtype);
        let kernel = Kernel::Attention(attention.clone());
        let mut reads = random.operands(&kernel);
        if let AttentionMask::Operand { dtype, .. } = attention.mask
            && dtype.is_float()
        {
            // A mask of floats hides, too.
            reads[3].iter_mut().filter(|_| random.below(4) == 0).for_each(|value| *value = f64::NEG_INFINITY);
        }
        let outputs = kernel.signature(&mesh()).unwrap().writes[0].elements;
        let d_o = random.values(dtype, outputs);
        each(&attention, &reads, d_o);
    }
}

/// Random attention.
pub fn drawn(random: &mut Draw, dtype: DType) -> Attention {
    let kv_heads = random.pick(&[1, 2, 3]);
    let heads = kv_heads * random.pick(&[1, 2]);
    let (batch, q_len, kv_len) = (random.pick(&[1, 2]), random.pick(&[1, 5, 40, 70]), random.pick(&[1, 5, 48, 70]));
    let (width, v_width) = (random.pick(&[1, 4, 32]), random.pick(&[1, 4, 32]));
    // Positions outside or inside heads: `b t h e` or `b h t e`.
    let inside = random.below(2) == 0;
    let strides = |heads: u64, positions: u64, width: u64| {
        let batch = (heads * positions * width) as i64;
        if inside { [batch, width as i64, (heads * width) as i64] } else { [batch, (positions * width) as i64, width as i64] }
    };
    let of_head = (q_len * kv_len) as i64;
    let mask = match random.below(6) {
        0 => AttentionMask::None,
        1 => AttentionMask::Causal,
        2 => AttentionMask::Operand { dtype: DType::Bool, strides: [0, 0, kv_len as i64, 1] },
        3 => AttentionMask::Operand { dtype: DType::Bool, strides: [kv_len as i64, 0, 0, 1] },
        4 => AttentionMask::Operand { dtype, strides: [heads as i64 * of_head, of_head, kv_len as i64, 1] },
        _ => AttentionMask::Operand { dtype, strides: [of_head, 0, kv_len as i64, 1] },
    };
    Attention {
        dtype,
        batch,
        heads,
        kv_heads,
        q_len,
        kv_len,
        width,
        v_width,
        scale: 0.3,
        mask,
        q: strides(heads, q_len, width),
        k: strides(kv_heads, kv_len, width),
        v: strides(kv_heads, kv_len, v_width),
        o: strides(heads, q_len, v_width),
    }
}

/// Probabilities of one query, and the logarithm of the sum of exponentials.
fn probabilities(a: &Attention, reads: &[Vec<f64>], b: u64, h: u64, t: u64) -> (Vec<f64>, f64) {
    let kv = h / (a.heads / a.kv_heads);
    let scores: Vec<f64> = (0..a.kv_len)
        .map(|s| {
            let score = (0..a.width)
                .map(|e| reads[0][at(&[b, h, t, e], &with_unit(a.q))] * reads[1][at(&[b, kv, s, e], &with_unit(a.k))]);
            let score = a.scale * score.sum::<f64>();
            match &a.mask {
                AttentionMask::None => score,
                AttentionMask::Causal => {
                    if s as i64 <= t as i64 + a.kv_len as i64 - a.q_len as i64 {
                        score
                    } else {
                        f64::NEG_INFINITY
                    }
                }
                AttentionMask::Operand { dtype, strides } => {
                    let mask = reads[3][at(&[b, h, t, s], strides)];
                    if dtype.is_float() {
                        score + mask
                    } else if mask != 0.0 {
                        score
                    } else {
                        f64::NEG_INFINITY
                    }
                }
            }
        })
        .collect();
    if scores.iter().all(|score| *score == f64::NEG_INFINITY) {
        return (vec![0.0; scores.len()], f64::NEG_INFINITY);
    }
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    (scores.iter().map(|s| (s - max).exp() / sum).collect(), max + sum.ln())
}

fn with_unit(s: [i64; 3]) -> [i64; 4] {
    [s[0], s[1], s[2], 1]
}

/// Every term of the gradient of attention: which result, its element, and the weight and the
/// element of an operand that it is the product of.
pub fn terms(a: &Attention, reads: &[Vec<f64>], mut add: impl FnMut(usize, usize, f64, f64)) {
    let d_o = reads.last().expect("the incoming gradient");
    for index in indices(&[a.batch, a.heads, a.q_len]) {
        let (b, h, t) = (index[0], index[1], index[2]);
        let kv = h / (a.heads / a.kv_heads);
        let (p, _) = probabilities(a, reads, b, h, t);
        let of_o = |e: u64| d_o[at(&[b, h, t, e], &with_unit(a.o))];
        let v = |s: u64, e: u64| reads[2][at(&[b, kv, s, e], &with_unit(a.v))];
        let dp: Vec<f64> = (0..a.kv_len).map(|s| (0..a.v_width).map(|e| of_o(e) * v(s, e)).sum()).collect();
        let inner: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
        for s in 0..a.kv_len {
            let (p, ds) = (p[s as usize], p[s as usize] * (dp[s as usize] - inner) * a.scale);
            for e in 0..a.width {
                let (q, k) = (at(&[b, h, t, e], &with_unit(a.q)), at(&[b, kv, s, e], &with_unit(a.k)));
                add(0, q, ds, reads[1][k]);
                add(1, k, ds, reads[0][q]);
            }
            for e in 0..a.v_width {
                add(2, at(&[b, kv, s, e], &with_unit(a.v)), p, of_o(e));
            }
        }
    }
}
