//! ONNX's trigonometric and hyperbolic functions beyond sine, cosine and hyperbolic tangent.

use super::call::Call;
use super::importer::Value;
use shardc_ir::scalar::{Binary, Unary};
use std::f64::consts::FRAC_PI_2;

type Outputs = Result<Vec<Value>, String>;

/// `sin x / cos x`
pub(super) fn tan(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let (sin, cos) = (c.unary(Unary::Sin, &x)?, c.unary(Unary::Cos, &x)?);
    Ok(vec![c.binary(Binary::Div, &sin, &cos)?])
}

/// `2 atan(x / (1 + sqrt(1 - x^2)))`
pub(super) fn asin(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    Ok(vec![arc_sine(c, &x)?])
}

/// `pi/2 - asin x`
pub(super) fn acos(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let asin = arc_sine(c, &x)?;
    let quarter = c.number(&x, FRAC_PI_2)?;
    Ok(vec![c.binary(Binary::Sub, &quarter, &asin)?])
}

fn arc_sine(c: &mut Call<'_, '_>, x: &Value) -> Result<Value, String> {
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

/// `(e^x - e^-x) / 2`
pub(super) fn sinh(c: &mut Call<'_, '_>) -> Outputs {
    exponentials(c, Binary::Sub)
}

/// `(e^x + e^-x) / 2`
pub(super) fn cosh(c: &mut Call<'_, '_>) -> Outputs {
    exponentials(c, Binary::Add)
}

fn exponentials(c: &mut Call<'_, '_>, f: Binary) -> Outputs {
    let x = c.input(0)?;
    let rising = c.unary(Unary::Exp, &x)?;
    let negative = c.unary(Unary::Neg, &x)?;
    let falling = c.unary(Unary::Exp, &negative)?;
    let both = c.binary(f, &rising, &falling)?;
    Ok(vec![c.scale(&both, 0.5)?])
}

/// `log(x + sqrt(x^2 + 1))`, mirrored for negative numbers, where that loses all digits
pub(super) fn asinh(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let zero = c.number(&x, 0.0)?;
    let is_negative = c.binary(Binary::Lt, &x, &zero)?;
    let mirrored = c.unary(Unary::Neg, &x)?;
    // Not the magnitude, whose slope at 0 is 0.
    let size = c.select(&is_negative, &mirrored, &x)?;
    let square = c.binary(Binary::Mul, &size, &size)?;
    let sum = c.with_number(Binary::Add, &square, 1.0)?;
    let root = c.unary(Unary::Sqrt, &sum)?;
    let sum = c.binary(Binary::Add, &size, &root)?;
    let log = c.unary(Unary::Log, &sum)?;
    let negative = c.unary(Unary::Neg, &log)?;
    Ok(vec![c.select(&is_negative, &negative, &log)?])
}

/// `log(x + sqrt(x - 1) sqrt(x + 1))`
pub(super) fn acosh(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let (less, more) = (c.with_number(Binary::Sub, &x, 1.0)?, c.with_number(Binary::Add, &x, 1.0)?);
    let (less, more) = (c.unary(Unary::Sqrt, &less)?, c.unary(Unary::Sqrt, &more)?);
    let root = c.binary(Binary::Mul, &less, &more)?;
    let sum = c.binary(Binary::Add, &x, &root)?;
    Ok(vec![c.unary(Unary::Log, &sum)?])
}

/// `log((1 + x) / (1 - x)) / 2`
pub(super) fn atanh(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let one = c.number(&x, 1.0)?;
    let (less, more) = (c.binary(Binary::Sub, &one, &x)?, c.binary(Binary::Add, &one, &x)?);
    let quotient = c.binary(Binary::Div, &more, &less)?;
    let log = c.unary(Unary::Log, &quotient)?;
    Ok(vec![c.scale(&log, 0.5)?])
}
