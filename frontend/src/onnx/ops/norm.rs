//! Softmax and the normalisations.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::reduce::minus_max;
use shardc_ir::ops::batch_norm::BatchNorm;
use shardc_ir::ops::layout::{Pad, Slice};
use shardc_ir::ops::norm::{LayerNorm, RmsNorm, Softmax};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Unary};

type Outputs = Result<Vec<Value>, Reason>;

/// Softmax over one dimension
pub(in crate::onnx) fn softmax(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    Ok(vec![over_axis(c, &x, |c, x| c.emit(Softmax {}, std::slice::from_ref(x)))?])
}

/// The logarithm of a softmax
pub(in crate::onnx) fn log_softmax(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let rank = c.ty(&x)?.rank();
    if c.opset() < 13 {
        return Ok(vec![over_axis(c, &x, |c, x| log_softmax_along(c, x, 1))?]);
    }
    let axis = c.attribute_int("axis", -1)?;
    let axis = c.axis(axis, rank)?;
    Ok(vec![log_softmax_along(c, &x, axis)?])
}

/// The logarithm of a softmax along `axis`, without the quotient.
pub(in crate::onnx) fn log_softmax_along(c: &mut Call<'_, '_>, x: &Value, axis: usize) -> Result<Value, Reason> {
    let (shifted, max) = minus_max(c, x, &[axis])?;
    let exp = c.unary(Unary::Exp, &shifted)?;
    let sum = c.reduce(ReduceKind::Sum, &exp, &[axis])?;
    let log = c.unary(Unary::Log, &sum)?;
    let log = c.reshape(&log, c.shape(&max)?)?;
    c.binary(Binary::Sub, &shifted, &log)
}

/// `f` of `x` with the dimension `axis` last; before op set 13, with all dimensions from `axis` on
/// as one.
pub(in crate::onnx) fn over_axis(
    c: &mut Call<'_, '_>,
    x: &Value,
    f: impl FnOnce(&mut Call<'_, '_>, &Value) -> Result<Value, Reason>,
) -> Result<Value, Reason> {
    let shape = c.shape(x)?;
    let rank = shape.len();
    if c.opset() < 13 {
        let axis = c.attribute_int("axis", 1)?;
        let axis = if axis == rank as i64 { rank } else { c.axis(axis, rank)? };
        let rows = c.reshape(x, vec![shape[..axis].iter().product(), shape[axis..].iter().product()])?;
        let y = f(c, &rows)?;
        return c.reshape(&y, shape);
    }
    let axis = c.attribute_int("axis", -1)?;
    let axis = c.axis(axis, rank)?;
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(axis, rank - 1);
    let last = c.transpose(x, perm.clone())?;
    let y = f(c, &last)?;
    c.transpose(&y, perm)
}

/// Layer normalisation over the dimensions from `axis` on
pub(in crate::onnx) fn layer_normalization(c: &mut Call<'_, '_>) -> Outputs {
    c.ignore("stash_type");
    let (x, axis) = (c.input(0)?, c.attribute_int("axis", -1)?);
    let (scale, bias, eps) = (c.input(1)?, c.optional(2), c.attribute_finite("epsilon", 1e-5)?);
    layer_norm(c, &x, axis, &scale, bias, eps)
}

/// Root-mean-square normalisation over the dimensions from `axis` on
pub(in crate::onnx) fn rms_normalization(c: &mut Call<'_, '_>) -> Outputs {
    c.ignore("stash_type");
    let (x, axis) = (c.input(0)?, c.attribute_int("axis", -1)?);
    let (scale, eps) = (c.input(1)?, c.attribute_finite("epsilon", 1e-5)?);
    rms_norm(c, &x, axis, &scale, eps)
}

