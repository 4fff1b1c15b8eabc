//! Ops that move elements, and ops that read or make positions.

use super::{Numbers, Positions, broadcast_positions, positions};
use crate::kernel::signature::row_major;
use crate::ops::index::{Gather, ScatterAdd};
use crate::ops::layout::{Pad, Slice};
use crate::reason;
use crate::reason::Reason;
use crate::types::{Tensor, Type};

/// Dimension `i` of the result is dimension `perm[i]` of `x`.
pub(super) fn transpose(perm: &[usize], x: &Tensor, result: &Type) -> Tensor {
    let own = row_major(&x.ty.shape);
    let strides: Vec<i64> = perm.iter().map(|p| own[*p]).collect();
    take(x, positions(&result.shape, &strides, 0), result)
}

/// Repeated as numpy broadcasts.
pub(super) fn broadcast(x: &Tensor, result: &Type) -> Tensor {
    take(x, broadcast_positions(&x.ty.shape, &result.shape), result)
}

/// Every `step`-th element along an axis.
pub(super) fn slice(op: &Slice, x: &Tensor, result: &Type) -> Tensor {
    take(x, window(&x.ty.shape, &result.shape, op.axis, op.start, op.step), result)
}

/// The elements of `source` at `from`, in that order.
fn take(source: &Tensor, mut from: Positions, result: &Type) -> Tensor {
    let width = result.dtype.bytes() as usize;
    let run = from.take_run() * width;
    let mut bytes = Vec::with_capacity(result.elements() as usize * width);
    for p in from {
        bytes.extend_from_slice(&source.bytes[p * width..][..run]);
    }
    Tensor { ty: result.clone(), bytes: bytes.into() }
}

/// The positions of a part's elements in the whole tensor: from `start` on along `axis`, `step`
/// apart.
fn window(whole: &[u64], part: &[u64], axis: usize, start: u64, step: i64) -> Positions {
    let mut strides = row_major(whole);
    let first = start as i64 * strides[axis];
    strides[axis] *= step;
    positions(part, &strides, first)
}

/// Zeros, with the elements of `x` in a window.
pub(super) fn pad(op: &Pad, x: &Tensor, result: &Type) -> Tensor {
    let mut bytes = vec![0; (result.elements() * result.dtype.bytes()) as usize];
    put(&mut bytes, x, window(&result.shape, &x.ty.shape, op.axis, op.start, op.step));
    Tensor { ty: result.clone(), bytes: bytes.into() }
}

/// One after another along `axis`.
pub(super) fn concat(axis: usize, operands: &[Tensor], result: &Type) -> Tensor {
    let mut bytes = vec![0; (result.elements() * result.dtype.bytes()) as usize];
    let mut start = 0;
    for x in operands {
        put(&mut bytes, x, window(&result.shape, &x.ty.shape, axis, start, 1));
        start += x.ty.shape[axis];
    }
    Tensor { ty: result.clone(), bytes: bytes.into() }
}

/// Writes the elements of `source` to the elements `to`.
fn put(bytes: &mut [u8], source: &Tensor, mut to: Positions) {
    let width = source.ty.dtype.bytes() as usize;
    let run = to.take_run() * width;
    for (from, p) in source.bytes.chunks(run).zip(to) {
        bytes[p * width..][..run].copy_from_slice(from);
    }
}

/// Rows of tables along an axis.
pub(super) fn gather(op: &Gather, table: &Tensor, indices: &Tensor, result: &Type) -> Result<Tensor, Reason> {
    let width = table.ty.dtype.bytes() as usize;
    let mut bytes = vec![0; (result.elements() * result.dtype.bytes()) as usize];
    each_row(op, &table.ty.shape, indices, |row, position, inner| {
        let (from, to, length) = (row * width, position * width, inner * width);
        bytes[to..to + length].copy_from_slice(&table.bytes[from..from + length]);
    })?;
    Ok(Tensor { ty: result.clone(), bytes: bytes.into() })
}

/// Tables whose rows are the sums of the source rows with their index.
pub(super) fn scatter_add(op: &ScatterAdd, indices: &Tensor, source: &Tensor, result: &Type) -> Result<Tensor, Reason> {
    let values = Numbers::of(source);
    let mut sums = vec![0.0; result.elements() as usize];
    let gather = Gather::batched(op.axis, op.batch);
    each_row(&gather, &result.shape, indices, |row, position, inner| {
        for k in 0..inner {
            sums[row + k] += values.f64(position + k);
        }
    })?;
    Ok(Tensor::from_f64(result.clone(), &sums))
}

/// Calls `f` with the first element of each indexed row in tables of `shape`, the first element
/// where it goes, and its length.
fn each_row(op: &Gather, shape: &[u64], indices: &Tensor, mut f: impl FnMut(usize, usize, usize)) -> Result<(), Reason> {
    let size = shape[op.axis];
    let row = |i: i64| {
        let row = if i < 0 { i.saturating_add(size as i64) } else { i };
        if (0..size as i64).contains(&row) { Ok(row as usize) } else { Err(reason!("index {i} of {size} rows")) }
    };
    let numbers = Numbers::of(indices);
    let length = |dims: &[u64]| dims.iter().product::<u64>() as usize;
    let (batch, outer, inner) = (length(&shape[..op.batch]), length(&shape[op.batch..op.axis]), length(&shape[op.axis + 1..]));
    let count = length(&indices.ty.shape[op.batch..]);
    for block in 0..batch * outer {
        for i in 0..count {
            let row = row(numbers.i64(block / outer * count + i))?;
            f((block * size as usize + row) * inner, (block * count + i) * inner, inner);
        }
    }
    Ok(())
}

/// Whether each position of the last dimension is the index.
pub(super) fn one_hot(indices: &Tensor, result: &Type) -> Tensor {
    let size = *result.shape.last().expect("a one-hot has a last dimension");
    let mut bytes = vec![0; result.elements() as usize];
    for (row, i) in bytes.chunks_mut(size.max(1) as usize).zip(indices.integers()) {
        if let Some(hot) = usize::try_from(i).ok().and_then(|i| row.get_mut(i)) {
            *hot = 1;
        }
    }
    Tensor { ty: result.clone(), bytes: bytes.into() }
}
