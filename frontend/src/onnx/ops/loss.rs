//! Losses that a model computes itself.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::norm::log_softmax_along;
use shardc_ir::ops::index::Gather;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::Tensor;

type Outputs = Result<Vec<Value>, Reason>;

/// The negative log-probability of each target, weighted by class
pub(in crate::onnx) fn negative_log_likelihood(c: &mut Call<'_, '_>) -> Outputs {
    let log_probabilities = c.input(0)?;
    Ok(vec![likelihood(c, &log_probabilities)?])
}

/// The same of scores, and their log-probabilities
pub(in crate::onnx) fn softmax_cross_entropy(c: &mut Call<'_, '_>) -> Outputs {
    let scores = c.input(0)?;
    if c.ty(&scores)?.rank() < 2 {
        return Err(reason!("its scores are {}, without a dimension of classes", c.ty(&scores)?));
    }
    let log_probabilities = log_softmax_along(c, &scores, 1)?;
    Ok(vec![likelihood(c, &log_probabilities)?, log_probabilities])
}

/// The loss of `[samples, classes, …]` against targets `[samples, …]`.
fn likelihood(c: &mut Call<'_, '_>, log_probabilities: &Value) -> Result<Value, Reason> {
    let (targets, weights) = (c.input(1)?, c.optional(2));
    let (ty, shape) = (c.ty(log_probabilities)?, c.shape(&targets)?);
    let rank = ty.rank();
    if rank < 2 || shape.len() + 1 != rank || shape[0] != ty.shape[0] || shape[1..] != ty.shape[2..] {
        return Err(reason!("its targets {} do not fit {ty}", c.ty(&targets)?));
    }
    let (targets, counted) = without_ignored(c, targets)?;
    let last: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).collect();
    let by_class = c.transpose(log_probabilities, last)?;
    let column = c.reshape(&targets, [&shape[..], &[1]].concat())?;
    let picked = c.emit(Gather::batched(rank - 1, rank - 1), &[by_class, column])?;
    let picked = c.reshape(&picked, shape.clone())?;
    let mut loss = c.unary(Unary::Neg, &picked)?;
    // The weight of each target.
    let mut shares = match weights {
        Some(weights) => Some(c.emit(Gather::along(0), &[weights, targets])?),
        None => None,
    };
    if let Some(counted) = counted {
        let (zero, one) = (c.number(&loss, 0.0)?, c.number(&loss, 1.0)?);
        shares = Some(c.select(&counted, shares.as_ref().unwrap_or(&one), &zero)?);
    }
    if let Some(shares) = &shares {
        loss = c.binary(Binary::Mul, &loss, shares)?;
    }
    let all: Vec<usize> = (0..rank - 1).collect();
    match c.attribute_string("reduction", "mean")?.as_str() {
        "none" => Ok(loss),
        "sum" => c.reduce(ReduceKind::Sum, &loss, &all),
        "mean" => {
            let sum = c.reduce(ReduceKind::Sum, &loss, &all)?;
            match shares {
                Some(shares) => {
                    let count = c.reduce(ReduceKind::Sum, &shares, &all)?;
                    c.binary(Binary::Div, &sum, &count)
                }
                None => c.scale(&sum, 1.0 / shape.iter().product::<u64>() as f64),
            }
        }
        other => Err(reason!("reduction `{other}` is not known")),
    }
}

/// The targets with a class in place of the one to ignore, and which of them count.
fn without_ignored(c: &mut Call<'_, '_>, targets: Value) -> Result<(Value, Option<Value>), Reason> {
    if !c.has_attribute("ignore_index") {
        return Ok((targets, None));
    }
    let number = |n: i64| Value::Known(Tensor::from_i64([], &[n]));
    let ignored = number(c.attribute_int("ignore_index", 0)?);
    let equal = c.binary(Binary::Eq, &targets, &ignored)?;
    let targets = c.select(&equal, &number(0), &targets)?;
    let counted = c.unary(Unary::Not, &equal)?;
    Ok((targets, Some(counted)))
}
