//! Sums and products along one dimension, combined in pairs so that every element type keeps its
//! exactness and gradient.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::layout;
use shardc_ir::ops::layout::{Pad, Slice};
use shardc_ir::reason::Reason;
use shardc_ir::scalar::Binary;

type Outputs = Result<Vec<Value>, Reason>;

/// Running sums: log2(n) additions of the sums so far, moved by a power of two.
/// Hillis, Steele: Data Parallel Algorithms (1986).
pub(in crate::onnx) fn cum_sum(c: &mut Call<'_, '_>) -> Outputs {
    let (x, axis) = (c.input(0)?, c.ints(1, "axis")?);
    let (exclusive, reverse) = (c.attribute_int("exclusive", 0)? != 0, c.attribute_int("reverse", 0)? != 0);
    let axis = c.axis(*axis.first().ok_or("its axis is empty")?, c.ty(&x)?.rank())?;
    let size = c.shape(&x)?[axis];
    let mut sums = x;
    let mut distance = 1;
    while distance < size {
        let earlier = moved(c, &sums, axis, distance, reverse)?;
        sums = c.binary(Binary::Add, &sums, &earlier)?;
        distance *= 2;
    }
    Ok(vec![if exclusive && size > 0 { moved(c, &sums, axis, 1, reverse)? } else { sums }])
}

/// `x` moved by `distance` along `axis`, zeros behind it.
fn moved(c: &mut Call<'_, '_>, x: &Value, axis: usize, distance: u64, back: bool) -> Result<Value, Reason> {
    let size = c.shape(x)?[axis];
    let left = size - distance.min(size);
    let (from, to) = if back { (distance, 0) } else { (0, distance) };
    if left == 0 {
        let (zero, shape) = (c.number(x, 0.0)?, c.shape(x)?);
        return c.broadcast(&zero, shape);
    }
    let kept = c.emit(Slice { axis, start: from, step: 1, size: left }, std::slice::from_ref(x))?;
    c.emit(Pad { axis, start: to, step: 1, size }, &[kept])
}

/// The product along `axis`, which disappears: halves are multiplied until one element is left.
pub(in crate::onnx) fn product(c: &mut Call<'_, '_>, x: &Value, axis: usize) -> Result<Value, Reason> {
    let mut shape = c.shape(x)?;
    let mut size = shape.remove(axis);
    let mut x = x.clone();
    if size == 0 {
        let one = c.number(&x, 1.0)?;
        return c.broadcast(&one, shape);
    }
    while size > 1 {
        let half = size / 2;
        let parts = layout::parts(c, &x, axis, &[half, half, size - 2 * half][..2 + size as usize % 2])?;
        x = c.binary(Binary::Mul, &parts[0], &parts[1])?;
        if let Some(odd) = parts.get(2) {
            x = layout::join(c, &[x, odd.clone()], axis as i64)?;
        }
        size -= half;
    }
    c.reshape(&x, shape)
}
