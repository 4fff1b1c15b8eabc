//! Scaled dot-product attention as one op, with a gradient op of its own that recomputes the
//! probabilities.

use super::{Backward, Linear, NoGradient, Rules, named};
use crate::dtype::DType;
use crate::kernel::{self, AttentionMask, Kernel};
use crate::letters::{Letters, Role};
use crate::lower::{Extent, LowerContext, Lowered};
use crate::reason;
use crate::reason::Reason;
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// The order of the four dimensions batch, position, head, width in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadLayout {
    /// `[batch, head, position, width]`
    HeadMajor,
    /// `[batch, position, head, width]`
    TokenMajor,
}

impl HeadLayout {
    /// The dimensions of (batch, head, position, width).
    fn dims(self) -> [usize; 4] {
        match self {
            HeadLayout::HeadMajor => [0, 1, 2, 3],
            HeadLayout::TokenMajor => [0, 2, 1, 3],
        }
    }

    fn shape(self, batch: u64, heads: u64, positions: u64, width: u64) -> Vec<u64> {
        match self {
            HeadLayout::HeadMajor => vec![batch, heads, positions, width],
            HeadLayout::TokenMajor => vec![batch, positions, heads, width],
        }
    }
}

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaskKind {
    /// All.
    None,
    /// Key `s` for query `t` where `s <= t + keys - queries`.
    Causal,
    /// A fourth operand, broadcast to `[batch, head, query, key]`: bool (false hides) or float
    /// (added to the scores).
    Operand,
}

/// `softmax(scale * q k^T + mask) v`. Operands: q, k, v, `[mask]`; results: o, and the logarithm of
/// each query's sum of exponentials `[batch, head, query]`. Query head `h` of `kv * g` heads reads
/// key head `h / g`. Vaswani et al.: Attention Is All You Need (2017); Dao et al.: FlashAttention
/// (2022) for the gradient.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Multiplies the scores.
    pub scale: f64,
    /// Which keys are seen.
    pub mask: MaskKind,
    /// The layout of q.
    pub q: HeadLayout,
    /// The layout of k.
    pub k: HeadLayout,
    /// The layout of v.
    pub v: HeadLayout,
    /// The layout of o.
    pub o: HeadLayout,
}
named!(Attention, "attention");

/// Operands: q, k, v, `[mask]`, o, lse, do; results: dq, dk, dv.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttentionGrad {
    /// The op whose gradient it is.
    pub of: Attention,
}
named!(AttentionGrad, "attention_grad");

/// The sizes of an attention.
struct Sizes {
    batch: u64,
    heads: u64,
    kv_heads: u64,
    queries: u64,
    keys: u64,
    width: u64,
    v_width: u64,
}

impl Attention {
    fn sizes(&self, q: &[u64], k: &[u64], v: &[u64]) -> Result<Sizes, Reason> {
        if q.len() != 4 || k.len() != 4 || v.len() != 4 {
            return Err("q, k and v have four dimensions".into());
        }
        let ([qb, qh, qt, qe], [kb, kh, ks, ke], [vb, vh, vs, ve]) = (self.q.dims(), self.k.dims(), self.v.dims());
        let sizes =
            Sizes { batch: q[qb], heads: q[qh], kv_heads: k[kh], queries: q[qt], keys: k[ks], width: q[qe], v_width: v[ve] };
        let agree = k[kb] == sizes.batch && v[vb] == sizes.batch && v[vh] == sizes.kv_heads && v[vs] == sizes.keys;
        if !agree || k[ke] != sizes.width || sizes.kv_heads == 0 || !sizes.heads.is_multiple_of(sizes.kv_heads) {
            return Err(reason!("q {q:?}, k {k:?} and v {v:?} do not fit"));
        }
        Ok(sizes)
    }

    fn operand_count(&self) -> usize {
        if self.mask == MaskKind::Operand { 4 } else { 3 }
    }

    /// Letters of q, k, v, `[mask]` and then o, lse.
    fn tensors(&self, operands: &[Type]) -> (Letters, Vec<Vec<Vec<usize>>>) {
        let s = self.sizes(&operands[0].shape, &operands[1].shape, &operands[2].shape).expect("the node was built");
        let mut letters = Letters::new();
        let batch = vec![letters.letter(s.batch, Role::Kept)];
        let group = letters.letter(s.kv_heads, Role::Kept);
        let within = letters.letter(s.heads / s.kv_heads, Role::Whole);
        letters.units.push((group, if s.heads == s.kv_heads { "head" } else { "kv head" }));
        let query = vec![letters.letter(s.queries, Role::Whole)];
        let key = vec![letters.letter(s.keys, Role::Whole)];
        let width = vec![letters.letter(s.width, Role::Whole)];
        let v_width = vec![letters.letter(s.v_width, Role::Whole)];
        let (heads, kv_heads) = (vec![group, within], vec![group]);
        let arrange = |layout: HeadLayout, h: &Vec<usize>, t: &Vec<usize>, e: &Vec<usize>| {
            let mut dims = vec![vec![]; 4];
            for (dim, letters) in layout.dims().into_iter().zip([&batch, h, t, e]) {
                dims[dim] = letters.clone();
            }
            dims
        };
        let mut tensors = vec![
            arrange(self.q, &heads, &query, &width),
            arrange(self.k, &kv_heads, &key, &width),
            arrange(self.v, &kv_heads, &key, &v_width),
        ];
        if self.mask == MaskKind::Operand {
            let full = [&batch, &heads, &query, &key];
            let shape = &operands[3].shape;
            let skip = 4 - shape.len();
            let dim = |(d, n): (usize, &u64)| if *n == 1 { vec![] } else { full[skip + d].clone() };
            tensors.push(shape.iter().enumerate().map(dim).collect());
        }
        tensors.push(arrange(self.o, &heads, &query, &v_width));
        tensors.push(vec![batch.clone(), heads.clone(), query.clone()]);
        (letters, tensors)
    }

