//! Programs from the texts of specs, and one step of them on CPU ranks.

use crate::counted;
use shardc_executor::replay::Replay;
use shardc_executor::run::{Executor, StepResult};
use shardc_executor::tensor::Tensor;
use shardc_executor::world::World;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::Graph;
use shardc_ir::interp::{self, Feed};
use shardc_ir::plan::StateRole;
use shardc_ir::plan::set::{Name, PlanSet};
use shardc_ir::spec::Spec;
use shardc_ir::text::{parse, print};
use shardc_ir::types::{self, Type};
use shardc_ir::verify_plan::verify_set;
use shardc_ir::waits::{check, derive};
use shardc_passes::{Context, Mode, planning};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The spec in `text`.
pub fn spec(text: &str) -> Result<Spec, Diagnostics> {
    shardc_frontend::spec::parse(Path::new("job.shard"), text)
}

/// The training programs of `graph` under `spec`, the graph verified after every pass.
pub fn programs(graph: &Graph, spec: &Spec) -> Result<PlanSet, Diagnostics> {
    proven(graph, spec).map(|(_, programs)| programs)
}

/// The explicit graph of the training step and its programs, which are proven to carry it out as
/// the graph's text has it; the waits of their queues order all that touches the same bytes.
pub fn proven(graph: &Graph, spec: &Spec) -> Result<(Graph, PlanSet), Diagnostics> {
    let cx = Context { spec, mode: Mode::Train, verify: true };
    let explicit = shardc_passes::run(graph.clone(), &cx)?;
    let programs = planned(&explicit, &cx)?;
    Ok((explicit, programs))
}

/// The programs of an explicit graph, which are proven to carry it out as the graph's text has it.
///
/// # Errors
/// If micro-batches cannot be taken one after another.
///
/// # Panics
/// If the proof fails.
pub fn planned(explicit: &Graph, cx: &Context<'_>) -> Result<PlanSet, Diagnostics> {
    let programs = planning::plan(explicit, cx)?;
    let text = print(explicit);
    let read = parse(&text).unwrap_or_else(|error| panic!("the explicit graph does not parse: {error}\n{text}"));
    if let Err(violation) = verify_set(&programs.as_ref(), &read) {
        panic!("a good plan is refused: {violation}\n{text}");
    }
    for program in &programs.programs {
        check(program, &derive(program)).unwrap_or_else(|race| panic!("the queues race: {race:?}\n{text}"));
    }
    Ok(programs)
}

