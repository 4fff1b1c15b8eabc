//! ONNX's elementwise ops.

use super::call::Call;
use super::importer::Value;
use super::tensor;
use shardc_ir::ops::elementwise::{self, UnaryFn};
use shardc_ir::scalar::{Binary, Unary};

type Outputs = Result<Vec<Value>, String>;

/// One function of one tensor.
pub(super) fn unary(c: &mut Call<'_, '_>, f: UnaryFn) -> Outputs {
    let x = c.input(0)?;
    Ok(vec![c.unary(f, &x)?])
}

/// One function of two tensors.
pub(super) fn binary(c: &mut Call<'_, '_>, f: Binary) -> Outputs {
    let (x, y) = (c.input(0)?, c.input(1)?);
    Ok(vec![c.binary(f, &x, &y)?])
}

/// `f(b, a)`
pub(super) fn swapped(c: &mut Call<'_, '_>, f: Binary) -> Outputs {
    let (x, y) = (c.input(0)?, c.input(1)?);
    Ok(vec![c.binary(f, &y, &x)?])
}

/// `f` from left to right over any number of tensors.
pub(super) fn variadic(c: &mut Call<'_, '_>, f: Binary) -> Outputs {
    let inputs = c.all_inputs()?;
    let (first, rest) = inputs.split_first().ok_or("it has no inputs")?;
    let result = rest.iter().try_fold(first.clone(), |a, b| c.binary(f, &a, b))?;
    Ok(vec![result])
}

/// The mean of any number of tensors.
pub(super) fn mean(c: &mut Call<'_, '_>) -> Outputs {
    let count = c.inputs.len() as f64;
    let sum = variadic(c, Binary::Add)?;
    Ok(vec![c.scale(&sum[0], 1.0 / count)?])
}

/// `Gelu`, exact or by tanh.
pub(super) fn gelu(c: &mut Call<'_, '_>) -> Outputs {
    let f = match c.attribute_string("approximate", "none")?.as_str() {
        "none" => UnaryFn::Gelu,
        "tanh" => UnaryFn::GeluTanh,
        other => return Err(format!("`approximate` is `{other}`")),
    };
    unary(c, f)
}

/// `x` where it is positive, else `alpha * x`
pub(super) fn leaky_relu(c: &mut Call<'_, '_>) -> Outputs {
    let (x, alpha) = (c.input(0)?, c.attribute_float("alpha", 0.01)?);
    let negative = c.scale(&x, alpha)?;
    Ok(vec![where_positive(c, &x, &negative)?])
}

/// `x` where it is positive, else `alpha * (e^x - 1)`
pub(super) fn elu(c: &mut Call<'_, '_>) -> Outputs {
    let (x, alpha) = (c.input(0)?, c.attribute_float("alpha", 1.0)?);
    // The branch that is not taken must stay finite, for its gradient is multiplied by 0.
    let below = c.with_number(Binary::Min, &x, 0.0)?;
    let exp = c.unary(Unary::Exp, &below)?;
    let less = c.with_number(Binary::Sub, &exp, 1.0)?;
    let negative = c.scale(&less, alpha)?;
    Ok(vec![where_positive(c, &x, &negative)?])
}

fn where_positive(c: &mut Call<'_, '_>, x: &Value, otherwise: &Value) -> Result<Value, String> {
    let zero = c.number(x, 0.0)?;
    let positive = c.binary(Binary::Lt, &zero, x)?;
    c.elementwise(elementwise::Where {}, &[positive, x.clone(), otherwise.clone()])
}

/// `max(0, min(1, alpha * x + beta))`
pub(super) fn hard_sigmoid(c: &mut Call<'_, '_>) -> Outputs {
    let (alpha, beta) = (c.attribute_float("alpha", 0.2)?, c.attribute_float("beta", 0.5)?);
    let x = c.input(0)?;
    Ok(vec![ramp(c, &x, alpha, beta)?])
}

/// `x * max(0, min(1, x / 6 + 0.5))`
pub(super) fn hard_swish(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let gate = ramp(c, &x, 1.0 / 6.0, 0.5)?;
    Ok(vec![c.binary(Binary::Mul, &x, &gate)?])
}

fn ramp(c: &mut Call<'_, '_>, x: &Value, alpha: f64, beta: f64) -> Result<Value, String> {
    let scaled = c.scale(x, alpha)?;
    let shifted = c.with_number(Binary::Add, &scaled, beta)?;
    let below = c.with_number(Binary::Min, &shifted, 1.0)?;
    c.with_number(Binary::Max, &below, 0.0)
}

