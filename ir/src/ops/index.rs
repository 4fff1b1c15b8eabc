//! Ops that read or make positions.

use super::{Backward, Linear, NoGradient, Rules, named};
use crate::dtype::DType;
use crate::kernel::{self, Kernel};
use crate::letters::{Letters, Role};
use crate::lower::{Elementwise, Extent, LowerContext, Lowered};
use crate::position::Origin;
use crate::reason;
use crate::reason::Reason;
use crate::reduce_kind::ReduceKind;
use crate::scalar::{Binary, Instr, ProgramWriter};
use crate::types::{Type, checked_elements};
use serde::{Deserialize, Serialize};

/// Rows of a table along `axis`, by index. Operands: table, indices. The first `batch` dimensions
/// of both are the same, and each of their positions has rows and indices of its own; the indices'
/// other dimensions stand where `axis` was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gather {
    /// The indexed dimension.
    pub axis: usize,
    /// How many leading dimensions table and indices share; at most `axis`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub batch: usize,
    /// A row that what reads it here gives no gradient, as `padding_idx` of `torch.nn.Embedding`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untrained: Option<u64>,
}
named!(Gather, "gather");

impl Gather {
    /// A gather from one table.
    pub fn along(axis: usize) -> Gather {
        Gather::batched(axis, 0)
    }

    /// A gather from a table for each position of the first `batch` dimensions.
    pub fn batched(axis: usize, batch: usize) -> Gather {
        Gather { axis, batch, untrained: None }
    }
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Rules for Gather {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [table, indices] = operands else { return Err("takes a table and indices".into()) };
        if indices.dtype != DType::I64 || self.axis >= table.rank() {
            return Err(reason!("axis {} of {table} by {indices}", self.axis));
        }
        if let Some(row) = self.untrained.filter(|row| *row >= table.shape[self.axis]) {
            return Err(reason!("row {row} of {table} along axis {}", self.axis));
        }
        let own = separate(indices, self.batch, self.axis, &table.shape)?;
        let mut shape = table.shape.clone();
        shape.splice(self.axis..=self.axis, own.iter().copied());
        Ok(vec![Type::new(table.dtype, shape)])
    }

    fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
        table_letters(&operands[0], &operands[1], self, Position::Operands)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Only(0)
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (mut g, indices) = (cx.grad(), cx.operands[1]);
        let table = cx.b.ty(cx.operands[0]).shape.clone();
        let size = table[self.axis];
        if let Some(row) = self.untrained {
            let own = cx.b.ty(indices).shape.clone();
            let ones = |dims: std::ops::Range<usize>| vec![1; dims.len()];
            let beside =
                [&own[..self.batch], &ones(self.batch..self.axis), &own[self.batch..], &ones(self.axis + 1..table.len())];
            let (row, zero) = (cx.b.number(DType::I64, row as f64), cx.b.number_like(g, 0.0));
            let untrained = cx.b.binary(Binary::Eq, indices, row);
            let untrained = cx.b.reshape(untrained, &beside.concat());
            g = cx.b.select(untrained, zero, g);
        }
        let dx = cx.b.op(ScatterAdd { axis: self.axis, batch: self.batch, size }, &[indices, g]);
        cx.give(0, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        true
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let origin = cx.operand_origin(0, self.axis);
        let kernel = self.kernel(&cx.operands[0], &cx.operands[1], origin);
        Lowered::launch(Kernel::Gather(kernel), 2, 1)
    }
}

impl Gather {
    fn kernel(&self, table: &Extent, indices: &Extent, origin: Origin) -> kernel::Gather {
        kernel::Gather {
            dtype: table.ty.dtype,
            batch: table.local[..self.batch].iter().product(),
            outer: table.local[self.batch..self.axis].iter().product(),
            rows: table.local[self.axis],
            total_rows: table.ty.shape[self.axis],
            inner: table.local[self.axis + 1..].iter().product(),
            count: indices.local[self.batch..].iter().product(),
            origin,
        }
    }
}

/// The dimensions of indices behind the `batch` that they share with the other operand.
fn separate<'t>(indices: &'t Type, batch: usize, axis: usize, other: &[u64]) -> Result<&'t [u64], Reason> {
    let shared = batch <= axis && batch <= indices.rank() && other.get(..batch) == Some(&indices.shape[..batch]);
    if shared { Ok(&indices.shape[batch..]) } else { Err(reason!("{other:?} and {indices} do not share {batch} dimensions")) }
}

/// The gradient of a gather: a table of `size` rows along `axis`, each the sum of the source rows
/// whose index it is, in order. Operands: indices, source; their first `batch` dimensions are the
/// same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScatterAdd {
    /// The indexed dimension of the result.
    pub axis: usize,
    /// How many leading dimensions indices and source share; at most `axis`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub batch: usize,
    /// Its size.
    pub size: u64,
}
named!(ScatterAdd, "scatter_add");

impl ScatterAdd {
    /// Its inverse.
    fn gather(&self) -> Gather {
        Gather::batched(self.axis, self.batch)
    }
}

