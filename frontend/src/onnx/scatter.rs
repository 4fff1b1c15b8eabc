//! Tensors with some elements replaced or added to: a table whose rows are written by index.

use super::call::Call;
use super::constants::MAX_ELEMENTS;
use super::importer::Value;
use super::index::{Tuples, coordinates, flat_rows, row};
use super::layout::join;
use shardc_ir::ops::index::{Gather, ScatterAdd};
use shardc_ir::scalar::Binary;
use shardc_ir::types::{Tensor, checked_elements};

type Outputs = Result<Vec<Value>, String>;

/// Slices at tuples of indices
pub(super) fn scatter_nd(c: &mut Call<'_, '_>) -> Outputs {
    let (data, indices, updates) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let shape = c.shape(&data)?;
    let Tuples { rows, total, inner } = Tuples::read(c, &indices, &shape)?;
    if c.shape(&updates)? != [&c.shape(&rows)?[..], &inner].concat() {
        return Err(format!("updates {} do not fit", c.ty(&updates)?));
    }
    let width = inner.iter().product();
    let table = c.reshape(&data, vec![total, width])?;
    let table = write_rows(c, &table, &rows, &updates, width)?;
    Ok(vec![c.reshape(&table, shape)?])
}

/// One element for each index, at its own position in the other dimensions
pub(super) fn scatter_elements(c: &mut Call<'_, '_>) -> Outputs {
    let (data, indices, updates) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (shape, from) = (c.shape(&data)?, c.shape(&indices)?);
    let axis = c.attribute_int("axis", 0)?;
    let axis = c.axis(axis, shape.len())?;
    if from.len() != shape.len() || (0..from.len()).any(|d| d != axis && from[d] > shape[d]) || c.shape(&updates)? != from {
        return Err(format!("indices {} and updates {} do not fit {shape:?}", c.ty(&indices)?, c.ty(&updates)?));
    }
    let total = checked_elements(&shape).ok_or("its data is too large")?;
    let rows = match indices.tensor() {
        Some(known) => {
            let flat = |(at, index): (usize, i64)| {
                let mut position = coordinates(at as u64, &from);
                position[axis] = row(index, shape[axis])? as u64;
                Ok(position.iter().zip(&shape).fold(0, |n, (p, s)| n * s + p) as i64)
            };
            let rows: Result<Vec<i64>, String> = known.to_i64().into_iter().enumerate().map(flat).collect();
            Value::Known(Tensor::from_i64(from, &rows?))
        }
        None => {
            let mut columns = vec![];
            for d in 0..from.len() {
                let own = Value::Known(positions(&from, d)?);
                columns.push(if d == axis { indices.clone() } else { own });
            }
            flat_rows(c, &columns, &shape)?
        }
    };
    let table = c.reshape(&data, vec![total, 1])?;
    let table = write_rows(c, &table, &rows, &updates, 1)?;
    Ok(vec![c.reshape(&table, shape)?])
}

/// The positions along dimension `d`, with size 1 in the dimensions before and behind it.
fn positions(shape: &[u64], d: usize) -> Result<Tensor, String> {
    if shape[d] > MAX_ELEMENTS {
        return Err(format!("{} positions are too many", shape[d]));
    }
    let mut along = vec![1; shape.len() - d];
    along[0] = shape[d];
    Ok(Tensor::from_i64(along, &(0..shape[d] as i64).collect::<Vec<_>>()))
}

/// A table `[rows, width]` with the rows of `updates` in place of those that the indices name, or added to them.
fn write_rows(c: &mut Call<'_, '_>, table: &Value, rows: &Value, updates: &Value, width: u64) -> Result<Value, String> {
    let (ty, count) = (c.ty(table)?, c.ty(rows)?.elements());
    let size = ty.shape[0];
    if c.ty(updates)?.dtype != ty.dtype {
        return Err(format!("its data is {}, its updates are {}", ty.dtype, c.ty(updates)?.dtype));
    }
    let rows = c.reshape(rows, vec![count])?;
    let updates = c.reshape(updates, vec![count, width])?;
    let scatter = ScatterAdd { axis: 0, batch: 0, size };
    match c.attribute_string("reduction", "none")?.as_str() {
        "none" => {}
        "add" if ty.dtype.is_float() => {
            let sums = c.emit(scatter, &[rows, updates])?;
            return c.binary(Binary::Add, table, &sums);
        }
        "add" => return Err(format!("reduction `add` of {} is not supported", ty.dtype)),
        other => return Err(format!("reduction `{other}` is not supported")),
    }
    if let Some(known) = rows.tensor() {
        if size > MAX_ELEMENTS {
            return Err(format!("{size} rows are too many"));
        }
        // Every row comes from the table or from the last update that names it.
        let mut from: Vec<i64> = (0..size as i64).collect();
        for (i, row) in known.to_i64().into_iter().enumerate() {
            from[row as usize] = (size + i as u64) as i64;
        }
        let both = join(c, &[table.clone(), updates], 0)?;
        return c.emit(Gather::along(0), &[both, Value::Known(Tensor::from_i64([size], &from))]);
    }
    if !ty.dtype.is_float() {
        return Err(format!(
            "its data is {} and its indices depend on an input's values; only constant ones are supported",
            ty.dtype
        ));
    }
    let one = c.number(table, 1.0)?;
    let ones = c.broadcast(&one, vec![count, 1])?;
    let counts = c.emit(scatter.clone(), &[rows.clone(), ones])?;
    let sums = c.emit(scatter, &[rows, updates])?;
    let half = c.number(table, 0.5)?;
    let written = c.binary(Binary::Lt, &half, &counts)?;
    c.select(&written, &sums, table)
}
