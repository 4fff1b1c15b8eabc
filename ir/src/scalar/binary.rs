//! The functions of two numbers. Their derivatives stand with the op
//! ([`crate::ops::elementwise::BinaryOp`]), which asks which of the two are wanted.

use super::unary::EVERYWHERE;
use crate::reduce_kind::ReduceKind;
use serde::{Deserialize, Serialize};

/// The facts about a function.
pub struct BinaryFacts {
    /// The name in text.
    pub name: &'static str,
    /// Its value, by definition.
    pub value: fn(f64, f64) -> f64,
    /// Its value on integers, which wrap; `None` where there is none.
    pub integer: fn(i64, i64) -> Option<i64>,
    /// About how much work it is; an addition is 1.
    pub cost: u32,
    /// Between which numbers tests draw a and b: where the function and its derivative are smooth.
    pub domain: [(f64, f64); 2],
    /// Whether the result is a truth value.
    pub is_logical: bool,
    /// Whether `f(a, b) == f(b, a)`.
    pub commutes: bool,
}

macro_rules! binary {
    ($($(#[$doc:meta])* $function:ident = $facts:expr,)*) => {
        /// A function of two numbers. Comparisons give 1 or 0. The order is that of their numbers
        /// in plan files.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Binary {
            $($(#[$doc])* $function,)*
        }

        impl Binary {
            /// Every function.
            pub const ALL: [Binary; [$(Binary::$function),*].len()] = [$(Binary::$function),*];

            /// The facts about it.
            pub fn facts(self) -> &'static BinaryFacts {
                match self {
                    $(Binary::$function => {
                        const FACTS: BinaryFacts = $facts;
                        &FACTS
                    })*
                }
            }
        }
    };
}

binary! {
    /// `a + b`
    Add = BinaryFacts {
        name: "add",
        value: |a, b| a + b,
        integer: |a, b| Some(a.wrapping_add(b)),
        cost: 1,
        domain: [EVERYWHERE, EVERYWHERE],
        is_logical: false,
        commutes: true,
    },
    /// `a - b`
    Sub = BinaryFacts {
        name: "sub",
        value: |a, b| a - b,
        integer: |a, b| Some(a.wrapping_sub(b)),
        cost: 1,
        domain: [EVERYWHERE, EVERYWHERE],
        is_logical: false,
        commutes: false,
    },
    /// `a * b`
    Mul = BinaryFacts {
        name: "mul",
        value: |a, b| a * b,
        integer: |a, b| Some(a.wrapping_mul(b)),
        cost: 1,
        domain: [EVERYWHERE, EVERYWHERE],
        is_logical: false,
        commutes: true,
    },
    /// `a / b`; integers truncate toward zero
    Div = BinaryFacts {
        name: "div",
        value: |a, b| a / b,
        integer: |a, b| (b != 0).then(|| a.wrapping_div(b)),
        cost: 1,
        domain: [EVERYWHERE, (0.4, 2.0)],
        is_logical: false,
        commutes: false,
    },
    /// `a^b`
    Pow = BinaryFacts {
        name: "pow",
        value: f64::powf,
        integer: |a, b| Some(power(a, b)),
        cost: 12,
        domain: [(0.4, 2.0), EVERYWHERE],
        is_logical: false,
        commutes: false,
    },
    /// the larger; not a number if either is
    Max = BinaryFacts {
        name: "max",
        value: |a, b| ReduceKind::Max.combine(a, b),
        integer: |a, b| Some(a.max(b)),
        cost: 1,
        domain: [EVERYWHERE, EVERYWHERE],
        is_logical: false,
        commutes: true,
    },
    /// the smaller; not a number if either is
    Min = BinaryFacts {
        name: "min",
        value: |a, b| ReduceKind::Min.combine(a, b),
        integer: |a, b| Some(a.min(b)),
        cost: 1,
        domain: [EVERYWHERE, EVERYWHERE],
        is_logical: false,
        commutes: true,
    },
    /// remainder with the sign of the divisor (Python's `%`)
    Mod = BinaryFacts {
        name: "mod",
        value: remainder,
        integer: |a, b| (b != 0).then(|| integer_remainder(a, b)),
        cost: 12,
        // No quotient crosses a whole number, where the remainder jumps.
        domain: [(2.2, 2.8), (0.97, 1.05)],
        is_logical: false,
        commutes: false,
    },
    /// `a == b`
    Eq = BinaryFacts {
        name: "eq",
        value: |a, b| f64::from(a == b),
        integer: |a, b| Some(i64::from(a == b)),
        cost: 1,
        domain: [EVERYWHERE, EVERYWHERE],
        is_logical: true,
        commutes: true,
    },
    /// `a < b`
    Lt = BinaryFacts {
        name: "lt",
        value: |a, b| f64::from(a < b),
        integer: |a, b| Some(i64::from(a < b)),
        cost: 1,
        domain: [EVERYWHERE, EVERYWHERE],
        is_logical: true,
        commutes: false,
    },
    /// `a <= b`
    Le = BinaryFacts {
        name: "le",
        value: |a, b| f64::from(a <= b),
        integer: |a, b| Some(i64::from(a <= b)),
        cost: 1,
        domain: [EVERYWHERE, EVERYWHERE],
        is_logical: true,
        commutes: false,
    },
    /// both nonzero
    And = BinaryFacts {
        name: "and",
        value: |a, b| f64::from(a != 0.0 && b != 0.0),
        integer: |a, b| Some(i64::from(a != 0 && b != 0)),
        cost: 1,
        domain: [EVERYWHERE, EVERYWHERE],
        is_logical: true,
        commutes: true,
    },
    /// either nonzero
    Or = BinaryFacts {
        name: "or",
        value: |a, b| f64::from(a != 0.0 || b != 0.0),
        integer: |a, b| Some(i64::from(a != 0 || b != 0)),
        cost: 1,
        domain: [EVERYWHERE, EVERYWHERE],
        is_logical: true,
        commutes: true,
    },
    /// exactly one nonzero
    Xor = BinaryFacts {
        name: "xor",
        value: |a, b| f64::from((a != 0.0) != (b != 0.0)),
        integer: |a, b| Some(i64::from((a != 0) != (b != 0))),
        cost: 1,
        domain: [EVERYWHERE, EVERYWHERE],
        is_logical: true,
        commutes: true,
    },
}

impl Binary {
    /// The name in text.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Whether the result is a truth value.
    pub fn is_logical(self) -> bool {
        self.facts().is_logical
    }

    /// Whether `f(a, b) == f(b, a)`.
    pub fn commutes(self) -> bool {
        self.facts().commutes
    }
}

/// The remainder with the sign of the divisor.
fn remainder(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
}

/// The remainder with the sign of the divisor, which is not 0.
fn integer_remainder(a: i64, b: i64) -> i64 {
    let rest = a.wrapping_rem(b);
    if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
}

/// `a^b`; a negative exponent truncates toward zero.
fn power(a: i64, b: i64) -> i64 {
    match (a, b) {
        (_, 0) | (1, _) => 1,
        (-1, _) => 1 - 2 * (b & 1),
        (_, b) if b < 0 => 0,
        (a, b) => a.wrapping_pow(b.min(i64::from(u32::MAX)) as u32),
    }
}
