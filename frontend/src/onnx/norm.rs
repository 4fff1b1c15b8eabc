//! Softmax and the normalisations.

use super::call::Call;
use super::importer::Value;
use super::reduce::minus_max;
use shardc_ir::kernel::ReduceKind;
use shardc_ir::ops::batch_norm::BatchNorm;
use shardc_ir::ops::norm::{LayerNorm, RmsNorm, Softmax};
use shardc_ir::scalar::{Binary, Unary};

type Outputs = Result<Vec<Value>, String>;

/// Softmax over one dimension, which goes last for it
pub(super) fn softmax(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let rank = c.ty(&x)?.rank();
    let axis = c.attribute_int("axis", -1)?;
    let axis = c.axis(axis, rank)?;
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(axis, rank - 1);
    let last = c.transpose(&x, perm.clone())?;
    let y = c.emit(Softmax {}, &[last])?;
    Ok(vec![c.transpose(&y, perm)?])
}

/// The logarithm of a softmax, without the quotient
pub(super) fn log_softmax(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let rank = c.ty(&x)?.rank();
    let axis = c.attribute_int("axis", -1)?;
    let axis = c.axis(axis, rank)?;
    let (shifted, max) = minus_max(c, &x, &[axis])?;
    let exp = c.unary(Unary::Exp, &shifted)?;
    let sum = c.reduce(ReduceKind::Sum, &exp, &[axis])?;
    let log = c.unary(Unary::Log, &sum)?;
    let log = c.reshape(&log, c.shape(&max)?)?;
    Ok(vec![c.binary(Binary::Sub, &shifted, &log)?])
}

/// Layer normalisation over the dimensions from `axis` on
pub(super) fn layer_normalization(c: &mut Call<'_, '_>) -> Outputs {
    c.ignore("stash_type");
    let rows = Rows::read(c)?;
    let eps = c.attribute_float("epsilon", 1e-5)?;
    let scale = rows.vector(c, &c.input(1)?)?;
    let bias = match c.optional(2) {
        Some(bias) => rows.vector(c, &bias)?,
        None => {
            let zero = c.number(&scale, 0.0)?;
            c.broadcast(&zero, vec![rows.width])?
        }
    };
    let results = c.emit_all(LayerNorm { eps }, &[rows.x.clone(), scale, bias])?;
    rows.outputs(c, &results)
}

/// Root-mean-square normalisation over the dimensions from `axis` on
pub(super) fn rms_normalization(c: &mut Call<'_, '_>) -> Outputs {
    c.ignore("stash_type");
    let rows = Rows::read(c)?;
    let eps = c.attribute_float("epsilon", 1e-5)?;
    let scale = rows.vector(c, &c.input(1)?)?;
    let results = c.emit_all(RmsNorm { eps }, &[rows.x.clone(), scale])?;
    rows.outputs(c, &results)
}

/// Batch normalisation over every dimension but the channels
pub(super) fn batch_normalization(c: &mut Call<'_, '_>) -> Outputs {
    // What a training form gives beside the first output are the running statistics that it moves, which nobody may read here.
    c.ignore("training_mode");
    if c.attribute_int("spatial", 1)? == 0 {
        return Err("`spatial=0`, statistics for every position, is not supported".into());
    }
    let x = c.input(0)?;
    let shape = c.shape(&x)?;
    let [_, channels, rest @ ..] = &shape[..] else { return Err(format!("it normalises {}", c.ty(&x)?)) };
    let column: Vec<u64> = std::iter::once(*channels).chain(rest.iter().map(|_| 1)).collect();
    let (eps, momentum) = (c.attribute_float("epsilon", 1e-5)?, c.attribute_float("momentum", 0.9)?);
    let mut operands = vec![x];
    for i in 1..5 {
        let vector = c.input(i)?;
        let whole = c.broadcast(&vector, vec![*channels])?;
        operands.push(c.reshape(&whole, column.clone())?);
    }
    let y = c.emit(BatchNorm { eps, momentum }, &operands)?;
    let unread = c.node.output.len() - 1;
    if let Some(name) = c.node.output[1..].iter().find(|name| c.importer.file.is_read(name)) {
        return Err(format!("its output `{name}`, a statistic of the batch, is read, which is not supported"));
    }
    Ok([vec![y], operands[3..].iter().cycle().take(unread).cloned().collect()].concat())
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
    fn read(c: &mut Call<'_, '_>) -> Result<Rows, String> {
        let x = c.input(0)?;
        let shape = c.shape(&x)?;
        let axis = c.attribute_int("axis", -1)?;
        let axis = c.axis(axis, shape.len())?;
        let width = shape[axis..].iter().product();
        let x = c.reshape(&x, [&shape[..axis], &[width]].concat())?;
        Ok(Rows { x, shape, axis, width })
    }

    /// A scale or bias as a vector.
    fn vector(&self, c: &mut Call<'_, '_>, x: &Value) -> Result<Value, String> {
        let full = c.broadcast(x, self.shape[self.axis..].to_vec())?;
        c.reshape(&full, vec![self.width])
    }

    /// The first result in the input's shape, and statistics with size 1 for each normalised dimension.
    fn outputs(&self, c: &mut Call<'_, '_>, results: &[Value]) -> Outputs {
        let statistics: Vec<u64> = (0..self.shape.len()).map(|d| if d < self.axis { self.shape[d] } else { 1 }).collect();
        let mut outputs = vec![c.reshape(&results[0], self.shape.clone())?];
        for statistic in results[1..].iter().take(c.node.output.len().saturating_sub(1)) {
            outputs.push(c.reshape(statistic, statistics.clone())?);
        }
        Ok(outputs)
    }
}
