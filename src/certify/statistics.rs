//! Running statistics of batch normalisations: what training moves them by is mean and variance of
//! what each of them reads, when evaluation normalises by just these.

use super::sample::Sample;
use super::whole::Whole;
use super::{Found, Stop, Subject};
use shardc_executor::tensor::Tensor;
use shardc_ir::diagnostic::counted;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, State, StateId, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::plan::StateRole;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;

/// Constants of a graph are rounded to f32.
const TOLERANCE: f64 = 1e-6;

/// The statistics by which training normalises the sample.
pub enum OfBatch {
    /// There are none.
    None,
    /// Each group of samples has its own.
    InGroups,
    /// It costs too much to find them: how much.
    TooLarge(Reason),
    /// By running statistic, those of the whole batch.
    Whole(BTreeMap<String, Tensor>),
}

impl OfBatch {
    /// By running statistic.
    pub fn values(&self) -> &BTreeMap<String, Tensor> {
        static NONE: BTreeMap<String, Tensor> = BTreeMap::new();
        if let OfBatch::Whole(values) = self { values } else { &NONE }
    }
}

/// A batch normalisation of evaluation by running statistics.
struct Norm {
    /// What it reads.
    x: ValueId,
    /// The share of a statistic that stays.
    momentum: f64,
    /// The running mean and variance.
    running: [StateId; 2],
}

/// Those of `graph`.
fn norms(graph: &Graph) -> Vec<Norm> {
    let whole = Whole::new(graph);
    let statistic = |mut value: ValueId| loop {
        let node = whole.def(value);
        match &node.op {
            Op::Reshape(_) => value = node.operands[0],
            Op::State(read) if graph.states[read.state.index()].role == StateRole::Statistic => return Some(read.state),
            _ => return None,
        }
    };
    let norm = |node: &shardc_ir::graph::Node| {
        let Op::BatchNorm(op) = &node.op else { return None };
        let running = [statistic(node.operands[3])?, statistic(node.operands[4])?];
        Some(Norm { x: node.operands[0], momentum: op.momentum, running })
    };
    graph.nodes().filter_map(|(_, node)| norm(node)).collect()
}

/// What training normalises the sample by, from how it moves the running statistics.
pub fn of_batch(reference: &Graph, subject: &Subject<'_>, sample: &Sample) -> Result<OfBatch, Stop> {
    let moved: Vec<_> = reference.states.iter().filter(|s| s.role == StateRole::Statistic && s.update.is_some()).collect();
    if moved.is_empty() {
        return Ok(OfBatch::None);
    }
    if subject.spec.statistics_groups() > 1 {
        return Ok(OfBatch::InGroups);
    }
    let momenta = |norm: Norm| norm.running.map(|state| (subject.eval.states[state.index()].name.clone(), norm.momentum));
    let momenta: BTreeMap<String, f64> = norms(subject.eval).into_iter().flat_map(momenta).collect();
    let wanted: Vec<ValueId> = moved.iter().filter_map(|state| state.update).collect();
    let planned = Whole::new(reference).program(&wanted, &[], subject.spec)?;
    if let Err(why) = planned.affordable(1) {
        return Ok(OfBatch::TooLarge(why));
    }
    let mut run = planned.start()?;
    run.set(&sample.states)?;
    let from_sample = run.run(0, &sample.data)?;
    let nothing = |state: &&State| Tensor::zeros(DType::F32, &state.ty.shape);
    run.set(moved.iter().map(|state| (&state.name, nothing(state))))?;
    let mut values = BTreeMap::new();
    for ((state, new), own) in moved.iter().zip(from_sample).zip(run.run(0, &sample.data)?) {
        let (old, stays) = (sample.states.get(&state.name), momenta.get(&state.name));
        let (Some(old), Some(stays)) = (old, stays) else {
            return Err(reason!("`{}` is moved, and is no running statistic of evaluation", state.name).into());
        };
        let own = own.to_f64();
        let is_kept =
            |((new, old), own): ((f64, f64), &f64)| (new - stays * old - own).abs() <= TOLERANCE * (old.abs() + own.abs());
        if !new.to_f64().into_iter().zip(old.to_f64()).zip(&own).all(is_kept) {
            return Err(reason!("of `{}` another share stays than {stays}", state.name).into());
        }
        if *stays < 1.0 {
            let of_batch: Vec<f64> = own.iter().map(|own| own / (1.0 - stays)).collect();
            values.insert(state.name.clone(), Tensor::from_f64(&new.shape, &of_batch));
        }
    }
    Ok(OfBatch::Whole(values))
}

