//! The types that registers of fused programs have.

use crate::cpu::element::{self, Element, Slice, each_type};
use crate::cpu::functions::Functions;
use crate::cpu::narrow;
use faer::traits::ComplexField;
use shardc_ir::scalar::Rounding;
use std::ops::{Add, Div, Mul, Sub};

/// A register type: f32, f64 or i64. Truth values are 0 and 1.
pub trait Number: Functions + Element + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    const LOWEST: Self;
    const HIGHEST: Self;
    const IS_INTEGER: bool;
    fn from_f64(value: f64) -> Self;
    /// `out[i] = data[start + i * stride]`, converted.
    fn load(data: Slice<'_>, start: isize, stride: isize, out: &mut [Self]);

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
}

/// A float: what matrices, norms and attention are made of.
pub trait Real:
    Number + ComplexField + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
}
impl Real for f32 {}
impl Real for f64 {}

macro_rules! float {
    ($type:ident) => {
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
            fn rounded(self, to: Rounding) -> Self {
                $type::from(narrow::round(to, self as f32))
            }
        }
    };
}
float!(f32);
float!(f64);

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
    fn rounded(self, to: Rounding) -> Self {
        narrow::round(to, self as f32) as i64
    }
}
