//! What a kernel demands of its operands.

use shardc_ir::dtype::DType;
use shardc_ir::kernel::Offset;
use shardc_ir::mesh::Mesh;

/// One operand: its element type, and the elements that it must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// Element type.
    pub dtype: DType,
    /// Elements from the view's start.
    pub elements: u64,
}

/// The operands of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// Operands read.
    pub reads: Vec<Operand>,
    /// Operands written.
    pub writes: Vec<Operand>,
}

impl Signature {
    /// Adds an operand read.
    pub fn reads(mut self, dtype: DType, elements: u64) -> Signature {
        self.reads.push(Operand { dtype, elements });
        self
    }

    /// Adds an operand written.
    pub fn writes(mut self, dtype: DType, elements: u64) -> Signature {
        self.writes.push(Operand { dtype, elements });
        self
    }
}

/// The product of sizes, or an error where memory could not hold that many elements.
pub fn product(sizes: &[u64]) -> Result<u64, String> {
    if sizes.contains(&0) {
        return Ok(0);
    }
    let total = sizes.iter().try_fold(1u64, |n, size| n.checked_mul(*size)).filter(|n| *n <= isize::MAX as u64);
    total.ok_or_else(|| format!("sizes {sizes:?} have too large a product"))
}

/// The lowest and the highest value of `offset` over all coordinates of `mesh`.
pub fn offset_range(offset: &Offset, mesh: &Mesh) -> Result<(i64, i64), String> {
    let (mut low, mut high) = (i128::from(offset.base), i128::from(offset.base));
    for (axis, factor) in &offset.terms {
        if axis.index() >= mesh.axes().len() {
            return Err("an offset depends on an axis that is not there".to_string());
        }
        let reach = i128::from(mesh.size(*axis) - 1) * i128::from(*factor);
        low += reach.min(0);
        high += reach.max(0);
    }
    match (i64::try_from(low), i64::try_from(high)) {
        (Ok(low), Ok(high)) => Ok((low, high)),
        _ => Err("an offset is out of bounds".to_string()),
    }
}

/// Demands that `dtype` is a float.
pub fn float(dtype: DType) -> Result<(), String> {
    if dtype.is_float() { Ok(()) } else { Err(format!("{dtype} where a float is needed")) }
}
