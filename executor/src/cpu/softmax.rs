//! The inner loops of softmax over rows, and how what is combined side by side becomes one number.

use crate::cpu::functions::Functions;
use crate::cpu::number::{Number, Real};

/// Elements that are combined side by side.
pub const LANES: usize = 32;

/// The largest element; one that is not a number may be passed over.
#[inline(always)]
pub fn largest<T: Real>(row: &[T]) -> T {
    let larger = |a: T, b: T| if b > a { b } else { a };
    let mut lanes = [T::LOWEST; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for values in whole {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], values[i]);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = larger(*lane, *value);
    }
    fold(lanes, larger)
}

/// `row[i] = exp(row[i] - shift)`; returns the sum.
#[inline(always)]
pub fn exponentials<T: Real>(row: &mut [T], shift: T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (whole, rest) = row.as_chunks_mut::<LANES>();
    for values in whole {
        for i in 0..LANES {
            values[i] = Functions::exp(values[i] - shift);
            lanes[i] += values[i];
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *value = Functions::exp(*value - shift);
        *lane += *value;
    }
    fold(lanes, |a, b| a + b)
}

/// Combines lanes in halves; written out, because only loops of constant length become vector code
/// here.
#[inline(always)]
pub fn fold<T: Number>(mut lanes: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    for i in 0..16 {
        lanes[i] = f(lanes[i], lanes[i + 16]);
    }
    for i in 0..8 {
        lanes[i] = f(lanes[i], lanes[i + 8]);
    }
    for i in 0..4 {
        lanes[i] = f(lanes[i], lanes[i + 4]);
    }
    for i in 0..2 {
        lanes[i] = f(lanes[i], lanes[i + 2]);
    }
    f(lanes[0], lanes[1])
}
