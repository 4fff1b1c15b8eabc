//! Ops that move elements, and ops that read or make positions.

use super::{Positions, broadcast_positions, positions};
use crate::lower::row_major;
use crate::ops::layout::{Pad, Slice};
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

/// Where the elements of a part of a tensor are in the whole: from `start` on along `axis`, `step` apart.
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
fn put(bytes: &mut [u8], source: &Tensor, to: Positions) {
    let width = source.ty.dtype.bytes() as usize;
    for (i, p) in to.enumerate() {
        bytes[p * width..][..width].copy_from_slice(&source.bytes[i * width..][..width]);
    }
}

/// Rows of a table along `axis`.
pub(super) fn gather(axis: usize, table: &Tensor, indices: &Tensor, result: &Type) -> Result<Tensor, String> {
    let rows = rows(indices, table.ty.shape[axis])?;
    let width = (table.ty.shape[axis + 1..].iter().product::<u64>() * table.ty.dtype.bytes()) as usize;
    let outer = table.ty.shape[..axis].iter().product::<u64>() as usize;
    let size = table.ty.shape[axis] as usize;
    let mut bytes = Vec::with_capacity((result.elements() * result.dtype.bytes()) as usize);
    for o in 0..outer {
        for row in &rows {
            bytes.extend_from_slice(&table.bytes[(o * size + row) * width..][..width]);
        }
    }
    Ok(Tensor { ty: result.clone(), bytes: bytes.into() })
}

/// Row numbers from indices, of which negative ones count from the end.
fn rows(indices: &Tensor, size: u64) -> Result<Vec<usize>, String> {
    let row = |i: i64| {
        let row = if i < 0 { i.saturating_add(size as i64) } else { i };
        if (0..size as i64).contains(&row) { Ok(row as usize) } else { Err(format!("index {i} of {size} rows")) }
    };
    indices.to_i64().into_iter().map(row).collect()
}

/// A table whose rows are the sums of the source rows with their index.
pub(super) fn scatter_add(axis: usize, indices: &Tensor, source: &Tensor, result: &Type) -> Result<Tensor, String> {
    let rows = rows(indices, result.shape[axis])?;
    let inner = result.shape[axis + 1..].iter().product::<u64>() as usize;
    let outer = result.shape[..axis].iter().product::<u64>() as usize;
    let size = result.shape[axis] as usize;
    let values = source.to_f64();
    let mut sums = vec![0.0; result.elements() as usize];
    for o in 0..outer {
        for (i, row) in rows.iter().enumerate() {
            for k in 0..inner {
                sums[(o * size + row) * inner + k] += values[(o * rows.len() + i) * inner + k];
            }
        }
    }
    Ok(Tensor::from_f64(result.clone(), &sums))
}

/// Whether each position of the last dimension is the index.
pub(super) fn one_hot(indices: &Tensor, result: &Type) -> Tensor {
    let size = *result.shape.last().expect("a one-hot has a last dimension") as i64;
    let bytes: Vec<u8> = indices.to_i64().iter().flat_map(|i| (0..size).map(move |p| u8::from(p == *i))).collect();
    Tensor { ty: result.clone(), bytes: bytes.into() }
}
