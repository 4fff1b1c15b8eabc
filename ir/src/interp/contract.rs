//! Sums of products, and reductions.

use super::{Numbers, from_f64, positions};
use crate::dtype::DType;
use crate::kernel::signature::row_major;
use crate::ops::contract::Contract;
use crate::reduce_kind::ReduceKind;
use crate::types::{Tensor, Type};

/// The einsum of two operands.
pub(super) fn contract(op: &Contract, a: &Tensor, b: &Tensor, result: &Type) -> Tensor {
    let (ta, tb, tc) = op.terms().expect("the op took its operands");
    let size = |letter: char| match (ta.find(letter), tb.find(letter)) {
        (Some(i), _) => a.ty.shape[i],
        (_, Some(i)) => b.ty.shape[i],
        _ => 1,
    };
    let summed: Vec<char> = ta.chars().filter(|l| !tc.contains(*l)).collect();
    let walk = |letters: &mut dyn Iterator<Item = char>, term: &str, x: &Tensor| {
        let own = row_major(&x.ty.shape);
        let (shape, strides): (Vec<u64>, Vec<i64>) = letters.map(|l| (size(l), term.find(l).map_or(0, |i| own[i]))).unzip();
        positions(&shape, &strides, 0)
    };
    let (kept_a, kept_b) = (walk(&mut tc.chars(), ta, a), walk(&mut tc.chars(), tb, b));
    let [sum_a, sum_b] = [(ta, a), (tb, b)].map(|(term, x)| walk(&mut summed.iter().copied(), term, x).collect::<Vec<usize>>());
    let (x, y) = (a.to_f64(), b.to_f64());
    let element = |(p, q): (usize, usize)| -> f64 { sum_a.iter().zip(&sum_b).map(|(i, j)| x[p + i] * y[q + j]).sum() };
    from_f64(result, kept_a.zip(kept_b).map(element))
}

/// All elements along `axes` combined.
pub(super) fn reduce(kind: ReduceKind, axes: &[usize], x: &Tensor, result: &Type) -> Tensor {
    let own = row_major(&result.shape);
    let mut kept = own.iter();
    let strides: Vec<i64> = (0..x.ty.rank())
        .map(|d| if axes.contains(&d) { 0 } else { *kept.next().expect("a stride for each kept dimension") })
        .collect();
    let (to, numbers) = (positions(&x.ty.shape, &strides, 0), Numbers::of(x));
    if x.ty.dtype == DType::I64 {
        let (start, f): (i64, fn(i64, i64) -> i64) = match kind {
            ReduceKind::Sum => (0, i64::wrapping_add),
            ReduceKind::Max => (i64::MIN, i64::max),
            ReduceKind::Min => (i64::MAX, i64::min),
        };
        let mut out = vec![start; result.elements() as usize];
        to.zip(0..).for_each(|(p, i)| out[p] = f(out[p], numbers.i64(i)));
        return Tensor::from_i64(result.shape.clone(), &out);
    }
    let start = match kind {
        ReduceKind::Sum => 0.0,
        ReduceKind::Max => f64::NEG_INFINITY,
        ReduceKind::Min => f64::INFINITY,
    };
    let mut out = vec![start; result.elements() as usize];
    to.zip(0..).for_each(|(p, i)| out[p] = kind.combine(out[p], numbers.f64(i)));
    Tensor::from_f64(result.clone(), &out)
}

/// The sum of squares, in f64.
pub(super) fn square_sum(x: &Tensor) -> Tensor {
    Tensor::scalar(DType::F64, x.to_f64().iter().map(|v| v * v).sum())
}
