//! The positions of the largest and smallest elements.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::norm::over_axis;
use shardc_ir::dtype::DType;
use shardc_ir::ops::index::{Gather, OneHot};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::Tensor;

type Outputs = Result<Vec<Value>, Reason>;

/// Each of the largest elements costs two reductions, so that more than these need a sort.
const MAX_K: i64 = 64;

/// The position of the largest element
pub(in crate::onnx) fn arg_max(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    arg_extreme(c, &x, ReduceKind::Max)
}

/// The position of the smallest element
pub(in crate::onnx) fn arg_min(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    arg_extreme(c, &x, ReduceKind::Min)
}

fn arg_extreme(c: &mut Call<'_, '_>, x: &Value, kind: ReduceKind) -> Outputs {
    let mut shape = c.shape(x)?;
    let axis = c.attribute_int("axis", 0)?;
    let axis = c.axis(axis, shape.len())?;
    let keep = c.attribute_int("keepdims", 1)? != 0;
    let last = c.attribute_int("select_last_index", 0)? != 0;
    let hit = hits(c, x, axis, kind)?;
    let position = position(c, &hit, axis, last)?;
    shape[axis] = 1;
    Ok(vec![if keep { c.reshape(&position, shape)? } else { position }])
}

/// Whether each element of `x` is the extreme along `axis`. Not-a-number exceeds all others.
fn hits(c: &mut Call<'_, '_>, x: &Value, axis: usize, kind: ReduceKind) -> Result<Value, Reason> {
    let mut shape = c.shape(x)?;
    if shape[axis] == 0 {
        return Err(reason!("it looks for an element among none: {shape:?}"));
    }
    shape[axis] = 1;
    let extreme = c.reduce(kind, x, &[axis])?;
    let extreme = c.reshape(&extreme, shape)?;
    let equal = c.binary(Binary::Eq, x, &extreme)?;
    if !c.ty(x)?.dtype.is_float() {
        return Ok(equal);
    }
    let nan = c.unary(Unary::IsNan, x)?;
    c.binary(Binary::Or, &equal, &nan)
}

/// The first (or last) position along `axis`, which disappears, where `hit` holds; there must be
/// one.
fn position(c: &mut Call<'_, '_>, hit: &Value, axis: usize, last: bool) -> Result<Value, Reason> {
    let shape = c.shape(hit)?;
    let size = shape[axis];
    let positions = c.positions(&shape, axis)?;
    let (kind, worst) = if last { (ReduceKind::Max, -1) } else { (ReduceKind::Min, size as i64) };
    let worst = Value::Known(Tensor::from_i64([], &[worst]));
    let found = c.select(hit, &positions, &worst)?;
    c.reduce(kind, &found, &[axis])
}

/// 1 at the first of the largest elements, 0 elsewhere
pub(in crate::onnx) fn hardmax(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let y = over_axis(c, &x, |c, x| {
        let ty = c.ty(x)?;
        let last = ty.rank() - 1;
        let hit = hits(c, x, last, ReduceKind::Max)?;
        let position = position(c, &hit, last, false)?;
        let hot = one_hot(c, &position, ty.shape[last])?;
        c.cast(&hot, ty.dtype)
    })?;
    Ok(vec![y])
}

/// Whether each position of a new last dimension of `size` is the index.
pub(in crate::onnx) fn one_hot(c: &mut Call<'_, '_>, indices: &Value, size: u64) -> Result<Value, Reason> {
    let mut shape = c.shape(indices)?;
    shape.push(1);
    let column = c.reshape(indices, shape)?;
    c.emit(OneHot { size }, &[column])
}

/// The `k` largest or smallest elements in order, and their positions
pub(in crate::onnx) fn top_k(c: &mut Call<'_, '_>) -> Outputs {
    // Sorted is one of the orders that a node without the wish for one takes.
    c.ignore("sorted");
    let x = c.input(0)?;
    let k = match c.optional(1) {
        Some(_) => *c.ints(1, "k")?.first().ok_or("its k is empty")?,
        None => c.attribute_int("k", -1)?,
    };
    let largest = c.attribute_int("largest", 1)? != 0;
    let ty = c.ty(&x)?;
    let (rank, axis) = (ty.rank(), c.attribute_int("axis", -1)?);
    let axis = c.axis(axis, rank)?;
    if k < 1 || k as u64 > ty.shape[axis] {
        return Err(reason!("the {k} largest of {} elements", ty.shape[axis]));
    }
    if k > MAX_K {
        return Err(reason!("the {k} largest elements; up to {MAX_K} are supported"));
    }
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(axis, rank - 1);
    let x = c.transpose(&x, perm.clone())?;
    let positions = extremes(c, &x, k, largest)?;
    let values = c.emit(Gather::batched(rank - 1, rank - 1), &[x, positions.clone()])?;
    Ok(vec![c.transpose(&values, perm.clone())?, c.transpose(&positions, perm)?])
}

/// The positions of the `k` extremes of the last dimension, one after another: what was found
/// leaves the field.
fn extremes(c: &mut Call<'_, '_>, x: &Value, k: i64, largest: bool) -> Result<Value, Reason> {
    let ty = c.ty(x)?;
    let last = ty.rank() - 1;
    let (kind, worst) = match (largest, ty.dtype) {
        (true, DType::I64) => (ReduceKind::Max, i64::MIN as f64),
        (false, DType::I64) => (ReduceKind::Min, i64::MAX as f64),
        (true, _) => (ReduceKind::Max, f64::NEG_INFINITY),
        (false, _) => (ReduceKind::Min, f64::INFINITY),
    };
    let worst = c.number(x, worst)?;
    let column = [&ty.shape[..last], &[1]].concat();
    let (mut field, mut taken, mut found) = (x.clone(), None::<Value>, vec![]);
    for _ in 0..k {
        let mut hit = hits(c, &field, last, kind)?;
        if let Some(taken) = &taken {
            let free = c.unary(Unary::Not, taken)?;
            hit = c.binary(Binary::And, &hit, &free)?;
        }
        let position = position(c, &hit, last, false)?;
        let chosen = one_hot(c, &position, ty.shape[last])?;
        let all = match &taken {
            Some(taken) => c.binary(Binary::Or, taken, &chosen)?,
            None => chosen,
        };
        field = c.select(&all, &worst, x)?;
        taken = Some(all);
        found.push(c.reshape(&position, column.clone())?);
    }
    crate::onnx::ops::layout::join(c, &found, last as i64)
}
