//! The functions of one number.

use super::{ProgramWriter, Reg};
use serde::{Deserialize, Serialize};
use std::f64::consts::FRAC_2_SQRT_PI;

/// The facts about a function.
pub struct UnaryFacts {
    /// The name in text.
    pub name: &'static str,
    /// Its value, by definition.
    pub value: fn(f64) -> f64,
    /// Its value on integers, which wrap; `None` where it takes none.
    pub integer: Option<fn(i64) -> i64>,
    /// The gradient of x from x, y = f(x) and the gradient of y, as instructions of a scalar
    /// program; `None` where it is 0.
    pub derivative: Option<fn(&mut ProgramWriter, [Reg; 3]) -> Reg>,
    /// About how much work it is; an addition is 1.
    pub cost: u32,
    /// Between which numbers tests draw x: where the function and its derivative are smooth.
    pub domain: (f64, f64),
    /// Whether the result is a truth value.
    pub is_logical: bool,
}

/// Numbers that any function takes.
pub const EVERYWHERE: (f64, f64) = (-2.0, 2.0);

macro_rules! unary {
    ($($(#[$doc:meta])* $function:ident = $facts:expr,)*) => {
        /// A function of one number. The order is that of their numbers in plan files.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Unary {
            $($(#[$doc])* $function,)*
        }

        impl Unary {
            /// Every function.
            pub const ALL: [Unary; [$(Unary::$function),*].len()] = [$(Unary::$function),*];

            /// The facts about it.
            pub fn facts(self) -> &'static UnaryFacts {
                match self {
                    $(Unary::$function => {
                        const FACTS: UnaryFacts = $facts;
                        &FACTS
                    })*
                }
            }
        }
    };
}

unary! {
    /// `-x`
    Neg = UnaryFacts {
        name: "neg",
        value: |x| -x,
        integer: Some(i64::wrapping_neg),
        derivative: Some(|w, [_, _, g]| w.unary(Unary::Neg, g)),
        cost: 1,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// `|x|`
    Abs = UnaryFacts {
        name: "abs",
        value: f64::abs,
        integer: Some(i64::wrapping_abs),
        derivative: Some(|w, [x, _, g]| {
            let sign = w.unary(Unary::Sign, x);
            w.mul(g, sign)
        }),
        cost: 1,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// -1, 0 or 1
    Sign = UnaryFacts {
        name: "sign",
        value: |x| if x == 0.0 || x.is_nan() { x } else { x.signum() },
        integer: Some(i64::signum),
        derivative: None,
        cost: 1,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// `e^x`
    Exp = UnaryFacts {
        name: "exp",
        value: f64::exp,
        integer: None,
        derivative: Some(|w, [_, y, g]| w.mul(g, y)),
        cost: 6,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// natural logarithm
    Log = UnaryFacts {
        name: "log",
        value: f64::ln,
        integer: None,
        derivative: Some(|w, [x, _, g]| w.div(g, x)),
        cost: 6,
        domain: (0.3, 2.9),
        is_logical: false,
    },
    /// square root
    Sqrt = UnaryFacts {
        name: "sqrt",
        value: f64::sqrt,
        integer: None,
        derivative: Some(|w, [_, y, g]| {
            let half = w.scale(g, 0.5);
            w.div(half, y)
        }),
        cost: 1,
        domain: (0.3, 2.9),
        is_logical: false,
    },
    /// `1/x`
    Reciprocal = UnaryFacts {
        name: "reciprocal",
        value: |x| 1.0 / x,
        integer: None,
        derivative: Some(|w, [_, y, g]| {
            let square = w.mul(y, y);
            let product = w.mul(g, square);
            w.unary(Unary::Neg, product)
        }),
        cost: 1,
        domain: (0.3, 2.9),
        is_logical: false,
    },
    /// sine
    Sin = UnaryFacts {
        name: "sin",
        value: f64::sin,
        integer: None,
        derivative: Some(|w, [x, _, g]| {
            let cos = w.unary(Unary::Cos, x);
            w.mul(g, cos)
        }),
        cost: 6,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// cosine
    Cos = UnaryFacts {
        name: "cos",
        value: f64::cos,
        integer: None,
        derivative: Some(|w, [x, _, g]| {
            let sin = w.unary(Unary::Sin, x);
            let product = w.mul(g, sin);
            w.unary(Unary::Neg, product)
        }),
        cost: 6,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// inverse tangent
    Atan = UnaryFacts {
        name: "atan",
        value: f64::atan,
        integer: None,
        derivative: Some(|w, [x, _, g]| {
            let square = w.mul(x, x);
            let divisor = w.offset(square, 1.0);
            w.div(g, divisor)
        }),
        cost: 6,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// hyperbolic tangent
    Tanh = UnaryFacts {
        name: "tanh",
        value: f64::tanh,
        integer: None,
        derivative: Some(|w, [_, y, g]| {
            let slope = one_minus_square(w, y);
            w.mul(g, slope)
        }),
        cost: 6,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// error function
    Erf = UnaryFacts {
        name: "erf",
        value: erf,
        integer: None,
        derivative: Some(|w, [x, _, g]| {
            let bell = bell(w, x, -1.0);
            let slope = w.scale(bell, FRAC_2_SQRT_PI);
            w.mul(g, slope)
        }),
        cost: 6,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// `1/(1+e^-x)`
    Sigmoid = UnaryFacts {
        name: "sigmoid",
        value: sigmoid,
        integer: None,
        derivative: Some(|w, [_, y, g]| {
            let square = w.mul(y, y);
            let slope = w.sub(y, square);
            w.mul(g, slope)
        }),
        cost: 6,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// largest integer not above
    Floor = UnaryFacts {
        name: "floor",
        value: f64::floor,
        integer: Some(|x| x),
        derivative: None,
        cost: 1,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// smallest integer not below
    Ceil = UnaryFacts {
        name: "ceil",
        value: f64::ceil,
        integer: Some(|x| x),
        derivative: None,
        cost: 1,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// nearest integer, ties to even
    Round = UnaryFacts {
        name: "round",
        value: f64::round_ties_even,
        integer: Some(|x| x),
        derivative: None,
        cost: 1,
        domain: EVERYWHERE,
        is_logical: false,
    },
    /// 1 where x is 0, else 0
    Not = UnaryFacts {
        name: "not",
        value: |x| f64::from(x == 0.0),
        integer: Some(|x| i64::from(x == 0)),
        derivative: None,
        cost: 1,
        domain: EVERYWHERE,
        is_logical: true,
    },
    /// 1 where x is not a number, else 0
    IsNan = UnaryFacts {
        name: "is_nan",
        value: |x| f64::from(x.is_nan()),
        integer: Some(|_| 0),
        derivative: None,
        cost: 1,
        domain: EVERYWHERE,
        is_logical: true,
    },
}

impl Unary {
    /// The name in text.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Whether the result is a truth value.
    pub fn is_logical(self) -> bool {
        self.facts().is_logical
    }
}

/// `1 - y^2`
pub(crate) fn one_minus_square(w: &mut ProgramWriter, y: Reg) -> Reg {
    let square = w.mul(y, y);
    let negative = w.unary(Unary::Neg, square);
    w.offset(negative, 1.0)
}

/// `exp(factor * x^2)`
pub(crate) fn bell(w: &mut ProgramWriter, x: Reg, factor: f64) -> Reg {
    let square = w.mul(x, x);
    let scaled = w.scale(square, factor);
    w.unary(Unary::Exp, scaled)
}

/// `1/(1+e^-x)`
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function by its series of positive terms,
/// `2/sqrt(pi) e^(-x^2) sum 2^n x^(2n+1) / (2n+1)!!`.
/// Source: Abramowitz, Stegun: Handbook of Mathematical Functions, 7.1.6.
pub(crate) fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > sum.abs() * 1e-18 {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}
