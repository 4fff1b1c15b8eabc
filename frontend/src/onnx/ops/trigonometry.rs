//! ONNX's trigonometric and hyperbolic functions beyond sine, cosine and hyperbolic tangent.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::ops::elementwise::Detach;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::{Binary, Unary};
use std::f64::consts::FRAC_PI_2;

type Outputs = Result<Vec<Value>, Reason>;

/// `sin x / cos x`
pub(in crate::onnx) fn tan(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let (sin, cos) = (c.unary(Unary::Sin, &x)?, c.unary(Unary::Cos, &x)?);
    Ok(vec![c.binary(Binary::Div, &sin, &cos)?])
}

/// `2 atan(x / (1 + sqrt(1 - x^2)))`
pub(in crate::onnx) fn asin(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    Ok(vec![arc_sine(c, &x)?])
}

/// `pi/2 - asin x`
pub(in crate::onnx) fn acos(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let asin = arc_sine(c, &x)?;
    let quarter = c.number(&x, FRAC_PI_2)?;
    Ok(vec![c.binary(Binary::Sub, &quarter, &asin)?])
}

fn arc_sine(c: &mut Call<'_, '_>, x: &Value) -> Result<Value, Reason> {
    // (1 - x)(1 + x) keeps the digits that 1 - x^2 loses near 1.
    let one = c.number(x, 1.0)?;
    let (less, more) = (c.binary(Binary::Sub, &one, x)?, c.binary(Binary::Add, &one, x)?);
    let product = c.binary(Binary::Mul, &less, &more)?;
    let root = c.unary(Unary::Sqrt, &product)?;
    let divisor = c.with_number(Binary::Add, &root, 1.0)?;
    let quotient = c.binary(Binary::Div, x, &divisor)?;
    let half = c.unary(Unary::Atan, &quotient)?;
    c.scale(&half, 2.0)
}

/// `tanh x cosh x`, which keeps the digits that `e^x - e^-x` loses near 0
pub(in crate::onnx) fn sinh(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let (tanh, cosh) = (c.unary(Unary::Tanh, &x)?, hyperbolic_cosine(c, &x)?);
    Ok(vec![c.binary(Binary::Mul, &tanh, &cosh)?])
}

/// `(e^x + e^-x) / 2`
pub(in crate::onnx) fn cosh(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    Ok(vec![hyperbolic_cosine(c, &x)?])
}

fn hyperbolic_cosine(c: &mut Call<'_, '_>, x: &Value) -> Result<Value, Reason> {
    // Squares of e^(x/2) overflow no earlier than their half sum.
    let half = c.scale(x, 0.5)?;
    let negative = c.unary(Unary::Neg, &half)?;
    let mut terms = vec![];
    for exponent in [half, negative] {
        let exp = c.unary(Unary::Exp, &exponent)?;
        let less = c.scale(&exp, 0.5)?;
        terms.push(c.binary(Binary::Mul, &less, &exp)?);
    }
    c.binary(Binary::Add, &terms[0], &terms[1])
}

/// `log(x + sqrt(x^2 + 1))` of the magnitude
pub(in crate::onnx) fn asinh(c: &mut Call<'_, '_>) -> Outputs {
    mirrored(c, |c, size| {
        let least = c.with_number(Binary::Min, size, 1.0)?;
        let square = c.binary(Binary::Mul, &least, &least)?;
        let root = root_of_one_and(c, &square)?;
        let divisor = c.with_number(Binary::Add, &root, 1.0)?;
        let more = c.binary(Binary::Div, &square, &divisor)?;
        let sum = c.binary(Binary::Add, &least, &more)?;
        let small = log_1p(c, &sum)?;
        let large = log_with_root(c, size, 1.0, 1.0)?;
        let is_small = c.with_number(Binary::Le, size, 1.0)?;
        c.select(&is_small, &small, &large)
    })
}