impl Rules for ScatterAdd {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        let [indices, source] = operands else { return Err("takes indices and a source".into()) };
        let own = separate(indices, self.batch, self.axis, &source.shape)?;
        let end = self.axis.saturating_add(own.len());
        if indices.dtype != DType::I64 || !source.dtype.is_float() || source.shape.get(self.axis..end) != Some(own) {
            return Err(reason!("{source} by {indices} along axis {}", self.axis));
        }
        let mut shape = source.shape.clone();
        shape.splice(self.axis..end, [self.size]);
        Ok(vec![Type::new(source.dtype, shape)])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        let mut letters = table_letters(&results[0], &operands[0], &self.gather(), Position::Results);
        let (source, table) = (letters.results.remove(0), letters.operands.remove(0));
        letters.operands.push(source);
        letters.results.push(table);
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::Only(1)
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (g, indices) = (cx.grad(), cx.operands[0]);
        let dx = cx.b.op(self.gather(), &[g, indices]);
        cx.give(1, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        true
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let origin = cx.result_origin(0, self.axis);
        let kernel = self.gather().kernel(&cx.results[0], &cx.operands[0], origin);
        Lowered::launch(Kernel::ScatterAdd(kernel::ScatterAdd { gather: kernel, onto: false }), 2, 1)
    }
}

/// Which side of the op the table's row letter belongs to.
#[derive(PartialEq)]
enum Position {
    Operands,
    Results,
}

/// Letters of table and indices as operands and of the rows as result. A split of the row letter
/// leaves a gather partial (other ranks' rows are 0); a split of an index letter leaves a scatter
/// partial.
fn table_letters(table: &Type, indices: &Type, of: &Gather, table_is: Position) -> Letters {
    let mut letters = Letters::new();
    let summed = |sum: bool| match (sum, table.dtype.is_float()) {
        (true, true) => Role::Reduced(ReduceKind::Sum),
        (true, false) => Role::Whole,
        (false, _) => Role::Kept,
    };
    let (row_role, index_role) = (summed(table_is == Position::Operands), summed(table_is == Position::Results));
    let role = |d| if d == of.axis { row_role } else { Role::Kept };
    let dims: Vec<Vec<usize>> = (0..table.rank()).map(|d| vec![letters.letter(table.shape[d], role(d))]).collect();
    let own: Vec<Vec<usize>> = indices.shape[of.batch..].iter().map(|n| vec![letters.letter(*n, index_role)]).collect();
    let mut rows = dims.clone();
    rows.splice(of.axis..=of.axis, own.iter().cloned());
    letters.operands = vec![dims.clone(), [&dims[..of.batch], &own].concat()];
    letters.results = vec![rows];
    letters
}

/// Whether each position of a new last dimension is the index: `[…, 1]` to `bool[…, size]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OneHot {
    /// The number of positions.
    pub size: u64,
}
named!(OneHot, "one_hot");

impl Rules for OneHot {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
        match operands {
            [x] if x.dtype == DType::I64 && x.shape.last() == Some(&1) => {
                let mut shape = x.shape.clone();
                shape.pop();
                shape.push(self.size);
                checked_elements(&shape).ok_or("too large")?;
                Ok(vec![Type::new(DType::Bool, shape)])
            }
            _ => Err("takes integers whose last dimension is 1".into()),
        }
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        Letters::broadcast(operands, results)
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::No
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<(), NoGradient> {
        Err(NoGradient::Constant)
    }

    fn positions(&self) -> bool {
        true
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let last = cx.results[0].ty.rank() - 1;
        let program = ProgramWriter::program(1, |w, x| {
            let index = w.push(Instr::Index(last as u16));
            vec![w.binary(Binary::Eq, x[0], index)]
        });
        // An f32 holds every index below 2^24 exactly.
        let compute = (self.size >= 1 << 24).then_some(DType::I64);
        Lowered::Map(Elementwise { compute, program, origins: vec![(last as u16, cx.result_origin(0, last))] })
    }
}

/// The integers `0..size`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// How many.
    pub size: u64,
}
named!(Range, "range");

impl Rules for Range {
    fn result(&self, _: &[Type]) -> Result<Vec<Type>, Reason> {
        Ok(vec![Type::new(DType::I64, [self.size])])
    }

    fn letters(&self, _: &[Type], _: &[Type]) -> Letters {
        let mut letters = Letters::new();
        let letter = letters.letter(self.size, Role::Kept);
        letters.results.push(vec![vec![letter]]);
        letters
    }

    fn linear(&self, _: &[Type]) -> Linear {
        Linear::No
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<(), NoGradient> {
        Err(NoGradient::Constant)
    }

    fn positions(&self) -> bool {
        true
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let program = ProgramWriter::program(0, |w, _| vec![w.push(Instr::Index(0))]);
        Lowered::Map(Elementwise { compute: Some(DType::I64), program, origins: vec![(0, cx.result_origin(0, 0))] })
    }
}
