//! ONNX's reductions, over dimensions that disappear or stay with size 1.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::cumulative;
use shardc_ir::dtype::DType;
use shardc_ir::ops::elementwise::Detach;
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Unary};

type Outputs = Result<Vec<Value>, Reason>;

/// The dimensions of a reduction.
struct Axes {
    axes: Vec<usize>,
    /// The shape with every reduced dimension at size 1.
    kept: Vec<u64>,
    keep: bool,
    count: u64,
}

impl Axes {
    fn read(c: &mut Call<'_, '_>) -> Result<Axes, Reason> {
        let shape = c.shape(&c.input(0)?)?;
        let keep = c.attribute_int("keepdims", 1)? != 0;
        let nothing = c.attribute_int("noop_with_empty_axes", 0)? != 0;
        let axes = match c.ints_or_attribute(1, "axes")?.filter(|a| !a.is_empty()) {
            Some(axes) => c.axes(&axes, shape.len())?,
            None if nothing => vec![],
            None => (0..shape.len()).collect(),
        };
        let count = axes.iter().map(|a| shape[*a]).product();
        let kept = (0..shape.len()).map(|d| if axes.contains(&d) { 1 } else { shape[d] }).collect();
        Ok(Axes { axes, kept, keep, count })
    }

    fn reduce(&self, c: &mut Call<'_, '_>, kind: ReduceKind, x: &Value) -> Result<Value, Reason> {
        let y = c.reduce(kind, x, &self.axes)?;
        if self.keep { c.reshape(&y, self.kept.clone()) } else { Ok(y) }
    }
}

/// The sum
pub(in crate::onnx) fn sum(c: &mut Call<'_, '_>) -> Outputs {
    plain(c, ReduceKind::Sum)
}

/// The largest
pub(in crate::onnx) fn max(c: &mut Call<'_, '_>) -> Outputs {
    plain(c, ReduceKind::Max)
}

/// The smallest
pub(in crate::onnx) fn min(c: &mut Call<'_, '_>) -> Outputs {
    plain(c, ReduceKind::Min)
}

fn plain(c: &mut Call<'_, '_>, kind: ReduceKind) -> Outputs {
    let axes = Axes::read(c)?;
    let x = c.input(0)?;
    if c.ty(&x)?.dtype != DType::Bool {
        return Ok(vec![axes.reduce(c, kind, &x)?]);
    }
    let number = c.cast(&x, DType::I64)?;
    let y = axes.reduce(c, kind, &number)?;
    Ok(vec![c.cast(&y, DType::Bool)?])
}

/// The product
pub(in crate::onnx) fn product(c: &mut Call<'_, '_>) -> Outputs {
    let axes = Axes::read(c)?;
    let mut y = c.input(0)?;
    for axis in axes.axes.iter().rev() {
        y = cumulative::product(c, &y, *axis)?;
    }
    Ok(vec![if axes.keep { c.reshape(&y, axes.kept)? } else { y }])
}

/// The mean
pub(in crate::onnx) fn mean(c: &mut Call<'_, '_>) -> Outputs {
    let axes = Axes::read(c)?;
    let x = c.input(0)?;
    let sum = axes.reduce(c, ReduceKind::Sum, &x)?;
    if !c.ty(&x)?.dtype.is_float() {
        return Ok(vec![c.with_number(Binary::Div, &sum, axes.count as f64)?]);
    }
    Ok(vec![c.scale(&sum, 1.0 / axes.count as f64)?])
}

/// The sum of magnitudes
pub(in crate::onnx) fn l1(c: &mut Call<'_, '_>) -> Outputs {
    let axes = Axes::read(c)?;
    let x = c.input(0)?;
    let size = c.unary(Unary::Abs, &x)?;
    Ok(vec![axes.reduce(c, ReduceKind::Sum, &size)?])
}

/// The sum of squares
pub(in crate::onnx) fn sum_square(c: &mut Call<'_, '_>) -> Outputs {
    let axes = Axes::read(c)?;
    let x = c.input(0)?;
    let square = c.binary(Binary::Mul, &x, &x)?;
    Ok(vec![axes.reduce(c, ReduceKind::Sum, &square)?])
}

/// The root of the sum of squares
pub(in crate::onnx) fn l2(c: &mut Call<'_, '_>) -> Outputs {
    let sum = sum_square(c)?;
    in_floats(c, &sum[0], |c, sum| c.unary(Unary::Sqrt, sum))
}

/// The logarithm of the sum
pub(in crate::onnx) fn log_sum(c: &mut Call<'_, '_>) -> Outputs {
    let sum = sum(c)?;
    in_floats(c, &sum[0], |c, sum| c.unary(Unary::Log, sum))
}

/// The logarithm of the sum of exponentials
pub(in crate::onnx) fn log_sum_exp(c: &mut Call<'_, '_>) -> Outputs {
    let axes = Axes::read(c)?;
    let x = c.input(0)?;
    in_floats(c, &x, |c, x| {
        let max = max_of_rows(c, x, &axes.axes)?;
        // An infinity less itself is no number.
        let (size, zero) = (c.unary(Unary::Abs, &max)?, c.number(&max, 0.0)?);
        let is_infinite = c.with_number(Binary::Eq, &size, f64::INFINITY)?;
        let max = c.select(&is_infinite, &zero, &max)?;
        let shifted = c.binary(Binary::Sub, x, &max)?;
        let exp = c.unary(Unary::Exp, &shifted)?;
        let sum = axes.reduce(c, ReduceKind::Sum, &exp)?;
        let log = c.unary(Unary::Log, &sum)?;
        let max = c.reshape(&max, c.shape(&log)?)?;
        c.binary(Binary::Add, &log, &max)
    })
}

/// `f` of floats; of integers in f64, and truncated.
fn in_floats(c: &mut Call<'_, '_>, x: &Value, f: impl FnOnce(&mut Call<'_, '_>, &Value) -> Result<Value, Reason>) -> Outputs {
    let dtype = c.ty(x)?.dtype;
    if dtype.is_float() {
        return Ok(vec![f(c, x)?]);
    }
    let x = c.cast(x, DType::F64)?;
    let y = f(c, &x)?;
    Ok(vec![c.cast(&y, dtype)?])
}

/// `x` less its maximum over `axes`, and that maximum with those dimensions at size 1; no gradient
/// flows through it.
pub(in crate::onnx) fn minus_max(c: &mut Call<'_, '_>, x: &Value, axes: &[usize]) -> Result<(Value, Value), Reason> {
    let max = max_of_rows(c, x, axes)?;
    Ok((c.binary(Binary::Sub, x, &max)?, max))
}

fn max_of_rows(c: &mut Call<'_, '_>, x: &Value, axes: &[usize]) -> Result<Value, Reason> {
    let shape = c.shape(x)?;
    let kept = (0..shape.len()).map(|d| if axes.contains(&d) { 1 } else { shape[d] }).collect();
    let max = c.reduce(ReduceKind::Max, x, axes)?;
    let max = c.emit(Detach {}, &[max])?;
    c.reshape(&max, kept)
}
