//! How much work an op is on whole tensors, before it is done.

use crate::ops::Op;
use crate::types::Type;

/// About how many numbers are read, multiplied or written to compute `op` here; never too few by
/// more than a small factor.
pub fn operations(op: &Op, operands: &[Type], results: &[Type]) -> u64 {
    let touched = operands.iter().chain(results).fold(0, |sum: u64, ty| sum.saturating_add(ty.elements()));
    touched.saturating_add(products(op, operands, results))
}

/// About how many bytes computing an op that imports fold takes beside its operands and results:
/// what it adds up, and some of what it reads more than once, it lays out as numbers of 8 bytes.
pub fn room(op: &Op, operands: &[Type], results: &[Type]) -> u64 {
    let numbers = |types: &[Type]| types.iter().fold(0u64, |sum, ty| sum.saturating_add(ty.elements())).saturating_mul(8);
    match op {
        Op::Contract(_) => numbers(operands),
        Op::Reduce(_) | Op::ScatterAdd(_) | Op::Conv(_) | Op::ConvInput(_) | Op::ConvWeight(_) => numbers(results),
        Op::MaxPool(_) => numbers(results).saturating_mul(2),
        Op::Rotary(_) => numbers(operands).saturating_add(numbers(results)),
        // Rows are put together one by one.
        Op::Softmax(_) | Op::LayerNorm(_) | Op::RmsNorm(_) => {
            numbers(operands).saturating_add(numbers(results).saturating_mul(2))
        }
        // Each pair of a query and a key has a score, wherever the keys are counted.
        Op::Attention(_) => {
            let keys = operands[1].shape[1..3].iter().copied().max().unwrap_or(0);
            let scores = results[1].elements().saturating_mul(keys).saturating_mul(16);
            [numbers(operands), numbers(results), scores].into_iter().fold(0, u64::saturating_add)
        }
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
    use crate::ops::attention::{Attention, HeadLayout, MaskKind};
    use crate::ops::contract::Contract;

    #[test]
    fn a_product_of_matrices_counts_its_products() {
        let square = Type::new(DType::F32, [100, 100]);
        let op = Op::from(Contract::new("ij,jk->ik"));
        assert_eq!(operations(&op, &[square.clone(), square.clone()], &[square]), 1_030_000);
    }

    #[test]
    fn attention_has_room_for_its_scores() {
        for layout in [HeadLayout::HeadMajor, HeadLayout::TokenMajor] {
            let op = Attention { scale: 1.0, mask: MaskKind::None, q: layout, k: layout, v: layout, o: layout };
            let op = Op::from(op);
            let of = |tokens: u64| match layout {
                HeadLayout::HeadMajor => Type::new(DType::F32, [1, 1, tokens, 1]),
                HeadLayout::TokenMajor => Type::new(DType::F32, [1, tokens, 1, 1]),
            };
            let operands = [of(1000), of(3000), of(3000)];
            let results = op.rules().result(&operands).expect("it takes them");
            assert!(room(&op, &operands, &results) >= 8 * 1000 * 3000);
        }
    }
}
