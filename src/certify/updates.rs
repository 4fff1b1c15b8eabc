//! The updates of all parameters and their moments, the norm of the gradients and clipping: the
//! optimizer's formula, for random gradients in the place of the model's.

use super::formulas::{Updated, clipped, moments, update};
use super::sample::Sample;
use super::whole::{Whole, cut_name};
use super::{Found, Stop, Subject, constant_scale, is_scaling, syntax};
use shardc_executor::random::Stream;
use shardc_executor::tensor::Tensor;
use shardc_ir::diagnostic::counted;
use shardc_ir::graph::{Graph, State, ValueId};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::train::STEPS_TAKEN;
use std::collections::{BTreeMap, HashMap, HashSet};

const SEED: u64 = 7;

/// The step at which the formula is tried, from 0.
const STEP: u64 = 2;

/// Norms of the gradients, in parts of the limit of clipping: it acts on one and not on the other.
const NORMS: [f64; 2] = [3.0, 0.3];

/// How far what a step changes may be from the formula, in part of the largest change.
const TOLERANCE: f64 = 1e-5;

/// The same in part of each number: constants of a graph are rounded to f32.
const ROUNDING: f64 = 1e-7;

/// Checks every update of the step of training `graph`.
pub fn check(graph: &Graph, subject: &Subject<'_>, sample: &Sample) -> Result<Found, Stop> {
    let (Some(optimizer), Some(rate)) = (&subject.spec.optimizer, subject.learning_rate) else {
        return Err("the spec has no optimizer".into());
    };
    same_rate(subject)?;
    let endings = moments(optimizer.value.rule);
    let known: HashMap<&str, &State> = graph.states.iter().map(|state| (state.name.as_str(), state)).collect();
    let parameters: Vec<&State> = graph.states.iter().filter(|state| state.gradient.is_some()).collect();
    let mut states: Vec<&State> = vec![];
    for parameter in &parameters {
        states.push(parameter);
        for ending in endings {
            let name = format!("{}.{ending}", parameter.name);
            states.push(known.get(name.as_str()).ok_or_else(|| reason!("there is no `{name}`"))?);
        }
    }
    let norm = graph.outputs.iter().find(|output| output.name == "grad_norm").ok_or("the norm is no output")?.value;
    let updated = |state: &&State| state.update.ok_or_else(|| reason!("`{}` is not updated", state.name));
    let mut wanted: Vec<ValueId> = states.iter().map(updated).collect::<Result<_, _>>()?;
    wanted.push(norm);
    let cut: Vec<ValueId> = parameters.iter().filter_map(|parameter| parameter.gradient).collect();
    let planned = Whole::new(graph).program(&wanted, &cut, subject.spec)?;
    if planned.affordable(NORMS.len() as u64).is_err() {
        return Ok(syntax::updates(graph, subject)?);
    }
    let mut run = planned.start()?;
    let mut before: Vec<Updated> = vec![];
    for parameter in &parameters {
        let own = sample.states.get(&parameter.name).ok_or_else(|| reason!("`{}` is no parameter", parameter.name))?;
        let moment = |ending: &&str| {
            let name = format!("{}.{ending}", parameter.name);
            let stream = Stream::new(SEED, &name);
            let drawn = |i| if *ending == "v" { stream.normal(i).powi(2) } else { stream.normal(i) };
            (0..own.elements()).map(drawn).collect::<Vec<f64>>()
        };
        before.push(Updated { parameter: own.to_f64(), moments: endings.iter().map(moment).collect() });
    }
    let drawn = states.iter().zip(before.iter().flat_map(Updated::all));
    run.set(drawn.map(|(state, values)| (&state.name, Tensor::from_f64(&state.ty.shape, values))))?;
    // An update that reads more than it should finds it.
    let given: HashSet<&str> = states.iter().map(|state| state.name.as_str()).collect();
    run.set(sample.states.iter().filter(|(name, _)| !given.contains(name.as_str())))?;
    let counters = graph.states.iter().filter(|state| is_scaling(state, STEPS_TAKEN));
    run.set(counters.map(|state| (&state.name, Tensor::from_f64(&[], &[STEP as f64]))))?;
    let scale = constant_scale(subject.spec);
    let limit = subject.spec.clip.as_ref().map(|clip| clip.value);
    for size in NORMS {
        let gradients = random_gradients(&parameters, size * limit.unwrap_or(1.0));
        let mut data: BTreeMap<String, Tensor> = sample.data.clone();
        for (number, (parameter, gradient)) in parameters.iter().zip(&gradients).enumerate() {
            let scaled: Vec<f64> = gradient.iter().map(|g| g * scale).collect();
            data.insert(cut_name(number), Tensor::from_f64(&parameter.ty.shape, &scaled));
        }
        let found: Vec<Vec<f64>> = run.run(STEP, &data)?.iter().map(Tensor::to_f64).collect();
        let (norm, factor) = clipped(gradients.iter().map(Vec::as_slice), limit);
        let said = found.last().and_then(|norm| norm.first()).copied().unwrap_or(f64::NAN);
        if said.is_nan() || (said - norm).abs() > ROUNDING * norm {
            return Err(reason!("the norm of the gradients is {said:.6e}, where it should be {norm:.6e}").into());
        }
        let mut found = states.iter().zip(&found);
        for ((parameter, before), gradient) in parameters.iter().zip(&before).zip(&gradients) {
            let gradient: Vec<f64> = gradient.iter().map(|g| g * factor).collect();
            let after = update(&optimizer.value, parameter.ty.rank(), rate.at(STEP), STEP + 1, before, &gradient);
            for ((before, after), (state, found)) in before.all().zip(after.all()).zip(&mut found) {
                // A parameter changes little, and has no factor.
                let rounding = if state.gradient.is_some() { 0.0 } else { ROUNDING };
                if let Some(i) = differs(before, after, found, rounding) {
                    let (name, found, after) = (&state.name, found.get(i).copied().unwrap_or(f64::NAN), after[i]);
                    return Err(reason!(
                        "element {i} of `{name}` is {found:.9e} after a step, where the spec's optimizer makes it {after:.9e}"
                    )
                    .into());
                }
            }
        }
    }
    let clip = if limit.is_some() { ", clipped and not" } else { "" };
    let states = counted(states.len(), "state variable");
    Ok(Found::Holds(format!("{states} after a step{clip}, by the optimizer's formula for random gradients")))
}

