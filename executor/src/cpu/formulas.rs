//! Activations and their slopes, and the parts of a cross entropy, each as one loop.
//!
//! Instruction by instruction, each intermediate result of a block would go through the first
//! cache. A formula keeps them in registers. It is written once, over any type that has the
//! functions of the IR: over numbers it computes, over [`Term`]s it says which instructions it
//! stands for. The operations and their order are those of the instructions, and so are the bits,
//! but for which not-a-number it is.

use crate::cpu::functions::{Functions, functions};
use crate::cpu::number::Number;
use crate::cpu::simd::simd;
use shardc_ir::scalar::{Binary, Unary};
use std::cell::RefCell;

/// Operands that differ from element to element, of the formula that has most.
pub const OPERANDS: usize = 3;
/// Numbers that all elements share, of the formula that has most.
pub const NUMBERS: usize = 7;

macro_rules! formulas {
    ($($(#[$doc:meta])* $name:ident([$x:ident, $y:ident, $g:ident], $numbers:pat) = $value:expr;)*) => {
        /// A formula of up to three operands. A slope is of `x`, of what the function is there
        /// (`y`), and of the result's gradient (`g`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Formula {
            $($(#[$doc])* $name,)*
        }

        impl Formula {
            /// Every formula.
            pub const ALL: &[Formula] = &[$(Formula::$name),*];

            /// Its instructions.
            pub fn terms(self) -> Vec<Node> {
                let nodes = RefCell::new(vec![]);
                let leaf = |node| Term { nodes: &nodes, at: 0 }.then(node);
                let operands = std::array::from_fn(|i| leaf(Node::Operand(i)));
                let numbers = std::array::from_fn(|i| leaf(Node::Number(i)));
                match self {
                    $(Formula::$name => $name::of(operands, numbers),)*
                };
                nodes.into_inner()
            }

            /// `out[i] = formula(operands[..][i])`
            pub fn run<T: Number>(self, operands: [&[T]; OPERANDS], numbers: [T; NUMBERS], out: &mut [T]) {
                match self {
                    $(Formula::$name => each::<T, $name>($name, operands, numbers, out),)*
                }
            }
        }

        $(
            struct $name;

            impl Written for $name {
                #[inline(always)]
                fn of<V: Value>([$x, $y, $g]: [V; OPERANDS], $numbers: [V; NUMBERS]) -> V {
                    $value
                }
            }
        )*
    };
}

// What others are made of stands behind them.
formulas! {
    /// The slope of [`Formula::GeluTanh`] times `g`.
    GeluTanhSlope([x, _y, g], [cubic, linear, triple, slope, one, plus, half]) = {
        let square = x.mul(x);
        let tanh = x.mul(square.mul(cubic).add(linear)).tanh();
        let inner = tanh.mul(tanh).neg().add(one).mul(square.mul(triple).add(slope));
        g.mul(tanh.add(x.mul(inner)).add(plus).mul(half))
    };
    /// The slope of [`Formula::Gelu`] times `g`.
    GeluSlope([x, _y, g], [root, one, half, bell, density, ..]) = {
        let below = x.mul(root).erf().add(one).mul(half);
        g.mul(below.add(x.mul(x.mul(x).mul(bell).exp().mul(density))))
    };
    /// The slope of [`Formula::Silu`] times `g`.
    SiluSlope([x, y, g], _) = {
        let s = x.sigmoid();
        g.mul(s.add(y).sub(y.mul(s)))
    };
    /// `x * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2`
    GeluTanh([x, _y, _g], [cubic, one, factor, plus, half, ..]) = {
        let inner = x.mul(x.mul(x).mul(cubic).add(one));
        x.mul(half).mul(inner.mul(factor).tanh().add(plus))
    };
    /// `x * (1 + erf(x / sqrt 2)) / 2`
    Gelu([x, _y, _g], [root, plus, half, ..]) = x.mul(half).mul(x.mul(root).erf().add(plus));
    /// `x * sigmoid(x)`
    Silu([x, _y, _g], _) = x.mul(x.sigmoid());
    /// `g + factor * exp(x - shift)`
    ExponentialOnto([x, _y, g], [shift, factor, ..]) = g.add(factor.mul(x.sub(shift).exp()));
    /// `exp(x - shift)`
    Exponential([x, _y, _g], [shift, ..]) = x.sub(shift).exp();
    /// `y` where `x` is a number, else another number.
    Picked([x, y, _g], [sought, other, ..]) = x.equals(sought).select(y, other);
    /// A number where `x` is another one, else a third.
    OneHot([x, _y, _g], [sought, hot, cold, ..]) = x.equals(sought).select(hot, cold);
}

/// What formulas are written over.
trait Value: Functions + Copy {
    /// `a` where this is not 0, else `b`.
    fn select(self, a: Self, b: Self) -> Self;
}

impl<T: Number> Value for T {
    #[inline(always)]
    fn select(self, a: T, b: T) -> T {
        if self.is_true() { a } else { b }
    }
}

trait Written {
    fn of<V: Value>(operands: [V; OPERANDS], numbers: [V; NUMBERS]) -> V;
}

simd! {
    fn each<T: Number, F: Written>(_formula: F, operands: [&[T]; OPERANDS], numbers: [T; NUMBERS], out: &mut [T]) {
        let [x, y, g] = operands;
        for (((out, x), y), g) in out.iter_mut().zip(x).zip(y).zip(g) {
            *out = F::of([*x, *y, *g], numbers);
        }
    }
}

/// A step of a formula, over earlier ones.
#[derive(Debug, Clone, Copy)]
pub enum Node {
    Operand(usize),
    Number(usize),
    Unary(Unary, usize),
    Binary(Binary, usize, usize),
    Select(usize, usize, usize),
}

/// What a formula computes with to say what it is made of: each function adds a step.
#[derive(Clone, Copy)]
struct Term<'a> {
    nodes: &'a RefCell<Vec<Node>>,
    at: usize,
}

impl Term<'_> {
    fn then(self, node: Node) -> Self {
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(node);
        Term { at: nodes.len() - 1, ..self }
    }
}

impl Value for Term<'_> {
    fn select(self, a: Self, b: Self) -> Self {
        self.then(Node::Select(self.at, a.at, b.at))
    }
}

macro_rules! written {
    (
        ()
        unary { $($of_one:ident $unary:ident($x:ident): $unary_float:expr, $unary_integer:expr;)* }
        binary { $($of_two:ident $binary:ident($a:ident, $b:ident): $binary_float:expr, $binary_integer:expr;)* }
    ) => {
        impl Functions for Term<'_> {
            $(fn $unary(self) -> Self {
                self.then(Node::Unary(Unary::$of_one, self.at))
            })*
            $(fn $binary(self, other: Self) -> Self {
                self.then(Node::Binary(Binary::$of_two, self.at, other.at))
            })*
        }
    };
}
functions!(written());
