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

impl Contract {
    /// A product of contiguous matrices of f32.
    pub fn of_matrices([m, n, k]: [u64; 3], a_transposed: bool, b_transposed: bool) -> Contract {
        let dim = |size, a: u64, b: u64, c: u64| ContractDim { size, a: a as i64, b: b as i64, c: c as i64 };
        let (am, ak) = if a_transposed { (1, m) } else { (k, 1) };
        let (bk, bn) = if b_transposed { (1, k) } else { (n, 1) };
        Contract {
            dtype: DType::F32,
            result: DType::F32,
            batch: vec![],
            m: vec![dim(m, am, 0, n)],
            n: vec![dim(n, 0, bn, 1)],
            k: vec![dim(k, ak, bk, 0)],
        }
    }

    /// As many such products as `batch`.
    fn of_many(batch: u64, [m, n, k]: [u64; 3], b_transposed: bool) -> Contract {
        let outer = ContractDim { size: batch, a: (m * k) as i64, b: (n * k) as i64, c: (m * n) as i64 };
        Contract { batch: vec![outer], ..Contract::of_matrices([m, n, k], false, b_transposed) }
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

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        vec![]
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

    fn everyday() -> Vec<(String, Self)> {
        let named = [
            ("gemm nn 1024^3", Contract::of_matrices([1024, 1024, 1024], false, false)),
            ("gemm nt 1024^3", Contract::of_matrices([1024, 1024, 1024], false, true)),
            ("gemm tn 1024^3", Contract::of_matrices([1024, 1024, 1024], true, false)),
            ("gemm nn 256x3072x768", Contract::of_matrices([256, 3072, 768], false, false)),
            ("gemm nt 256x768x3072", Contract::of_matrices([256, 768, 3072], false, true)),
            ("gemm nt 256x50257x768", Contract::of_matrices([256, 50257, 768], false, true)),
            ("gemm nn 256x768x50257", Contract::of_matrices([256, 768, 50257], false, false)),
            ("gemm tn 50257x768x256", Contract::of_matrices([50257, 768, 256], true, false)),
            ("gemm tn 768x3072x256", Contract::of_matrices([768, 3072, 256], true, false)),
            ("gemm nt 256x3072x768", Contract::of_matrices([256, 3072, 768], false, true)),
            ("gemm nt 512x1408x512", Contract::of_matrices([512, 1408, 512], false, true)),
            ("gemm tn 1408x512x512", Contract::of_matrices([1408, 512, 512], true, false)),
            ("gemm nn 768x512x128", Contract::of_matrices([768, 512, 128], false, false)),
            ("gemm nn 768x128x512", Contract::of_matrices([768, 128, 512], false, false)),
            ("gemm nt 768x128x512", Contract::of_matrices([768, 128, 512], false, true)),
            ("gemm tn 128x512x768", Contract::of_matrices([128, 512, 768], true, false)),
            ("gemm nn 768x384x128", Contract::of_matrices([768, 384, 128], false, false)),
            ("gemm nt 48 of 64x64x32", Contract::of_many(48, [64, 64, 32], true)),
            ("gemm nn 48 of 64x32x64", Contract::of_many(48, [64, 32, 64], false)),
        ];
        named.map(|(what, contract)| (what.to_string(), contract)).into()
    }
}
