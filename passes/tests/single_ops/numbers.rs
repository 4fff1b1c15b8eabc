//! The elements of operands, and the parts that they are put together from.

use shardc_ir::dtype::DType;
use shardc_ir::ops::samples::Argument;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::types::{Tensor, Type};
use shardc_testkit::random::Random;

/// The elements of an operand. Floats are multiples of an eighth, so that sums and products of a
/// few are exact in any order; truth values are 0 and 1.
pub enum Numbers {
    /// Of floats and truth values.
    Floats(Vec<f64>),
    /// Of integers.
    Integers(Vec<i64>),
}

impl Numbers {
    /// Random elements within the argument's bounds, or, where `any_float`, some that are not
    /// finite.
    pub fn of(argument: &Argument, any_float: bool, random: &mut Random) -> Numbers {
        let n = argument.ty.elements();
        let (low, high) = (argument.low, argument.high);
        match argument.ty.dtype {
            DType::I64 => Numbers::Integers((0..n).map(|_| integer(low as i64, high as i64, random)).collect()),
            DType::Bool => Numbers::Floats((0..n).map(|_| random.below(2) as f64).collect()),
            DType::F32 | DType::F64 | DType::BF16 | DType::F16 => Numbers::Floats(
                (0..n)
                    .map(|_| match random.below(16) {
                        odd @ 0..3 if any_float => [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][odd],
                        _ => eighths(low, high, random),
                    })
                    .collect(),
            ),
        }
    }

    /// The elements of a tensor.
    pub fn of_tensor(tensor: &Tensor) -> Numbers {
        if tensor.ty.dtype == DType::I64 { Numbers::Integers(tensor.to_i64()) } else { Numbers::Floats(tensor.to_f64()) }
    }

    /// As a tensor of that type.
    pub fn tensor(&self, ty: &Type) -> Tensor {
        match self {
            Numbers::Floats(values) => Tensor::from_f64(ty.clone(), values),
            Numbers::Integers(values) => Tensor::from_i64(ty.shape.clone(), values),
        }
    }

    /// That many parts one after another, which are these numbers when they are combined.
    pub fn parts(&self, count: usize, kind: ReduceKind, random: &mut Random) -> Numbers {
        match self {
            Numbers::Floats(values) => {
                let distance = |random: &mut Random| eighths(0.0, 3.0, random);
                Numbers::Floats(parts(values, count, kind, random, distance, |a, b| a + b, |a| -a))
            }
            Numbers::Integers(values) => {
                let distance = |random: &mut Random| integer(0, 1 << 61, random);
                Numbers::Integers(parts(values, count, kind, random, distance, i64::wrapping_add, i64::wrapping_neg))
            }
        }
    }
}

fn parts<T: Copy>(
    values: &[T],
    count: usize,
    kind: ReduceKind,
    random: &mut Random,
    distance: fn(&mut Random) -> T,
    add: fn(T, T) -> T,
    negative: fn(T) -> T,
) -> Vec<T> {
    let mut out: Vec<T> = (0..count).flat_map(|_| values).copied().collect();
    for (i, value) in values.iter().enumerate() {
        // The part that makes up for the others is any of them.
        let last = random.below(count);
        for part in (0..count).filter(|part| *part != last) {
            let away = distance(random);
            out[part * values.len() + i] = match kind {
                ReduceKind::Max => add(*value, negative(away)),
                ReduceKind::Min => add(*value, away),
                ReduceKind::Sum => {
                    let rest = &mut out[last * values.len() + i];
                    *rest = add(*rest, negative(away));
                    away
                }
            };
        }
    }
    out
}

/// A multiple of an eighth from `low` to below `high`.
fn eighths(low: f64, high: f64, random: &mut Random) -> f64 {
    let (first, end) = ((low * 8.0).ceil() as i64, (high * 8.0).ceil() as i64);
    integer(first, end, random) as f64 / 8.0
}

/// An integer from `low` to below `high`.
fn integer(low: i64, high: i64, random: &mut Random) -> i64 {
    low.wrapping_add(random.below(high.wrapping_sub(low) as usize) as i64)
}
