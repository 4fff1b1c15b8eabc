//! Elementwise ops, one number at a time.

use super::{Numbers, broadcast_positions, from_f64, from_i64};
use crate::dtype::DType;
use crate::ops::elementwise::UnaryFn;
use crate::reason;
use crate::reason::Reason;
use crate::scalar::{Binary, Rounding};
use crate::types::{Tensor, Type};

/// `f(x)`
pub(super) fn unary(f: UnaryFn, x: &Tensor, result: &Type) -> Result<Tensor, Reason> {
    let numbers = Numbers::of(x);
    let all = 0..x.ty.elements() as usize;
    if x.ty.dtype.is_float() {
        return Ok(from_f64(result, all.map(|i| f.value(numbers.f64(i)))));
    }
    let mut failed = None;
    let values =
        all.map(|i| f.integer(numbers.i64(i)).unwrap_or_else(|| note(&mut failed, reason!("`{}` of integers", f.name()))));
    let tensor = from_i64(result, values);
    failed.map_or(Ok(tensor), Err)
}

/// Keeps the reason why a number does not exist, and goes on with 0.
fn note(failed: &mut Option<Reason>, why: Reason) -> i64 {
    *failed = Some(why);
    0
}

/// The nearest numbers of a format.
pub(super) fn round_to(format: Rounding, x: &Tensor) -> Tensor {
    let numbers = Numbers::of(x);
    from_f64(&x.ty, (0..x.ty.elements() as usize).map(|i| format.round_f64(numbers.f64(i))))
}

/// `(x - mean) / sqrt(variance + eps) * scale + bias`, all but x broadcast
pub(super) fn batch_norm(eps: f64, operands: &[Tensor]) -> Tensor {
    let ty = &operands[0].ty;
    let [x, scale, bias, mean, variance] = operands else { unreachable!("the operands were checked") };
    let [mut x, mut scale, mut bias, mut mean, mut variance] =
        [x, scale, bias, mean, variance].map(|t| broadcast_positions(&t.ty.shape, &ty.shape).map(move |p| Numbers::of(t).f64(p)));
    let next = |from: &mut dyn Iterator<Item = f64>| from.next().expect("an element for each of the first operand");
    let y = (0..ty.elements()).map(|_| {
        let (x, mean, variance) = (next(&mut x), next(&mut mean), next(&mut variance));
        (x - mean) / (variance + eps).sqrt() * next(&mut scale) + next(&mut bias)
    });
    from_f64(ty, y)
}

/// `f(a, b)` with broadcasting
pub(super) fn binary(f: Binary, a: &Tensor, b: &Tensor, result: &Type) -> Result<Tensor, Reason> {
    let (x, y) = (Numbers::of(a), Numbers::of(b));
    let pairs = broadcast_positions(&a.ty.shape, &result.shape).zip(broadcast_positions(&b.ty.shape, &result.shape));
    let facts = f.facts();
    if a.ty.dtype.is_float() {
        return Ok(from_f64(result, pairs.map(|(p, q)| (facts.value)(x.f64(p), y.f64(q)))));
    }
    let mut failed = None;
    let values = pairs.map(|(p, q)| {
        (facts.integer)(x.i64(p), y.i64(q)).unwrap_or_else(|| note(&mut failed, "integers are divided by 0".into()))
    });
    let tensor = from_i64(result, values);
    failed.map_or(Ok(tensor), Err)
}

/// Of condition, a and b: `a` where the condition holds, else `b`
pub(super) fn select(operands: [&Tensor; 3], result: &Type) -> Tensor {
    let bytes = match result.dtype.bytes() {
        1 => select_words::<1>(operands, result),
        2 => select_words::<2>(operands, result),
        4 => select_words::<4>(operands, result),
        _ => select_words::<8>(operands, result),
    };
    Tensor { ty: result.clone(), bytes: bytes.into() }
}

/// [`select`] of elements of `N` bytes.
fn select_words<const N: usize>([condition, a, b]: [&Tensor; 3], result: &Type) -> Vec<u8> {
    let [c, p, q] = [condition, a, b].map(|x| broadcast_positions(&x.ty.shape, &result.shape));
    let (x, y) = (Numbers::of(a), Numbers::of(b));
    let mut bytes = Vec::with_capacity(result.elements() as usize * N);
    for ((c, p), q) in c.zip(p).zip(q) {
        bytes.extend(if condition.bytes[c] != 0 { x.word::<N>(p) } else { y.word::<N>(q) });
    }
    bytes
}

/// The same numbers as another element type
pub(super) fn cast(x: &Tensor, dtype: DType) -> Tensor {
    let (ty, numbers) = (x.ty.with_dtype(dtype), Numbers::of(x));
    let all = 0..x.ty.elements() as usize;
    match dtype {
        _ if dtype == x.ty.dtype => x.clone(),
        DType::I64 => from_i64(&ty, all.map(|i| numbers.i64(i))),
        _ => from_f64(&ty, all.map(|i| numbers.f64(i))),
    }
}
