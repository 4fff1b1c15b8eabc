//! Lists of tensors, which exist in the model only.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::layout;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::types::Tensor;
use std::sync::Arc;

type Outputs = Result<Vec<Value>, Reason>;

/// The parts of a tensor along one dimension
pub(in crate::onnx) fn split(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let shape = c.shape(&x)?;
    let axis = c.attribute_int("axis", 0)?;
    let keep = c.attribute_int("keepdims", 1)? != 0;
    let axis = c.axis(axis, shape.len())?;
    let size = shape[axis];
    let sizes = match c.optional(1) {
        None => vec![1; bounded(size)?],
        Some(_) if c.known(1, "split")?.ty.rank() == 0 => {
            let each = u64::try_from(c.ints(1, "split")?[0]).ok().filter(|n| *n > 0).ok_or("its parts are not positive")?;
            let count = size.div_ceil(each);
            (0..bounded(count)? as u64).map(|i| each.min(size - i * each)).collect()
        }
        Some(_) => {
            c.ints(1, "split")?.iter().map(|n| u64::try_from(*n)).collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?
        }
    };
    let mut parts = layout::parts(c, &x, axis, &sizes)?;
    if c.optional(1).is_none() && !keep {
        let mut without = shape;
        without.remove(axis);
        parts = parts.iter().map(|p| c.reshape(p, without.clone())).collect::<Result<_, _>>()?;
    }
    Ok(vec![Value::Sequence(Arc::new(parts))])
}

fn bounded(count: u64) -> Result<usize, Reason> {
    if count > 1 << 16 { Err(reason!("a sequence of {count} tensors")) } else { Ok(count as usize) }
}

/// A list of its inputs
pub(in crate::onnx) fn construct(c: &mut Call<'_, '_>) -> Outputs {
    let items = c.all_inputs()?;
    items.iter().try_for_each(|item| c.ty(item).map(drop))?;
    Ok(vec![Value::Sequence(Arc::new(items))])
}

/// A list of nothing
pub(in crate::onnx) fn empty(c: &mut Call<'_, '_>) -> Outputs {
    c.ignore("dtype");
    Ok(vec![Value::Sequence(Arc::new(vec![]))])
}

/// A list with one tensor more, at its end or before a position
pub(in crate::onnx) fn insert(c: &mut Call<'_, '_>) -> Outputs {
    let (mut items, item) = (copied(c)?, c.input(1)?);
    c.ty(&item)?;
    let position = match c.optional(2) {
        Some(_) => position(c, 2, items.len() + 1)?,
        None => items.len(),
    };
    bounded(items.len() as u64 + 1)?;
    items.insert(position, item);
    Ok(vec![Value::Sequence(Arc::new(items))])
}

/// A list without one of its tensors, by default the last
pub(in crate::onnx) fn erase(c: &mut Call<'_, '_>) -> Outputs {
    let mut items = copied(c)?;
    let position = match c.optional(1) {
        Some(_) => position(c, 1, items.len())?,
        None => items.len().checked_sub(1).ok_or("it takes a tensor from an empty sequence")?,
    };
    items.remove(position);
    Ok(vec![Value::Sequence(Arc::new(items))])
}

/// One of a list
pub(in crate::onnx) fn at(c: &mut Call<'_, '_>) -> Outputs {
    let items = items(c)?;
    let position = position(c, 1, items.len())?;
    Ok(vec![items[position].clone()])
}

/// Input `i` as one of `count` positions.
fn position(c: &Call<'_, '_>, i: usize, count: usize) -> Result<usize, Reason> {
    let position = *c.ints(i, "position")?.first().ok_or("its position is empty")?;
    c.axis(position, count).map_err(|_| reason!("position {position} of {count} tensors"))
}

/// How many there are
pub(in crate::onnx) fn length(c: &mut Call<'_, '_>) -> Outputs {
    Ok(vec![Value::Known(Tensor::from_i64([], &[items(c)?.len() as i64]))])
}

/// All of a list one after another
pub(in crate::onnx) fn concat(c: &mut Call<'_, '_>) -> Outputs {
    let mut items = copied(c)?;
    let axis = c.attribute_int("axis", 0)?;
    if c.attribute_int("new_axis", 0)? != 0 {
        for item in &mut items {
            let mut shape = c.shape(item)?;
            let new = if axis < 0 { axis + shape.len() as i64 + 1 } else { axis };
            let new = usize::try_from(new).ok().filter(|a| *a <= shape.len()).ok_or_else(|| reason!("axis {axis}"))?;
            shape.insert(new, 1);
            *item = c.reshape(item, shape)?;
        }
    }
    Ok(vec![layout::join(c, &items, axis)?])
}

/// A list to be changed, which takes room of its own.
fn copied(c: &mut Call<'_, '_>) -> Result<Vec<Value>, Reason> {
    let items = items(c)?;
    c.context.write(items.len())?;
    Ok(items.to_vec())
}

fn items(c: &Call<'_, '_>) -> Result<Arc<Vec<Value>>, Reason> {
    match c.input(0)? {
        Value::Sequence(items) => Ok(items),
        _ => Err("a tensor stands where a sequence is expected".into()),
    }
}