    fn kernel(&self, operands: &[Extent], o: &Extent) -> kernel::Attention {
        let (q, k, v) = (&operands[0], &operands[1], &operands[2]);
        let s = self.sizes(&q.local, &k.local, &v.local).expect("parts fit as wholes do");
        let strides = |x: &Extent, layout: HeadLayout| {
            let (all, [b, h, t, _]) = (x.strides(), layout.dims());
            [all[b], all[h], all[t]]
        };
        let mask = match self.mask {
            MaskKind::None => AttentionMask::None,
            MaskKind::Causal => AttentionMask::Causal,
            MaskKind::Operand => {
                let mask = &operands[3];
                let (own, skip) = (mask.strides(), 4 - mask.local.len());
                let mut strides = [0; 4];
                for d in 0..mask.local.len() {
                    strides[skip + d] = if mask.ty.shape[d] == 1 { 0 } else { own[d] };
                }
                AttentionMask::Operand { dtype: mask.ty.dtype, strides }
            }
        };
        kernel::Attention {
            dtype: q.ty.dtype,
            batch: s.batch,
            heads: s.heads,
            kv_heads: s.kv_heads,
            q_len: s.queries,
            kv_len: s.keys,
            width: s.width,
            v_width: s.v_width,
            scale: self.scale,
            mask,
            q: strides(q, self.q),
            k: strides(k, self.k),
            v: strides(v, self.v),
            o: strides(o, self.o),
        }
    }
}

impl Rules for Attention {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        if operands.len() != self.operand_count() {
            return Err(reason!("takes {} operands", self.operand_count()));
        }
        let dtype = operands[0].dtype;
        if !dtype.is_float() || operands[1].dtype != dtype || operands[2].dtype != dtype {
            return Err("q, k and v are floats of one type".into());
        }
        let s = self.sizes(&operands[0].shape, &operands[1].shape, &operands[2].shape)?;
        if let Some(mask) = operands.get(3) {
            let full = [s.batch, s.heads, s.queries, s.keys];
            let fits = mask.rank() <= 4
                && mask.shape.iter().rev().zip(full.iter().rev()).all(|(m, n)| m == n || *m == 1)
                && (mask.dtype == DType::Bool || mask.dtype == dtype.computed());
            if !fits {
                return Err(reason!("the mask {mask} does not broadcast to {full:?}"));
            }
        }
        Ok(vec![
            Type::new(dtype, self.o.shape(s.batch, s.heads, s.queries, s.v_width)),
            Type::new(dtype.computed(), [s.batch, s.heads, s.queries]),
        ])
    }

    fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
        let (mut letters, mut tensors) = self.tensors(operands);
        letters.results = tensors.split_off(self.operand_count());
        letters.operands = tensors;
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        // Linear in v, but lse is not: it would be counted once a rank.
        Linear::No
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let g = cx.grad();
        let mut operands = cx.operands.to_vec();
        operands.extend([cx.results[0], cx.results[1], g]);
        let grads = cx.b.ops(AttentionGrad { of: self.clone() }, &operands);
        for (i, gradient) in grads.into_iter().enumerate() {
            if cx.needs[i] {
                cx.give(i, gradient);
            }
        }
        Ok(())
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let kernel = self.kernel(cx.operands, &cx.results[0]);
        Lowered::launch(Kernel::Attention(kernel), cx.operands.len(), 2)
    }
}

impl Rules for AttentionGrad {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let n = self.of.operand_count();
        if operands.len() != n + 3 {
            return Err(reason!("takes {} operands", n + 3));
        }
        let forward = self.of.result(&operands[..n])?;
        if operands[n] != forward[0] || operands[n + 1] != forward[1] || operands[n + 2] != forward[0] {
            return Err("o, lse and do are not those of the forward op".into());
        }
        Ok(operands[..3].to_vec())
    }

    fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
        let (mut letters, mut tensors) = self.of.tensors(operands);
        let o = tensors[self.of.operand_count()].clone();
        tensors.push(o);
        letters.results = tensors[..3].to_vec();
        letters.operands = tensors;
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::No
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<(), NoGradient> {
        Err(NoGradient::NotOfModels)
    }

    fn positions(&self) -> bool {
        false
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let kernel = self.of.kernel(cx.operands, &cx.operands[self.of.operand_count()]);
        Lowered::launch(Kernel::AttentionGrad(kernel::AttentionGrad(kernel)), cx.operands.len(), 3)
    }
}
