//! More or fewer elements at the ends of dimensions.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::ops::index::Gather;
use shardc_ir::ops::layout::{Pad, Slice};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::Tensor;

type Outputs = Result<Vec<Value>, Reason>;

/// More elements before and after; negative counts take elements away
pub(in crate::onnx) fn pad(c: &mut Call<'_, '_>) -> Outputs {
    let mode = c.attribute_string("mode", "constant")?;
    let x = c.input(0)?;
    let rank = c.ty(&x)?.rank();
    // Before op set 11 an attribute.
    let pads = c.ints_or_attribute(1, "pads")?.ok_or("it has no pads")?;
    let value = c.optional(2);
    let axes = match c.optional(3) {
        Some(_) => c.ints(3, "axes")?,
        None => (0..rank as i64).collect(),
    };
    c.axes(&axes, rank)?;
    if pads.len() != 2 * axes.len() {
        return Err(reason!("{} pads for {} dimensions", pads.len(), axes.len()));
    }
    let (before, after) = pads.split_at(axes.len());
    let counts: Vec<(usize, i64, i64)> =
        (0..axes.len()).map(|i| Ok((c.axis(axes[i], rank)?, before[i], after[i]))).collect::<Result<_, Reason>>()?;
    match mode.as_str() {
        "constant" => {
            let dtype = c.ty(&x)?.dtype;
            let value = match value {
                Some(value) => {
                    let value = c.reshape(&value, vec![])?;
                    c.cast(&value, dtype)?
                }
                None => Value::Known(Tensor::scalar(dtype, c.attribute_float("value", 0.0)?)),
            };
            Ok(vec![with_value(c, &x, &counts, &value)?])
        }
        "edge" => repeated(c, x, &counts, |p, n| p.clamp(0, n - 1)),
        "reflect" => {
            repeated(c, x, &counts, |p, n| if n == 1 { 0 } else { (n - 1) - ((n - 1) - p.rem_euclid(2 * (n - 1))).abs() })
        }
        "wrap" => repeated(c, x, &counts, |p, n| p.rem_euclid(n)),
        other => Err(reason!("mode `{other}` is not known")),
    }
}

/// The middle of a dimension, or the dimension in the middle of zeros
pub(in crate::onnx) fn center_crop_pad(c: &mut Call<'_, '_>) -> Outputs {
    let (mut x, sizes) = (c.input(0)?, c.ints(1, "shape")?);
    let shape = c.shape(&x)?;
    let axes = c.attribute_ints("axes")?.unwrap_or_else(|| (0..shape.len() as i64).collect());
    c.axes(&axes, shape.len())?;
    if sizes.len() != axes.len() {
        return Err(reason!("{} sizes for {} dimensions", sizes.len(), axes.len()));
    }
    for (axis, size) in axes.iter().zip(&sizes) {
        let axis = c.axis(*axis, shape.len())?;
        let size = u64::try_from(*size).map_err(|_| "its shape has a negative size")?;
        let more = i64::try_from(size).ok().and_then(|n| n.checked_sub(shape[axis] as i64)).ok_or("its shape is too large")?;
        let before = if more < 0 { -(-more / 2) } else { more / 2 };
        x = along(c, &x, axis, before, more - before)?;
    }
    Ok(vec![x])
}

/// Padded with one value of x's type.
fn with_value(c: &mut Call<'_, '_>, x: &Value, counts: &[(usize, i64, i64)], value: &Value) -> Result<Value, Reason> {
    let mut padded = x.clone();
    let is_zero = matches!(value, Value::Known(number) if number.bytes.iter().all(|byte| *byte == 0));
    let mut inside = if is_zero { None } else { Some(c.truth_like(x)?) };
    for (axis, before, after) in counts {
        padded = along(c, &padded, *axis, *before, *after)?;
        inside = inside.map(|mask| along(c, &mask, *axis, *before, *after)).transpose()?;
    }
    if let Some(inside) = inside {
        padded = c.select(&inside, &padded, value)?;
    }
    Ok(padded)
}

/// Zeros before and after one dimension, or elements less.
fn along(c: &mut Call<'_, '_>, x: &Value, axis: usize, before: i64, after: i64) -> Result<Value, Reason> {
    let size = c.shape(x)?[axis] as i64;
    let (left, total) = sizes(size, before, after)?;
    let mut x = x.clone();
    if left != size {
        let start = if left == 0 { 0 } else { before.min(0).unsigned_abs() };
        x = c.emit(Slice { axis, start, step: 1, size: left as u64 }, &[x])?;
    }
    if total == left {
        return Ok(x);
    }
    c.emit(Pad { axis, start: before.max(0) as u64, step: 1, size: total as u64 }, &[x])
}

/// How many of `size` elements stay, and how many there are then.
fn sizes(size: i64, before: i64, after: i64) -> Result<(i64, i64), Reason> {
    let cut = |n: i64| n.min(0).saturating_neg();
    let left = size.checked_sub(cut(before)).and_then(|n| n.checked_sub(cut(after))).filter(|n| *n >= 0);
    let left = left.ok_or_else(|| reason!("pads of {before} and {after} on {size} elements"))?;
    let total = left.checked_add(before.max(0)).and_then(|n| n.checked_add(after.max(0))).ok_or("its result is too large")?;
    Ok((left, total))
}

/// Padded with elements of the dimension itself: `from` gives for a position and the size where its
/// element is.
fn repeated(c: &mut Call<'_, '_>, mut x: Value, counts: &[(usize, i64, i64)], from: impl Fn(i64, i64) -> i64) -> Outputs {
    for (axis, before, after) in counts.iter().filter(|(_, before, after)| *before != 0 || *after != 0) {
        let size = c.shape(&x)?[*axis] as i64;
        let (_, total) = sizes(size, *before, *after)?;
        if size == 0 {
            return Err(reason!("pads of {before} and {after} on {size} elements"));
        }
        c.context.allow(&[total as u64])?;
        let positions: Vec<i64> = (0..total).map(|p| from(p - before, size)).collect();
        x = c.emit(Gather::along(*axis), &[x, Value::Known(Tensor::from_i64([total as u64], &positions))])?;
    }
    Ok(vec![x])
}
