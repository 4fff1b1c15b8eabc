//! Reductions over ranks, in their order; each sum is rounded to the type of its elements.

use super::{Dtype, Op};
use half::{bf16, f16};

/// The reduction of what ranks gave, element by element.
pub fn reduce(inputs: &[&[u8]], dtype: Dtype, op: Op) -> Vec<u8> {
    match dtype {
        Dtype::F64 => over(inputs, f64::from_le_bytes, f64::to_le_bytes, |a, b| float(op, a, b, a + b)),
        Dtype::F32 => over(inputs, f32::from_le_bytes, f32::to_le_bytes, |a, b| float(op, a, b, a + b)),
        Dtype::BF16 => {
            over(inputs, bf16::from_le_bytes, bf16::to_le_bytes, |a, b| float(op, a, b, bf16::from_f32(a.to_f32() + b.to_f32())))
        }
        Dtype::F16 => {
            over(inputs, f16::from_le_bytes, f16::to_le_bytes, |a, b| float(op, a, b, f16::from_f32(a.to_f32() + b.to_f32())))
        }
        Dtype::I64 => over(inputs, i64::from_le_bytes, i64::to_le_bytes, |a, b| whole(op, a, b, a.wrapping_add(b))),
        Dtype::I32 => over(inputs, i32::from_le_bytes, i32::to_le_bytes, |a, b| whole(op, a, b, a.wrapping_add(b))),
        Dtype::I8 => over(inputs, i8::from_le_bytes, i8::to_le_bytes, |a, b| whole(op, a, b, a.wrapping_add(b))),
        Dtype::U64 => over(inputs, u64::from_le_bytes, u64::to_le_bytes, |a, b| whole(op, a, b, a.wrapping_add(b))),
        Dtype::U32 => over(inputs, u32::from_le_bytes, u32::to_le_bytes, |a, b| whole(op, a, b, a.wrapping_add(b))),
        Dtype::U8 => over(inputs, u8::from_le_bytes, u8::to_le_bytes, |a, b| whole(op, a, b, a.wrapping_add(b))),
    }
}

fn over<T, const N: usize>(
    inputs: &[&[u8]],
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
    both: impl Fn(T, T) -> T,
) -> Vec<u8> {
    let at = |input: &[u8], i: usize| read(std::array::from_fn(|byte| input[i * N + byte]));
    let [first, others @ ..] = inputs else { return vec![] };
    let element = |i: usize| write(others.iter().fold(at(first, i), |sum, other| both(sum, at(other, i))));
    (0..first.len() / N).flat_map(element).collect()
}

/// One of two floats, or their sum. What is no number stays.
fn float<T: PartialOrd + Copy>(op: Op, a: T, b: T, sum: T) -> T {
    let takes_b = |is_better: bool| if is_better || b.partial_cmp(&b).is_none() { b } else { a };
    match op {
        Op::Sum => sum,
        Op::Max => takes_b(b > a),
        Op::Min => takes_b(b < a),
    }
}

fn whole<T: Ord>(op: Op, a: T, b: T, sum: T) -> T {
    match op {
        Op::Sum => sum,
        Op::Max => a.max(b),
        Op::Min => a.min(b),
    }
}
