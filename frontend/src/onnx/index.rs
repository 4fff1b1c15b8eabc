//! ONNX's ops on positions.

use super::call::Call;
use super::constants::MAX_ELEMENTS;
use super::importer::Value;
use shardc_ir::dtype::DType;
use shardc_ir::ops::elementwise::Where;
use shardc_ir::ops::index::{Gather, OneHot};
use shardc_ir::types::{Tensor, Type, checked_elements};
use std::sync::Arc;

type Outputs = Result<Vec<Value>, String>;

/// Rows by index
pub(super) fn gather(c: &mut Call<'_, '_>) -> Outputs {
    let (x, indices) = (c.input(0)?, c.input(1)?);
    let shape = c.shape(&x)?;
    let axis = c.attribute_int("axis", 0)?;
    let axis = c.axis(axis, shape.len())?;
    let indices = match indices.tensor() {
        Some(known) => Value::Known(checked(&known, shape[axis])?),
        None => indices,
    };
    Ok(vec![c.emit(Gather { axis }, &[x, indices])?])
}

/// Known indices, none negative and all within `size`.
fn checked(indices: &Tensor, size: u64) -> Result<Tensor, String> {
    if indices.ty.dtype != DType::I64 {
        return Err(format!("its indices are {}", indices.ty));
    }
    let rows: Result<Vec<i64>, String> = indices.to_i64().into_iter().map(|i| row(i, size)).collect();
    Ok(Tensor::from_i64(indices.ty.shape.clone(), &rows?))
}

fn row(index: i64, size: u64) -> Result<i64, String> {
    let row = if index < 0 { index.saturating_add(size as i64) } else { index };
    if (0..size as i64).contains(&row) { Ok(row) } else { Err(format!("index {index} of {size} elements")) }
}

/// Slices by known tuples of indices: a gather from the table whose leading dimensions are one
pub(super) fn gather_nd(c: &mut Call<'_, '_>) -> Outputs {
    if c.attribute_int("batch_dims", 0)? != 0 {
        return Err("batch dimensions are not supported".into());
    }
    let (x, indices) = (c.input(0)?, c.known(1, "indices")?);
    let shape = c.shape(&x)?;
    let rows = tuples(&indices, &shape)?;
    let depth = shape.len() - rows.inner.len();
    let flat = c.reshape(&x, [&[shape[..depth].iter().product()], &rows.inner[..]].concat())?;
    let rows = Tensor::from_i64(rows.outer, &rows.rows);
    Ok(vec![c.emit(Gather { axis: 0 }, &[flat, Value::Known(rows)])?])
}

/// Tuples of indices into the leading dimensions of a tensor.
struct Tuples {
    /// The row of the flattened leading dimensions that each tuple names.
    rows: Vec<i64>,
    /// The shape of the tuples.
    outer: Vec<u64>,
    /// The dimensions that they do not index.
    inner: Vec<u64>,
}

fn tuples(indices: &Tensor, shape: &[u64]) -> Result<Tuples, String> {
    let (depth, outer) = indices.ty.shape.split_last().ok_or("its indices are a scalar")?;
    let depth = *depth as usize;
    if indices.ty.dtype != DType::I64 || depth == 0 || depth > shape.len() {
        return Err(format!("its indices {} do not index {shape:?}", indices.ty));
    }
    let tuple = |t: &[i64]| t.iter().zip(shape).try_fold(0, |flat, (i, n)| Ok(flat * *n as i64 + row(*i, *n)?));
    let rows: Result<Vec<i64>, String> = indices.to_i64().chunks(depth).map(tuple).collect();
    Ok(Tuples { rows: rows?, outer: outer.to_vec(), inner: shape[depth..].to_vec() })
}

/// One element for each known index, from its own position in the other dimensions
pub(super) fn gather_elements(c: &mut Call<'_, '_>) -> Outputs {
    let (x, indices) = (c.input(0)?, c.known(1, "indices")?);
    let shape = c.shape(&x)?;
    let axis = c.attribute_int("axis", 0)?;
    let axis = c.axis(axis, shape.len())?;
    let to = indices.ty.shape.clone();
    if to.len() != shape.len() || (0..to.len()).any(|d| d != axis && to[d] > shape[d]) {
        return Err(format!("its indices {} do not index {shape:?}", indices.ty));
    }
    let mut flat = vec![];
    for (at, index) in indices.to_i64().into_iter().enumerate() {
        let mut position = coordinates(at as u64, &to);
        position[axis] = row(index, shape[axis])? as u64;
        flat.push(position.iter().zip(&shape).fold(0, |n, (p, s)| n * s + p) as i64);
    }
    let list = c.reshape(&x, vec![shape.iter().product()])?;
    Ok(vec![c.emit(Gather { axis: 0 }, &[list, Value::Known(Tensor::from_i64(to, &flat))])?])
}

/// The position of element `at` of a row-major tensor in each dimension.
fn coordinates(at: u64, shape: &[u64]) -> Vec<u64> {
    let mut rest = at;
    let mut position: Vec<u64> = shape
        .iter()
        .rev()
        .map(|n| {
            let p = rest % n;
            rest /= n;
            p
        })
        .collect();
    position.reverse();
    position
}