/// Layer normalisation of `x`; results: y, mean, 1/deviation
pub(in crate::onnx) fn layer_norm(
    c: &mut Call<'_, '_>,
    x: &Value,
    axis: i64,
    scale: &Value,
    bias: Option<Value>,
    eps: f64,
) -> Outputs {
    let rows = Rows::of(c, x, axis)?;
    let bias = match bias {
        Some(bias) => bias,
        None => c.number(scale, 0.0)?,
    };
    let (inside, outside) = rows.split(c, [scale, &bias], [1.0, 0.0])?;
    let [scale, bias] = &inside[..] else { unreachable!("as many as went in") };
    let results = c.emit_all(LayerNorm { eps, dtype: None }, &[rows.x.clone(), scale.clone(), bias.clone()])?;
    rows.outputs(c, &results, &outside)
}

/// Root-mean-square normalisation of `x`; results: y, 1/deviation
pub(in crate::onnx) fn rms_norm(c: &mut Call<'_, '_>, x: &Value, axis: i64, scale: &Value, eps: f64) -> Outputs {
    let rows = Rows::of(c, x, axis)?;
    let (inside, outside) = rows.split(c, [scale], [1.0])?;
    let results = c.emit_all(RmsNorm { eps, dtype: None }, &[rows.x.clone(), inside[0].clone()])?;
    rows.outputs(c, &results, &outside)
}

/// Instance normalisation: each channel of each sample for itself
pub(in crate::onnx) fn instance_normalization(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let channels = *c.shape(&x)?.get(1).ok_or("it has no channels")?;
    normalised_in_groups(c, &x, channels)
}

/// Group normalisation: neighbouring channels of each sample together
pub(in crate::onnx) fn group_normalization(c: &mut Call<'_, '_>) -> Outputs {
    c.ignore("stash_type");
    let x = c.input(0)?;
    let groups = c.attribute_int("num_groups", 0)?;
    let groups = u64::try_from(groups).map_err(|_| reason!("{groups} groups"))?;
    normalised_in_groups(c, &x, groups)
}

/// `x[N, C, …]` normalised over each of `groups` equal parts of its channels, then scaled and moved
/// by vectors over the channels, or, as op set 18 has them, over the groups.
fn normalised_in_groups(c: &mut Call<'_, '_>, x: &Value, groups: u64) -> Outputs {
    let eps = c.attribute_finite("epsilon", 1e-5)?;
    let shape = c.shape(x)?;
    let [samples, channels, rest @ ..] = &shape[..] else { return Err(reason!("it normalises {}", c.ty(x)?)) };
    if groups == 0 || channels % groups != 0 {
        return Err(reason!("{channels} channels do not go into {groups} groups"));
    }
    let width = channels / groups * rest.iter().product::<u64>();
    let rows = c.reshape(x, vec![*samples, groups, width])?;
    let [one, zero] = [1.0, 0.0].map(|value| c.number(x, value).and_then(|v| c.broadcast(&v, vec![width])));
    let y = c.emit(LayerNorm { eps, dtype: None }, &[rows, one?, zero?])?;
    let mut y = c.reshape(&y, shape.clone())?;
    let column: Vec<u64> = std::iter::once(*channels).chain(rest.iter().map(|_| 1)).collect();
    for (i, f) in [(1, Binary::Mul), (2, Binary::Add)] {
        let mut vector = c.input(i)?;
        if c.shape(&vector)? != [*channels] {
            vector = c.reshape(&vector, vec![groups, 1])?;
            vector = c.broadcast(&vector, vec![groups, channels / groups])?;
        }
        let vector = c.reshape(&vector, column.clone())?;
        y = c.binary(f, &y, &vector)?;
    }
    Ok(vec![y])
}

/// Each row along one dimension by its length
pub(in crate::onnx) fn lp_normalization(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let mut shape = c.shape(&x)?;
    let axis = c.attribute_int("axis", -1)?;
    let axis = c.axis(axis, shape.len())?;
    shape[axis] = 1;
    let length = match c.attribute_int("p", 2)? {
        1 => {
            let size = c.unary(Unary::Abs, &x)?;
            c.reduce(ReduceKind::Sum, &size, &[axis])?
        }
        2 => {
            let square = c.binary(Binary::Mul, &x, &x)?;
            let sum = c.reduce(ReduceKind::Sum, &square, &[axis])?;
            c.unary(Unary::Sqrt, &sum)?
        }
        p => return Err(reason!("`p={p}` is no length: 1 and 2 are")),
    };
    let length = c.reshape(&length, shape)?;
    Ok(vec![c.binary(Binary::Div, &x, &length)?])
}

