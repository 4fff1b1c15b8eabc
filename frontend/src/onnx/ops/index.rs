//! ONNX's ops on positions.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::arg_extreme::one_hot as one_hot_of;
use crate::onnx::ops::layout;
use shardc_ir::dtype::DType;
use shardc_ir::ops::index::Gather;
use shardc_ir::ops::layout::Slice;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::Binary;
use shardc_ir::types::{Tensor, Type, checked_elements};
use std::sync::Arc;

type Outputs = Result<Vec<Value>, Reason>;

/// Rows by index
pub(in crate::onnx) fn gather(c: &mut Call<'_, '_>) -> Outputs {
    let (x, indices) = (c.input(0)?, c.input(1)?);
    let shape = c.shape(&x)?;
    let axis = c.attribute_int("axis", 0)?;
    let axis = c.axis(axis, shape.len())?;
    let op = Gather { untrained: c.traced().and_then(|call| call.padding), ..Gather::along(axis) };
    let Some(known) = indices.tensor() else { return Ok(vec![c.emit(op, &[x, indices])?]) };
    let known = checked(&known, shape[axis])?;
    if axis == 0
        && op.untrained.is_none()
        && let Some(each) = of_each_block(&known, shape[0])
    {
        let blocks = known.ty.shape[0];
        let size = shape[0] / blocks;
        let table = c.reshape(&x, [&[blocks, size], &shape[1..]].concat())?;
        if each.integers().eq(0..size as i64) {
            return Ok(vec![c.reshape(&table, [&known.ty.shape, &shape[1..]].concat())?]);
        }
        return Ok(vec![c.emit(Gather::along(1), &[table, Value::Known(each)])?]);
    }
    Ok(vec![c.emit(op, &[x, Value::Known(known)])?])
}

/// Indices into each of `indices.shape[0]` equal blocks of `rows` rows, where every block is
/// indexed alike: a batch that was merged with what is picked from it, as a mask of tokens or
/// strides over a tensor's memory are exported.
fn of_each_block(indices: &Tensor, rows: u64) -> Option<Tensor> {
    let (blocks, rest) = indices.ty.shape.split_first().filter(|(n, _)| **n > 1 && rows.is_multiple_of(**n))?;
    let size = (rows / blocks) as i64;
    let all = indices.integers();
    let count = all.len() / *blocks as usize;
    let first = all.clone().take(count);
    let within = count > 0 && first.clone().all(|i| i < size);
    let alike = |(n, (i, f)): (usize, (i64, i64))| i == f + (n / count) as i64 * size;
    let is_each = within && all.zip(first.clone().cycle()).enumerate().all(alike);
    is_each.then(|| Tensor::from_i64(rest.to_vec(), &first.collect::<Vec<_>>()))
}

/// Known indices, none negative and all within `size`.
pub(in crate::onnx) fn checked(indices: &Tensor, size: u64) -> Result<Tensor, Reason> {
    if indices.ty.dtype != DType::I64 {
        return Err(reason!("its indices are {}", indices.ty));
    }
    let mut is_as_it_is = true;
    for i in indices.integers() {
        is_as_it_is &= i == row(i, size)?;
    }
    if is_as_it_is {
        return Ok(indices.clone());
    }
    let rows: Result<Vec<i64>, Reason> = indices.integers().map(|i| row(i, size)).collect();
    Ok(Tensor::from_i64(indices.ty.shape.clone(), &rows?))
}

fn row(index: i64, size: u64) -> Result<i64, Reason> {
    let row = if index < 0 { index.saturating_add(size as i64) } else { index };
    if (0..size as i64).contains(&row) { Ok(row) } else { Err(reason!("index {index} of {size} elements")) }
}

