//! Tensors with some elements replaced or added to: tables whose rows are written by index.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::index::{Tuples, checked};
use crate::onnx::ops::layout::{join, parts};
use shardc_ir::ops::index::{Gather, ScatterAdd};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::Binary;
use shardc_ir::types::Tensor;

type Outputs = Result<Vec<Value>, Reason>;

/// Slices at tuples of indices
pub(in crate::onnx) fn scatter_nd(c: &mut Call<'_, '_>) -> Outputs {
    let (data, indices, updates) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let shape = c.shape(&data)?;
    let Tuples { batch, rows, total, inner } = Tuples::read(c, &indices, &shape, 0)?;
    if c.shape(&updates)? != [&c.shape(&rows)?[..], &inner].concat() {
        return Err(reason!("updates {} do not fit", c.ty(&updates)?));
    }
    let table = c.reshape(&data, [&shape[..batch], &[total, inner.iter().product()]].concat())?;
    let table = write_rows(c, &table, &rows, &updates)?;
    Ok(vec![c.reshape(&table, shape)?])
}

/// One element for each index, at its own position in the other dimensions
pub(in crate::onnx) fn scatter_elements(c: &mut Call<'_, '_>) -> Outputs {
    let (mut data, indices, updates) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (shape, from) = (c.shape(&data)?, c.shape(&indices)?);
    let axis = c.attribute_int("axis", 0)?;
    let axis = c.axis(axis, shape.len())?;
    if from.len() != shape.len() || (0..from.len()).any(|d| d != axis && from[d] > shape[d]) || c.shape(&updates)? != from {
        return Err(reason!("indices {} and updates {} do not fit {shape:?}", c.ty(&indices)?, c.ty(&updates)?));
    }
    let indices = match indices.tensor() {
        Some(known) => Value::Known(checked(&known, shape[axis])?),
        None => indices,
    };
    // Elements that no index reaches come back at the end.
    let mut rest = vec![];
    for d in (0..from.len()).filter(|d| *d != axis && from[*d] < shape[*d]) {
        let pieces = parts(c, &data, d, &[from[d], shape[d] - from[d]])?;
        data = pieces[0].clone();
        rest.push((d, pieces[1].clone()));
    }
    let mut perm: Vec<usize> = (0..shape.len()).collect();
    perm.swap(axis, shape.len() - 1);
    let [data, rows, updates] = [data, indices, updates].map(|x| c.transpose(&x, perm.clone()));
    let (data, rows, updates) = (data?, rows?, updates?);
    let cut = c.shape(&data)?;
    let table = c.reshape(&data, [&cut[..], &[1]].concat())?;
    let table = write_rows(c, &table, &rows, &updates)?;
    let table = c.reshape(&table, cut)?;
    let mut result = c.transpose(&table, perm)?;
    for (d, rest) in rest.into_iter().rev() {
        result = join(c, &[result, rest], d as i64)?;
    }
    Ok(vec![result])
}

/// Tables `[batch…, rows, width]` with the rows of `updates` in place of those that the indices
/// `[batch…, …]` name, or added to them.
fn write_rows(c: &mut Call<'_, '_>, table: &Value, rows: &Value, updates: &Value) -> Result<Value, Reason> {
    let ty = c.ty(table)?;
    let batch = ty.rank() - 2;
    let (lead, size, width) = (&ty.shape[..batch], ty.shape[batch], ty.shape[batch + 1]);
    let count = c.shape(rows)?[batch..].iter().product();
    if c.ty(updates)?.dtype != ty.dtype {
        return Err(reason!("its data is {}, its updates are {}", ty.dtype, c.ty(updates)?.dtype));
    }
    let rows = c.reshape(rows, [lead, &[count]].concat())?;
    let updates = c.reshape(updates, [lead, &[count, width]].concat())?;
    let scatter = ScatterAdd { axis: batch, batch, size };
    match c.attribute_string("reduction", "none")?.as_str() {
        "none" => {}
        "add" if ty.dtype.is_float() => {
            let sums = c.emit(scatter, &[rows, updates])?;
            return c.binary(Binary::Add, table, &sums);
        }
        "add" => return Err(reason!("reduction `add` of {} is not supported", ty.dtype)),
        other => return Err(reason!("reduction `{other}` is not supported")),
    }
    if let Some(now) = written_now(c, table, &rows, &updates) {
        return Ok(now);
    }
    if let Some(known) = rows.tensor() {
        c.context.allow(&[lead, &[size]].concat())?;
        let from = Value::Known(sources(&known, lead, size, count));
        let both = join(c, &[table.clone(), updates], batch as i64)?;
        return c.emit(Gather::batched(batch, batch), &[both, from]);
    }
    if !ty.dtype.is_float() {
        let words = "its indices depend on an input's values; only constant ones are supported";
        return Err(reason!("its data is {} and {words}", ty.dtype));
    }
    let one = c.number(table, 1.0)?;
    let ones = c.broadcast(&one, [lead, &[count, 1]].concat())?;
    let counts = c.emit(scatter.clone(), &[rows.clone(), ones])?;
    let sums = c.emit(scatter, &[rows, updates])?;
    let half = c.number(table, 0.5)?;
    let written = c.binary(Binary::Lt, &half, &counts)?;
    c.select(&written, &sums, table)
}

/// The tables with their rows written now, if all is known and that is not too much work.
fn written_now(c: &mut Call<'_, '_>, table: &Value, rows: &Value, updates: &Value) -> Option<Value> {
    let (Value::Known(table), Value::Known(rows), Value::Known(updates)) = (table, rows, updates) else { return None };
    let elements = [table, rows, updates].iter().map(|tensor| tensor.ty.elements()).sum();
    if !c.context.budget.spend(elements, table.bytes.len() as u64) {
        return None;
    }
    let [.., size, width] = table.ty.shape[..] else { return None };
    let (size, row_bytes) = (size as usize, (width * table.ty.dtype.bytes()) as usize);
    let count = *rows.ty.shape.last()? as usize;
    let mut bytes = table.bytes.to_vec();
    for (i, (row, update)) in rows.integers().zip(updates.bytes.chunks(row_bytes.max(1))).enumerate() {
        let first = (i / count * size + row as usize) * row_bytes;
        bytes[first..][..row_bytes].copy_from_slice(update);
    }
    Some(Value::Known(Tensor { ty: table.ty.clone(), bytes: bytes.into() }))
}

/// The source of each row in a table with its updates behind it: the table, or the last update that
/// names it.
fn sources(rows: &Tensor, lead: &[u64], size: u64, count: u64) -> Tensor {
    let shape = [lead, &[size]].concat();
    let mut from = vec![];
    let mut indices = rows.integers();
    for _ in 0..lead.iter().product() {
        let first = from.len();
        from.extend(0..size as i64);
        for (i, row) in indices.by_ref().take(count as usize).enumerate() {
            from[first + row as usize] = (size + i as u64) as i64;
        }
    }
    Tensor::from_i64(shape, &from)
}