/// Batch normalisation over every dimension but the channels
pub(in crate::onnx) fn batch_normalization(c: &mut Call<'_, '_>) -> Outputs {
    // The outputs of a training form beside the first are the running statistics that it moves,
    // which nobody may read here.
    c.ignore("training_mode");
    if c.attribute_int("spatial", 1)? == 0 {
        return Err("`spatial=0`, statistics for every position, is not supported".into());
    }
    let x = c.input(0)?;
    let shape = c.shape(&x)?;
    let [_, channels, rest @ ..] = &shape[..] else { return Err(reason!("it normalises {}", c.ty(&x)?)) };
    let column: Vec<u64> = std::iter::once(*channels).chain(rest.iter().map(|_| 1)).collect();
    let (eps, momentum) = (c.attribute_finite("epsilon", 1e-5)?, c.attribute_finite("momentum", 0.9)?);
    let mut operands = vec![x];
    for i in 1..5 {
        let vector = c.input(i)?;
        let whole = c.broadcast(&vector, vec![*channels])?;
        operands.push(c.reshape(&whole, column.clone())?);
    }
    let y = c.emit(BatchNorm { eps, momentum }, &operands)?;
    let unread = c.node.output.len() - 1;
    if let Some(name) = c.node.output[1..].iter().find(|name| c.context.file.is_read(name)) {
        return Err(reason!("its output `{name}`, a statistic of the batch, is read, which is not supported"));
    }
    Ok([vec![y], operands[3..].iter().cycle().take(unread).cloned().collect()].concat())
}

/// Without mean and with variance 1 over some dimensions
pub(in crate::onnx) fn mean_variance_normalization(c: &mut Call<'_, '_>) -> Outputs {
    const EPSILON: f64 = 1e-9;
    let x = c.input(0)?;
    let shape = c.shape(&x)?;
    let axes = c.attribute_ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = c.axes(&axes, shape.len())?;
    let kept: Vec<u64> = (0..shape.len()).map(|d| if axes.contains(&d) { 1 } else { shape[d] }).collect();
    let share = 1.0 / axes.iter().map(|a| shape[*a]).product::<u64>() as f64;
    let mean = |c: &mut Call<'_, '_>, x: &Value| {
        let sum = c.reduce(ReduceKind::Sum, x, &axes)?;
        let mean = c.scale(&sum, share)?;
        c.reshape(&mean, kept.clone())
    };
    let center = mean(c, &x)?;
    let centered = c.binary(Binary::Sub, &x, &center)?;
    let square = c.binary(Binary::Mul, &centered, &centered)?;
    let variance = mean(c, &square)?;
    let deviation = c.unary(Unary::Sqrt, &variance)?;
    let divisor = c.with_number(Binary::Add, &deviation, EPSILON)?;
    Ok(vec![c.binary(Binary::Div, &centered, &divisor)?])
}

