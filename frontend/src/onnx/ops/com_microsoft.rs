//! Ops of ONNX Runtime's own, which its optimizer puts in place of several of ONNX's.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::contract::product;
use crate::onnx::ops::norm::{layer_norm, rms_norm};
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::{Binary, Unary};

type Outputs = Result<Vec<Value>, Reason>;

/// `x * sigmoid(alpha * x)`
pub(in crate::onnx) fn quick_gelu(c: &mut Call<'_, '_>) -> Outputs {
    let (x, alpha) = (c.input(0)?, c.attribute_finite("alpha", 1.702)?);
    let scaled = c.scale(&x, alpha)?;
    let gate = c.unary(Unary::Sigmoid, &scaled)?;
    Ok(vec![c.binary(Binary::Mul, &x, &gate)?])
}

/// GELU by tanh, of a sum with a bias if there is one
pub(in crate::onnx) fn fast_gelu(c: &mut Call<'_, '_>) -> Outputs {
    of_sum(c, UnaryFn::GeluTanh)
}

/// GELU of a sum with a bias
pub(in crate::onnx) fn bias_gelu(c: &mut Call<'_, '_>) -> Outputs {
    of_sum(c, UnaryFn::Gelu)
}

fn of_sum(c: &mut Call<'_, '_>, f: UnaryFn) -> Outputs {
    let mut x = c.input(0)?;
    if let Some(bias) = c.optional(1) {
        x = c.binary(Binary::Add, &x, &bias)?;
    }
    Ok(vec![c.unary(f, &x)?])
}

/// `alpha * a b`, the last two dimensions of either exchanged first
pub(in crate::onnx) fn fused_matmul(c: &mut Call<'_, '_>) -> Outputs {
    let alpha = c.attribute_finite("alpha", 1.0)?;
    let [a, b] = [(0, "transA"), (1, "transB")].map(|(i, name)| {
        let x = c.input(i)?;
        let rank = c.ty(&x)?.rank();
        if c.attribute_int(name, 0)? == 0 || rank < 2 {
            return Ok::<Value, Reason>(x);
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        c.transpose(&x, perm)
    });
    if c.attribute_int("transBatchA", 0)? != 0 || c.attribute_int("transBatchB", 0)? != 0 {
        return Err("its batch dimensions are exchanged, which is not supported".into());
    }
    let y = product(c, &a?, &b?)?;
    Ok(vec![c.scale(&y, alpha)?])
}

/// Layer normalisation of a sum; results: y and, as the fourth, the sum
pub(in crate::onnx) fn skip_layer_normalization(c: &mut Call<'_, '_>) -> Outputs {
    let sum = residual(c, 4)?;
    let (scale, bias, eps) = (c.input(2)?, c.optional(3), c.attribute_finite("epsilon", 1e-12)?);
    let y = layer_norm(c, &sum, -1, &scale, bias, eps)?;
    with_sum(c, &y[0], sum)
}

/// Root-mean-square normalisation of a sum; results: y and, as the fourth, the sum
pub(in crate::onnx) fn skip_rms_normalization(c: &mut Call<'_, '_>) -> Outputs {
    let sum = residual(c, 3)?;
    let (scale, eps) = (c.input(2)?, c.attribute_finite("epsilon", 1e-12)?);
    let y = rms_norm(c, &sum, -1, &scale, eps)?;
    with_sum(c, &y[0], sum)
}

/// The sum of the first two inputs and a bias, if there is one.
fn residual(c: &mut Call<'_, '_>, bias: usize) -> Result<Value, Reason> {
    let (x, skip) = (c.input(0)?, c.input(1)?);
    let sum = c.binary(Binary::Add, &x, &skip)?;
    match c.optional(bias) {
        Some(bias) => c.binary(Binary::Add, &sum, &bias),
        None => Ok(sum),
    }
}

fn with_sum(c: &Call<'_, '_>, y: &Value, sum: Value) -> Outputs {
    if c.node.output.iter().skip(1).take(2).any(|name| !name.is_empty()) {
        return Err("its statistics are not supported as outputs".into());
    }
    Ok(vec![y.clone(), sum.clone(), sum.clone(), sum])
}
