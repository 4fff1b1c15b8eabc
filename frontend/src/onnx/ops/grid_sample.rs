//! Images read at positions that are computed.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::dtype::DType;
use shardc_ir::ops::index::Gather;
use shardc_ir::ops::layout::Slice;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::{Binary, Unary};

type Outputs = Result<Vec<Value>, Reason>;

/// How positions become elements.
#[derive(Clone, Copy)]
struct Reading {
    /// Whether -1 and 1 are the middles of the outermost elements, not their outer edges.
    aligned: bool,
    /// Whether only the nearest element counts.
    nearest: bool,
    /// Whether the outermost elements go on outside, instead of zeros.
    border: bool,
}

/// An element along one dimension for each position, `[samples, positions]`, and what it counts.
struct Neighbour {
    index: Value,
    weight: Value,
}

/// `[samples, channels, height, width]` read at positions `[samples, rows, columns, 2]` in -1..1.
/// Jaderberg et al.: Spatial Transformer Networks (2015)
pub(in crate::onnx) fn grid_sample(c: &mut Call<'_, '_>) -> Outputs {
    let (x, grid) = (c.input(0)?, c.input(1)?);
    let (shape, at) = (c.shape(&x)?, c.shape(&grid)?);
    let (&[n, channels, height, width], &[samples, rows, columns, 2]) = (&shape[..], &at[..]) else {
        return Err(reason!("an image of shape {shape:?} read at {at:?}; only two dimensions of space are supported"));
    };
    if n != samples || shape.contains(&0) {
        return Err(reason!("an image of shape {shape:?} read at {at:?}"));
    }
    let reading = Reading::of(c)?;
    let pixels = c.transpose(&x, vec![0, 2, 3, 1])?;
    let pixels = c.reshape(&pixels, vec![n, height * width, channels])?;
    let mut along = |coordinate: u64, size: u64| {
        let place = c.emit(Slice { axis: 3, start: coordinate, step: 1, size: 1 }, std::slice::from_ref(&grid))?;
        let place = c.reshape(&place, vec![n, rows * columns])?;
        reading.neighbours(c, &place, size)
    };
    let (vertical, horizontal) = (along(1, height)?, along(0, width)?);
    let mut sum: Option<Value> = None;
    for y in &vertical {
        for x in &horizontal {
            let row = c.with_number(Binary::Mul, &y.index, width as f64)?;
            let pixel = c.binary(Binary::Add, &row, &x.index)?;
            let read = c.emit(Gather::batched(1, 1), &[pixels.clone(), pixel])?;
            let weight = c.binary(Binary::Mul, &y.weight, &x.weight)?;
            let weight = c.reshape(&weight, vec![n, rows * columns, 1])?;
            let part = c.binary(Binary::Mul, &read, &weight)?;
            sum = Some(match &sum {
                Some(sum) => c.binary(Binary::Add, sum, &part)?,
                None => part,
            });
        }
    }
    let read = c.reshape(&sum.ok_or("it reads nothing")?, vec![n, rows, columns, channels])?;
    Ok(vec![c.transpose(&read, vec![0, 3, 1, 2])?])
}

impl Reading {
    fn of(c: &mut Call<'_, '_>) -> Result<Reading, Reason> {
        let aligned = c.attribute_int("align_corners", 0)? != 0;
        let nearest = match c.attribute_string("mode", "linear")?.as_str() {
            "linear" | "bilinear" => false,
            "nearest" => true,
            other => return Err(reason!("mode `{other}` is not supported")),
        };
        let border = match c.attribute_string("padding_mode", "zeros")?.as_str() {
            "zeros" => false,
            "border" => true,
            other => return Err(reason!("padding mode `{other}` is not supported")),
        };
        Ok(Reading { aligned, nearest, border })
    }

    /// The elements of a dimension of `size` around each place in -1..1.
    fn neighbours(self, c: &mut Call<'_, '_>, place: &Value, size: u64) -> Result<Vec<Neighbour>, Reason> {
        let last = size as f64 - 1.0;
        let scaled = c.scale(place, if self.aligned { last } else { size as f64 } / 2.0)?;
        let mut place = c.with_number(Binary::Add, &scaled, last / 2.0)?;
        if self.border {
            let above = c.with_number(Binary::Max, &place, 0.0)?;
            place = c.with_number(Binary::Min, &above, last)?;
        }
        if self.nearest {
            let index = c.unary(Unary::Round, &place)?;
            let one = c.number(&place, 1.0)?;
            let one = c.broadcast(&one, c.shape(&place)?)?;
            return Ok(vec![self.neighbour(c, &index, &one, last)?]);
        }
        let low = c.unary(Unary::Floor, &place)?;
        let high = c.with_number(Binary::Add, &low, 1.0)?;
        let to_low = c.binary(Binary::Sub, &place, &low)?;
        let to_high = c.binary(Binary::Sub, &high, &place)?;
        Ok(vec![self.neighbour(c, &low, &to_high, last)?, self.neighbour(c, &high, &to_low, last)?])
    }

    /// The element at `index`, which counts nothing outside `0..=last`.
    fn neighbour(self, c: &mut Call<'_, '_>, index: &Value, weight: &Value, last: f64) -> Result<Neighbour, Reason> {
        let above = c.with_number(Binary::Max, index, 0.0)?;
        let inside = c.with_number(Binary::Min, &above, last)?;
        let weight = if self.border {
            weight.clone()
        } else {
            let is_inside = c.binary(Binary::Eq, &inside, index)?;
            let zero = c.number(index, 0.0)?;
            c.select(&is_inside, weight, &zero)?
        };
        Ok(Neighbour { index: c.cast(&inside, DType::I64)?, weight })
    }
}
