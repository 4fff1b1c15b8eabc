//! ONNX's ops that move elements.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::diagnostic::counted;
use shardc_ir::ops::elementwise::broadcast_shape;
use shardc_ir::ops::layout::{Concat, Slice};
use shardc_ir::reason;
use shardc_ir::reason::Reason;

type Outputs = Result<Vec<Value>, Reason>;

/// Another shape, where 0 copies a size and -1 is what is left
pub(in crate::onnx) fn reshape(c: &mut Call<'_, '_>) -> Outputs {
    let (x, target) = (c.input(0)?, c.ints(1, "shape")?);
    let shape = c.shape(&x)?;
    let allow_zero = c.attribute_int("allowzero", 0)? != 0;
    let mut sizes = vec![];
    for (d, size) in target.iter().enumerate() {
        sizes.push(match size {
            0 if !allow_zero => Some(*shape.get(d).ok_or_else(|| reason!("size 0 at {d} of {target:?} has none to copy"))?),
            -1 => None,
            n => Some(u64::try_from(*n).map_err(|_| reason!("its shape is {target:?}"))?),
        });
    }
    let unknown = sizes.iter().filter(|s| s.is_none()).count();
    let known = sizes.iter().flatten().try_fold(1u64, |n, s| n.checked_mul(*s)).ok_or("its shape is too large")?;
    let total: u64 = shape.iter().product();
    let rest = if unknown == 1 && known > 0 && total.is_multiple_of(known) { total / known } else { 0 };
    if unknown > 1 || (unknown == 1 && known * rest != total) || (unknown == 1 && known == 0) {
        return Err(reason!("{shape:?} does not reshape to {target:?}"));
    }
    let shape = sizes.into_iter().map(|s| s.unwrap_or(rest)).collect();
    Ok(vec![c.reshape(&x, shape)?])
}

/// Two dimensions: all before `axis`, and the rest
pub(in crate::onnx) fn flatten(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let shape = c.shape(&x)?;
    let axis = c.attribute_int("axis", 1)?;
    let axis = if axis == shape.len() as i64 { shape.len() } else { c.axis(axis, shape.len())? };
    let sizes = vec![shape[..axis].iter().product(), shape[axis..].iter().product()];
    Ok(vec![c.reshape(&x, sizes)?])
}

/// Without dimensions of size 1
pub(in crate::onnx) fn squeeze(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let shape = c.shape(&x)?;
    let axes = match c.ints_or_attribute(1, "axes")? {
        Some(axes) => c.axes(&axes, shape.len())?,
        None => (0..shape.len()).filter(|d| shape[*d] == 1).collect(),
    };
    if let Some(d) = axes.iter().find(|d| shape[**d] != 1) {
        return Err(reason!("dimension {d} of {shape:?} is not 1"));
    }
    let sizes = (0..shape.len()).filter(|d| !axes.contains(d)).map(|d| shape[d]).collect();
    Ok(vec![c.reshape(&x, sizes)?])
}

/// With new dimensions of size 1
pub(in crate::onnx) fn unsqueeze(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let mut shape = c.shape(&x)?;
    let axes = c.ints_or_attribute(1, "axes")?.ok_or("it has no axes")?;
    for axis in c.axes(&axes, shape.len() + axes.len())? {
        shape.insert(axis, 1);
    }
    Ok(vec![c.reshape(&x, shape)?])
}

/// Dimensions in another order; reversed by default
pub(in crate::onnx) fn transpose(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let rank = c.ty(&x)?.rank();
    let perm = match c.attribute_ints("perm")? {
        Some(perm) => perm.iter().map(|p| c.axis(*p, rank)).collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).rev().collect(),
    };
    Ok(vec![c.transpose(&x, perm)?])
}

/// Repeated to the shape that both broadcast to
pub(in crate::onnx) fn expand(c: &mut Call<'_, '_>) -> Outputs {
    let (x, target) = (c.input(0)?, c.ints(1, "shape")?);
    let target: Result<Vec<u64>, _> = target.iter().map(|n| u64::try_from(*n)).collect();
    let target = target.map_err(|_| "its shape has a negative size")?;
    let shape = broadcast_shape(&c.shape(&x)?, &target)?;
    Ok(vec![c.broadcast(&x, shape)?])
}

/// Repeated side by side along each dimension
pub(in crate::onnx) fn tile(c: &mut Call<'_, '_>) -> Outputs {
    let (x, repeats) = (c.input(0)?, c.ints(1, "repeats")?);
    let shape = c.shape(&x)?;
    let repeats: Vec<u64> = repeats.iter().map(|r| u64::try_from(*r)).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    if repeats.len() != shape.len() {
        return Err(reason!("{} repeats of {} dimensions", repeats.len(), shape.len()));
    }
    let pairs = |first: &dyn Fn(usize) -> u64| (0..shape.len()).flat_map(|d| [first(d), shape[d]]).collect::<Vec<u64>>();
    let total: Option<Vec<u64>> = shape.iter().zip(&repeats).map(|(n, r)| n.checked_mul(*r)).collect();
    let apart = c.reshape(&x, pairs(&|_| 1))?;
    let repeated = c.broadcast(&apart, pairs(&|d| repeats[d]))?;
    Ok(vec![c.reshape(&repeated, total.ok_or("its result is too large")?)?])
}

