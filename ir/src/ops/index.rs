//! Ops that read or make positions.

use super::{Backward, Linear, NoGradient, Rules, named};
use crate::dtype::DType;
use crate::kernel::{self, Kernel, ReduceKind};
use crate::letters::{Letters, Role};
use crate::lower::{Elementwise, LowerContext, Lowered, ProgramWriter};
use crate::scalar::{Binary, Instr};
use crate::types::{Type, checked_elements};
use serde::{Deserialize, Serialize};

/// Rows of a table along `axis`, by index. Operands: table, indices. The indices' dimensions stand where `axis` was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gather {
    /// The indexed dimension.
    pub axis: usize,
}
named!(Gather, "gather");

impl Rules for Gather {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, String> {
        let [table, indices] = operands else { return Err("takes a table and indices".into()) };
        if indices.dtype != DType::I64 || self.axis >= table.rank() {
            return Err(format!("axis {} of {table} by {indices}", self.axis));
        }
        let mut shape = table.shape.clone();
        shape.splice(self.axis..=self.axis, indices.shape.iter().copied());
        Ok(vec![Type::new(table.dtype, shape)])
    }

    fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
        table_letters(&operands[0], &operands[1], self.axis, Position::Operands)
    }

    fn linear(&self) -> Linear {
        Linear::Only(0)
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (g, indices) = (cx.grad(), cx.operands[1]);
        let size = cx.b.ty(cx.operands[0]).shape[self.axis];
        let dx = cx.b.op(ScatterAdd { axis: self.axis, size }, &[indices, g]);
        cx.give(0, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        true
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let table = &cx.operands[0];
        let kernel = kernel::Gather {
            dtype: table.ty.dtype,
            outer: table.local[..self.axis].iter().product(),
            rows: table.local[self.axis],
            total_rows: table.ty.shape[self.axis],
            inner: table.local[self.axis + 1..].iter().product(),
            count: cx.operands[1].elements(),
            origin: cx.operand_origin(0, self.axis),
        };
        Lowered::launch(Kernel::Gather(kernel), 2, 1)
    }
}

/// The gradient of a gather: a table of `size` rows along `axis`, each the sum of the source rows whose index it is, in order.
/// Operands: indices, source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScatterAdd {
    /// The indexed dimension of the result.
    pub axis: usize,
    /// Its size.
    pub size: u64,
}
named!(ScatterAdd, "scatter_add");

impl Rules for ScatterAdd {
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, String> {
        let [indices, source] = operands else { return Err("takes indices and a source".into()) };
        let end = self.axis.saturating_add(indices.rank());
        if indices.dtype != DType::I64 || !source.dtype.is_float() || source.shape.get(self.axis..end) != Some(&indices.shape[..])
        {
            return Err(format!("{source} by {indices} along axis {}", self.axis));
        }
        let mut shape = source.shape.clone();
        shape.splice(self.axis..end, [self.size]);
        Ok(vec![Type::new(source.dtype, shape)])
    }

    fn letters(&self, operands: &[Type], results: &[Type]) -> Letters {
        let mut letters = table_letters(&results[0], &operands[0], self.axis, Position::Results);
        let (source, table) = (letters.results.remove(0), letters.operands.remove(0));
        letters.operands.push(source);
        letters.results.push(table);
        letters
    }

    fn linear(&self) -> Linear {
        Linear::Only(1)
    }

    fn gradient(&self, cx: &mut Backward<'_>) -> Result<(), NoGradient> {
        let (g, indices) = (cx.grad(), cx.operands[0]);
        let dx = cx.b.op(Gather { axis: self.axis }, &[g, indices]);
        cx.give(1, dx);
        Ok(())
    }

    fn positions(&self) -> bool {
        true
    }

    fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
        let table = &cx.results[0];
        let kernel = kernel::Gather {
            dtype: table.ty.dtype,
            outer: table.local[..self.axis].iter().product(),
            rows: table.local[self.axis],
            total_rows: self.size,
            inner: table.local[self.axis + 1..].iter().product(),
            count: cx.operands[0].elements(),
            origin: cx.result_origin(0, self.axis),
        };
        Lowered::launch(Kernel::ScatterAdd(kernel), 2, 1)
    }
}

/// Which side of the op the table's row letter belongs to.
#[derive(PartialEq)]
enum Position {
    Operands,
    Results,
}

/// Letters of table and indices as operands and of the rows as result. A split of the row letter leaves a gather partial (other
/// ranks' rows are 0); a split of an index letter leaves a scatter partial.
fn table_letters(table: &Type, indices: &Type, axis: usize, table_is: Position) -> Letters {
    let mut letters = Letters::new();
    let summed = |sum: bool| match (sum, table.dtype.is_float()) {
        (true, true) => Role::Reduced(ReduceKind::Sum),
        (true, false) => Role::Whole,
        (false, _) => Role::Kept,
    };
    let (row_role, index_role) = (summed(table_is == Position::Operands), summed(table_is == Position::Results));
    let dims: Vec<Vec<usize>> =
        (0..table.rank()).map(|d| vec![letters.letter(table.shape[d], if d == axis { row_role } else { Role::Kept })]).collect();
    let index_dims: Vec<Vec<usize>> = indices.shape.iter().map(|n| vec![letters.letter(*n, index_role)]).collect();
    let mut rows = dims.clone();
    rows.splice(axis..=axis, index_dims.iter().cloned());
    letters.operands = vec![dims, index_dims];
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
    fn result(&self, operands: &[Type]) -> Result<Vec<Type>, String> {
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

    fn linear(&self) -> Linear {
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
    fn result(&self, _: &[Type]) -> Result<Vec<Type>, String> {
        Ok(vec![Type::new(DType::I64, [self.size])])
    }

    fn letters(&self, _: &[Type], _: &[Type]) -> Letters {
        let mut letters = Letters::new();
        let letter = letters.letter(self.size, Role::Kept);
        letters.results.push(vec![vec![letter]]);
        letters
    }

    fn linear(&self) -> Linear {
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