/// The learning rate of each step is the spec's.
pub fn same_rate(subject: &Subject<'_>) -> Result<(), Reason> {
    match subject.learning_rate == subject.spec.learning_rate() {
        true => Ok(()),
        false => Err("the learning rate is not the spec's".into()),
    }
}

impl Updated {
    /// The parameter, then its moments.
    fn all(&self) -> impl Iterator<Item = &Vec<f64>> {
        std::iter::once(&self.parameter).chain(&self.moments)
    }
}

/// The first element that is not what it should be after a step; `rounding` is what its own size
/// allows.
fn differs(before: &[f64], after: &[f64], found: &[f64], rounding: f64) -> Option<usize> {
    let most = before.iter().zip(after).map(|(before, after)| (after - before).abs()).fold(0.0, f64::max);
    if found.len() != after.len() {
        return Some(0);
    }
    let is_near = |i: &usize| (found[*i] - after[*i]).abs() <= TOLERANCE * most + rounding * after[*i].abs();
    (0..after.len()).find(|i| !is_near(i))
}

/// Gradients of which the norm of all together is `norm`.
fn random_gradients(parameters: &[&State], norm: f64) -> Vec<Vec<f64>> {
    let drawn = |parameter: &&State| {
        let stream = Stream::new(SEED, &format!("{}.grad", parameter.name));
        (0..parameter.ty.elements()).map(|i| stream.normal(i)).collect::<Vec<f64>>()
    };
    let mut gradients: Vec<Vec<f64>> = parameters.iter().map(drawn).collect();
    let (drawn, _) = clipped(gradients.iter().map(Vec::as_slice), None);
    let factor = if drawn > 0.0 { norm / drawn } else { 1.0 };
    gradients.iter_mut().flatten().for_each(|g| *g *= factor);
    gradients
}
