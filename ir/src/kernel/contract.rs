//! Contract: products of matrices, over any number of letters.

use super::form::{Form, Position};
use super::signature::{Signature, counted, distinct, extent, float};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::reason;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// `c[batch, m, n] (+)= sum over k of a[batch, m, k] * b[batch, k, n]`; any group may hold several
/// letters or none. Operands: `a`, `b`, then `c`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contract {
    /// The type of `a` and `b`, a float.
    pub dtype: DType,
    /// The type of `c`: that of the operands, or f32 for operands of 16 bits. Sums of 16-bit
    /// operands are f32, and rounded once.
    pub result: DType,
    /// Letters of all three operands, outer to inner as in `c`.
    pub batch: Vec<ContractDim>,
    /// Letters of `a` and `c`.
    pub m: Vec<ContractDim>,
    /// Letters of `b` and `c`.
    pub n: Vec<ContractDim>,
    /// Letters of `a` and `b`.
    pub k: Vec<ContractDim>,
}

/// One letter of a contraction: its size and its strides in the operands that hold it (0 in those
/// that do not).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContractDim {
    /// The size.
    pub size: u64,
    /// The stride in `a`.
    pub a: i64,
    /// The stride in `b`.
    pub b: i64,
    /// The stride in `c`.
    pub c: i64,
}

impl Contract {
    fn dims_mut(&mut self) -> impl Iterator<Item = &mut ContractDim> {
        [&mut self.batch, &mut self.m, &mut self.n, &mut self.k].into_iter().flatten()
    }
}

impl Form for Contract {
    fn name(&self) -> &'static str {
        "contract"
    }

    fn signature(&self, _mesh: &Mesh) -> Result<Signature, Reason> {
        float(self.dtype)?;
        if self.result != self.dtype && self.result != self.dtype.computed() {
            return Err(reason!("products of {} are no {}", self.dtype, self.result));
        }
        let kept: Vec<&ContractDim> = [&self.batch, &self.m, &self.n].into_iter().flatten().collect();
        let all: Vec<&ContractDim> = kept.iter().copied().chain(&self.k).collect();
        if all.iter().any(|d| d.a < 0 || d.b < 0 || d.c < 0) {
            return Err("a contraction has negative strides".into());
        }
        let over = |dims: &[&ContractDim], stride: fn(&ContractDim) -> i64| -> (Vec<u64>, Vec<i64>) {
            dims.iter().map(|d| (d.size, stride(d))).unzip()
        };
        let (written, c) = over(&kept, |d| d.c);
        if !distinct(&written, &c) {
            return Err("results of a contraction share elements".into());
        }
        if self.k.iter().any(|d| d.c != 0) {
            return Err("a summed letter has a stride in the result".into());
        }
        let read = |stride| {
            let (shape, strides) = over(&all, stride);
            extent(&shape, &strides, (0, 0))
        };
        // With an empty sum the results are still written.
        Ok(Signature::default()
            .reads(self.dtype, read(|d| d.a)?)
            .reads(self.dtype, read(|d| d.b)?)
            .writes(self.result, extent(&written, &c, (0, 0))?))
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        false
    }

    /// A product and an addition for each pair of elements that meet.
    fn flops(&self) -> u64 {
        let dims = [&self.batch, &self.m, &self.n, &self.k];
        counted(dims.into_iter().flatten().map(|dim| dim.size).chain([2]))
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        self.dims_mut().map(|d| &mut d.size).collect()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        self.dims_mut().flat_map(|d| [&mut d.a, &mut d.b, &mut d.c]).filter(|stride| **stride != 0).collect()
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        vec![]
    }
}
