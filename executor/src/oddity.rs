//! Numbers that are not finite.

use half::{bf16, f16};
use shardc_ir::dtype::DType;
use std::fmt;

/// The kind of a number that is not finite; of several, the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oddity {
    /// Below every number.
    Below,
    /// Above every number.
    Above,
    /// No number.
    NoNumber,
}

impl Oddity {
    /// Of floats, little-endian.
    pub fn of(dtype: DType, bytes: &[u8]) -> Option<Oddity> {
        match dtype {
            DType::F32 => worst(bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b)))),
            DType::F64 => worst(bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b))),
            DType::BF16 => worst(bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f64())),
            DType::F16 => worst(bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f64())),
            DType::I64 | DType::Bool => None,
        }
    }
}

fn worst(numbers: impl Iterator<Item = f64>) -> Option<Oddity> {
    let oddity = |x: f64| match x {
        x if x.is_nan() => Oddity::NoNumber,
        x if x > 0.0 => Oddity::Above,
        _ => Oddity::Below,
    };
    numbers.filter(|x| !x.is_finite()).map(oddity).max()
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Oddity::Below => "-inf",
            Oddity::Above => "inf",
            Oddity::NoNumber => "NaN",
        })
    }
}
