//! Products of matrices that the library cuBLASLt computes: all that `cublasLtMatmul` is told, as
//! data.
//!
//! What the library takes is from NVIDIA's cuBLAS manual, "Using the cuBLASLt API" (of CUDA 13),
//! which comments here cite by the names of its sections, and from its header `cublasLt.h`. It
//! computes `D = alpha * op(A) * op(B) + beta * C`, where `op` may transpose, and matrices lie
//! column by column. What it does not take is refused with a reason, and is a kernel of ours.

mod contraction;
mod epilogue;

use serde::{Deserialize, Serialize};
use shardc_ir::dtype::DType;
use shardc_ir::reason;
use shardc_ir::reason::Reason;

/// Bytes of room that a product may use: what the manual recommends for Hopper
/// (`cublasSetWorkspace`). The room begins at a multiple of 256 bytes (`cublasLtMatmul`).
pub const WORKSPACE: u64 = 32 << 20;

/// The ways in which parts of a long sum may be added up (`cublasLtReductionScheme_t`), as bits: in
/// the room, in the type in which products are added up (`CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`).
/// Parts that meet in the result itself would meet in the order in which they end, or be rounded.
pub const REDUCTION_SCHEMES: u32 = 2;

/// The largest alignment that the library makes use of (`cublasLtMatmulPreferenceAttributes_t`).
const MAX_ALIGNMENT: u64 = 256;

/// One call of `cublasLtMatmul`. Its `A` and `B` are the operands `a` and `b` of a contraction, or
/// the other way round. `C` lies as `D` does; it is `D`, unless it is something else that the
/// product is added to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Matmul {
    /// How products are added up.
    pub compute: Compute,
    /// The factor of the product, in the type [`Compute::scale`].
    pub alpha: f64,
    /// The factor of `C`: 1 where the product is added to it, and 0 where it is not read.
    pub beta: f64,
    /// Whether `A` is the contraction's `b`, and `B` its `a`: so where the result lies row by row,
    /// which is its transpose column by column.
    pub swapped: bool,
    /// Whether `op` transposes `A`, and `B`.
    pub transposed: [bool; 2],
    /// `A` as it lies.
    pub a: Layout,
    /// `B` as it lies.
    pub b: Layout,
    /// `C`.
    pub c: Layout,
    /// `D`.
    pub d: Layout,
    /// What is done beside.
    pub epilogue: Epilogue,
    /// Bytes of room that it may use.
    pub workspace: u64,
    /// The bytes of which `A`, `B`, `C` and `D` begin at a multiple. The library assumes 256 where
    /// it is not told.
    pub alignment: [u64; 4],
}

/// The type in which products are added up (`cublasComputeType_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compute {
    /// `CUBLAS_COMPUTE_32F`.
    F32,
    /// `CUBLAS_COMPUTE_32F_FAST_TF32`: operands of f32 are rounded to 11 bits of mantissa.
    Tf32,
    /// `CUBLAS_COMPUTE_64F`.
    F64,
}

/// A batch of matrices in memory, column by column. Numbers count elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The type of an element.
    pub dtype: DType,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub columns: u64,
    /// From one column to the next, no less than the rows.
    pub leading: i64,
    /// How many matrices.
    pub batch: u64,
    /// From one matrix to the next; 0 where all are one that is read.
    pub stride: i64,
}

/// What is done beside the product (`cublasLtEpilogue_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Epilogue {
    /// Nothing.
    Default,
    /// A vector over the rows of `D` is added to each of its columns.
    Bias,
    /// `A` is summed over its columns into a vector over the rows of `D`.
    BiasGradientA,
    /// `B` is summed over the rows of `op(B)` into a vector over the columns of `D`.
    BiasGradientB,
}

impl Epilogue {
    /// Whether its vector is written.
    pub fn is_gradient(self) -> bool {
        matches!(self, Epilogue::BiasGradientA | Epilogue::BiasGradientB)
    }
}

impl Matmul {
    /// The type and length of the vector that the epilogue reads or writes. Its elements are of the
    /// type of `D` and follow one another (`cublasLtMatmul`, table of types, "Bias Type").
    pub fn vector(&self) -> Option<(DType, u64)> {
        match self.epilogue {
            Epilogue::Default => None,
            Epilogue::Bias | Epilogue::BiasGradientA => Some((self.d.dtype, self.d.rows)),
            Epilogue::BiasGradientB => Some((self.d.dtype, self.d.columns)),
        }
    }

    /// The same with operands of f32 rounded for tensor cores, for operands that are numbers of
    /// TF32 before: these keep their values, so that products are what `F32` makes of them, and
    /// sums are in f32 as there. Others would lose 13 bits that no plan has taken from them.
    pub fn with_tf32(self) -> Matmul {
        let compute = if self.compute == Compute::F32 && self.a.dtype == DType::F32 { Compute::Tf32 } else { self.compute };
        Matmul { compute, ..self }
    }

    /// The same where the contraction's `a`, `b` and `c` begin at multiples of so many bytes, and
    /// `C` at those of `c`.
    pub fn aligned(self, [a, b, c]: [u64; 3]) -> Matmul {
        let [a, b] = if self.swapped { [b, a] } else { [a, b] };
        // The largest power of two that divides it.
        let usable = |bytes: u64| (bytes | MAX_ALIGNMENT) & (bytes | MAX_ALIGNMENT).wrapping_neg();
        Matmul { alignment: [a, b, c, c].map(usable), ..self }
    }
}

impl Layout {
    /// Elements from the first to behind the last.
    fn reach(&self) -> i128 {
        let steps = |count: u64, step: i64| i128::from(count - 1) * i128::from(step);
        i128::from(self.rows) + steps(self.columns, self.leading) + steps(self.batch, self.stride)
    }
}

impl Compute {
    /// How products of operands of one type become results of another, where the manual's table of
    /// types (`cublasLtMatmul`) has them.
    fn of(operands: DType, result: DType) -> Result<Compute, Reason> {
        match (operands, result) {
            (DType::F64, DType::F64) => Ok(Compute::F64),
            (DType::F32, DType::F32) => Ok(Compute::F32),
            (DType::BF16 | DType::F16, _) if result == operands || result == DType::F32 => Ok(Compute::F32),
            _ => Err(reason!("cuBLASLt has no products of {operands} with results of {result}")),
        }
    }

    /// The type of `alpha` and `beta`.
    pub fn scale(self) -> DType {
        match self {
            Compute::F32 | Compute::Tf32 => DType::F32,
            Compute::F64 => DType::F64,
        }
    }
}
