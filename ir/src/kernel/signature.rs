//! The demands of a kernel on its operands, and the bounds of strided accesses.

use crate::dtype::DType;
use crate::limits::MAX_KERNEL_RANK;
use crate::reason;
use crate::reason::Reason;

/// One operand: its element type, and the elements that it must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// Element type.
    pub dtype: DType,
    /// Elements from the view's start.
    pub elements: u64,
}

/// The operands of a kernel, in the form's order.
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

/// The product of sizes.
///
/// # Errors
/// If memory could not hold that many elements.
pub fn product(sizes: &[u64]) -> Result<u64, Reason> {
    if sizes.contains(&0) {
        return Ok(0);
    }
    let total = sizes.iter().try_fold(1u64, |n, size| n.checked_mul(*size)).filter(|n| *n <= isize::MAX as u64);
    total.ok_or_else(|| reason!("sizes {sizes:?} have too large a product"))
}

/// The product of counts, the largest number where that is more.
pub fn counted(counts: impl IntoIterator<Item = u64>) -> u64 {
    let mut total = 1u64;
    for count in counts {
        match count {
            0 => return 0,
            count => total = total.saturating_mul(count),
        }
    }
    total
}

/// The number of elements of an iteration space.
///
/// # Errors
/// If it has too many dimensions or elements.
pub fn elements(shape: &[u64]) -> Result<u64, Reason> {
    if shape.len() > MAX_KERNEL_RANK {
        return Err(reason!("{} dimensions are more than the {MAX_KERNEL_RANK} that kernels take", shape.len()));
    }
    product(shape)
}

/// How many elements an operand must have for accesses at `start + sum of index * stride` over
/// `shape`. `start` is the lowest and the highest first element.
///
/// # Errors
/// If an access would lie before the operand's beginning, or beyond every operand's end.
pub fn extent(shape: &[u64], strides: &[i64], start: (i64, i64)) -> Result<u64, Reason> {
    if shape.len() != strides.len() {
        return Err(reason!("{} strides for {} dimensions", strides.len(), shape.len()));
    }
    if elements(shape)? == 0 {
        return Ok(0);
    }
    let (mut low, mut high) = (i128::from(start.0), i128::from(start.1));
    for (size, stride) in shape.iter().zip(strides) {
        let reach = i128::from(*size - 1) * i128::from(*stride);
        low += reach.min(0);
        high += reach.max(0);
    }
    if low < 0 {
        return Err(reason!("strides {strides:?} reach {} elements before the view", -low));
    }
    u64::try_from(high + 1).map_err(|_| reason!("strides {strides:?} reach beyond every view"))
}

/// Row-major strides of a contiguous tensor.
pub fn row_major(shape: &[u64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d].max(1) as i64;
    }
    strides
}

/// Whether different positions over `shape` are always different elements: each stride passes all
/// that smaller ones reach. A space without elements has no two positions.
pub fn distinct(shape: &[u64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut steps: Vec<(i64, u64)> = strides.iter().copied().zip(shape.iter().copied()).filter(|(_, size)| *size > 1).collect();
    steps.sort_unstable();
    let mut below = 0i128;
    steps.iter().all(|(stride, size)| {
        let fits = i128::from(*stride) > below;
        below += i128::from(*size - 1) * i128::from(*stride);
        fits
    })
}

/// Demands that `dtype` is a float.
///
/// # Errors
/// If it is not.
pub fn float(dtype: DType) -> Result<(), Reason> {
    if dtype.is_float() { Ok(()) } else { Err(reason!("{dtype} where a float is needed")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_forged_strides_are_errors() {
        assert_eq!(extent(&[3, 4], &[4, 1], (0, 2)), Ok(14));
        assert_eq!(extent(&[3, 4], &[-4, 1], (8, 8)), Ok(12));
        assert!(extent(&[3, 4], &[-4, 1], (0, 0)).is_err());
        assert!(extent(&[u64::MAX, 2], &[1, 1], (0, 0)).is_err());
        assert!(extent(&[1 << 40], &[i64::MAX], (0, 0)).is_err());
        assert!(extent(&[2], &[], (0, 0)).is_err());
        assert_eq!(extent(&[0, u64::MAX], &[1, 1], (0, 0)), Ok(0));
    }

    #[test]
    fn positions_that_share_an_element_are_not_distinct() {
        assert!(distinct(&[4, 3, 6], &[6, 24, 1]));
        assert!(!distinct(&[4, 6], &[5, 1]));
        assert!(!distinct(&[2], &[0]));
        assert!(!distinct(&[2], &[-1]));
        assert!(distinct(&[0, 2], &[0, 0]));
    }
}