/// Slices by tuples of indices: a gather from the table whose indexed dimensions are one
pub(in crate::onnx) fn gather_nd(c: &mut Call<'_, '_>) -> Outputs {
    let batch = c.attribute_int("batch_dims", 0)?;
    let (x, indices) = (c.input(0)?, c.input(1)?);
    let shape = c.shape(&x)?;
    let batch = usize::try_from(batch).ok().filter(|b| *b < shape.len()).ok_or("its batch dimensions are more than it has")?;
    let Tuples { batch, rows, total, inner } = Tuples::read(c, &indices, &shape, batch)?;
    let table = c.reshape(&x, [&shape[..batch], &[total], &inner[..]].concat())?;
    Ok(vec![c.emit(Gather::batched(batch, batch), &[table, rows])?])
}

/// Tuples of indices into the leading dimensions of a tensor.
pub(in crate::onnx) struct Tuples {
    /// How many leading dimensions tensor and tuples share.
    pub batch: usize,
    /// For each tuple, its row in the indexed dimensions as one.
    pub rows: Value,
    /// How many rows there are.
    pub total: u64,
    /// The dimensions that they do not index.
    pub inner: Vec<u64>,
}

impl Tuples {
    /// From indices whose last dimension is that of the tuples, and whose first `batch` dimensions
    /// are those of the tensor.
    pub fn read(c: &mut Call<'_, '_>, indices: &Value, shape: &[u64], batch: usize) -> Result<Tuples, Reason> {
        let ty = c.ty(indices)?;
        let (depth, outer) = ty.shape.split_last().ok_or("its indices are a scalar")?;
        let (depth, rest) = (*depth as usize, &shape[batch..]);
        if ty.dtype != DType::I64 || depth == 0 || depth > rest.len() || outer.get(..batch) != Some(&shape[..batch]) {
            return Err(reason!("its indices {ty} do not index {shape:?}"));
        }
        let mut columns = columns(c, indices, outer, depth)?;
        // An index that is its own position, as in `x[arange(n), i]`, is a dimension that both
        // share.
        let mut batch = batch;
        while columns.len() > 1 && outer.get(batch) == Some(&shape[batch]) && counts(&columns[0], outer, batch) {
            columns.remove(0);
            batch += 1;
        }
        let (sizes, inner) = shape[batch..].split_at(columns.len());
        let total = checked_elements(sizes).ok_or("its data is too large")?;
        let rows = match columns.iter().map(Value::tensor).collect::<Option<Vec<Tensor>>>() {
            Some(known) => Value::Known(known_rows(&known, sizes, outer)?),
            None => flat_rows(c, &columns, sizes)?,
        };
        Ok(Tuples { batch, rows, total, inner: inner.to_vec() })
    }
}

/// Each index of all tuples, known ones apart where they were joined to others.
fn columns(c: &mut Call<'_, '_>, indices: &Value, outer: &[u64], depth: usize) -> Result<Vec<Value>, Reason> {
    let last = outer.len();
    let mut columns = vec![];
    for piece in c.joined(indices, last) {
        let width = c.shape(&piece)?[last];
        for column in layout::parts(c, &piece, last, &vec![1; width as usize])? {
            columns.push(c.reshape(&column, outer.to_vec())?);
        }
    }
    if columns.len() == depth { Ok(columns) } else { Err(reason!("its tuples hold {} indices, not {depth}", columns.len())) }
}

/// Whether each element is its position along dimension `d`.
fn counts(column: &Value, shape: &[u64], d: usize) -> bool {
    let within: u64 = shape[d + 1..].iter().product();
    let position = |i: u64| (i / within.max(1) % shape[d].max(1)) as i64;
    column.tensor().is_some_and(|known| (0..).zip(known.integers()).all(|(i, index)| index == position(i)))
}

fn known_rows(columns: &[Tensor], sizes: &[u64], outer: &[u64]) -> Result<Tensor, Reason> {
    let mut rows = vec![0; outer.iter().product::<u64>() as usize];
    for (column, size) in columns.iter().zip(sizes) {
        for (flat, index) in rows.iter_mut().zip(column.integers()) {
            *flat = *flat * *size as i64 + row(index, *size)?;
        }
    }
    Ok(Tensor::from_i64(outer, &rows))
}

