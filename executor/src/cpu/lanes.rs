//! The inner loops of fused programs: one scalar instruction over one block of elements.

use crate::cpu::element::{Cast, Element, convert};
use crate::cpu::functions::functions;
use crate::cpu::number::Number;
use crate::cpu::simd::simd;
use shardc_ir::scalar::{Binary, Rounding, Unary};

/// An operand of one instruction over a block: an element for each position, or one for all.
#[derive(Debug, Clone, Copy)]
pub enum Lanes<'a, T> {
    /// One element for each position.
    Each(&'a [T]),
    /// The same everywhere.
    All(T),
}

/// The second of two joined instructions, whose other operand is the first one's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// `first + c`
    Add,
    /// `first * c`
    Mul,
    /// `first - c`
    Sub,
    /// `c - first`
    SubFrom,
}

macro_rules! loops {
    (
        ()
        unary { $($of_one:ident $unary:ident($x:ident): $unary_float:expr, $unary_integer:expr;)* }
        binary { $($of_two:ident $binary:ident($a:ident, $b:ident): $binary_float:expr, $binary_integer:expr;)* }
    ) => {
        simd! {
            /// `out[i] = op(a[i])`
            pub fn unary<T: Number>(op: Unary, a: &[T], out: &mut [T]) {
                match op {
                    $(Unary::$of_one => map(a, out, T::$unary),)*
                }
            }

            /// `out[i] = op(a[i], b[i])`
            pub fn binary<T: Number>(op: Binary, a: Lanes<'_, T>, b: Lanes<'_, T>, out: &mut [T]) {
                if op == Binary::Pow && power(a, b, out) {
                    return;
                }
                match op {
                    $(Binary::$of_two => zip(a, b, out, T::$binary),)*
                }
            }
        }
    };
}
functions!(loops());

simd! {
    /// `out[i] = a[i]`, rounded
    pub fn round<T: Number>(to: Rounding, a: &[T], out: &mut [T]) {
        match to {
            Rounding::Bf16 => map(a, out, |a| a.rounded(Rounding::Bf16)),
            Rounding::F16 => map(a, out, |a| a.rounded(Rounding::F16)),
            Rounding::Tf32 => map(a, out, |a| a.rounded(Rounding::Tf32)),
        }
    }

    /// `out[i * row + j] = data[i * step + j * inner]`
    pub fn load_rows<T: Number>(data: &[T], step: usize, row: usize, inner: usize, out: &mut [T]) {
        match (row, inner) {
            (2, 1) => load_short::<T, 2>(data, step, out),
            (4, 1) => load_short::<T, 4>(data, step, out),
            (8, 1) => load_short::<T, 8>(data, step, out),
            (16, 1) => load_short::<T, 16>(data, step, out),
            (_, 0) => out.chunks_exact_mut(row).enumerate().for_each(|(i, out)| out.fill(data[i * step])),
            _ => {
                for (i, out) in out.chunks_exact_mut(row).enumerate() {
                    let data = &data[i * step..][..(row - 1) * inner + 1];
                    out.iter_mut().zip(data.iter().step_by(inner)).for_each(|(out, a)| *out = *a);
                }
            }
        }
    }

    /// `out[i] = then(first(a[i], b[i]), c[i])`, rounded twice.
    pub fn chain<T: Number>(first: Binary, then: Then, a: &[T], b: Lanes<'_, T>, c: Lanes<'_, T>, out: &mut [T]) {
        match first {
            Binary::Add => second(then, T::add, a, b, c, out),
            Binary::Sub => second(then, T::sub, a, b, c, out),
            _ => second(then, T::mul, a, b, c, out),
        }
    }

    /// `out[i] = if test[i] != 0 { a[i] } else { b[i] }`
    pub fn select<T: Number>(test: &[T], a: Lanes<'_, T>, b: Lanes<'_, T>, out: &mut [T]) {
        let n = out.len();
        let test = &test[..n];
        match (a, b) {
            (Lanes::Each(a), Lanes::Each(b)) => {
                let (a, b) = (&a[..n], &b[..n]);
                for i in 0..n {
                    out[i] = if test[i].is_true() { a[i] } else { b[i] };
                }
            }
            (Lanes::Each(a), Lanes::All(b)) => {
                let a = &a[..n];
                for i in 0..n {
                    out[i] = if test[i].is_true() { a[i] } else { b };
                }
            }
            (Lanes::All(a), Lanes::Each(b)) => {
                let b = &b[..n];
                for i in 0..n {
                    out[i] = if test[i].is_true() { a } else { b[i] };
                }
            }
            (Lanes::All(a), Lanes::All(b)) => map(test, out, |t| if t.is_true() { a } else { b }),
        }
    }
}

