//! ONNX's elementwise ops.

use crate::onnx::file::tensor;
use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::integers::{self, Narrow};
use shardc_ir::dtype::DType;
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::{Binary, Unary};
use tract_onnx::pb::tensor_proto::DataType;

type Outputs = Result<Vec<Value>, Reason>;

/// One function of one tensor.
pub(in crate::onnx) fn unary(c: &mut Call<'_, '_>, f: UnaryFn) -> Outputs {
    let x = c.input(0)?;
    Ok(vec![c.unary(f, &x)?])
}

/// One function of two tensors.
pub(in crate::onnx) fn binary(c: &mut Call<'_, '_>, f: Binary) -> Outputs {
    let (x, y) = (c.input(0)?, c.input(1)?);
    Ok(vec![c.binary(f, &x, &y)?])
}

/// `f(b, a)`
pub(in crate::onnx) fn swapped(c: &mut Call<'_, '_>, f: Binary) -> Outputs {
    let (x, y) = (c.input(0)?, c.input(1)?);
    Ok(vec![c.binary(f, &y, &x)?])
}

/// `f` from left to right over any number of tensors.
pub(in crate::onnx) fn variadic(c: &mut Call<'_, '_>, f: Binary) -> Outputs {
    let inputs = c.all_inputs()?;
    let (first, rest) = inputs.split_first().ok_or("it has no inputs")?;
    let result = rest.iter().try_fold(first.clone(), |a, b| c.binary(f, &a, b))?;
    Ok(vec![result])
}

/// The mean of any number of tensors.
pub(in crate::onnx) fn mean(c: &mut Call<'_, '_>) -> Outputs {
    let count = c.inputs.len() as f64;
    let sum = variadic(c, Binary::Add)?;
    Ok(vec![c.scale(&sum[0], 1.0 / count)?])
}

/// `min(max(x, low), high)`
pub(in crate::onnx) fn clip(c: &mut Call<'_, '_>) -> Outputs {
    let mut x = c.input(0)?;
    for (i, name, f) in [(1, "min", Binary::Max), (2, "max", Binary::Min)] {
        if let Some(bound) = c.optional(i) {
            x = c.binary(f, &x, &bound)?;
        } else if c.has_attribute(name) {
            // Before op set 11.
            let bound = c.attribute_float(name, 0.0)?;
            x = c.with_number(f, &x, bound)?;
        }
    }
    Ok(vec![x])
}

/// `a^b`, where `b` may have an element type of its own; the power of an integer by a float is
/// truncated
pub(in crate::onnx) fn pow(c: &mut Call<'_, '_>) -> Outputs {
    let (x, y) = (c.input(0)?, c.input(1)?);
    let dtype = c.ty(&x)?.dtype;
    let common = if dtype.is_float() || !c.ty(&y)?.dtype.is_float() { dtype } else { DType::F64 };
    let (base, exponent) = (c.cast(&x, common)?, c.cast(&y, common)?);
    let power = c.binary(Binary::Pow, &base, &exponent)?;
    Ok(vec![c.cast(&power, dtype)?])
}

/// The remainder with the sign of the divisor, or of the dividend where `fmod` is 1
pub(in crate::onnx) fn modulo(c: &mut Call<'_, '_>) -> Outputs {
    if c.attribute_int("fmod", 0)? == 0 {
        return binary(c, Binary::Mod);
    }
    let (x, y) = (c.input(0)?, c.input(1)?);
    if !c.ty(&x)?.dtype.is_float() {
        // The least integer has no size.
        let rest = c.binary(Binary::Mod, &x, &y)?;
        let [is_below, goes_down] = [&x, &y].map(|value| c.with_number(Binary::Lt, value, 0.0));
        let differ = c.binary(Binary::Xor, &is_below?, &goes_down?)?;
        let is_whole = c.with_number(Binary::Eq, &rest, 0.0)?;
        let turned = c.binary(Binary::Sub, &rest, &y)?;
        let rest_of_x = c.select(&differ, &turned, &rest)?;
        return Ok(vec![c.select(&is_whole, &rest, &rest_of_x)?]);
    }
    let (size, divisor) = (c.unary(Unary::Abs, &x)?, c.unary(Unary::Abs, &y)?);
    let rest = c.binary(Binary::Mod, &size, &divisor)?;
    let sign = c.unary(Unary::Sign, &x)?;
    Ok(vec![c.binary(Binary::Mul, &rest, &sign)?])
}

/// Whether elements are infinite
pub(in crate::onnx) fn is_inf(c: &mut Call<'_, '_>) -> Outputs {
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
pub(in crate::onnx) fn select(c: &mut Call<'_, '_>) -> Outputs {
    let (condition, a, b) = (c.input(0)?, c.input(1)?, c.input(2)?);
    Ok(vec![c.select(&condition, &a, &b)?])
}

/// Another element type
pub(in crate::onnx) fn cast(c: &mut Call<'_, '_>) -> Outputs {
    c.ignore("saturate");
    if !c.has_attribute("to") {
        return Err("attribute `to` is missing".into());
    }
    let to = i32::try_from(c.attribute_int("to", 0)?).map_err(|_| "attribute `to` is no element type")?;
    let dtype = tensor::dtype(to, c.context.float)?;
    let x = c.input(0)?;
    Ok(vec![cast_to(c, &x, dtype, DataType::try_from(to).ok())?])
}

/// `x`, the first input, as `dtype`, which in ONNX is `kind`. What ONNX leaves open, a float out of
/// the range of a narrow type of integers, becomes one of its numbers.
fn cast_to(c: &mut Call<'_, '_>, x: &Value, dtype: DType, kind: Option<DataType>) -> Result<Value, Reason> {
    let is_number = c.ty(x)?.dtype != DType::Bool;
    if kind == Some(DataType::Uint64) {
        integers::check_uint64(c, x)?;
    }
    let y = c.cast(x, dtype)?;
    match kind.and_then(Narrow::of).filter(|_| is_number && c.kind(0) != kind) {
        Some(narrow) => narrow.wrap(c, &y),
        None => Ok(y),
    }
}

/// The element type of the second input
pub(in crate::onnx) fn cast_like(c: &mut Call<'_, '_>) -> Outputs {
    c.ignore("saturate");
    let (x, like) = (c.input(0)?, c.input(1)?);
    let dtype = c.ty(&like)?.dtype;
    let kind = c.kind(1);
    Ok(vec![cast_to(c, &x, dtype, kind)?])
}

/// The same value
pub(in crate::onnx) fn identity(c: &mut Call<'_, '_>) -> Outputs {
    Ok(vec![c.input(0)?])
}
