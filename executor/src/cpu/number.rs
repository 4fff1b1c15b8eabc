//! The types that registers of fused programs have, and the scalar functions of the IR on each of
//! them.

use crate::cpu::element::{self, Element, Slice, each_type};
use crate::cpu::math::{self, wide};
use crate::cpu::narrow;
use faer::traits::ComplexField;
use shardc_ir::scalar::Rounding;
use std::ops::{Add, Div, Mul, Sub};

/// A register type: f32, f64 or i64. The methods are the functions of [`shardc_ir::scalar`], by
/// name; truth values are 0 and 1.
pub trait Number: Element + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    const LOWEST: Self;
    const HIGHEST: Self;
    const IS_INTEGER: bool;
    fn from_f64(value: f64) -> Self;
    /// `out[i] = data[start + i * stride]`, converted.
    fn load(data: Slice<'_>, start: isize, stride: isize, out: &mut [Self]);
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
    fn recip(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn atan(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn sigmoid(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round(self) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn pow(self, other: Self) -> Self;
    fn modulo(self, other: Self) -> Self;

    /// The nearest number of a format; numbers wider than f32 are rounded to that first.
    fn rounded(self, to: Rounding) -> Self;

    #[inline(always)]
    fn truth(value: bool) -> Self {
        if value { Self::ONE } else { Self::ZERO }
    }

    #[inline(always)]
    fn is_true(self) -> bool {
        self != Self::ZERO
    }

    #[inline(always)]
    #[expect(clippy::eq_op, reason = "only not-a-number differs from itself")]
    fn is_nan(self) -> bool {
        self != self
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        if (self > other) | self.is_nan() { self } else { other }
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        if (self < other) | self.is_nan() { self } else { other }
    }
}

/// A float: what matrices, norms and attention are made of.
pub trait Real:
    Number + ComplexField + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
}
impl Real for f32 {}
impl Real for f64 {}

macro_rules! float {
    ($type:ident, $functions:ident) => {
        impl Number for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $type::NEG_INFINITY;
            const HIGHEST: Self = $type::INFINITY;
    const IS_INTEGER: bool = false;
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $type
            }
            fn load(data: Slice<'_>, start: isize, stride: isize, out: &mut [Self]) {
                each_type!(Slice, data, data => element::load(data, start, stride, out))
            }
            #[inline(always)]
            fn neg(self) -> Self {
                -self
            }
            #[inline(always)]
            fn abs(self) -> Self {
                $type::abs(self)
            }
            #[inline(always)]
            fn sign(self) -> Self {
                if self > 0.0 {
                    1.0
                } else if self < 0.0 {
                    -1.0
                } else {
                    self
                }
            }
            #[inline(always)]
            fn exp(self) -> Self {
                $functions::exp(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                $functions::ln(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                $type::sqrt(self)
            }
            #[inline(always)]
            fn recip(self) -> Self {
                1.0 / self
            }
            #[inline(always)]
            fn sin(self) -> Self {
                $functions::sin(self)
            }
            #[inline(always)]
            fn cos(self) -> Self {
                $functions::cos(self)
            }
            #[inline(always)]
            fn atan(self) -> Self {
                $functions::atan(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                $functions::tanh(self)
            }
            #[inline(always)]
            fn erf(self) -> Self {
                $functions::erf(self)
            }
            #[inline(always)]
            fn sigmoid(self) -> Self {
                $functions::sigmoid(self)
            }
            #[inline(always)]
            fn floor(self) -> Self {
                $type::floor(self)
            }
            #[inline(always)]
            fn ceil(self) -> Self {
                $type::ceil(self)
            }
            #[inline(always)]
            fn round(self) -> Self {
                $type::round_ties_even(self)
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn pow(self, other: Self) -> Self {
                $functions::pow(self, other)
            }
            #[inline(always)]
            fn rounded(self, to: Rounding) -> Self {
                $type::from(narrow::round(to, self as f32))
            }
            #[inline(always)]
            fn modulo(self, other: Self) -> Self {
                let rest = self % other;
                if rest != 0.0 && (rest < 0.0) != (other < 0.0) { rest + other } else { rest }
            }
        }
    };
}
float!(f32, math);
float!(f64, wide);

/// Integers wrap; a division by 0, which fails the kernel, gives 0; functions of real numbers
/// truncate theirs.
impl Number for i64 {
    const ZERO: Self = 0;
    const ONE: Self = 1;
    const LOWEST: Self = i64::MIN;
    const HIGHEST: Self = i64::MAX;
    const IS_INTEGER: bool = true;
    fn from_f64(value: f64) -> Self {
        value as i64
    }
    fn load(data: Slice<'_>, start: isize, stride: isize, out: &mut [Self]) {
        each_type!(Slice, data, data => element::load(data, start, stride, out))
    }
    #[inline(always)]
    fn neg(self) -> Self {
        self.wrapping_neg()
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self.wrapping_abs()
    }
    #[inline(always)]
    fn sign(self) -> Self {
        self.signum()
    }
    fn exp(self) -> Self {
        wide::exp(self as f64) as i64
    }
    fn ln(self) -> Self {
        wide::ln(self as f64) as i64
    }
    fn sqrt(self) -> Self {
        (self as f64).sqrt() as i64
    }
    fn recip(self) -> Self {
        Number::div(1, self)
    }
    fn sin(self) -> Self {
        wide::sin(self as f64) as i64
    }
    fn cos(self) -> Self {
        wide::cos(self as f64) as i64
    }
    fn atan(self) -> Self {
        wide::atan(self as f64) as i64
    }
    fn tanh(self) -> Self {
        wide::tanh(self as f64) as i64
    }
    fn erf(self) -> Self {
        wide::erf(self as f64) as i64
    }
    fn sigmoid(self) -> Self {
        wide::sigmoid(self as f64) as i64
    }
    #[inline(always)]
    fn floor(self) -> Self {
        self
    }
    #[inline(always)]
    fn ceil(self) -> Self {
        self
    }
    #[inline(always)]
    fn round(self) -> Self {
        self
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
    fn div(self, other: Self) -> Self {
        if other == 0 { 0 } else { self.wrapping_div(other) }
    }
    fn pow(self, other: Self) -> Self {
        match (self, u32::try_from(other)) {
            (_, Ok(exponent)) => self.wrapping_pow(exponent),
            (1, _) => 1,
            (-1, _) => 1 - 2 * (other & 1),
            _ => 0,
        }
    }
    fn rounded(self, to: Rounding) -> Self {
        narrow::round(to, self as f32) as i64
    }
    fn modulo(self, other: Self) -> Self {
        if other == 0 {
            return 0;
        }
        let rest = self.wrapping_rem(other);
        if rest != 0 && (rest < 0) != (other < 0) { rest + other } else { rest }
    }
}
