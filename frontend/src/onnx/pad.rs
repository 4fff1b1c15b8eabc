//! Padding with a constant.

use super::call::Call;
use super::importer::Value;
use shardc_ir::ops::elementwise::Where;
use shardc_ir::ops::layout::{Pad, Slice};

/// More elements before and after, of one value; negative counts take elements away
pub(super) fn pad(c: &mut Call<'_, '_>) -> Result<Vec<Value>, String> {
    let mode = c.attribute_string("mode", "constant")?;
    if mode != "constant" {
        return Err(format!("mode `{mode}` is not supported"));
    }
    let (x, pads) = (c.input(0)?, c.ints(1, "pads")?);
    let value = match c.optional(2) {
        Some(_) => c.known(2, "value")?.to_f64().first().copied().unwrap_or(0.0),
        None => 0.0,
    };
    let rank = c.ty(&x)?.rank();
    let axes = match c.optional(3) {
        Some(_) => c.ints(3, "axes")?,
        None => (0..rank as i64).collect(),
    };
    c.axes(&axes, rank)?;
    if pads.len() != 2 * axes.len() {
        return Err(format!("{} pads for {} dimensions", pads.len(), axes.len()));
    }
    let mut padded = x.clone();
    let mut inside = if value == 0.0 { None } else { Some(c.truth_like(&x)?) };
    for (i, axis) in axes.iter().enumerate() {
        let axis = c.axis(*axis, rank)?;
        let (before, after) = (pads[i], pads[axes.len() + i]);
        padded = along(c, &padded, axis, before, after)?;
        inside = inside.map(|mask| along(c, &mask, axis, before, after)).transpose()?;
    }
    if let Some(inside) = inside {
        let value = c.number(&padded, value)?;
        padded = c.elementwise(Where {}, &[inside, padded, value])?;
    }
    Ok(vec![padded])
}

fn along(c: &mut Call<'_, '_>, x: &Value, axis: usize, before: i64, after: i64) -> Result<Value, String> {
    let size = c.shape(x)?[axis] as i64;
    let cut = |n: i64| n.min(0).saturating_neg();
    let left = size.checked_sub(cut(before)).and_then(|n| n.checked_sub(cut(after))).filter(|n| *n >= 0);
    let left = left.ok_or_else(|| format!("pads of {before} and {after} on {size} elements"))?;
    let total = left.checked_add(before.max(0)).and_then(|n| n.checked_add(after.max(0))).ok_or("its result is too large")?;
    let mut x = x.clone();
    if left != size {
        let start = if left == 0 { 0 } else { cut(before) as u64 };
        x = c.emit(Slice { axis, start, step: 1, size: left as u64 }, &[x])?;
    }
    if total == left {
        return Ok(x);
    }
    c.emit(Pad { axis, start: before.max(0) as u64, step: 1, size: total as u64 }, &[x])
}
