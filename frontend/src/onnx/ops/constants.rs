//! Nodes that make constants.

use crate::onnx::file::tensor;
use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::dtype::DType;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::{Tensor, Type};

type Outputs = Result<Vec<Value>, Reason>;

/// A constant in an attribute
pub(in crate::onnx) fn constant(c: &mut Call<'_, '_>) -> Outputs {
    let float = c.context.float.unwrap_or(DType::F32);
    let floats = |values: &[f64], shape: Vec<u64>| Tensor::from_f64(Type::new(float, shape), values);
    let value = if let Some(tensor) = c.attribute_tensor("value")? {
        tensor
    } else if c.has_attribute("value_float") {
        let value = c.attribute_float("value_float", 0.0)?;
        floats(&[value], vec![])
    } else if c.has_attribute("value_int") {
        Tensor::from_i64([], &[c.attribute_int("value_int", 0)?])
    } else if let Some(values) = c.attribute_ints("value_ints")? {
        Tensor::from_i64([values.len() as u64], &values)
    } else if let Some(values) = c.attribute_floats("value_floats")? {
        floats(&values, vec![values.len() as u64])
    } else if c.has_attribute("sparse_value") {
        return Err("sparse constants are not supported".into());
    } else {
        return Err("its value is of a kind that is not supported".into());
    };
    Ok(vec![Value::Known(value)])
}

/// One value everywhere
pub(in crate::onnx) fn constant_of_shape(c: &mut Call<'_, '_>) -> Outputs {
    let shape: Result<Vec<u64>, _> = c.ints(0, "shape")?.iter().map(|n| u64::try_from(*n)).collect();
    let shape = shape.map_err(|_| "its shape has a negative size")?;
    let float = c.context.float.unwrap_or(DType::F32);
    let value = c.attribute_tensor("value")?.unwrap_or_else(|| Tensor::scalar(float, 0.0));
    if value.ty.elements() != 1 {
        return Err(reason!("its value is {}, not one number", value.ty));
    }
    let scalar = Value::Known(Tensor { ty: Type::scalar(value.ty.dtype), bytes: value.bytes });
    Ok(vec![c.broadcast(&scalar, shape)?])
}

/// Numbers from start to limit
pub(in crate::onnx) fn range(c: &mut Call<'_, '_>) -> Outputs {
    let [start, limit, delta] = [c.known(0, "start")?, c.known(1, "limit")?, c.known(2, "delta")?];
    let dtype = start.ty.dtype;
    if [&start, &limit, &delta].iter().any(|t| t.ty.elements() != 1 || t.ty.dtype != dtype) || dtype == DType::Bool {
        return Err("its bounds are not numbers of one type".into());
    }
    let number = |t: &Tensor| t.to_f64()[0];
    let count = if dtype == DType::I64 {
        let [start, limit, delta] = [&start, &limit, &delta].map(|t| i128::from(t.to_i64()[0]));
        let (way, step) = ((limit - start) * delta.signum(), delta.abs().max(1));
        ((way + step - 1) / step).max(0) as f64
    } else {
        ((number(&limit) - number(&start)) / number(&delta)).ceil().max(0.0)
    };
    if number(&delta) == 0.0 || count.is_nan() {
        return Err(reason!("it runs from {} to {} by {}", number(&start), number(&limit), number(&delta)));
    }
    let shape = [count as u64];
    c.context.allow(&shape)?;
    let tensor = if dtype == DType::I64 {
        let (first, step) = (start.to_i64()[0], delta.to_i64()[0]);
        let values: Vec<i64> = (0..count as i64).map(|i| first.wrapping_add(step.wrapping_mul(i))).collect();
        Tensor::from_i64(shape, &values)
    } else {
        let values: Vec<f64> = (0..count as u64).map(|i| number(&start) + i as f64 * number(&delta)).collect();
        Tensor::from_f64(Type::new(dtype, shape), &values)
    };
    Ok(vec![Value::Known(tensor)])
}

/// Ones on a diagonal of a matrix like another
pub(in crate::onnx) fn eye_like(c: &mut Call<'_, '_>) -> Outputs {
    let ty = c.ty(&c.input(0)?)?;
    let k = c.attribute_int("k", 0)?;
    let dtype = match c.attribute_int("dtype", 0)? {
        0 => ty.dtype,
        kind => tensor::dtype(i32::try_from(kind).map_err(|_| "attribute `dtype`")?, c.context.float)?,
    };
    let [rows, columns] = ty.shape[..] else { return Err(reason!("its input is {ty}, not a matrix")) };
    c.context.allow(&ty.shape)?;
    let one = |i: u64, j: u64| f64::from(j as i64 == (i as i64).saturating_add(k));
    let values: Vec<f64> = (0..rows).flat_map(|i| (0..columns).map(move |j| one(i, j))).collect();
    Ok(vec![Value::Known(Tensor::from_f64(Type::new(dtype, ty.shape), &values))])
}