/// Checks what moves the running statistics.
pub fn check(reference: &Graph, subject: &Subject<'_>, sample: &Sample) -> Result<Found, Stop> {
    let batch = of_batch(reference, subject, sample)?;
    let values = match &batch {
        OfBatch::None => return Ok(Found::Holds("the model has none that move".into())),
        OfBatch::TooLarge(why) => return Ok(Found::Unseen(why.clone())),
        OfBatch::InGroups => return Ok(Found::Unseen("groups of samples are normalised apart".into())),
        OfBatch::Whole(values) => values,
    };
    let norms = norms(subject.eval);
    let wanted: Vec<ValueId> = norms.iter().map(|norm| norm.x).collect();
    let mut run = Whole::new(subject.eval).program(&wanted, &[], subject.spec)?.start()?;
    run.set(sample.states.iter().chain(values))?;
    let read = run.run(0, &sample.data)?;
    let mut seen = 0;
    for (norm, x) in norms.iter().zip(read) {
        let [mean, variance] = norm.running.map(|state| &subject.eval.states[state.index()]);
        let (Some(own_mean), Some(own_variance)) = (values.get(&mean.name), values.get(&variance.name)) else { continue };
        let (expected_mean, expected_variance) = moments(&x, own_mean.elements() as usize)?;
        let is_near = |own: f64, expected: f64, size: f64| (own - expected).abs() <= TOLERANCE * size;
        let (own_mean, own_variance) = (own_mean.to_f64(), own_variance.to_f64());
        for c in 0..own_mean.len() {
            let deviation = expected_variance[c].sqrt();
            if !is_near(own_mean[c], expected_mean[c], expected_mean[c].abs() + deviation) {
                return Err(reason!(
                    "`{}` moves to {:.6e}, where the batch's mean is {:.6e}",
                    mean.name,
                    own_mean[c],
                    expected_mean[c]
                )
                .into());
            }
            if !is_near(own_variance[c], expected_variance[c], expected_variance[c].abs()) {
                let (name, own, expected) = (&variance.name, own_variance[c], expected_variance[c]);
                return Err(reason!("`{name}` moves to {own:.6e}, where the batch's variance is {expected:.6e}").into());
            }
        }
        seen += 2;
    }
    if seen != values.len() {
        return Err("a running statistic moves that no batch normalisation reads".into());
    }
    Ok(Found::Holds(format!("{}, by mean and variance of what evaluation reads", counted(seen, "running one"))))
}

/// Mean and biased variance of each channel, which are behind the samples.
fn moments(x: &Tensor, channels: usize) -> Result<(Vec<f64>, Vec<f64>), Reason> {
    if x.shape.get(1).copied() != Some(channels as u64) {
        return Err("a batch normalisation has not the channels of its statistics".into());
    }
    let elements = x.to_f64();
    let inner = x.shape[2..].iter().product::<u64>() as usize;
    let of = |c: usize| elements.chunks_exact(inner.max(1)).skip(c).step_by(channels).flatten();
    let mean = |values: &mut dyn Iterator<Item = f64>| {
        let (sum, n) = values.fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
        sum / n
    };
    let means: Vec<f64> = (0..channels).map(|c| mean(&mut of(c).copied())).collect();
    let variances = (0..channels).map(|c| mean(&mut of(c).map(|x| (x - means[c]).powi(2)))).collect();
    Ok((means, variances))
}
