//! Elementwise ops, one number at a time.

use super::{Numbers, broadcast_positions, combine, from_f64, from_i64};
use crate::dtype::DType;
use crate::ops::elementwise::UnaryFn;
use crate::reduce_kind::ReduceKind;
use crate::scalar::{Binary, Unary};
use crate::types::{Tensor, Type};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

/// `f(x)`
pub(super) fn unary(f: UnaryFn, x: &Tensor, result: &Type) -> Result<Tensor, String> {
    let numbers = Numbers::of(x);
    let all = 0..x.ty.elements() as usize;
    if x.ty.dtype.is_float() {
        return Ok(from_f64(result, all.map(|i| unary_f64(f, numbers.f64(i)))));
    }
    let mut failed = None;
    let values = all.map(|i| unary_i64(f, numbers.i64(i)).unwrap_or_else(|why| note(&mut failed, why)));
    let tensor = from_i64(result, values);
    failed.map_or(Ok(tensor), Err)
}

/// Keeps the reason why a number does not exist, and goes on with 0.
fn note(failed: &mut Option<String>, why: String) -> i64 {
    *failed = Some(why);
    0
}

fn unary_f64(f: UnaryFn, x: f64) -> f64 {
    match f {
        UnaryFn::Scalar(f) => match f {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Sign if x == 0.0 || x.is_nan() => x,
            Unary::Sign => x.signum(),
            Unary::Exp => x.exp(),
            Unary::Log => x.ln(),
            Unary::Sqrt => x.sqrt(),
            Unary::Reciprocal => 1.0 / x,
            Unary::Sin => x.sin(),
            Unary::Cos => x.cos(),
            Unary::Atan => x.atan(),
            Unary::Tanh => x.tanh(),
            Unary::Erf => erf(x),
            Unary::Sigmoid => sigmoid(x),
            Unary::Floor => x.floor(),
            Unary::Ceil => x.ceil(),
            Unary::Round => x.round_ties_even(),
            Unary::Not => f64::from(x == 0.0),
            Unary::IsNan => f64::from(x.is_nan()),
        },
        UnaryFn::Relu => combine(ReduceKind::Max, x, 0.0),
        UnaryFn::Gelu => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
        UnaryFn::GeluTanh => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        UnaryFn::Silu => x * sigmoid(x),
        UnaryFn::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function by its series of positive terms, `2/sqrt(pi) e^(-x^2) sum 2^n x^(2n+1) / (2n+1)!!`.
/// Abramowitz, Stegun: Handbook of Mathematical Functions, 7.1.6.
fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > sum.abs() * 1e-18 {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

fn unary_i64(f: UnaryFn, x: i64) -> Result<i64, String> {
    Ok(match f {
        UnaryFn::Scalar(Unary::Neg) => x.wrapping_neg(),
        UnaryFn::Scalar(Unary::Abs) => x.wrapping_abs(),
        UnaryFn::Scalar(Unary::Sign) => x.signum(),
        UnaryFn::Scalar(Unary::Floor | Unary::Ceil | Unary::Round) => x,
        UnaryFn::Scalar(Unary::Not) => i64::from(x == 0),
        UnaryFn::Scalar(Unary::IsNan) => 0,
        UnaryFn::Relu => x.max(0),
        _ => return Err(format!("`{}` of integers", f.name())),
    })
}

/// `(x - mean) / sqrt(variance + eps) * scale + bias`, all but x broadcast
pub(super) fn batch_norm(eps: f64, operands: &[Tensor]) -> Tensor {
    let x = &operands[0];
    let values: Vec<Vec<f64>> =
        operands.iter().map(|t| broadcast_positions(&t.ty.shape, &x.ty.shape).map(|p| Numbers::of(t).f64(p)).collect()).collect();
    let [x_at, scale, bias, mean, variance] = &values[..] else { unreachable!("the operands were checked") };
    let y = (0..x_at.len()).map(|i| (x_at[i] - mean[i]) / (variance[i] + eps).sqrt() * scale[i] + bias[i]);
    from_f64(&x.ty, y)
}

/// `f(a, b)` with broadcasting
pub(super) fn binary(f: Binary, a: &Tensor, b: &Tensor, result: &Type) -> Result<Tensor, String> {
    let (x, y) = (Numbers::of(a), Numbers::of(b));
    let pairs = broadcast_positions(&a.ty.shape, &result.shape).zip(broadcast_positions(&b.ty.shape, &result.shape));
    if a.ty.dtype.is_float() {
        return Ok(from_f64(result, pairs.map(|(p, q)| binary_f64(f, x.f64(p), y.f64(q)))));
    }
    let mut failed = None;
    let values = pairs.map(|(p, q)| binary_i64(f, x.i64(p), y.i64(q)).unwrap_or_else(|why| note(&mut failed, why)));
    let tensor = from_i64(result, values);
    failed.map_or(Ok(tensor), Err)
}

fn binary_f64(f: Binary, a: f64, b: f64) -> f64 {
    match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Pow => a.powf(b),
        Binary::Max => combine(ReduceKind::Max, a, b),
        Binary::Min => combine(ReduceKind::Min, a, b),
        Binary::Mod => {
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
        }
        Binary::Eq => f64::from(a == b),
        Binary::Lt => f64::from(a < b),
        Binary::Le => f64::from(a <= b),
        Binary::And => f64::from(a != 0.0 && b != 0.0),
        Binary::Or => f64::from(a != 0.0 || b != 0.0),
        Binary::Xor => f64::from((a != 0.0) != (b != 0.0)),
    }
}

fn binary_i64(f: Binary, a: i64, b: i64) -> Result<i64, String> {
    if b == 0 && matches!(f, Binary::Div | Binary::Mod) {
        return Err("integers are divided by 0".into());
    }
    Ok(match f {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div => a.wrapping_div(b),
        Binary::Pow => power(a, b),
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::Mod => {
            let rest = a.wrapping_rem(b);
            if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
        }
        Binary::Eq => i64::from(a == b),
        Binary::Lt => i64::from(a < b),
        Binary::Le => i64::from(a <= b),
        Binary::And => i64::from(a != 0 && b != 0),
        Binary::Or => i64::from(a != 0 || b != 0),
        Binary::Xor => i64::from((a != 0) != (b != 0)),
    })
}

/// `a^b`; a negative exponent truncates toward zero.
fn power(a: i64, b: i64) -> i64 {
    match (a, b) {
        (_, 0) | (1, _) => 1,
        (-1, _) => {
            if b % 2 == 0 {
                1
            } else {
                -1
            }
        }
        (_, b) if b < 0 => 0,
        (a, b) => a.wrapping_pow(b.min(i64::from(u32::MAX)) as u32),
    }
}

/// Of condition, a and b: `a` where the condition holds, else `b`
pub(super) fn select(operands: [&Tensor; 3], result: &Type) -> Tensor {
    let bytes = match result.dtype.bytes() {
        1 => select_words::<1>(operands, result),
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