/// One after another
pub(in crate::onnx) fn concat(c: &mut Call<'_, '_>) -> Outputs {
    let operands = c.all_inputs()?;
    if !c.has_attribute("axis") {
        return Err("attribute `axis` is missing".into());
    }
    let axis = c.attribute_int("axis", 0)?;
    Ok(vec![join(c, &operands, axis)?])
}

/// `operands` one after another along `axis`.
pub(in crate::onnx) fn join(c: &mut Call<'_, '_>, operands: &[Value], axis: i64) -> Result<Value, Reason> {
    let first = operands.first().ok_or("it has no inputs")?;
    let axis = c.axis(axis, c.ty(first)?.rank())?;
    if operands.len() == 1 { Ok(first.clone()) } else { c.emit(Concat { axis }, operands) }
}

/// Ranges with steps along some dimensions
pub(in crate::onnx) fn slice(c: &mut Call<'_, '_>) -> Outputs {
    let mut x = c.input(0)?;
    let rank = c.ty(&x)?.rank();
    // Before op set 10 attributes.
    let starts = c.ints_or_attribute(1, "starts")?.ok_or("it has no starts")?;
    let ends = c.ints_or_attribute(2, "ends")?.ok_or("it has no ends")?;
    let axes = c.ints_or_attribute(3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = match c.optional(4) {
        Some(_) => c.ints(4, "steps")?,
        None => vec![1; starts.len()],
    };
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err(reason!("{} starts, {} ends, {} axes, {} steps", starts.len(), ends.len(), axes.len(), steps.len()));
    }
    c.axes(&axes, rank)?;
    for i in 0..starts.len() {
        let axis = c.axis(axes[i], rank)?;
        let size = c.shape(&x)?[axis];
        let (start, size) = range(starts[i], ends[i], steps[i], size)?;
        x = part(c, &x, Slice { axis, start, step: steps[i], size })?;
    }
    Ok(vec![x])
}

/// The first element and the number of elements of Python's `[start:end:step]` of `size` elements.
fn range(start: i64, end: i64, step: i64, size: u64) -> Result<(u64, u64), Reason> {
    let n = size as i64;
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let clamp = |v: i64| (if v < 0 { v.saturating_add(n) } else { v }).clamp(low.min(high), high);
    let (start, end) = (clamp(start), clamp(end));
    let count = match step {
        0 => return Err("a step is 0".into()),
        s if s > 0 => (end - start).max(0).unsigned_abs().div_ceil(s.unsigned_abs()),
        s => (start - end).max(0).unsigned_abs().div_ceil(s.unsigned_abs()),
    };
    Ok((if count == 0 { 0 } else { start.max(0) as u64 }, count))
}

/// A slice, or `x` itself where the slice is all of it.
fn part(c: &mut Call<'_, '_>, x: &Value, slice: Slice) -> Result<Value, Reason> {
    let all = slice.step == 1 && c.shape(x)?.get(slice.axis) == Some(&slice.size);
    // A step that is never taken may be anything; 1 is what aligned blocks have.
    let slice = if slice.size <= 1 { Slice { step: 1, ..slice } } else { slice };
    if all { Ok(x.clone()) } else { c.emit(slice, std::slice::from_ref(x)) }
}

/// Parts along one dimension
pub(in crate::onnx) fn split(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let shape = c.shape(&x)?;
    let axis = c.attribute_int("axis", 0)?;
    let axis = c.axis(axis, shape.len())?;
    let count = c.attribute_int("num_outputs", c.node.output.len() as i64)?;
    let sizes = match c.ints_or_attribute(1, "split")? {
        Some(sizes) => sizes.iter().map(|n| u64::try_from(*n)).collect::<Result<_, _>>().map_err(|e| e.to_string())?,
        None => equal_parts(shape[axis], u64::try_from(count).unwrap_or(0))?,
    };
    let outputs = c.node.output.len();
    if sizes.len() != outputs {
        return Err(reason!("{} parts in {}", sizes.len(), counted(outputs as u64, "output")));
    }
    parts(c, &x, axis, &sizes)
}

/// `count` sizes as ONNX divides `size`: equal, the last one smaller if they cannot be.
fn equal_parts(size: u64, count: u64) -> Result<Vec<u64>, Reason> {
    if count == 0 || count > size.max(1) || count > 1 << 16 {
        return Err(reason!("{size} elements in {count} parts"));
    }
    let each = size.div_ceil(count);
    Ok((0..count).map(|i| each.min(size.saturating_sub(i * each))).collect())
}

/// Parts of `sizes` along `axis`, which together are all of it.
pub(in crate::onnx) fn parts(c: &mut Call<'_, '_>, x: &Value, axis: usize, sizes: &[u64]) -> Outputs {
    let shape = c.shape(x)?;
    let Some(&total) = shape.get(axis) else {
        return Err(reason!("parts along dimension {axis} of {shape:?}"));
    };
    if sizes.iter().try_fold(0u64, |n, s| n.checked_add(*s)) != Some(total) {
        return Err(reason!("parts of {sizes:?} of {total} elements"));
    }
    let mut start = 0;
    let mut parts = vec![];
    for size in sizes {
        parts.push(part(c, x, Slice { axis, start: start.min(total.saturating_sub(1)), step: 1, size: *size })?);
        start += size;
    }
    Ok(parts)
}
