//! The loss: in training and in evaluation, its formula over the model's outputs.

use super::formulas::{self, Array};
use super::sample::Sample;
use super::statistics;
use super::whole::Whole;
use super::{Found, Stop, Subject, syntax};
use shardc_executor::tensor::Tensor;
use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::spec::{Located, Loss};

/// Constants of a graph are rounded to f32.
const TOLERANCE: f64 = 1e-6;

/// Checks the losses of training and of evaluation; without a sample they are read.
pub fn check(subject: &Subject<'_>, sample: Option<&Sample>) -> Result<Found, Stop> {
    let Some(loss) = &subject.spec.loss else { return Ok(Found::Unseen("the spec asks for none".into())) };
    let eval = subject.eval;
    let [outputs @ .., sum, labels] = &eval.outputs[..] else { return Err("evaluation gives no loss".into()) };
    let name = name_of_output(&loss.value);
    let output = match (name, outputs) {
        (Some(name), outputs) => outputs.iter().find(|output| output.name == name.value),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    let output = output.ok_or("evaluation does not give the output that the loss is of")?;
    let Some(sample) = sample else { return Ok(syntax::loss(subject, output)?) };
    let planned = Whole::new(eval).program(&[output.value, sum.value, labels.value], &[], subject.spec)?;
    // Training costs about three times as much.
    if planned.affordable(3).is_err() {
        return Ok(syntax::loss(subject, output)?);
    }
    let mut run = planned.start()?;
    let batch = match subject.reference {
        Some(reference) => statistics::of_batch(reference, subject, sample)?,
        None => statistics::OfBatch::None,
    };
    let states = sample.states.iter().chain(batch.values());
    run.set(states)?;
    let results = run.run(0, &sample.data)?;
    let [output, sum, count] = &results[..] else { return Err("evaluation gives no loss".into()) };
    let labels = loss.value.labels().map(|labels| sample.array(&labels.value).ok_or("there are no labels"));
    let labels = labels.transpose()?.map_or(vec![], |labels| labels.elements);
    let output = Array { shape: output.shape.clone(), elements: output.to_f64() };
    let expected = formulas::loss(&loss.value, &output, &labels)?;
    let first = |tensor: &Tensor| tensor.first().ok_or("the loss has no element");
    let found = first(sum)? / first(count)?;
    if !expected.is_finite() {
        return Ok(Found::Unseen("the loss of random data is not finite".into()));
    }
    same("evaluation", found, expected)?;
    let Some(reference) = subject.reference else {
        return Ok(Found::Holds("evaluation's, by its formula over the outputs".into()));
    };
    if let statistics::OfBatch::TooLarge(why) = batch {
        return Ok(Found::Unseen(why));
    }
    if let statistics::OfBatch::InGroups = batch {
        let why = "training's is over groups of samples that are normalised apart; evaluation's holds";
        return Ok(Found::Unseen(why.into()));
    }
    let trained = without_dropout(reference, subject, sample)?;
    same("training", trained, expected)?;
    let without = match reference.nodes().any(|(_, node)| matches!(node.op, Op::KeepMask(_))) {
        true => ", without dropout",
        false => "",
    };
    let with = if batch.values().is_empty() { "" } else { ", with the statistics of the batch" };
    Ok(Found::Holds(format!("training's and evaluation's, by its formula over the outputs{without}{with}")))
}

fn without_dropout(reference: &Graph, subject: &Subject<'_>, sample: &Sample) -> Result<f64, Stop> {
    let loss: ValueId = reference.outputs.iter().find(|output| output.name == "loss").ok_or("there is no loss")?.value;
    let mut run = Whole::without_dropout(reference)?.program(&[loss], &[], subject.spec)?.start()?;
    run.set(&sample.states)?;
    run.run(0, &sample.data)?[0].first().ok_or_else(|| "the loss has no element".into())
}

fn same(which: &str, found: f64, expected: f64) -> Result<(), Reason> {
    match (found - expected).abs() <= TOLERANCE * expected.abs().max(1e-3) {
        true => Ok(()),
        false => Err(reason!("the loss of {which} is {found:.9e}, where the spec's is {expected:.9e} of the model's outputs")),
    }
}

fn name_of_output(loss: &Loss) -> Option<&Located<String>> {
    match loss {
        Loss::CrossEntropy { logits: name, .. } | Loss::BceWithLogits { logits: name, .. } => name.as_ref(),
        Loss::Mse { prediction, .. } => prediction.as_ref(),
        Loss::Output { name } => Some(name),
    }
}
