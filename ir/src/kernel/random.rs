//! Random: truth values drawn from counters.

use super::form::{Form, Position};
use super::signature::{Signature, counted, product};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::position::Origin;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// Truth values drawn from counters: element `i` of a tensor is true where word `i % 4` of
/// Philox4x32-10 at counter (`i / 4` in two words, step, stream) under the key `seed` is
/// `threshold` or more, where `i` is its position in the whole tensor. Operands: the seed (i64, one
/// element) and the step (f64, one element), then the result. See [`crate::philox`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Random {
    /// The shape of the rank's part, contiguous.
    pub shape: Vec<u64>,
    /// For each dimension the stride in the whole tensor.
    pub strides: Vec<u64>,
    /// For each dimension the global index of each local one.
    pub origins: Vec<Origin>,
    /// The least word that gives true.
    pub threshold: u32,
    /// Which of the independent streams under one seed.
    pub stream: u32,
}

impl Form for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn signature(&self, mesh: &Mesh) -> Result<Signature, Reason> {
        if self.strides.len() != self.shape.len() || self.origins.len() != self.shape.len() {
            return Err("a drawing has an origin and a stride for each dimension".into());
        }
        let mut reach = 0u64;
        for ((size, origin), stride) in self.shape.iter().zip(&self.origins).zip(&self.strides) {
            origin.check(*size, mesh)?;
            let (low, high) = origin.offset.range(mesh)?;
            let digits = origin.digits.iter().try_fold(0u64, |n, d| n.checked_add((d.size - 1).checked_mul(d.stride)?));
            let end = digits.and_then(|n| n.checked_add(u64::try_from(high).ok()?)).filter(|_| low >= 0);
            let grown = end.and_then(|n| n.checked_mul(*stride)).and_then(|n| reach.checked_add(n));
            reach = grown.filter(|n| *n <= i64::MAX as u64).ok_or("a drawing reaches beyond every tensor")?;
        }
        Ok(Signature::default().reads(DType::I64, 1).reads(DType::F64, 1).writes(DType::Bool, product(&self.shape)?))
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        false
    }

    /// A comparison for each element; the words that are drawn are not counted.
    fn flops(&self) -> u64 {
        counted(self.shape.iter().copied())
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        vec![]
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        self.shape.iter_mut().collect()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        vec![]
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        self.origins.iter_mut().map(Position::of).collect()
    }

    fn everyday() -> Vec<(String, Self)> {
        let whole = 1 << 20;
        let (shape, strides, origins) = (vec![whole], vec![1], vec![Origin::whole(whole)]);
        vec![("dropout mask 1 Mi".to_string(), Random { shape, strides, origins, threshold: 1 << 29, stream: 0 })]
    }
}