/// The model's output `y`: compiled for evaluation and run, and by the naive evaluator on the graph
/// as it was imported.
pub fn outputs(
    graph: &Graph,
    spec: &Spec,
    states: &BTreeMap<String, Tensor>,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<(Vec<f64>, Vec<f64>), Diagnostics> {
    let cx = Context { spec, mode: Mode::Evaluate, verify: true };
    let programs = shardc_passes::compile(graph.clone(), &cx)?;
    let mut executor = started(World::default(), &programs, states);
    let batch = batch(&programs, inputs);
    let compiled = executor.step(Arc::new(batch)).expect("the step runs").outputs["y"].to_f64();
    let whole = |all: &BTreeMap<String, Tensor>| {
        let tensor = |t: &Tensor| types::Tensor { ty: Type::new(t.dtype, t.shape.clone()), bytes: Arc::new(t.bytes.clone()) };
        all.iter().map(|(name, t)| (name.clone(), tensor(t))).collect()
    };
    let feed = Feed { inputs: whole(inputs), states: whole(states), learning_rate: 0.0, step_count: 1, seed: 0 };
    let naive = interp::outputs(graph, &feed).expect("the graph can be evaluated")["y"].to_f64();
    Ok((compiled, naive))
}

/// The arrays of a batch in the order of the programs' inputs.
fn batch(programs: &PlanSet, inputs: &BTreeMap<String, Tensor>) -> Vec<Tensor> {
    programs.inputs().into_iter().map(|(_, input)| inputs[&input.name].clone()).collect()
}

fn started(world: World, programs: &PlanSet, states: &BTreeMap<String, Tensor>) -> Executor {
    let mut executor = Executor::within(world, programs.clone(), 1).expect("the program loads");
    executor.initialise(|name| states.get(name).cloned()).expect("states fit");
    executor
}

/// The results of one step of a program.
#[derive(Debug, PartialEq)]
pub struct Computed {
    /// Loss and norm.
    pub outputs: BTreeMap<String, f64>,
    /// The gradient of each parameter.
    pub gradients: BTreeMap<String, Vec<f64>>,
    /// The running statistics after the step.
    pub statistics: BTreeMap<String, Vec<f64>>,
    /// The parameters after the step.
    pub parameters: BTreeMap<String, Vec<f64>>,
}

/// Runs one step from the given states and inputs (by name), and gives its outputs and what it has
/// left.
///
/// # Panics
/// If what ranks send and hold is not what their programs say, or the bits are not those of a
/// replay.
pub fn stepped(
    programs: &PlanSet,
    states: &BTreeMap<String, Tensor>,
    inputs: &BTreeMap<String, Tensor>,
) -> (StepResult, Executor) {
    let mut executor = started(World::default(), programs, states);
    let result = replayed_step(&mut executor, states, batch(programs, inputs));
    counted::check(&executor, 1);
    (result, executor)
}

/// Runs a first step from these states, whose bits must be those of a replay, and of ranks that
/// hold their state in common.
fn replayed_step(executor: &mut Executor, states: &BTreeMap<String, Tensor>, batch: Vec<Tensor>) -> StepResult {
    let batch = Arc::new(batch);
    if executor.programs().mesh().world_size() == 1 {
        return executor.step(batch).expect("the step runs");
    }
    let mut replay = Replay::of(executor).expect("there is memory for the ranks again");
    replay.step(0, &batch).expect("the step runs");
    let mut together = started(World::default().together(), executor.programs(), states);
    together.step(batch.clone()).expect("the step runs");
    counted::check(&together, 1);
    let result = executor.step(batch).expect("the step runs");
    for executor in [executor, &together] {
        if let Err(difference) = replay.compare(executor).expect("no rank failed") {
            panic!("{difference}");
        }
    }
    result
}

/// The results of one step, run as [`stepped`] does.
pub fn step(programs: &PlanSet, states: &BTreeMap<String, Tensor>, inputs: &BTreeMap<String, Tensor>) -> Computed {
    let (result, executor) = stepped(programs, states, inputs);
    Computed::of(&result, &executor)
}

/// The results of the first step from each of several states and inputs, by the same ranks one
/// after another.
///
/// # Panics
/// As [`stepped`]; of the cases the first is replayed.
pub fn first_steps(
    programs: &PlanSet,
    cases: impl Iterator<Item = (BTreeMap<String, Tensor>, BTreeMap<String, Tensor>)>,
) -> Vec<Computed> {
    let mut executor = Executor::new(programs.clone(), 1).expect("the program loads");
    let mut computed = vec![];
    for (states, inputs) in cases {
        executor.set_next_step(0);
        executor.initialise(|name| states.get(name).cloned()).expect("states fit");
        let batch = batch(programs, &inputs);
        let result = match computed.is_empty() {
            true => replayed_step(&mut executor, &states, batch),
            false => executor.step(Arc::new(batch)).expect("the step runs"),
        };
        computed.push(Computed::of(&result, &executor));
    }
    counted::check(&executor, computed.len() as u64);
    computed
}

impl Computed {
    /// What a step gave, and what it left.
    fn of(result: &StepResult, executor: &Executor) -> Computed {
        let programs = executor.programs();
        let outputs = result.outputs.iter().filter_map(|(n, t)| t.first().map(|v| (n.clone(), v))).collect();
        let read = |names: Vec<(String, Name)>| {
            let (own, names): (Vec<String>, Vec<Name>) = names.into_iter().unzip();
            let tensors = executor.read_each(&names).expect("they are readable");
            own.into_iter().zip(tensors).map(|(name, tensor)| (name, tensor.to_f64())).collect()
        };
        let gradient = |name| match &name {
            Name::Gradient(of) => Some((of.clone(), name)),
            _ => None,
        };
        let gradients = read(programs.names().into_iter().filter_map(gradient).collect());
        let after = |role: StateRole| {
            let states = programs.states().into_iter().map(|(_, s)| s).filter(|s| s.role == role);
            read(states.map(|s| (s.name.clone(), Name::State(s.name.clone()))).collect())
        };
        Computed { outputs, gradients, statistics: after(StateRole::Statistic), parameters: after(StateRole::Parameter) }
    }
}
