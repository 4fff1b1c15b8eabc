//! Functions of one value by name: the scalar functions, and the activations made of them. An
//! activation is one row here.

use crate::scalar::unary::{EVERYWHERE, bell, erf, one_minus_square, sigmoid};
use crate::scalar::{Binary, ProgramWriter, Reg, Unary};
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

/// The gradient of x from x, y = f(x) and the gradient of y, as instructions of a scalar program.
pub type Derivative = fn(&mut ProgramWriter, [Reg; 3]) -> Reg;

/// The facts about an activation.
struct Activation {
    /// The name in text.
    name: &'static str,
    /// Its value, by definition.
    value: fn(f64) -> f64,
    /// Its value on integers; `None` where it takes none.
    integer: Option<fn(i64) -> i64>,
    /// The instructions that it is made of.
    program: fn(&mut ProgramWriter, Reg) -> Reg,
    /// Its gradient.
    derivative: Derivative,
    /// Between which numbers tests draw x.
    domain: (f64, f64),
}

macro_rules! activations {
    ($($(#[$doc:meta])* $function:ident = $facts:expr,)*) => {
        /// A function of one value: the scalar functions, and activations made of them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum UnaryFn {
            /// One scalar function.
            Scalar(Unary),
            $($(#[$doc])* $function,)*
        }

        const ACTIVATIONS: &[UnaryFn] = &[$(UnaryFn::$function),*];

        impl UnaryFn {
            fn activation(self) -> Result<&'static Activation, Unary> {
                match self {
                    UnaryFn::Scalar(f) => Err(f),
                    $(UnaryFn::$function => {
                        const FACTS: Activation = $facts;
                        Ok(&FACTS)
                    })*
                }
            }
        }
    };
}

activations! {
    /// `max(x, 0)`
    Relu = Activation {
        name: "relu",
        value: |x| (Binary::Max.facts().value)(x, 0.0),
        integer: Some(|x| if x > 0 { x } else { 0 }),
        program: |w, x| {
            let zero = w.number(0.0);
            w.binary(Binary::Max, x, zero)
        },
        // y is above 0 where x is, and is there anyway for what reads it.
        derivative: |w, [_, y, g]| {
            let zero = w.number(0.0);
            let positive = w.binary(Binary::Lt, zero, y);
            w.select(positive, g, zero)
        },
        domain: EVERYWHERE,
    },
    /// `x * (1 + erf(x / sqrt 2)) / 2`
    Gelu = Activation {
        name: "gelu",
        value: |x| 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
        integer: None,
        program: |w, x| {
            let scaled = w.scale(x, FRAC_1_SQRT_2);
            let erf = w.unary(Unary::Erf, scaled);
            half_of_one_plus(w, x, erf)
        },
        derivative: |w, [x, _, g]| {
            let scaled = w.scale(x, FRAC_1_SQRT_2);
            let erf = w.unary(Unary::Erf, scaled);
            let sum = w.offset(erf, 1.0);
            let cdf = w.scale(sum, 0.5);
            let bell = bell(w, x, -0.5);
            let density = w.scale(bell, 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
            let tail = w.mul(x, density);
            let slope = w.add(cdf, tail);
            w.mul(g, slope)
        },
        domain: EVERYWHERE,
    },
    /// `x * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2`
    GeluTanh = Activation {
        name: "gelu_tanh",
        value: |x| 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        integer: None,
        program: |w, x| {
            let square = w.mul(x, x);
            let cubic = w.scale(square, 0.044715);
            let one = w.number(1.0);
            let factor = w.add(cubic, one);
            let inner = w.mul(x, factor);
            let scaled = w.scale(inner, (2.0 / PI).sqrt());
            let tanh = w.unary(Unary::Tanh, scaled);
            half_of_one_plus(w, x, tanh)
        },
        derivative: |w, [x, _, g]| {
            let c = (2.0 / PI).sqrt();
            let square = w.mul(x, x);
            let cubic = w.scale(square, 0.044715 * c);
            let factor = w.offset(cubic, c);
            let inner = w.mul(x, factor);
            let tanh = w.unary(Unary::Tanh, inner);
            let triple = w.scale(square, 3.0 * 0.044715 * c);
            let inner_slope = w.offset(triple, c);
            let tanh_slope = one_minus_square(w, tanh);
            let chain = w.mul(tanh_slope, inner_slope);
            let tail = w.mul(x, chain);
            let sum = w.add(tanh, tail);
            let plus_one = w.offset(sum, 1.0);
            let slope = w.scale(plus_one, 0.5);
            w.mul(g, slope)
        },
        domain: EVERYWHERE,
    },
    /// `x * sigmoid(x)`
    Silu = Activation {
        name: "silu",
        value: |x| x * sigmoid(x),
        integer: None,
        program: |w, x| {
            let s = w.unary(Unary::Sigmoid, x);
            w.mul(x, s)
        },
        // s (1 + x (1 - s)) = s + y - y s
        derivative: |w, [x, y, g]| {
            let s = w.unary(Unary::Sigmoid, x);
            let ys = w.mul(y, s);
            let sum = w.add(s, y);
            let slope = w.sub(sum, ys);
            w.mul(g, slope)
        },
        domain: EVERYWHERE,
    },
    /// `log(1 + e^x)`
    Softplus = Activation {
        name: "softplus",
        value: |x| x.max(0.0) + (-x.abs()).exp().ln_1p(),
        integer: None,
        program: |w, x| {
            let magnitude = w.unary(Unary::Abs, x);
            let negative = w.unary(Unary::Neg, magnitude);
            let small = w.unary(Unary::Exp, negative);
            let one = w.number(1.0);
            let sum = w.add(small, one);
            let tail = w.unary(Unary::Log, sum);
            let zero = w.number(0.0);
            let positive = w.binary(Binary::Max, x, zero);
            w.add(positive, tail)
        },
        derivative: |w, [x, _, g]| {
            let s = w.unary(Unary::Sigmoid, x);
            w.mul(g, s)
        },
        domain: EVERYWHERE,
    },
}

impl UnaryFn {
    /// Every function.
    pub const ALL: [UnaryFn; Unary::ALL.len() + ACTIVATIONS.len()] = {
        let mut all = [UnaryFn::Scalar(Unary::Neg); Unary::ALL.len() + ACTIVATIONS.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = match i < Unary::ALL.len() {
                true => UnaryFn::Scalar(Unary::ALL[i]),
                false => ACTIVATIONS[i - Unary::ALL.len()],
            };
            i += 1;
        }
        all
    };

    /// The name in text.
    pub fn name(self) -> &'static str {
        self.activation().map_or_else(Unary::name, |a| a.name)
    }

    /// Whether the result is a truth value.
    pub fn is_logical(self) -> bool {
        self.activation().is_err_and(Unary::is_logical)
    }

    /// Its value, by definition.
    pub fn value(self, x: f64) -> f64 {
        self.activation().map_or_else(|f| f.facts().value, |a| a.value)(x)
    }

    /// Its value on an integer, which wraps; `None` where it takes none.
    pub fn integer(self, x: i64) -> Option<i64> {
        self.activation().map_or_else(|f| f.facts().integer, |a| a.integer).map(|f| f(x))
    }

    /// The gradient; `None` where it is 0.
    pub fn derivative(self) -> Option<Derivative> {
        self.activation().map_or_else(|f| f.facts().derivative, |a| Some(a.derivative))
    }

    /// Between which numbers tests draw x.
    pub fn domain(self) -> (f64, f64) {
        self.activation().map_or_else(|f| f.facts().domain, |a| a.domain)
    }

    /// Appends the function of `x` to a program; gives the result's register.
    pub fn write(self, w: &mut ProgramWriter, x: Reg) -> Reg {
        match self.activation() {
            Ok(activation) => (activation.program)(w, x),
            Err(f) => w.unary(f, x),
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
