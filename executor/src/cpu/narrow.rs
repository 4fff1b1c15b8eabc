//! Floats of 16 bits and of fewer bits of mantissa, without branches, so that loops over them are
//! compiled to vector instructions. Rounding is to the nearest, ties to even.

use half::{bf16, f16};
use shardc_ir::scalar::Rounding;

/// The same number.
#[inline(always)]
pub fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// The nearest number.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1))) >> 16;
    // Not-a-number stays one: its mantissa may not be rounded away.
    let nan = (bits >> 16) | 0x40;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded } as u16)
}

/// The same number.
#[inline(always)]
pub fn f16_to_f32(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let (sign, rest) = ((bits & 0x8000) << 16, (bits & 0x7fff) << 13);
    let exponent = rest & 0x0f80_0000;
    let normal = rest + ((127 - 15) << 23);
    // Infinity and not-a-number have all bits of the exponent.
    let special = rest + ((255 - 31) << 23);
    let subnormal = (f32::from_bits(normal + (1 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let magnitude = if exponent == 0x0f80_0000 {
        special
    } else if exponent == 0 {
        subnormal
    } else {
        normal
    };
    f32::from_bits(sign | magnitude)
}

/// The nearest number; beyond 65,520 is infinity.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> f16 {
    let bits = x.to_bits();
    let (sign, magnitude) = ((bits >> 16) & 0x8000, bits & 0x7fff_ffff);
    // The sum with a number of the right exponent rounds away the bits below subnormal numbers.
    let magic = 126 << 23;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(magic)).to_bits().wrapping_sub(magic);
    let normal = magnitude.wrapping_add(((15 - 127i32) << 23) as u32).wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13;
    let rounded = if magnitude < 113 << 23 { subnormal } else { normal };
    let large = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    f16::from_bits((sign | if magnitude >= 0x4780_0000 { large } else { rounded }) as u16)
}

/// The nearest number of a format, as f32.
#[inline(always)]
pub fn round(to: Rounding, x: f32) -> f32 {
    match to {
        Rounding::Bf16 => bf16_to_f32(f32_to_bf16(x)),
        Rounding::F16 => f16_to_f32(f32_to_f16(x)),
        Rounding::Tf32 => shardc_ir::scalar::rounding::tf32(x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_16_bits_comes_back() {
        for bits in 0..=u16::MAX {
            let (b, h) = (bf16::from_bits(bits), f16::from_bits(bits));
            assert!(bf16_to_f32(b).to_bits() == b.to_f32().to_bits() || b.is_nan());
            assert!(f16_to_f32(h).to_bits() == h.to_f32().to_bits() || h.is_nan());
            assert!(f32_to_bf16(b.to_f32()) == b || b.is_nan());
            assert!(f32_to_f16(h.to_f32()) == h || h.is_nan());
            assert_eq!((bf16_to_f32(b).is_nan(), f16_to_f32(h).is_nan()), (b.is_nan(), h.is_nan()));
        }
    }

    #[test]
    fn rounds_as_the_library_does() {
        // Odd steps through all exponents and many mantissas, and both neighbours of each middle.
        let steps = (0..=u32::MAX).step_by(9973);
        let middles = (0..=u16::MAX).flat_map(|bits| {
            let wide = [bf16::from_bits(bits).to_f32().to_bits() | 0x8000, f16::from_bits(bits).to_f32().to_bits() | 0x1000];
            wide.into_iter().flat_map(|bits| [bits - 1, bits, bits + 1])
        });
        for x in steps.chain(middles).map(f32::from_bits) {
            for to in Rounding::ALL {
                let (own, other) = (round(to, x), to.round(x));
                assert!(own.to_bits() == other.to_bits() || (x.is_nan() && own.is_nan()), "{to:?} of {x:e}: {own:e}, {other:e}");
            }
        }
    }
}
