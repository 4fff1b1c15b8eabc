//! Functions of one value by name: the scalar functions, and the activations made of them.

use crate::lower::ProgramWriter;
use crate::scalar::{Binary, Reg, Unary};
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// A function of one value: the scalar functions, and activations made of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnaryFn {
    /// One scalar function.
    Scalar(Unary),
    /// `max(x, 0)`
    Relu,
    /// `x * (1 + erf(x / sqrt 2)) / 2`
    Gelu,
    /// `x * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2`
    GeluTanh,
    /// `x * sigmoid(x)`
    Silu,
    /// `log(1 + e^x)`
    Softplus,
}

impl UnaryFn {
    /// Every function.
    pub const ALL: [UnaryFn; 23] = [
        UnaryFn::Scalar(Unary::Neg),
        UnaryFn::Scalar(Unary::Abs),
        UnaryFn::Scalar(Unary::Sign),
        UnaryFn::Scalar(Unary::Exp),
        UnaryFn::Scalar(Unary::Log),
        UnaryFn::Scalar(Unary::Sqrt),
        UnaryFn::Scalar(Unary::Reciprocal),
        UnaryFn::Scalar(Unary::Sin),
        UnaryFn::Scalar(Unary::Cos),
        UnaryFn::Scalar(Unary::Atan),
        UnaryFn::Scalar(Unary::Tanh),
        UnaryFn::Scalar(Unary::Erf),
        UnaryFn::Scalar(Unary::Sigmoid),
        UnaryFn::Scalar(Unary::Floor),
        UnaryFn::Scalar(Unary::Ceil),
        UnaryFn::Scalar(Unary::Round),
        UnaryFn::Scalar(Unary::Not),
        UnaryFn::Scalar(Unary::IsNan),
        UnaryFn::Relu,
        UnaryFn::Gelu,
        UnaryFn::GeluTanh,
        UnaryFn::Silu,
        UnaryFn::Softplus,
    ];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            UnaryFn::Scalar(f) => f.name(),
            UnaryFn::Relu => "relu",
            UnaryFn::Gelu => "gelu",
            UnaryFn::GeluTanh => "gelu_tanh",
            UnaryFn::Silu => "silu",
            UnaryFn::Softplus => "softplus",
        }
    }

    /// Whether the result is a truth value.
    pub fn is_logical(self) -> bool {
        matches!(self, UnaryFn::Scalar(f) if f.is_logical())
    }

    /// Appends the function of `x` to a program; gives the result's register.
    pub fn write(self, w: &mut ProgramWriter, x: Reg) -> Reg {
        match self {
            UnaryFn::Scalar(f) => w.unary(f, x),
            UnaryFn::Relu => {
                let zero = w.number(0.0);
                w.binary(Binary::Max, x, zero)
            }
            UnaryFn::Gelu => {
                let scaled = w.scale(x, FRAC_1_SQRT_2);
                let erf = w.unary(Unary::Erf, scaled);
                half_of_one_plus(w, x, erf)
            }
            UnaryFn::GeluTanh => {
                let square = w.mul(x, x);
                let cubic = w.scale(square, 0.044715);
                let one = w.number(1.0);
                let factor = w.add(cubic, one);
                let inner = w.mul(x, factor);
                let scaled = w.scale(inner, (2.0 / PI).sqrt());
                let tanh = w.unary(Unary::Tanh, scaled);
                half_of_one_plus(w, x, tanh)
            }
            UnaryFn::Silu => {
                let s = w.unary(Unary::Sigmoid, x);
                w.mul(x, s)
            }
            UnaryFn::Softplus => {
                let magnitude = w.unary(Unary::Abs, x);
                let negative = w.unary(Unary::Neg, magnitude);
                let small = w.unary(Unary::Exp, negative);
                let one = w.number(1.0);
                let sum = w.add(small, one);
                let tail = w.unary(Unary::Log, sum);
                let zero = w.number(0.0);
                let positive = w.binary(Binary::Max, x, zero);
                w.add(positive, tail)
            }
        }
    }
}

fn half_of_one_plus(w: &mut ProgramWriter, x: Reg, y: Reg) -> Reg {
    let one = w.number(1.0);
    let sum = w.add(y, one);
    let half = w.scale(x, 0.5);
    w.mul(half, sum)
}

impl Serialize for UnaryFn {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for UnaryFn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<UnaryFn, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = UnaryFn::ALL.into_iter().find(|f| f.name() == name);
        found.ok_or_else(|| serde::de::Error::custom(format!("there is no function `{name}`")))
    }
}

impl From<Unary> for UnaryFn {
    fn from(f: Unary) -> UnaryFn {
        UnaryFn::Scalar(f)
    }
}
