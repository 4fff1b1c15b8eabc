//! Attention and its gradient.

use super::form::{Form, Position};
use super::signature::{Signature, counted, distinct, extent, float, product};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::reason;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// Scaled dot-product attention with grouped key/value heads: query head `h` reads key head
/// `h / (heads / kv_heads)`.
///
/// Each of q, k, v, o has strides over (batch, head, position); the last dimension is contiguous.
/// Operands: q, k, v, `[mask]`, then o and `lse[batch, heads, q_len]`, the logarithm of the sum of
/// exponentials of each query's scores. A query that sees no key gives zeros, and `lse` of
/// -infinity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// A float. Scores, sums and a float mask are f32 where it has 16 bits.
    pub dtype: DType,
    /// Independent batches.
    pub batch: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Queries.
    pub q_len: u64,
    /// Keys.
    pub kv_len: u64,
    /// Width of q and k.
    pub width: u64,
    /// Width of v and o.
    pub v_width: u64,
    /// Multiplies the scores.
    pub scale: f64,
    /// Which keys are seen.
    pub mask: AttentionMask,
    /// Strides of q over (batch, head, position).
    pub q: [i64; 3],
    /// Strides of k.
    pub k: [i64; 3],
    /// Strides of v.
    pub v: [i64; 3],
    /// Strides of o (in the gradient: of `o` and `do`).
    pub o: [i64; 3],
}

/// Which keys a query sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttentionMask {
    /// All of them.
    None,
    /// Key `s` for query `t` where `s <= t + kv_len - q_len`.
    Causal,
    /// An extra operand after `v`: bool (false hides) or float (added to the scaled scores).
    Operand {
        /// Its element type.
        dtype: DType,
        /// Strides over (batch, head, query, key); 0 broadcasts.
        strides: [i64; 4],
    },
}

/// The gradient of attention. Operands: q, k, v, `[mask]`, o, lse, do, then dq, dk, dv, laid out as
/// q, k, v are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttentionGrad(pub Attention);

impl Attention {
    /// The operands that attention and its gradient both read first: q, k, v and the mask.
    fn inputs(&self) -> Result<Signature, Reason> {
        float(self.dtype)?;
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(reason!("{} heads over {} key heads", self.heads, self.kv_heads));
        }
        let signature = Signature::default()
            .reads(self.dtype, self.rows(&self.q, self.heads, self.q_len, self.width, false)?)
            .reads(self.dtype, self.rows(&self.k, self.kv_heads, self.kv_len, self.width, false)?)
            .reads(self.dtype, self.rows(&self.v, self.kv_heads, self.kv_len, self.v_width, false)?);
        match &self.mask {
            AttentionMask::Operand { dtype, strides } => {
                if *dtype != DType::Bool && *dtype != self.dtype.computed() {
                    return Err(reason!("a mask of {dtype} for scores of {}", self.dtype));
                }
                Ok(signature.reads(*dtype, extent(&[self.batch, self.heads, self.q_len, self.kv_len], strides, (0, 0))?))
            }
            AttentionMask::None | AttentionMask::Causal => Ok(signature),
        }
    }

    /// Pairs of a query and a key that it may see, of all heads and batches.
    fn pairs(&self) -> u64 {
        let (queries, keys) = (self.q_len, self.kv_len);
        let seen = match self.mask {
            // Query `t` sees `t + 1 + keys - queries` keys.
            AttentionMask::Causal => {
                let rows = queries.min(keys);
                let all = u128::from(rows).saturating_mul(u128::from(keys - rows) * 2 + u128::from(rows) + 1) / 2;
                u64::try_from(all).unwrap_or(u64::MAX)
            }
            AttentionMask::None | AttentionMask::Operand { .. } => counted([queries, keys]),
        };
        counted([self.batch, self.heads, seen])
    }

    /// The elements that rows of `width` over (batch, head, position) reach; written ones must be
    /// distinct.
    fn rows(&self, strides: &[i64; 3], heads: u64, positions: u64, width: u64, written: bool) -> Result<u64, Reason> {
        let shape = [self.batch, heads, positions, width];
        let strides = [strides[0], strides[1], strides[2], 1];
        if strides.iter().any(|s| *s < 0) || (written && !distinct(&shape, &strides)) {
            return Err("attention has negative strides, or results that share elements".into());
        }
        extent(&shape, &strides, (0, 0))
    }
}

impl Form for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn signature(&self, _mesh: &Mesh) -> Result<Signature, Reason> {
        Ok(self
            .inputs()?
            .writes(self.dtype, self.rows(&self.o, self.heads, self.q_len, self.v_width, true)?)
            .writes(self.dtype.computed(), product(&[self.batch, self.heads, self.q_len])?))
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        false
    }

    /// Two products of matrices, and scaling and softmax of the scores, of all pairs that a causal
    /// mask leaves; other masks hide nothing here.
    fn flops(&self) -> u64 {
        let pairs = self.pairs();
        counted([pairs, self.width, 2]).saturating_add(counted([pairs, self.v_width, 2])).saturating_add(counted([pairs, 5]))
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        vec![&mut self.scale]
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        let Attention { batch, heads, kv_heads, q_len, kv_len, width, v_width, .. } = self;
        vec![batch, heads, kv_heads, q_len, kv_len, width, v_width]
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        [&mut self.q, &mut self.k, &mut self.v, &mut self.o].into_iter().flatten().collect()
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        vec![]
    }

    fn everyday() -> Vec<(String, Self)> {
        everyday().map(|(size, attention)| (format!("attention {size}"), attention)).into()
    }
}

impl Form for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn signature(&self, _mesh: &Mesh) -> Result<Signature, Reason> {
        let a = &self.0;
        let o = a.rows(&a.o, a.heads, a.q_len, a.v_width, false)?;
        Ok(a.inputs()?
            .reads(a.dtype, o)
            .reads(a.dtype.computed(), product(&[a.batch, a.heads, a.q_len])?)
            .reads(a.dtype, o)
            .writes(a.dtype, a.rows(&a.q, a.heads, a.q_len, a.width, true)?)
            .writes(a.dtype, a.rows(&a.k, a.kv_heads, a.kv_len, a.width, true)?)
            .writes(a.dtype, a.rows(&a.v, a.kv_heads, a.kv_len, a.v_width, true)?))
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        false
    }

    /// Five products of matrices, one of them the scores again, and softmax with its gradient.
    fn flops(&self) -> u64 {
        let pairs = self.0.pairs();
        let products = counted([pairs, self.0.width, 6]).saturating_add(counted([pairs, self.0.v_width, 4]));
        products.saturating_add(counted([pairs, 8]))
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        self.0.numbers_mut()
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        self.0.sizes_mut()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        self.0.strides_mut()
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        vec![]
    }

    fn everyday() -> Vec<(String, Self)> {
        everyday().map(|(size, attention)| (format!("attention grad {size}"), AttentionGrad(attention))).into()
    }
}

/// Causal attention, of many short sequences and of a long one.
fn everyday() -> [(&'static str, Attention); 2] {
    let of = |batch, heads, positions, width| {
        let strides = [if batch == 1 { 0 } else { positions * heads * width }, width, heads * width].map(|stride| stride as i64);
        Attention {
            dtype: DType::F32,
            batch,
            heads,
            kv_heads: heads,
            q_len: positions,
            kv_len: positions,
            width,
            v_width: width,
            scale: 0.18,
            mask: AttentionMask::Causal,
            q: strides,
            k: strides,
            v: strides,
            o: strides,
        }
    };
    [("12x4x64x32", of(12, 4, 64, 32)), ("8x1024x64", of(1, 8, 1024, 64))]
}
