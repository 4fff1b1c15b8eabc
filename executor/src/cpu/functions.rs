//! The scalar functions of the IR on every type of register: a row each, of which the methods of
//! [`Functions`] and the loops of [`crate::cpu::lanes`] are made.
//!
//! A row has the name in the IR, the name of the method, and the value of floats and of integers.
//! `real` is the module of functions of real numbers: [`math`] for f32, else [`wide`]. Integers
//! wrap; a division by 0, which fails the kernel, gives 0; functions of real numbers truncate
//! theirs. Truth values are 0 and 1.

use crate::cpu::math::{self, wide};
use crate::cpu::number::Number;

/// Hands the rows to a macro, behind what else it takes.
macro_rules! functions {
    ($then:ident($($with:ident),*)) => {
        $then! {
            ($($with),*)
            unary {
                Neg neg(x): -x, x.wrapping_neg();
                Abs abs(x): x.abs(), x.wrapping_abs();
                Sign sign(x): if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x }, x.signum();
                Exp exp(x): real::exp(x), real::exp(x as f64) as i64;
                Log ln(x): real::ln(x), real::ln(x as f64) as i64;
                Sqrt sqrt(x): x.sqrt(), (x as f64).sqrt() as i64;
                Reciprocal recip(x): 1.0 / x, Functions::div(1, x);
                Sin sin(x): real::sin(x), real::sin(x as f64) as i64;
                Cos cos(x): real::cos(x), real::cos(x as f64) as i64;
                Atan atan(x): real::atan(x), real::atan(x as f64) as i64;
                Tanh tanh(x): real::tanh(x), real::tanh(x as f64) as i64;
                Erf erf(x): real::erf(x), real::erf(x as f64) as i64;
                Sigmoid sigmoid(x): real::sigmoid(x), real::sigmoid(x as f64) as i64;
                Floor floor(x): x.floor(), x;
                Ceil ceil(x): x.ceil(), x;
                Round round(x): x.round_ties_even(), x;
                Not not(x): Self::truth(!x.is_true()), Self::truth(!x.is_true());
                IsNan not_a_number(x): Self::truth(x.is_nan()), Self::truth(x.is_nan());
            }
            binary {
                Add add(a, b): a + b, a.wrapping_add(b);
                Sub sub(a, b): a - b, a.wrapping_sub(b);
                Mul mul(a, b): a * b, a.wrapping_mul(b);
                Div div(a, b): a / b, if b == 0 { 0 } else { a.wrapping_div(b) };
                Pow pow(a, b): real::pow(a, b), match (a, u32::try_from(b)) {
                    (_, Ok(exponent)) => a.wrapping_pow(exponent),
                    (1, _) => 1,
                    (-1, _) => 1 - 2 * (b & 1),
                    _ => 0,
                };
                Max max(a, b): if (a > b) | a.is_nan() { a } else { b }, if a > b { a } else { b };
                Min min(a, b): if (a < b) | a.is_nan() { a } else { b }, if a < b { a } else { b };
                Mod modulo(a, b): {
                    let rest = a % b;
                    if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
                }, {
                    let rest = if b == 0 { 0 } else { a.wrapping_rem(b) };
                    if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
                };
                Eq equals(a, b): Self::truth(a == b), Self::truth(a == b);
                Lt below(a, b): Self::truth(a < b), Self::truth(a < b);
                Le at_most(a, b): Self::truth(a <= b), Self::truth(a <= b);
                And both(a, b): Self::truth(a.is_true() & b.is_true()), Self::truth(a.is_true() & b.is_true());
                Or either(a, b): Self::truth(a.is_true() | b.is_true()), Self::truth(a.is_true() | b.is_true());
                Xor only_one(a, b): Self::truth(a.is_true() ^ b.is_true()), Self::truth(a.is_true() ^ b.is_true());
            }
        }
    };
}
pub(crate) use functions;

macro_rules! declared {
    (
        ()
        unary { $($of_one:ident $unary:ident($x:ident): $unary_float:expr, $unary_integer:expr;)* }
        binary { $($of_two:ident $binary:ident($a:ident, $b:ident): $binary_float:expr, $binary_integer:expr;)* }
    ) => {
        /// The functions of [`shardc_ir::scalar`] on a type of register.
        pub trait Functions: Sized {
            $(fn $unary(self) -> Self;)*
            $(fn $binary(self, other: Self) -> Self;)*
        }
    };
}

/// The value of floats or that of integers.
macro_rules! value {
    (float, $float:expr, $integer:expr) => {
        $float
    };
    (integer, $float:expr, $integer:expr) => {
        $integer
    };
}

macro_rules! implemented {
    (
        ($type:ident, $kind:ident, $module:ident)
        unary { $($of_one:ident $unary:ident($x:ident): $unary_float:expr, $unary_integer:expr;)* }
        binary { $($of_two:ident $binary:ident($a:ident, $b:ident): $binary_float:expr, $binary_integer:expr;)* }
    ) => {
        const _: () = {
            use $module as real;

            impl Functions for $type {
                $(#[inline(always)]
                fn $unary(self) -> Self {
                    let $x = self;
                    value!($kind, $unary_float, $unary_integer)
                })*
                $(#[inline(always)]
                fn $binary(self, other: Self) -> Self {
                    let ($a, $b) = (self, other);
                    value!($kind, $binary_float, $binary_integer)
                })*
            }
        };
    };
}

functions!(declared());
functions!(implemented(f32, float, math));
functions!(implemented(f64, float, wide));
functions!(implemented(i64, integer, wide));
