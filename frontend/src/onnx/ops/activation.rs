//! ONNX's activations.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::elementwise::unary;
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::{Binary, Unary};

type Outputs = Result<Vec<Value>, Reason>;

/// `Gelu`, exact or by tanh.
pub(in crate::onnx) fn gelu(c: &mut Call<'_, '_>) -> Outputs {
    let f = match c.attribute_string("approximate", "none")?.as_str() {
        "none" => UnaryFn::Gelu,
        "tanh" => UnaryFn::GeluTanh,
        other => return Err(reason!("`approximate` is `{other}`")),
    };
    unary(c, f)
}

/// `x` where it is positive, else `alpha * x`
pub(in crate::onnx) fn leaky_relu(c: &mut Call<'_, '_>) -> Outputs {
    let (x, alpha) = (c.input(0)?, c.attribute_finite("alpha", 0.01)?);
    let negative = c.scale(&x, alpha)?;
    Ok(vec![where_positive(c, &x, &negative)?])
}

/// `x` where it is positive, else `slope * x`
pub(in crate::onnx) fn prelu(c: &mut Call<'_, '_>) -> Outputs {
    let (x, slope) = (c.input(0)?, c.input(1)?);
    let negative = c.binary(Binary::Mul, &x, &slope)?;
    if c.shape(&negative)? != c.shape(&x)? {
        return Err(reason!("its slope {} does not broadcast to {}", c.ty(&slope)?, c.ty(&x)?));
    }
    Ok(vec![where_positive(c, &x, &negative)?])
}

/// `x` where it is positive, else `alpha * (e^x - 1)`
pub(in crate::onnx) fn elu(c: &mut Call<'_, '_>) -> Outputs {
    let (x, alpha) = (c.input(0)?, c.attribute_finite("alpha", 1.0)?);
    let negative = decay(c, &x, alpha, 1.0)?;
    Ok(vec![where_positive(c, &x, &negative)?])
}

/// `x` where it is positive, else `alpha * (e^(x / alpha) - 1)`
pub(in crate::onnx) fn celu(c: &mut Call<'_, '_>) -> Outputs {
    let (x, alpha) = (c.input(0)?, c.attribute_finite("alpha", 1.0)?);
    let negative = decay(c, &x, alpha, 1.0 / alpha)?;
    Ok(vec![where_positive(c, &x, &negative)?])
}

/// `gamma` times an `Elu`
pub(in crate::onnx) fn selu(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let alpha = c.attribute_finite("alpha", 1.673_263_192_176_818_8)?;
    let gamma = c.attribute_finite("gamma", 1.050_701_022_148_132_3)?;
    let negative = decay(c, &x, alpha, 1.0)?;
    let y = where_positive(c, &x, &negative)?;
    Ok(vec![c.scale(&y, gamma)?])
}

/// `x * tanh(log(1 + e^x))`
pub(in crate::onnx) fn mish(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let softplus = c.unary(UnaryFn::Softplus, &x)?;
    let gate = c.unary(Unary::Tanh, &softplus)?;
    Ok(vec![c.binary(Binary::Mul, &x, &gate)?])
}

/// `x / (1 + |x|)`
pub(in crate::onnx) fn softsign(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let size = c.unary(Unary::Abs, &x)?;
    let divisor = c.with_number(Binary::Add, &size, 1.0)?;
    Ok(vec![c.binary(Binary::Div, &x, &divisor)?])
}

/// `x` where it exceeds `alpha`, else 0
pub(in crate::onnx) fn thresholded_relu(c: &mut Call<'_, '_>) -> Outputs {
    let (x, alpha) = (c.input(0)?, c.attribute_finite("alpha", 1.0)?);
    let (above, zero) = (exceeds(c, &x, alpha)?, c.number(&x, 0.0)?);
    Ok(vec![c.select(&above, &x, &zero)?])
}

/// `x` moved by `bias` toward 0 where it is farther than `lambd` from it, else 0
pub(in crate::onnx) fn shrink(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let (bias, lambda) = (c.attribute_float("bias", 0.0)?, c.attribute_float("lambd", 0.5)?);
    let (less, more) = (c.with_number(Binary::Sub, &x, bias)?, c.with_number(Binary::Add, &x, bias)?);
    let (above, bound, zero) = (exceeds(c, &x, lambda)?, c.number(&x, -lambda)?, c.number(&x, 0.0)?);
    let below = c.binary(Binary::Lt, &x, &bound)?;
    let rest = c.select(&below, &more, &zero)?;
    Ok(vec![c.select(&above, &less, &rest)?])
}

/// `alpha * (e^(rate * x) - 1)` of what of `x` is below 0: the branch that is not taken stays
/// finite, for its gradient is multiplied by 0.
fn decay(c: &mut Call<'_, '_>, x: &Value, alpha: f64, rate: f64) -> Result<Value, Reason> {
    let below = c.with_number(Binary::Min, x, 0.0)?;
    let scaled = c.scale(&below, rate)?;
    let exp = c.unary(Unary::Exp, &scaled)?;
    let less = c.with_number(Binary::Sub, &exp, 1.0)?;
    c.scale(&less, alpha)
}

fn where_positive(c: &mut Call<'_, '_>, x: &Value, otherwise: &Value) -> Result<Value, Reason> {
    let positive = exceeds(c, x, 0.0)?;
    c.select(&positive, x, otherwise)
}

/// `number < x`
fn exceeds(c: &mut Call<'_, '_>, x: &Value, number: f64) -> Result<Value, Reason> {
    let number = c.number(x, number)?;
    c.binary(Binary::Lt, &number, x)
}

/// `max(0, min(1, alpha * x + beta))`
pub(in crate::onnx) fn hard_sigmoid(c: &mut Call<'_, '_>) -> Outputs {
    let (alpha, beta) = (c.attribute_finite("alpha", 0.2)?, c.attribute_finite("beta", 0.5)?);
    let x = c.input(0)?;
    Ok(vec![ramp(c, &x, alpha, beta)?])
}

/// `x * max(0, min(1, x / 6 + 0.5))`
pub(in crate::onnx) fn hard_swish(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let gate = ramp(c, &x, 1.0 / 6.0, 0.5)?;
    Ok(vec![c.binary(Binary::Mul, &x, &gate)?])
}

fn ramp(c: &mut Call<'_, '_>, x: &Value, alpha: f64, beta: f64) -> Result<Value, Reason> {
    let scaled = c.scale(x, alpha)?;
    let shifted = c.with_number(Binary::Add, &scaled, beta)?;
    let below = c.with_number(Binary::Min, &shifted, 1.0)?;
    c.with_number(Binary::Max, &below, 0.0)
}

/// `x * sigmoid(alpha * x)`
pub(in crate::onnx) fn swish(c: &mut Call<'_, '_>) -> Outputs {
    let (x, alpha) = (c.input(0)?, c.attribute_finite("alpha", 1.0)?);
    let scaled = c.scale(&x, alpha)?;
    let gate = c.unary(Unary::Sigmoid, &scaled)?;
    Ok(vec![c.binary(Binary::Mul, &x, &gate)?])
}
