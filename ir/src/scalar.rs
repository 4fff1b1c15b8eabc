//! Scalar functions and the straight-line programs that fused elementwise kernels run.
//!
//! A function is one row of [`unary`] or [`binary`]: its name, its value on floats and integers,
//! its derivative, its cost and where tests draw its operands. Backends compute it by themselves.

pub mod binary;
pub mod padding;
pub mod rounding;
pub mod unary;
mod writer;

pub use binary::Binary;
pub use rounding::Rounding;
pub use unary::Unary;
pub use writer::ProgramWriter;

use serde::{Deserialize, Serialize};

/// A register: the program's inputs come first, then one for each instruction.
pub type Reg = u16;

/// One instruction of a [`ScalarProgram`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Instr {
    /// A constant.
    Const(f64),
    /// The element's index along an iteration dimension of the kernel, plus the kernel's origin for
    /// that dimension.
    Index(u16),
    /// `f(a)`
    Unary(Unary, Reg),
    /// `f(a, b)`
    Binary(Binary, Reg, Reg),
    /// `b` where `a` is not 0, else `c`
    Select(Reg, Reg, Reg),
    /// `a` rounded to fewer bits
    Round(Rounding, Reg),
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
            Instr::Round(to, a) => Instr::Round(to, register(a)),
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

    /// About how much work one element is; an addition is 1.
    pub fn cost(&self) -> u32 {
        let cost = |instr: &Instr| match instr {
            Instr::Const(_) | Instr::Index(_) => 0,
            Instr::Unary(f, _) => f.facts().cost,
            Instr::Binary(f, ..) => f.facts().cost,
            Instr::Select(..) => 1,
            Instr::Round(..) => 2,
        };
        self.code.iter().map(cost).sum()
    }

    /// The functions that one element takes; constants, indices and roundings are none.
    pub fn functions(&self) -> u64 {
        let counts = |instr: &&Instr| !matches!(instr, Instr::Const(_) | Instr::Index(_) | Instr::Round(..));
        self.code.iter().filter(counts).count() as u64
    }

    /// Rounds each output that has a rounding.
    pub fn round(&mut self, roundings: &[Option<Rounding>]) {
        for (output, rounding) in self.outputs.iter_mut().zip(roundings) {
            if let Some(rounding) = rounding {
                self.code.push(Instr::Round(*rounding, *output));
                *output = self.inputs + (self.code.len() - 1) as Reg;
            }
        }
    }

    /// The number of registers.
    pub fn registers(&self) -> usize {
        self.inputs as usize + self.code.len()
    }
}
