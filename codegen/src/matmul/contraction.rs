//! Contractions as products of matrices: letters that follow one another are one dimension, and of
//! the two dimensions of an operand the one whose elements are neighbours is that of its columns.

use super::{Compute, Epilogue, Layout, Matmul, WORKSPACE};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::distinct;
use shardc_ir::kernel::{Contract, ContractDim};
use shardc_ir::reason;
use shardc_ir::reason::Reason;

/// The most rows, columns and matrices (`cublasLtMatrixLayoutAttribute_t`: "usually only values
/// that can be expressed as int32_t are supported").
const MOST: u64 = i32::MAX as u64;

/// A size and a stride.
type Dim = (u64, i64);

impl Matmul {
    /// The product that computes a contraction. It relies on no alignment but that of elements.
    ///
    /// # Errors
    /// If cuBLASLt does not take it: more dimensions than a batch of matrices has, sizes of 0,
    /// operands without neighbours, elements that are read twice within a matrix, types.
    pub fn of(contract: &Contract) -> Result<Matmul, Reason> {
        let compute = Compute::of(contract.dtype, contract.result)?;
        let groups = [&contract.batch, &contract.m, &contract.n, &contract.k];
        if groups.into_iter().flatten().any(|dim| dim.size == 0) {
            return Err("a size is 0".into());
        }
        let has_own = |dim: &ContractDim, own: [bool; 3]| {
            let strides = [dim.a, dim.b, dim.c];
            (0..3).all(|i| if own[i] { strides[i] >= 0 } else { strides[i] == 0 || dim.size == 1 })
        };
        for (dims, own) in groups.into_iter().zip([[true; 3], [true, false, true], [false, true, true], [true, true, false]]) {
            if !dims.iter().all(|dim| has_own(dim, own)) {
                return Err("a stride is negative, or of a letter that the operand lacks".into());
            }
        }
        let [batch, m, n, k] = [
            only(&contract.batch, "the batch")?,
            only(&contract.m, "the rows")?,
            only(&contract.n, "the columns")?,
            only(&contract.k, "the sum")?,
        ];
        if [batch, m, n, k].iter().any(|dim| dim.size > MOST) {
            return Err(reason!("a dimension has more than {MOST} positions"));
        }
        if !distinct(&[batch.size, m.size, n.size], &[batch.c, m.c, n.c]) {
            return Err("results share elements".into());
        }
        let lies = |what: &str, dtype: DType, dims: [Dim; 2], stride: i64| {
            stored(dtype, dims, (batch.size, stride)).ok_or_else(|| apart(what, dims))
        };
        let (swapped, d) = lies("the result", contract.result, [(m.size, m.c), (n.size, n.c)], batch.c)?;
        let a = [(m.size, m.a), (k.size, k.a)];
        let b = [(k.size, k.b), (n.size, n.b)];
        let (first, second) = if swapped {
            let turned = |[rows, columns]: [Dim; 2]| [columns, rows];
            (lies("`b`", contract.dtype, turned(b), batch.b)?, lies("`a`", contract.dtype, turned(a), batch.a)?)
        } else {
            (lies("`a`", contract.dtype, a, batch.a)?, lies("`b`", contract.dtype, b, batch.b)?)
        };
        let (operand, result) = (contract.dtype.bytes(), contract.result.bytes());
        Ok(Matmul {
            compute,
            alpha: 1.0,
            beta: 0.0,
            swapped,
            transposed: [first.0, second.0],
            a: first.1,
            b: second.1,
            c: d,
            d,
            epilogue: Epilogue::Default,
            workspace: WORKSPACE,
            alignment: [operand, operand, result, result],
        })
    }
}

/// The one dimension that letters are together, in every operand.
pub(super) fn only(dims: &[ContractDim], what: &str) -> Result<ContractDim, Reason> {
    match merged(dims)[..] {
        [] => Ok(ContractDim { size: 1, a: 0, b: 0, c: 0 }),
        [dim] => Ok(dim),
        ref apart => Err(reason!("the letters of {what} are {} dimensions, which do not follow one another", apart.len())),
    }
}

/// The letters of a group; those that follow one another in every operand are one, in whichever
/// order they are listed.
fn merged(dims: &[ContractDim]) -> Vec<ContractDim> {
    let mut dims: Vec<ContractDim> = dims.iter().filter(|dim| dim.size != 1).copied().collect();
    let follows = |outer: &ContractDim, inner: &ContractDim| {
        let is_next = |(outer, step): (i64, i64)| i128::from(outer) == i128::from(step) * i128::from(inner.size);
        [(outer.a, inner.a), (outer.b, inner.b), (outer.c, inner.c)].into_iter().all(is_next)
    };
    let pair = |dims: &[ContractDim]| {
        let pairs = (0..dims.len()).flat_map(|outer| (0..dims.len()).map(move |inner| (outer, inner)));
        pairs.into_iter().find(|(outer, inner)| {
            let (first, second) = (&dims[*outer], &dims[*inner]);
            outer != inner && follows(first, second) && first.size.checked_mul(second.size).is_some()
        })
    };
    while let Some((outer, inner)) = pair(&dims) {
        dims[inner].size *= dims[outer].size;
        dims.remove(outer);
    }
    dims
}

/// How a matrix over `dims` lies column by column, and whether it is its transpose that does. A
/// row or column alone lies both ways: then as a column of neighbours, if it is one.
fn stored(dtype: DType, [rows, columns]: [Dim; 2], (batch, stride): Dim) -> Option<(bool, Layout)> {
    let layout = |rows: Dim, columns: Dim| {
        let leading = if columns.0 == 1 { rows.0 as i64 } else { columns.1 };
        let lies = (rows.0 == 1 || rows.1 == 1) && leading >= rows.0 as i64;
        let stride = if batch == 1 { 0 } else { stride };
        lies.then_some(Layout { dtype, rows: rows.0, columns: columns.0, leading, batch, stride })
    };
    let ways = [(false, layout(rows, columns)), (true, layout(columns, rows))];
    let found = ways.into_iter().filter_map(|(is_turned, layout)| Some((is_turned, layout?)));
    found.min_by_key(|(is_turned, layout)| (layout.rows == 1, *is_turned))
}

/// Why a matrix does not lie column by column.
fn apart(what: &str, [rows, columns]: [Dim; 2]) -> Reason {
    let steps = |(size, stride): Dim| format!("{size} steps of {stride}");
    reason!("{what} is no matrix of neighbours that are apart: {} by {}", steps(rows), steps(columns))
}