/// One index for each element of the dimensions `sizes` as one; what is outside any of them is
/// outside all.
fn flat_rows(c: &mut Call<'_, '_>, columns: &[Value], sizes: &[u64]) -> Result<Value, Reason> {
    let number = |n: u64| Value::Known(Tensor::from_i64([], &[n as i64]));
    let mut flat = number(0);
    let mut inside: Option<Value> = None;
    for (column, size) in columns.iter().zip(sizes) {
        let negative = c.binary(Binary::Lt, column, &number(0))?;
        let from_end = c.binary(Binary::Add, column, &number(*size))?;
        let wrapped = c.select(&negative, &from_end, column)?;
        for within in [c.binary(Binary::Le, &number(0), &wrapped)?, c.binary(Binary::Lt, &wrapped, &number(*size))?] {
            inside = Some(match &inside {
                Some(inside) => c.binary(Binary::And, inside, &within)?,
                None => within,
            });
        }
        let outer = c.binary(Binary::Mul, &flat, &number(*size))?;
        flat = c.binary(Binary::Add, &outer, &wrapped)?;
    }
    let inside = inside.ok_or("its indices index nothing")?;
    c.select(&inside, &flat, &number(sizes.iter().product()))
}

/// One element for each index, from its own position in the other dimensions
pub(in crate::onnx) fn gather_elements(c: &mut Call<'_, '_>) -> Outputs {
    let (mut x, indices) = (c.input(0)?, c.input(1)?);
    let (shape, to) = (c.shape(&x)?, c.shape(&indices)?);
    let axis = c.attribute_int("axis", 0)?;
    let axis = c.axis(axis, shape.len())?;
    if to.len() != shape.len() || (0..to.len()).any(|d| d != axis && to[d] > shape[d]) {
        return Err(reason!("its indices {} do not index {shape:?}", c.ty(&indices)?));
    }
    for d in (0..to.len()).filter(|d| *d != axis && to[*d] < shape[*d]) {
        x = c.emit(Slice { axis: d, start: 0, step: 1, size: to[d] }, &[x])?;
    }
    let indices = match indices.tensor() {
        Some(known) => Value::Known(checked(&known, shape[axis])?),
        None => indices,
    };
    let last = shape.len() - 1;
    let mut perm: Vec<usize> = (0..shape.len()).collect();
    perm.swap(axis, last);
    let (x, indices) = (c.transpose(&x, perm.clone())?, c.transpose(&indices, perm.clone())?);
    let y = c.emit(Gather::batched(last, last), &[x, indices])?;
    Ok(vec![c.transpose(&y, perm)?])
}

/// The start of each sequence backwards, what follows as it is
pub(in crate::onnx) fn reverse_sequence(c: &mut Call<'_, '_>) -> Outputs {
    let (x, lengths) = (c.input(0)?, c.input(1)?);
    let (batch, time) = (c.attribute_int("batch_axis", 1)?, c.attribute_int("time_axis", 0)?);
    let shape = c.shape(&x)?;
    let mut perm: Vec<usize> = (0..shape.len()).collect();
    match (batch, time) {
        (0, 1) => {}
        (1, 0) if shape.len() > 1 => perm.swap(0, 1),
        _ => return Err(reason!("its batch axis is {batch} and its time axis {time}")),
    }
    let x = c.transpose(&x, perm.clone())?;
    let [samples, steps, ..] = c.shape(&x)?[..] else { return Err(reason!("its input has shape {shape:?}")) };
    let positions = c.positions(&[samples, steps], 1)?;
    let lengths = c.reshape(&lengths, vec![samples, 1])?;
    let ended = c.binary(Binary::Le, &lengths, &positions)?;
    let last = c.with_number(Binary::Sub, &lengths, 1.0)?;
    let backwards = c.binary(Binary::Sub, &last, &positions)?;
    let from = c.select(&ended, &positions, &backwards)?;
    let y = c.emit(Gather::batched(1, 1), &[x, from])?;
    Ok(vec![c.transpose(&y, perm)?])
}