/// Divided by a power of the mean square over neighbouring channels.
/// Krizhevsky et al.: ImageNet Classification with Deep Convolutional Neural Networks (2012)
pub(in crate::onnx) fn local_response_normalization(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let size = c.attribute_int("size", 0)?;
    let (alpha, beta) = (c.attribute_float("alpha", 1e-4)?, c.attribute_float("beta", 0.75)?);
    let bias = c.attribute_float("bias", 1.0)?;
    let shape = c.shape(&x)?;
    let channels = *shape.get(1).ok_or_else(|| reason!("its input has shape {shape:?}"))?;
    if !(1..=64).contains(&size) {
        return Err(reason!("its size is {size}; 1 to 64 are supported"));
    }
    let square = c.binary(Binary::Mul, &x, &x)?;
    let mut sum = square.clone();
    // Neighbours before and after, moved to where the channel is.
    for distance in -((size - 1) / 2)..=size / 2 {
        let (far, left) = (distance.unsigned_abs(), channels.saturating_sub(distance.unsigned_abs()));
        if distance == 0 || left == 0 {
            continue;
        }
        let (from, to) = if distance > 0 { (far, 0) } else { (0, far) };
        let kept = c.emit(Slice { axis: 1, start: from, step: 1, size: left }, std::slice::from_ref(&square))?;
        let moved = c.emit(Pad { axis: 1, start: to, step: 1, size: channels }, &[kept])?;
        sum = c.binary(Binary::Add, &sum, &moved)?;
    }
    let scaled = c.scale(&sum, alpha / size as f64)?;
    let divisor = c.with_number(Binary::Add, &scaled, bias)?;
    let power = c.with_number(Binary::Pow, &divisor, beta)?;
    Ok(vec![c.binary(Binary::Div, &x, &power)?])
}

/// An input of a normalisation as rows.
struct Rows {
    /// `[rows…, width]`
    x: Value,
    shape: Vec<u64>,
    axis: usize,
    width: u64,
}

impl Rows {
    fn of(c: &mut Call<'_, '_>, x: &Value, axis: i64) -> Result<Rows, Reason> {
        let shape = c.shape(x)?;
        let axis = c.axis(axis, shape.len())?;
        let width = shape[axis..].iter().product();
        let x = c.reshape(x, [&shape[..axis], &[width]].concat())?;
        Ok(Rows { x, shape, axis, width })
    }

    /// Scale and bias as vectors over a row. If one of them differs between rows, vectors of
    /// `neutral` numbers, and behind them the tensors that the normalised rows are still to be
    /// scaled and moved by.
    fn split<const N: usize>(
        &self,
        c: &mut Call<'_, '_>,
        tensors: [&Value; N],
        neutral: [f64; N],
    ) -> Result<(Vec<Value>, Vec<Value>), Reason> {
        let row = &self.shape[self.axis..];
        let mut vectors = vec![];
        for tensor in tensors {
            let shape = c.shape(tensor)?;
            let extra = shape.len().saturating_sub(row.len());
            if shape[..extra].iter().any(|n| *n != 1) {
                let constants = neutral.map(|n| c.number(&self.x, n).and_then(|n| c.broadcast(&n, vec![self.width])));
                let constants = constants.into_iter().collect::<Result<_, _>>()?;
                return Ok((constants, tensors.map(Value::clone).to_vec()));
            }
            let own = c.reshape(tensor, shape[extra..].to_vec())?;
            let full = c.broadcast(&own, row.to_vec())?;
            vectors.push(c.reshape(&full, vec![self.width])?);
        }
        Ok((vectors, vec![]))
    }

    /// The first result in the input's shape, scaled and moved by what is `outside`, and statistics
    /// with size 1 for each normalised dimension.
    fn outputs(&self, c: &mut Call<'_, '_>, results: &[Value], outside: &[Value]) -> Outputs {
        let statistics: Vec<u64> = (0..self.shape.len()).map(|d| if d < self.axis { self.shape[d] } else { 1 }).collect();
        let mut y = c.reshape(&results[0], self.shape.clone())?;
        for (f, tensor) in [Binary::Mul, Binary::Add].into_iter().zip(outside) {
            y = c.binary(f, &y, tensor)?;
            if c.shape(&y)? != self.shape {
                return Err(reason!("its scale or bias of shape {:?} is not broadcast to its input", c.shape(tensor)?));
            }
        }
        let mut outputs = vec![y];
        for statistic in results[1..].iter().take(c.node.output.len().saturating_sub(1)) {
            outputs.push(c.reshape(statistic, statistics.clone())?);
        }
        Ok(outputs)
    }
}
