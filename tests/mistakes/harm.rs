//! The harm of a mistake: other losses or parameters after a few steps, other outputs, another
//! beginning.

use crate::Mistake;
use crate::jobs::Job;
use shardc::{Options, compile};
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_frontend::spec;
use shardc_ir::graph::Graph;
use shardc_ir::plan::Program;
use shardc_ir::programs::ProgramKind;
use shardc_ir::spec::Spec;
use shardc_passes::{Context, Mode, planning};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// Steps that are run.
const STEPS: u64 = 4;

/// A loss or an output is another if it is so far from it, in part of its size.
const OTHER: f64 = 1e-4;

/// So is a parameter, in part of what it moves by.
const MOVED: f64 = 1e-2;

/// What a job computes: the losses of its steps, its state behind them and what the model then
/// says.
#[derive(Debug, Clone, PartialEq)]
struct Outcome {
    numbers: Vec<(String, Vec<f64>)>,
    begun: BTreeMap<String, Vec<f64>>,
    states: BTreeMap<String, Vec<f64>>,
}

/// The right outcome of a job.
pub struct Good(Outcome);

impl Good {
    /// Runs the job.
    pub fn new(job: &Job) -> Good {
        let (training, eval) = (job.graphs.reference.as_ref().expect("it trains"), &job.graphs.programs.eval);
        Good(outcome(job, training, eval, &job.spec).expect("a good job runs"))
    }

    /// The harm that a mistake does, if it does any.
    pub fn harm(&self, job: &Job, mistake: &Mistake) -> Option<String> {
        let run = || {
            if mistake.spec == job.text {
                return outcome(job, &mistake.training, &mistake.eval, &job.spec);
            }
            // What the spec asks for now is not what the graphs are.
            let spec = spec::parse(Path::new("job.shard"), &mistake.spec).expect("it was parsed");
            let asked = compile(&job.model, &spec, &Options::default()).map_err(|errors| format!("{errors:?}"))?;
            let graph = |kind| asked.plans.iter().find(|(k, _)| *k == kind).map(|(_, plan)| &plan.graph).expect("it trains");
            outcome(job, graph(ProgramKind::Train), graph(ProgramKind::Eval), &spec)
        };
        let other = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(other)) => other,
            Ok(Err(why)) => return Some(why),
            Err(_) => return Some("it panics".to_string()),
        };
        self.0.apart(&other)
    }
}

impl Outcome {
    fn apart(&self, other: &Outcome) -> Option<String> {
        for ((name, own), (_, its)) in self.numbers.iter().zip(&other.numbers) {
            let apart = distance(own, its) / norm(own).max(1e-6);
            if apart.is_nan() || apart > OTHER {
                return Some(format!("{name} differs by {apart:.1e}"));
            }
        }
        for (name, own) in &self.begun {
            if other.begun.get(name).is_none_or(|its| distance(own, its) > 0.0) {
                return Some(format!("`{name}` begins otherwise"));
            }
        }
        for (name, own) in &self.states {
            let Some(its) = other.states.get(name) else { return Some(format!("`{name}` is gone")) };
            let moved = distance(own, &self.begun[name]);
            let apart = distance(own, its);
            if apart.is_nan() || apart > MOVED * moved + 1e-6 * norm(own) {
                return Some(format!("`{name}` is {apart:.1e} away, which moved by {moved:.1e}"));
            }
        }
        None
    }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>())
}

fn outcome(job: &Job, training: &Graph, eval: &Graph, spec: &Spec) -> Result<Outcome, String> {
    let mut outcome = Outcome { numbers: vec![], begun: BTreeMap::new(), states: BTreeMap::new() };
    let mut executor = started(job, training, Mode::Train, spec)?;
    let names: Vec<String> = executor.programs().states().iter().map(|(_, state)| state.name.clone()).collect();
    let state = |executor: &Executor, name: &String| executor.get_state(name).map(|t| t.to_f64()).map_err(|e| e.to_string());
    for name in &names {
        outcome.begun.insert(name.clone(), state(&executor, name)?);
    }
    for step in 0..STEPS {
        let batch = batch(job, executor.programs().first(), step);
        for (name, value) in executor.step(batch).map_err(|error| error.to_string())?.outputs {
            outcome.numbers.push((format!("{name} of step {step}"), value.to_f64()));
        }
    }
    for name in &names {
        outcome.states.insert(name.clone(), state(&executor, name)?);
    }
    let mut evaluated = started(job, eval, Mode::Evaluate, spec)?;
    let known: Vec<String> = evaluated.programs().states().iter().map(|(_, state)| state.name.clone()).collect();
    for (name, elements) in outcome.states.iter().filter(|(name, _)| known.contains(name)) {
        let shape = evaluated.get_state(name).map_err(|error| error.to_string())?.shape;
        evaluated.set_state(name, &Tensor::from_f64(&shape, elements)).map_err(|error| error.to_string())?;
    }
    let batch = batch(job, evaluated.programs().first(), STEPS);
    for (name, value) in evaluated.step(batch).map_err(|error| error.to_string())?.outputs {
        outcome.numbers.push((name, value.to_f64()));
    }
    Ok(outcome)
}

fn started(job: &Job, graph: &Graph, mode: Mode, spec: &Spec) -> Result<Executor, String> {
    let program =
        planning::plan(graph, &Context { spec, mode, verify: false }).map_err(|errors| format!("{errors:?}"))?.into_first();
    let mut executor = Executor::new(program, 1).map_err(|error| error.to_string())?;
    let weight = |name: &str| job.imported.weights.get(name).and_then(|weight| weight.load().ok()).map(Tensor::from);
    executor.initialise(weight).map_err(|error| error.to_string())?;
    Ok(executor)
}

/// The samples of a step, for each input.
fn batch(job: &Job, program: &Program, step: u64) -> Arc<Vec<Tensor>> {
    let array = |name: &str, shape: &[u64], dtype| {
        let all = job.data.get(name).unwrap_or_else(|| panic!("{}: no `{name}`", job.name)).cast(dtype);
        let sample = all.bytes.len() / all.shape[0] as usize;
        let first = (step * shape[0] % (all.shape[0] - shape[0] + 1)) as usize * sample;
        Tensor { dtype, shape: shape.to_vec(), bytes: all.bytes[first..first + shape[0] as usize * sample].to_vec() }
    };
    let buffer = |input: &shardc_ir::plan::ProgramInput| &program.buffers[input.buffer.index()];
    Arc::new(program.inputs.iter().map(|input| array(&input.name, &buffer(input).shape, buffer(input).dtype)).collect())
}