/// The slices for which a known condition holds
pub(in crate::onnx) fn compress(c: &mut Call<'_, '_>) -> Outputs {
    let (mut x, condition) = (c.input(0)?, c.known(1, "condition")?);
    let mut axis = 0;
    if c.has_attribute("axis") {
        let given = c.attribute_int("axis", 0)?;
        axis = c.axis(given, c.ty(&x)?.rank())?;
    } else {
        let elements = c.ty(&x)?.elements();
        x = c.reshape(&x, vec![elements])?;
    }
    let chosen: Vec<i64> = (0..).zip(condition.to_i64()).filter(|(_, kept)| *kept != 0).map(|(i, _)| i).collect();
    if let Some(i) = chosen.iter().find(|i| **i as u64 >= c.shape(&x).map_or(0, |s| s[axis])) {
        return Err(reason!("its condition chooses {i} of {:?}", c.shape(&x)?));
    }
    let indices = Value::Known(Tensor::from_i64([chosen.len() as u64], &chosen));
    Ok(vec![c.emit(Gather::along(axis), &[x, indices])?])
}

/// One of two values by whether a position is the index
pub(in crate::onnx) fn one_hot(c: &mut Call<'_, '_>) -> Outputs {
    let (indices, depth, values) = (c.input(0)?, c.known(1, "depth")?.to_i64(), c.known(2, "values")?);
    let shape = c.shape(&indices)?;
    let axis = c.attribute_int("axis", -1)?;
    let axis = c.axis(axis, shape.len() + 1)?;
    let size = depth.first().and_then(|n| u64::try_from(*n).ok()).ok_or("its depth is negative")?;
    if values.ty.elements() != 2 {
        return Err(reason!("its values are {}, not two", values.ty));
    }
    let rank = shape.len();
    let indices = c.cast(&indices, DType::I64)?;
    let zero = c.number(&indices, 0.0)?;
    let negative = c.binary(Binary::Lt, &indices, &zero)?;
    let from_end = c.with_number(Binary::Add, &indices, size as f64)?;
    let indices = c.select(&negative, &from_end, &indices)?;
    let hot = one_hot_of(c, &indices, size)?;
    let [off, on] = [0, 1].map(|i| Value::Known(values.element(i)));
    let y = c.select(&hot, &on, &off)?;
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.insert(axis, rank);
    Ok(vec![c.transpose(&y, perm)?])
}

/// One triangle of matrices, the other 0
pub(in crate::onnx) fn trilu(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let upper = c.attribute_int("upper", 1)? != 0;
    let k = match c.optional(1) {
        Some(_) => *c.ints(1, "diagonal")?.first().ok_or("its diagonal is empty")?,
        None => 0,
    };
    let shape = c.shape(&x)?;
    let [.., rows, columns] = shape[..] else { return Err(reason!("its input has shape {shape:?}")) };
    c.context.allow_truths(&[rows, columns])?;
    let kept = |i: u64, j: u64| {
        let diagonal = (i as i64).saturating_add(k);
        u8::from(if upper { j as i64 >= diagonal } else { j as i64 <= diagonal })
    };
    let bytes: Vec<u8> = (0..rows).flat_map(|i| (0..columns).map(move |j| kept(i, j))).collect();
    let mask = Value::Known(Tensor { ty: Type::new(DType::Bool, [rows, columns]), bytes: Arc::new(bytes) });
    let zero = c.number(&x, 0.0)?;
    Ok(vec![c.select(&mask, &x, &zero)?])
}

/// The positions of a known tensor's elements that are not 0, one column each
pub(in crate::onnx) fn non_zero(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.known(0, "input")?;
    let shape = &x.ty.shape;
    c.context.allow(&[shape, &[shape.len() as u64 + 1][..]].concat())?;
    let found: Vec<Vec<u64>> =
        x.to_f64().iter().enumerate().filter(|(_, v)| **v != 0.0).map(|(i, _)| coordinates(i as u64, shape)).collect();
    let rows: Vec<i64> = (0..shape.len()).flat_map(|d| found.iter().map(move |p| p[d] as i64)).collect();
    Ok(vec![Value::Known(Tensor::from_i64([shape.len() as u64, found.len() as u64], &rows))])
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
