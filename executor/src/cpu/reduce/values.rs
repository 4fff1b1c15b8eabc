//! What is reduced: in the type of the accumulators, or f32 that is added up in f64 as it is read.

use super::{combine, reduce_rows, sum_in_lanes};
use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::lanes::Lanes;
use crate::cpu::number::Number;
use crate::cpu::simd::simd;
use shardc_ir::reduce_kind::ReduceKind;

/// What is reduced of a block.
#[derive(Debug, Clone, Copy)]
pub enum Values<'s, A> {
    /// Of the type of the accumulators.
    Same(&'s [A]),
    /// Elements of f32 that are added up in f64.
    Singles(&'s [f32]),
}

impl<'s, A: Number> Values<'s, A> {
    /// `len` of them, perhaps `converted`.
    pub fn of<T: Number>(kind: ReduceKind, values: Lanes<'s, T>, len: usize, converted: &'s mut Vec<A>) -> Values<'s, A> {
        let each: &[T] = match values {
            Lanes::Each(values) => {
                if let Some(same) = A::of(T::wrap(values)) {
                    return Values::Same(same);
                }
                if let (ReduceKind::Sum, Slice::F32(values), SliceMut::F64(_)) = (kind, T::wrap(values), A::wrap_mut(&mut [])) {
                    return Values::Singles(values);
                }
                values
            }
            Lanes::All(_) => &[],
        };
        converted.resize(len.max(converted.len()), A::ZERO);
        match values {
            Lanes::Each(_) => A::load(T::wrap(each), 0, 1, &mut converted[..len]),
            Lanes::All(value) => A::load(T::wrap(&[value]), 0, 0, &mut converted[..len]),
        }
        Values::Same(&converted[..len])
    }

    /// Reduces each of `out.len()` rows of equal length.
    pub fn reduce_rows(self, kind: ReduceKind, out: &mut [A]) {
        match self {
            Values::Same(values) => reduce_rows(kind, values, out),
            Values::Singles(values) => {
                if let SliceMut::F64(out) = A::wrap_mut(out) {
                    sum_rows(values, out);
                }
            }
        }
    }

    /// Combines those from `start` on into `sums`, or puts them there if they `are_first`.
    pub fn add(self, kind: ReduceKind, start: usize, sums: &mut [A], are_first: bool) {
        match self {
            Values::Same(values) if are_first => sums.copy_from_slice(&values[start..][..sums.len()]),
            Values::Same(values) => combine(kind, sums, &values[start..][..sums.len()]),
            Values::Singles(values) => {
                if let SliceMut::F64(sums) = A::wrap_mut(sums) {
                    add_singles(&values[start..][..sums.len()], sums, are_first);
                }
            }
        }
    }
}

simd! {
    /// `sums[i] += values[i]`, or the values alone if they `are_first`.
    fn add_singles(values: &[f32], sums: &mut [f64], are_first: bool) {
        let pairs = sums.iter_mut().zip(values);
        if are_first {
            pairs.for_each(|(sum, value)| *sum = f64::from(*value));
        } else {
            pairs.for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }

    /// Adds up each of `out.len()` rows of equal length.
    fn sum_rows(values: &[f32], out: &mut [f64]) {
        let width = values.len() / out.len();
        for (out, row) in out.iter_mut().zip(values.chunks_exact(width)) {
            *out = sum_in_lanes(row, f64::from);
        }
    }
}