/// `out[i] = lanes[i]`, converted.
pub fn store<T: Number + Cast<U>, U: Element>(lanes: Lanes<'_, T>, out: &mut [U]) {
    match lanes {
        Lanes::Each(values) => convert(values, out),
        Lanes::All(value) => out.fill(value.cast()),
    }
}

#[inline(always)]
fn load_short<T: Number, const N: usize>(data: &[T], step: usize, out: &mut [T]) {
    for (i, out) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        out.copy_from_slice(&data[i * step..][..N]);
    }
}

#[inline(always)]
fn map<T: Number>(a: &[T], out: &mut [T], f: impl Fn(T) -> T) {
    for (out, a) in out.iter_mut().zip(a) {
        *out = f(*a);
    }
}

#[inline(always)]
fn zip<T: Number>(a: Lanes<'_, T>, b: Lanes<'_, T>, out: &mut [T], f: impl Fn(T, T) -> T) {
    match (a, b) {
        (Lanes::Each(a), Lanes::Each(b)) => {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = f(*a, *b);
            }
        }
        (Lanes::Each(a), Lanes::All(b)) => map(a, out, |a| f(a, b)),
        (Lanes::All(a), Lanes::Each(b)) => map(b, out, |b| f(a, b)),
        (Lanes::All(a), Lanes::All(b)) => out.fill(f(a, b)),
    }
}

#[inline(always)]
fn second<T: Number>(then: Then, f: impl Fn(T, T) -> T, a: &[T], b: Lanes<'_, T>, c: Lanes<'_, T>, out: &mut [T]) {
    match then {
        Then::Add => zip3(a, b, c, out, |a, b, c| f(a, b).add(c)),
        Then::Mul => zip3(a, b, c, out, |a, b, c| f(a, b).mul(c)),
        Then::Sub => zip3(a, b, c, out, |a, b, c| f(a, b).sub(c)),
        Then::SubFrom => zip3(a, b, c, out, |a, b, c| c.sub(f(a, b))),
    }
}

#[inline(always)]
fn zip3<T: Number>(a: &[T], b: Lanes<'_, T>, c: Lanes<'_, T>, out: &mut [T], f: impl Fn(T, T, T) -> T) {
    match (b, c) {
        (Lanes::Each(b), Lanes::Each(c)) => {
            for (((out, a), b), c) in out.iter_mut().zip(a).zip(b).zip(c) {
                *out = f(*a, *b, *c);
            }
        }
        (Lanes::Each(b), Lanes::All(c)) => {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = f(*a, *b, c);
            }
        }
        (Lanes::All(b), Lanes::Each(c)) => {
            for ((out, a), c) in out.iter_mut().zip(a).zip(c) {
                *out = f(*a, b, *c);
            }
        }
        (Lanes::All(b), Lanes::All(c)) => map(a, out, |a| f(a, b, c)),
    }
}

/// Whether these are powers of a constant exponent of everyday formulas, which are computed here
/// with the results that the function has.
#[inline(always)]
fn power<T: Number>(a: Lanes<'_, T>, b: Lanes<'_, T>, out: &mut [T]) -> bool {
    let (Lanes::Each(base), Lanes::All(exponent)) = (a, b) else { return false };
    let is = |value: f64| exponent == T::from_f64(value);
    if is(2.0) {
        map(base, out, |a| a.mul(a));
    } else if is(3.0) {
        map(base, out, |a| a.mul(a).mul(a));
    } else if is(-1.0) {
        map(base, out, T::recip);
    } else {
        return false;
    }
    true
}
