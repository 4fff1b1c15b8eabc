//! Fused elementwise programs made ready: where each register lives, what is the same for all
//! elements, what is loaded how.
//!
//! A program runs over blocks of a few KiB of elements, so that its registers stay in the
//! first-level cache. Contiguous inputs of the compute type are read in place, results are computed
//! in their output, and what depends on no element (learning rates, powers of the step count) is
//! computed once a launch.

use crate::cpu::formulas::{Formula, NUMBERS, OPERANDS};
use crate::cpu::lanes::Then;
use crate::cpu::map::table::Table;
use crate::cpu::map::update::Update;
use shardc_ir::dtype::DType;
use shardc_ir::scalar::{Binary, Rounding, Unary};
use std::sync::Arc;

/// The place of an instruction's operand while a block runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// The same for all elements.
    Uniform(usize),
    /// Read straight from the leaf's memory.
    Direct(usize),
    /// Read from the leaf's memory, where each row of the space has neighbours or one element.
    Row(usize),
    /// A block of scratch.
    Slot(usize),
    /// The block of an output.
    Output(usize),
}

/// The place of an instruction's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Slot(usize),
    Output(usize),
}

impl From<Target> for Storage {
    fn from(target: Target) -> Storage {
        match target {
            Target::Slot(slot) => Storage::Slot(slot),
            Target::Output(output) => Storage::Output(output),
        }
    }
}

/// An instruction over operands of kind `P`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Op<P> {
    Unary(Unary, P),
    Round(Rounding, P),
    Binary(Binary, P, P),
    Select(P, P, P),
    /// `then(f(a, b), c)`, see [`Then`]; `a` is not uniform.
    Chain(Binary, Then, P, P, P),
    /// Many instructions in one.
    Formula(Call<P>),
}

/// A formula and what it is of; none where it has fewer operands or numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<P> {
    pub formula: Formula,
    pub operands: [Option<P>; OPERANDS],
    pub numbers: [Option<P>; NUMBERS],
}

/// The contents of a register without operands.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// The kernel's operand of that number.
    Operand(usize),
    /// An operand that is the same memory as that output.
    InPlace(usize),
    /// Global indices along a dimension of the original space.
    Index(Arc<Table>),
}

/// A register without operands, and its strides over the collapsed space.
#[derive(Debug)]
pub(super) struct Leaf {
    pub source: Source,
    pub strides: Vec<isize>,
}

/// A leaf that is copied to a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub leaf: usize,
    pub slot: usize,
    /// It depends on the last dimension only, and blocks are whole rows: the first block's copy
    /// serves all.
    pub once: bool,
}

/// How a uniform register is computed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Uniform {
    Const(f64),
    Leaf(usize),
    Op(Op<usize>),
}

/// A program made ready for one layout of its operands.
#[derive(Debug)]
pub struct Fused {
    /// The collapsed iteration space.
    pub shape: Vec<usize>,
    /// Its number of elements.
    pub total: usize,
    /// The register type: f64, f32 or i64.
    pub compute: DType,
    /// Whether no block has elements of two rows, so that leaves may be read row by row.
    pub(super) by_rows: bool,
    /// About how much work one element is, in simple instructions.
    pub weight: usize,
    pub(super) leaves: Vec<Leaf>,
    pub(super) uniform: Vec<Uniform>,
    pub(super) loads: Vec<Load>,
    /// What runs in place of the instructions, where they are an update of a parameter.
    pub(super) update: Option<Update>,
    pub(super) ops: Vec<(Op<Storage>, Target)>,
    pub(super) results: Vec<Storage>,
    pub(super) slots: usize,
}

impl Fused {
    /// Elements of one block: whole rows of the last dimension where they fit (one of them if
    /// leaves are read row by row), else a part of a row.
    pub fn block(&self) -> usize {
        let most = 4096 / self.compute.bytes() as usize;
        let row = self.shape.last().copied().unwrap_or(1).max(1);
        match self.by_rows {
            true => row.min(most),
            false if row <= most => most / row * row,
            false => most,
        }
    }

    /// The length of the block that begins at `start` where `end` is the last one's end.
    pub fn block_at(&self, start: usize, end: usize) -> usize {
        let (block, row) = (self.block(), self.shape.last().copied().unwrap_or(1).max(1));
        let within = if row > block { row - start % row } else { block };
        block.min(within).min(end - start)
    }

    /// The leaf whose elements, in order and of the compute type, the one result is the squares of.
    pub fn squares(&self) -> Option<usize> {
        let ([], [(Op::Binary(Binary::Mul, Storage::Direct(a), Storage::Direct(b)), target)]) = (&self.loads[..], &self.ops[..])
        else {
            return None;
        };
        let is_square = a == b && self.results[..] == [Storage::from(*target)];
        (is_square && self.shape.len() == 1 && self.leaves[*a].strides == [1]).then_some(*a)
    }
}

impl<P: Copy> Op<P> {
    /// The operands, in order.
    pub fn operands(self) -> impl Iterator<Item = P> {
        let (few, numbers) = match self {
            Op::Unary(_, a) | Op::Round(_, a) => ([Some(a), None, None], [None; NUMBERS]),
            Op::Binary(_, a, b) => ([Some(a), Some(b), None], [None; NUMBERS]),
            Op::Select(a, b, c) | Op::Chain(_, _, a, b, c) => ([Some(a), Some(b), Some(c)], [None; NUMBERS]),
            Op::Formula(call) => (call.operands, call.numbers),
        };
        few.into_iter().chain(numbers).flatten()
    }

    /// The same instruction over other operands, if there is one for each.
    pub fn map<Q>(self, f: impl Fn(P) -> Option<Q>) -> Option<Op<Q>> {
        Some(match self {
            Op::Unary(g, a) => Op::Unary(g, f(a)?),
            Op::Round(to, a) => Op::Round(to, f(a)?),
            Op::Binary(g, a, b) => Op::Binary(g, f(a)?, f(b)?),
            Op::Select(a, b, c) => Op::Select(f(a)?, f(b)?, f(c)?),
            Op::Chain(g, then, a, b, c) => Op::Chain(g, then, f(a)?, f(b)?, f(c)?),
            Op::Formula(call) => Op::Formula(call.map(f)?),
        })
    }
}

impl<P: Copy> Call<P> {
    fn map<Q>(self, f: impl Fn(P) -> Option<Q>) -> Option<Call<Q>> {
        let (mut operands, mut numbers) = ([const { None }; OPERANDS], [const { None }; NUMBERS]);
        for (to, of) in operands.iter_mut().chain(&mut numbers).zip(self.operands.into_iter().chain(self.numbers)) {
            if let Some(of) = of {
                *to = Some(f(of)?);
            }
        }
        Some(Call { formula: self.formula, operands, numbers })
    }
}