/// A known tensor with some slices replaced
pub(super) fn scatter_nd(c: &mut Call<'_, '_>) -> Outputs {
    let reduction = c.attribute_string("reduction", "none")?;
    if reduction != "none" {
        return Err(format!("reduction `{reduction}` is not supported"));
    }
    let (data, indices, updates) = (c.known(0, "data")?, c.known(1, "indices")?, c.known(2, "updates")?);
    let rows = tuples(&indices, &data.ty.shape)?;
    let width = (rows.inner.iter().product::<u64>() * data.ty.dtype.bytes()) as usize;
    if updates.ty != Type::new(data.ty.dtype, [&rows.outer[..], &rows.inner].concat()) {
        return Err(format!("updates {} do not fit", updates.ty));
    }
    let mut bytes = data.bytes.to_vec();
    for (i, row) in rows.rows.iter().enumerate() {
        bytes[*row as usize * width..][..width].copy_from_slice(&updates.bytes[i * width..][..width]);
    }
    Ok(vec![Value::Known(Tensor { ty: data.ty, bytes: Arc::new(bytes) })])
}

/// One of two values by whether a position is the index
pub(super) fn one_hot(c: &mut Call<'_, '_>) -> Outputs {
    let (indices, depth, values) = (c.input(0)?, c.ints(1, "depth")?, c.known(2, "values")?);
    let mut shape = c.shape(&indices)?;
    let axis = c.attribute_int("axis", -1)?;
    let axis = c.axis(axis, shape.len() + 1)?;
    let size = depth.first().and_then(|n| u64::try_from(*n).ok()).ok_or("its depth is negative")?;
    if values.ty.elements() != 2 {
        return Err(format!("its values are {}, not two", values.ty));
    }
    let rank = shape.len();
    shape.push(1);
    let column = c.reshape(&indices, shape)?;
    let hot = c.emit(OneHot { size }, &[column])?;
    let numbers = values.to_f64();
    let number = |v: f64| Value::Known(Tensor::scalar(values.ty.dtype, v));
    let y = c.elementwise(Where {}, &[hot, number(numbers[1]), number(numbers[0])])?;
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.insert(axis, rank);
    Ok(vec![c.transpose(&y, perm)?])
}

/// One triangle of matrices, the other 0
pub(super) fn trilu(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let upper = c.attribute_int("upper", 1)? != 0;
    let k = match c.optional(1) {
        Some(_) => *c.ints(1, "diagonal")?.first().ok_or("its diagonal is empty")?,
        None => 0,
    };
    let shape = c.shape(&x)?;
    let [.., rows, columns] = shape[..] else { return Err(format!("its input has shape {shape:?}")) };
    if checked_elements(&[rows, columns]).is_none_or(|n| n > MAX_ELEMENTS) {
        return Err(format!("a mask of {rows} x {columns} is too large"));
    }
    let kept = |i: u64, j: u64| {
        let diagonal = (i as i64).saturating_add(k);
        u8::from(if upper { j as i64 >= diagonal } else { j as i64 <= diagonal })
    };
    let bytes: Vec<u8> = (0..rows).flat_map(|i| (0..columns).map(move |j| kept(i, j))).collect();
    let mask = Value::Known(Tensor { ty: Type::new(DType::Bool, [rows, columns]), bytes: Arc::new(bytes) });
    let zero = c.number(&x, 0.0)?;
    Ok(vec![c.elementwise(Where {}, &[mask, x, zero])?])
}

/// Running sums of a known tensor
pub(super) fn cum_sum(c: &mut Call<'_, '_>) -> Outputs {
    let (x, axis) = (c.known(0, "input")?, c.ints(1, "axis")?);
    let (exclusive, reverse) = (c.attribute_int("exclusive", 0)? != 0, c.attribute_int("reverse", 0)? != 0);
    let axis = c.axis(*axis.first().ok_or("its axis is empty")?, x.ty.rank())?;
    let (size, inner) = (x.ty.shape[axis] as usize, x.ty.shape[axis + 1..].iter().product::<u64>() as usize);
    if x.ty.dtype == DType::I64 {
        let sums = running(&x.to_i64(), size, inner, exclusive, reverse, i64::wrapping_add);
        return Ok(vec![Value::Known(Tensor::from_i64(x.ty.shape, &sums))]);
    }
    let sums = running(&x.to_f64(), size, inner, exclusive, reverse, |a, b| a + b);
    Ok(vec![Value::Known(Tensor::from_f64(x.ty, &sums))])
}

fn running<T: Copy + Default>(x: &[T], size: usize, inner: usize, exclusive: bool, reverse: bool, add: fn(T, T) -> T) -> Vec<T> {
    let mut out = x.to_vec();
    for block in 0..x.len() / (size * inner).max(1) {
        for k in 0..inner {
            let mut sum = T::default();
            for i in 0..size {
                let i = if reverse { size - 1 - i } else { i };
                let at = (block * size + i) * inner + k;
                let before = sum;
                sum = add(sum, x[at]);
                out[at] = if exclusive { before } else { sum };
            }
        }
    }
    out
}

/// The positions of a known tensor's elements that are not 0, one column each
pub(super) fn non_zero(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.known(0, "input")?;
    let shape = &x.ty.shape;
    let found: Vec<Vec<u64>> =
        x.to_f64().iter().enumerate().filter(|(_, v)| **v != 0.0).map(|(i, _)| coordinates(i as u64, shape)).collect();
    let rows: Vec<i64> = (0..shape.len()).flat_map(|d| found.iter().map(move |p| p[d] as i64)).collect();
    Ok(vec![Value::Known(Tensor::from_i64([shape.len() as u64, found.len() as u64], &rows))])
}