/// `x * sigmoid(alpha * x)`
pub(super) fn swish(c: &mut Call<'_, '_>) -> Outputs {
    let (x, alpha) = (c.input(0)?, c.attribute_float("alpha", 1.0)?);
    let scaled = c.scale(&x, alpha)?;
    let gate = c.unary(Unary::Sigmoid, &scaled)?;
    Ok(vec![c.binary(Binary::Mul, &x, &gate)?])
}

/// `min(max(x, low), high)`
pub(super) fn clip(c: &mut Call<'_, '_>) -> Outputs {
    let mut x = c.input(0)?;
    for (i, f) in [(1, Binary::Max), (2, Binary::Min)] {
        if let Some(bound) = c.optional(i) {
            x = c.binary(f, &x, &bound)?;
        }
    }
    Ok(vec![x])
}

/// `a^b`, where `b` may have an element type of its own
pub(super) fn pow(c: &mut Call<'_, '_>) -> Outputs {
    let (x, y) = (c.input(0)?, c.input(1)?);
    let dtype = c.ty(&x)?.dtype;
    let y = c.cast(&y, dtype)?;
    Ok(vec![c.binary(Binary::Pow, &x, &y)?])
}

/// The remainder with the sign of the divisor, or of the dividend where `fmod` is 1
pub(super) fn modulo(c: &mut Call<'_, '_>) -> Outputs {
    if c.attribute_int("fmod", 0)? == 0 {
        return binary(c, Binary::Mod);
    }
    let (x, y) = (c.input(0)?, c.input(1)?);
    let (size, divisor) = (c.unary(Unary::Abs, &x)?, c.unary(Unary::Abs, &y)?);
    let rest = c.binary(Binary::Mod, &size, &divisor)?;
    let sign = c.unary(Unary::Sign, &x)?;
    Ok(vec![c.binary(Binary::Mul, &rest, &sign)?])
}

/// Whether elements are infinite
pub(super) fn is_inf(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let (negative, positive) = (c.attribute_int("detect_negative", 1)? != 0, c.attribute_int("detect_positive", 1)? != 0);
    let (y, bound) = match (negative, positive) {
        (true, true) => (c.unary(Unary::Abs, &x)?, f64::INFINITY),
        (false, true) => (x, f64::INFINITY),
        (true, false) => (x, f64::NEG_INFINITY),
        (false, false) => return Err("it detects nothing".into()),
    };
    Ok(vec![c.with_number(Binary::Eq, &y, bound)?])
}

/// `a` where the condition holds, else `b`
pub(super) fn select(c: &mut Call<'_, '_>) -> Outputs {
    let operands = [c.input(0)?, c.input(1)?, c.input(2)?];
    Ok(vec![c.elementwise(elementwise::Where {}, &operands)?])
}

/// Another element type
pub(super) fn cast(c: &mut Call<'_, '_>) -> Outputs {
    c.ignore("saturate");
    if !c.has_attribute("to") {
        return Err("attribute `to` is missing".into());
    }
    let to = i32::try_from(c.attribute_int("to", 0)?).map_err(|_| "attribute `to` is no element type")?;
    let dtype = tensor::dtype(to, c.importer.float)?;
    let x = c.input(0)?;
    Ok(vec![c.cast(&x, dtype)?])
}

/// The element type of the second input
pub(super) fn cast_like(c: &mut Call<'_, '_>) -> Outputs {
    c.ignore("saturate");
    let (x, like) = (c.input(0)?, c.input(1)?);
    let dtype = c.ty(&like)?.dtype;
    Ok(vec![c.cast(&x, dtype)?])
}

/// The same value
pub(super) fn identity(c: &mut Call<'_, '_>) -> Outputs {
    Ok(vec![c.input(0)?])
}

/// Dropout that drops nothing
pub(super) fn dropout(c: &mut Call<'_, '_>) -> Outputs {
    c.ignore("seed");
    let ratio = if c.optional(1).is_some() { c.known(1, "ratio")?.to_f64().first().copied().unwrap_or(0.0) } else { 0.5 };
    let training = c.optional(2).is_some() && c.known(2, "training mode")?.to_f64().first().is_some_and(|v| *v != 0.0);
    if training && ratio > 0.0 {
        return Err(format!("dropout with ratio {ratio} is not supported yet; export the model with dropout 0"));
    }
    let x = c.input(0)?;
    let kept = if c.node.output.len() > 1 { c.truth_like(&x)? } else { x.clone() };
    Ok(vec![x, kept])
}
