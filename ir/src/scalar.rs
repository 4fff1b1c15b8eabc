//! Scalar functions and the straight-line programs that fused elementwise kernels run.

use serde::{Deserialize, Serialize};

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unary {
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// -1, 0 or 1
    Sign,
    /// `e^x`
    Exp,
    /// natural logarithm
    Log,
    /// square root
    Sqrt,
    /// `1/x`
    Reciprocal,
    /// sine
    Sin,
    /// cosine
    Cos,
    /// inverse tangent
    Atan,
    /// hyperbolic tangent
    Tanh,
    /// error function
    Erf,
    /// `1/(1+e^-x)`
    Sigmoid,
    /// largest integer not above
    Floor,
    /// smallest integer not below
    Ceil,
    /// nearest integer, ties to even
    Round,
    /// 1 where x is 0, else 0
    Not,
    /// 1 where x is not a number, else 0
    IsNan,
}

/// A function of two numbers. Comparisons give 1 or 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`; integers truncate toward zero
    Div,
    /// `a^b`
    Pow,
    /// the larger; not a number if either is
    Max,
    /// the smaller; not a number if either is
    Min,
    /// remainder with the sign of the divisor (Python's `%`)
    Mod,
    /// `a == b`
    Eq,
    /// `a < b`
    Lt,
    /// `a <= b`
    Le,
    /// both nonzero
    And,
    /// either nonzero
    Or,
    /// exactly one nonzero
    Xor,
}

impl Binary {
    /// Every function.
    pub const ALL: [Binary; 14] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Pow,
        Binary::Max,
        Binary::Min,
        Binary::Mod,
        Binary::Eq,
        Binary::Lt,
        Binary::Le,
        Binary::And,
        Binary::Or,
        Binary::Xor,
    ];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::Pow => "pow",
            Binary::Max => "max",
            Binary::Min => "min",
            Binary::Mod => "mod",
            Binary::Eq => "eq",
            Binary::Lt => "lt",
            Binary::Le => "le",
            Binary::And => "and",
            Binary::Or => "or",
            Binary::Xor => "xor",
        }
    }

    /// Whether the result is a truth value.
    pub fn is_logical(self) -> bool {
        matches!(self, Binary::Eq | Binary::Lt | Binary::Le | Binary::And | Binary::Or | Binary::Xor)
    }

    /// Whether `f(a, b) == f(b, a)`.
    pub fn commutes(self) -> bool {
        !matches!(self, Binary::Sub | Binary::Div | Binary::Pow | Binary::Mod | Binary::Lt | Binary::Le)
    }
}

impl Unary {
    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Unary::Neg => "neg",
            Unary::Abs => "abs",
            Unary::Sign => "sign",
            Unary::Exp => "exp",
            Unary::Log => "log",
            Unary::Sqrt => "sqrt",
            Unary::Reciprocal => "reciprocal",
            Unary::Sin => "sin",
            Unary::Cos => "cos",
            Unary::Atan => "atan",
            Unary::Tanh => "tanh",
            Unary::Erf => "erf",
            Unary::Sigmoid => "sigmoid",
            Unary::Floor => "floor",
            Unary::Ceil => "ceil",
            Unary::Round => "round",
            Unary::Not => "not",
            Unary::IsNan => "is_nan",
        }
    }

    /// Whether the result is a truth value.
    pub fn is_logical(self) -> bool {
        matches!(self, Unary::Not | Unary::IsNan)
    }
}

/// A register: the program's inputs come first, then one for each instruction.
pub type Reg = u16;

/// One instruction of a [`ScalarProgram`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Instr {
    /// A constant.
    Const(f64),
    /// The element's index along an iteration dimension of the kernel, plus the kernel's origin for that dimension.
    Index(u16),
    /// `f(a)`
    Unary(Unary, Reg),
    /// `f(a, b)`
    Binary(Binary, Reg, Reg),
    /// `b` where `a` is not 0, else `c`
    Select(Reg, Reg, Reg),
}

impl Instr {
    /// The same instruction over other registers, and of another dimension where it is an index.
    pub fn map(self, register: impl Fn(Reg) -> Reg, dim: impl Fn(u16) -> u16) -> Instr {
        match self {
            Instr::Const(value) => Instr::Const(value),
            Instr::Index(d) => Instr::Index(dim(d)),
            Instr::Unary(f, a) => Instr::Unary(f, register(a)),
            Instr::Binary(f, a, b) => Instr::Binary(f, register(a), register(b)),
            Instr::Select(a, b, c) => Instr::Select(register(a), register(b), register(c)),
        }
    }
}

/// A straight-line program over one element of each input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScalarProgram {
    /// The number of inputs: registers `0..inputs`.
    pub inputs: u16,
    /// Instruction `i` defines register `inputs + i`.
    pub code: Vec<Instr>,
    /// The registers that are the results.
    pub outputs: Vec<Reg>,
}

impl ScalarProgram {
    /// The program that gives its one input back.
    pub fn identity() -> ScalarProgram {
        ScalarProgram { inputs: 1, code: vec![], outputs: vec![0] }
    }

    /// The number of registers.
    pub fn registers(&self) -> usize {
        self.inputs as usize + self.code.len()
    }
}
