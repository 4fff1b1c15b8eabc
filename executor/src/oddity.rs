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

/// The ends of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spread {
    /// The least and the greatest of those that are finite, if there are any.
    pub ends: Option<(f64, f64)>,
    /// How many there are.
    pub count: u64,
    /// How many of them are not finite.
    pub not_finite: u64,
}

impl Oddity {
    /// Of floats, little-endian.
    pub fn of(dtype: DType, bytes: &[u8]) -> Option<Oddity> {
        let mut worst = None;
        if dtype.is_float() {
            each(dtype, bytes, |x| worst = worst.max(Oddity::of_number(x)));
        }
        worst
    }

    fn of_number(x: f64) -> Option<Oddity> {
        match x {
            x if x.is_finite() => None,
            x if x.is_nan() => Some(Oddity::NoNumber),
            x if x > 0.0 => Some(Oddity::Above),
            _ => Some(Oddity::Below),
        }
    }
}

impl Spread {
    /// Of numbers of any type, little-endian.
    pub fn of(dtype: DType, bytes: &[u8]) -> Spread {
        let mut spread = Spread::default();
        each(dtype, bytes, |x| {
            spread.count += 1;
            match x.is_finite() {
                true => spread.ends = Some(spread.ends.map_or((x, x), |(least, most)| (x.min(least), x.max(most)))),
                false => spread.not_finite += 1,
            }
        });
        spread
    }
}

fn each(dtype: DType, bytes: &[u8], mut see: impl FnMut(f64)) {
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().for_each(|b| see(f64::from(f32::from_le_bytes(*b)))),
        DType::F64 => bytes.as_chunks().0.iter().for_each(|b| see(f64::from_le_bytes(*b))),
        DType::BF16 => bytes.as_chunks().0.iter().for_each(|b| see(bf16::from_le_bytes(*b).to_f64())),
        DType::F16 => bytes.as_chunks().0.iter().for_each(|b| see(f16::from_le_bytes(*b).to_f64())),
        DType::I64 => bytes.as_chunks().0.iter().for_each(|b| see(i64::from_le_bytes(*b) as f64)),
        DType::Bool => bytes.iter().for_each(|b| see(f64::from(*b))),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_told_and_the_ends_are_of_finite_numbers() {
        let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let (below, above) = (f32::NEG_INFINITY, f32::INFINITY);
        for (numbers, oddity, ends, not_finite) in [
            (&[][..], None, None, 0),
            (&[2.0, -3.0], None, Some((-3.0, 2.0)), 0),
            (&[below, 1.0], Some(Oddity::Below), Some((1.0, 1.0)), 1),
            (&[below, above], Some(Oddity::Above), None, 2),
            (&[above, f32::NAN, 0.5], Some(Oddity::NoNumber), Some((0.5, 0.5)), 2),
        ] {
            let bytes = bytes(numbers);
            assert_eq!(Oddity::of(DType::F32, &bytes), oddity, "{numbers:?}");
            let count = numbers.len() as u64;
            assert_eq!(Spread::of(DType::F32, &bytes), Spread { ends, count, not_finite }, "{numbers:?}");
        }
        assert_eq!(Oddity::of(DType::I64, &(-7i64).to_le_bytes()), None);
        assert_eq!(Spread::of(DType::I64, &(-7i64).to_le_bytes()).ends, Some((-7.0, -7.0)));
    }
}
