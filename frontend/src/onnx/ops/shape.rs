//! Ops that read shapes, which are always known here.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::reason::Reason;
use shardc_ir::types::Tensor;

/// Some of the sizes of a tensor
pub(in crate::onnx) fn shape(c: &mut Call<'_, '_>) -> Result<Vec<Value>, Reason> {
    let shape = c.shape(&c.input(0)?)?;
    let rank = shape.len() as i64;
    let bound = |v: i64| (if v < 0 { v.saturating_add(rank) } else { v }).clamp(0, rank) as usize;
    let (start, end) = (bound(c.attribute_int("start", 0)?), bound(c.attribute_int("end", rank)?));
    let sizes: Vec<i64> = shape[start..end.max(start)].iter().map(|n| *n as i64).collect();
    Ok(vec![Value::Known(Tensor::from_i64([sizes.len() as u64], &sizes))])
}

/// The number of elements of a tensor
pub(in crate::onnx) fn size(c: &mut Call<'_, '_>) -> Result<Vec<Value>, Reason> {
    let elements = c.ty(&c.input(0)?)?.elements();
    Ok(vec![Value::Known(Tensor::from_i64([], &[elements as i64]))])
}
