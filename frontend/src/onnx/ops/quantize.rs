//! Floats from the integers that stand for them.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::ops::layout::Slice;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::Binary;

/// `(x - zero point) * scale`, both for all, for each position of one dimension, or for blocks
/// along it
pub(in crate::onnx) fn dequantize_linear(c: &mut Call<'_, '_>) -> Result<Vec<Value>, Reason> {
    c.ignore("output_dtype");
    let (x, scale, zero) = (c.input(0)?, c.input(1)?, c.optional(2));
    let shape = c.shape(&x)?;
    let (axis, block) = (c.attribute_int("axis", 1)?, c.attribute_int("block_size", 0)?);
    let spread = |c: &mut Call<'_, '_>, v: &Value| -> Result<Value, Reason> {
        let own = c.shape(v)?;
        if own.iter().product::<u64>() == 1 {
            return c.reshape(v, vec![]);
        }
        let axis = c.axis(axis, shape.len())?;
        if own.len() == 1 && own[0] == shape[axis] {
            let mut column = vec![1; shape.len() - axis];
            column[0] = own[0];
            return c.reshape(v, column);
        }
        let blocks = u64::try_from(block).ok().filter(|b| *b > 0 && own.len() == shape.len());
        let block = blocks.filter(|b| shape[axis].div_ceil(*b) == own[axis]);
        let block = block.ok_or_else(|| reason!("scales of shape {own:?} for {shape:?} along axis {axis}"))?;
        repeated(c, v, axis, block, shape[axis])
    };
    let scale = spread(c, &scale)?;
    let dtype = c.ty(&scale)?.dtype;
    let mut y = c.cast(&x, dtype)?;
    if let Some(zero) = zero {
        let zero = spread(c, &zero)?;
        let zero = c.cast(&zero, dtype)?;
        y = c.binary(Binary::Sub, &y, &zero)?;
    }
    Ok(vec![c.binary(Binary::Mul, &y, &scale)?])
}

/// Each element `block` times along `axis`, up to `size` of them.
fn repeated(c: &mut Call<'_, '_>, v: &Value, axis: usize, block: u64, size: u64) -> Result<Value, Reason> {
    let own = c.shape(v)?;
    let count = own[axis].checked_mul(block).ok_or("its blocks are too large")?;
    let (mut apart, mut all) = (own.clone(), own.clone());
    apart.insert(axis + 1, 1);
    all.insert(axis + 1, block);
    let v = c.reshape(v, apart)?;
    let v = c.broadcast(&v, all)?;
    let mut merged = own;
    merged[axis] = count;
    let v = c.reshape(&v, merged)?;
    if count == size { Ok(v) } else { c.emit(Slice { axis, start: 0, step: 1, size }, &[v]) }
}
