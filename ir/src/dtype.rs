//! Element types.

use crate::scalar::Rounding;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of one element. Every integer type of a model is widened to `i64` on import, so that
/// `i64` is the only one here; floats of 16 bits come from a `precision` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 16-bit float with the exponent of f32.
    BF16,
    /// 16-bit float of IEEE 754.
    F16,
    /// 64-bit integer.
    I64,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 6] = [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::Bool];

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::Bool => 1,
        }
    }

    /// Whether gradients exist for it.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32) || self.is_half()
    }

    /// Whether it is a float of 16 bits: kernels read and write it, and compute in f32.
    pub fn is_half(self) -> bool {
        matches!(self, DType::BF16 | DType::F16)
    }

    /// The type in which kernels compute with such elements: f32 for floats of 16 bits.
    pub fn computed(self) -> DType {
        if self.is_half() { DType::F32 } else { self }
    }

    /// The rounding that its numbers have gone through; none of the types that kernels compute in.
    pub fn rounding(self) -> Option<Rounding> {
        match self {
            DType::BF16 => Some(Rounding::Bf16),
            DType::F16 => Some(Rounding::F16),
            _ => None,
        }
    }

    /// The name in listings: `f32`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I64 => "i64",
            DType::Bool => "bool",
        }
    }

    /// The type with that name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
