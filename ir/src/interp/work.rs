//! How much work an op is on whole tensors, before it is done.

use crate::ops::Op;
use crate::types::Type;

/// About how many numbers are read, multiplied or written to compute `op` here; never too few by
/// more than a small factor.
pub fn operations(op: &Op, operands: &[Type], results: &[Type]) -> u64 {
    let touched = operands.iter().chain(results).fold(0, |sum: u64, ty| sum.saturating_add(ty.elements()));
    touched.saturating_add(products(op, operands, results))
}

/// About how many bytes computing `op` here takes beside its operands and results: convolutions lay
/// their products out.
pub fn room(op: &Op, operands: &[Type], results: &[Type]) -> u64 {
    const BYTES_OF_A_PRODUCT: u64 = 48;
    match op {
        Op::Conv(_) | Op::ConvInput(_) | Op::ConvWeight(_) => products(op, operands, results).saturating_mul(BYTES_OF_A_PRODUCT),
        _ => 0,
    }
}

/// How many products or comparisons there are beyond one for each element.
fn products(op: &Op, operands: &[Type], results: &[Type]) -> u64 {
    let taps = |w: &Type| w.shape[1..].iter().product::<u64>();
    match op {
        Op::Contract(op) => op.terms().map_or(0, |(a, b, c)| {
            let summed = a.char_indices().filter(|(_, letter)| b.contains(*letter) && !c.contains(*letter));
            let summed = summed.map(|(i, _)| operands[0].shape[i]);
            summed.fold(results[0].elements(), u64::saturating_mul)
        }),
        Op::Conv(_) => results[0].elements().saturating_mul(taps(&operands[1])),
        Op::ConvInput(_) => operands[0].elements().saturating_mul(taps(&operands[1])),
        Op::ConvWeight(_) => operands[1].elements().saturating_mul(taps(&results[0])),
        Op::MaxPool(op) => results[0].elements().saturating_mul(op.kernel.iter().product()),
        Op::MaxPoolGrad(op) => operands[1].elements().saturating_mul(op.of.kernel.iter().product()),
        // Each query meets each key.
        Op::Attention(_) | Op::AttentionGrad(_) => operands[0].elements().saturating_mul(operands[1].elements()),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::contract::Contract;

    #[test]
    fn a_product_of_matrices_counts_its_products() {
        let square = Type::new(DType::F32, [100, 100]);
        let op = Op::from(Contract::new("ij,jk->ik"));
        assert_eq!(operations(&op, &[square.clone(), square.clone()], &[square]), 1_030_000);
    }
}
