//! Rounding of floats to fewer bits, to the nearest, ties to even.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// A float format that kernels round to and do not compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// 8 bits of mantissa, the exponent of f32.
    Bf16,
    /// 11 bits of mantissa, 5 of exponent: beyond 65,504 is infinity.
    F16,
    /// 11 bits of mantissa, the exponent of f32: what tensor cores read of f32.
    Tf32,
}

impl Rounding {
    /// Every rounding.
    pub const ALL: [Rounding; 3] = [Rounding::Bf16, Rounding::F16, Rounding::Tf32];

    /// The name in listings: `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Rounding::Bf16 => "bf16",
            Rounding::F16 => "f16",
            Rounding::Tf32 => "tf32",
        }
    }

    /// The nearest number of the format.
    pub fn round(self, x: f32) -> f32 {
        match self {
            Rounding::Bf16 => bf16::from_f32(x).to_f32(),
            Rounding::F16 => f16::from_f32(x).to_f32(),
            Rounding::Tf32 => tf32(x),
        }
    }

    /// The same of a wider number, which is rounded to f32 first.
    pub fn round_f64(self, x: f64) -> f64 {
        f64::from(self.round(x as f32))
    }
}

/// Drops 13 bits of the mantissa.
#[inline(always)]
pub fn tf32(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0xfff + ((bits >> 13) & 1)) & !0x1fff;
    if x.is_finite() { f32::from_bits(rounded) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_the_nearest_and_ties_to_even() {
        assert_eq!(Rounding::Bf16.round(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(Rounding::Bf16.round(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert_eq!(Rounding::F16.round(65_519.0), 65_504.0);
        assert_eq!(Rounding::F16.round(65_520.0), f32::INFINITY);
        assert_eq!(Rounding::Tf32.round(1.0 + 1.0 / 2048.0), 1.0);
        assert_eq!(Rounding::Tf32.round(1.0 + 3.0 / 2048.0), 1.0 + 4.0 / 2048.0);
        assert_eq!(Rounding::Tf32.round(-3.402_823_5e38), f32::NEG_INFINITY);
        for rounding in Rounding::ALL {
            assert!(rounding.round(f32::NAN).is_nan());
            assert_eq!(rounding.round(f32::NEG_INFINITY), f32::NEG_INFINITY);
            assert_eq!(rounding.round(-0.0).to_bits(), (-0.0f32).to_bits());
        }
    }
}
