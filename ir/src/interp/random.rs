//! Dropout, and masks drawn element by element.

use super::{Numbers, from_i64};
use crate::dtype::DType;
use crate::ops::random::KeepMask;
use crate::philox::{threshold, word};
use crate::types::{Tensor, Type};

/// Everything is kept.
pub(super) fn dropout(x: &Tensor) -> Vec<Tensor> {
    let ty = x.ty.with_dtype(DType::Bool);
    let mask = from_i64(&ty, (0..ty.elements()).map(|_| 1));
    vec![x.clone(), mask]
}

/// `seed, step -> mask`
pub(super) fn keep_mask(op: &KeepMask, operands: &[Tensor]) -> Tensor {
    let (seed, step) = (Numbers::of(&operands[0]).i64(0) as u64, Numbers::of(&operands[1]).f64(0) as u64);
    let ty = Type::new(DType::Bool, op.shape.clone());
    from_i64(&ty, (0..ty.elements()).map(|i| i64::from(word(i, seed, op.stream, step) >= threshold(op.ratio))))
}