/// `log(x + sqrt(x - 1) sqrt(x + 1))`
pub(in crate::onnx) fn acosh(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let least = c.with_number(Binary::Min, &x, 2.0)?;
    let (less, more) = (c.with_number(Binary::Sub, &least, 1.0)?, c.with_number(Binary::Add, &least, 1.0)?);
    let (low, high) = (c.unary(Unary::Sqrt, &less)?, c.unary(Unary::Sqrt, &more)?);
    let root = c.binary(Binary::Mul, &low, &high)?;
    let sum = c.binary(Binary::Add, &less, &root)?;
    let small = log_1p(c, &sum)?;
    let large = log_with_root(c, &x, 2.0, -1.0)?;
    let is_large = c.number(&x, 2.0).and_then(|two| c.binary(Binary::Lt, &two, &x))?;
    Ok(vec![c.select(&is_large, &large, &small)?])
}

/// `log((1 + x) / (1 - x)) / 2` of the magnitude
pub(in crate::onnx) fn atanh(c: &mut Call<'_, '_>) -> Outputs {
    mirrored(c, |c, size| {
        let one = c.number(size, 1.0)?;
        let (less, twice) = (c.binary(Binary::Sub, &one, size)?, c.scale(size, 2.0)?);
        let ratio = c.binary(Binary::Div, &twice, &less)?;
        let log = log_1p(c, &ratio)?;
        c.scale(&log, 0.5)
    })
}

/// An odd function by what it is of numbers that are not negative.
fn mirrored(c: &mut Call<'_, '_>, f: impl Fn(&mut Call<'_, '_>, &Value) -> Result<Value, Reason>) -> Outputs {
    let x = c.input(0)?;
    let zero = c.number(&x, 0.0)?;
    let is_negative = c.binary(Binary::Lt, &x, &zero)?;
    let opposite = c.unary(Unary::Neg, &x)?;
    // Not the magnitude, whose slope at 0 is 0.
    let size = c.select(&is_negative, &opposite, &x)?;
    let y = f(c, &size)?;
    let negative = c.unary(Unary::Neg, &y)?;
    Ok(vec![c.select(&is_negative, &negative, &y)?])
}

/// `log(x + sqrt(x^2 + sign))` from `least` on, where the square may overflow:
/// `log x + log(1 + sqrt(1 + sign / x^2))`.
fn log_with_root(c: &mut Call<'_, '_>, x: &Value, least: f64, sign: f64) -> Result<Value, Reason> {
    let large = c.with_number(Binary::Max, x, least)?;
    let inverse = c.unary(Unary::Reciprocal, &large)?;
    let square = c.binary(Binary::Mul, &inverse, &inverse)?;
    let signed = c.scale(&square, sign)?;
    let root = root_of_one_and(c, &signed)?;
    let sum = c.with_number(Binary::Add, &root, 1.0)?;
    let (first, second) = (c.unary(Unary::Log, &large)?, c.unary(Unary::Log, &sum)?);
    c.binary(Binary::Add, &first, &second)
}

/// `sqrt(1 + x)`
fn root_of_one_and(c: &mut Call<'_, '_>, x: &Value) -> Result<Value, Reason> {
    let sum = c.with_number(Binary::Add, x, 1.0)?;
    c.unary(Unary::Sqrt, &sum)
}

/// `log(1 + x)`, with what is lost in adding 1 as a correction of first order, through which no
/// gradient flows.
fn log_1p(c: &mut Call<'_, '_>, x: &Value) -> Result<Value, Reason> {
    let sum = c.with_number(Binary::Add, x, 1.0)?;
    let log = c.unary(Unary::Log, &sum)?;
    let taken = c.with_number(Binary::Sub, &sum, 1.0)?;
    let rest = c.binary(Binary::Sub, x, &taken)?;
    let share = c.binary(Binary::Div, &rest, &sum)?;
    // At the ends, where the logarithm is infinite.
    let (is_nan, zero) = (c.unary(Unary::IsNan, &share)?, c.number(x, 0.0)?);
    let share = c.select(&is_nan, &zero, &share)?;
    let correction = c.emit(Detach {}, &[share])?;
    c.binary(Binary::Add, &log, &correction)
}
