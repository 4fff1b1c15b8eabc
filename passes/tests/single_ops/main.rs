//! Single ops under every layout: a random instance of each op, its operands split over ranks and
//! micro-batches in random ways or partial over them, computes after `insert-reshards`,
//! `lower-reshards` and planning what the naive evaluator computes on whole operands; its plan is
//! proven first. Elements are such that sums are exact in any order, so results are equal but where
//! the op itself rounds.
//!
//! `SHARDC_PROGRAMS` is the number of programs, 2000 without it; 20000 is the full count.

mod instances;
mod layouts;
mod numbers;
mod trial;

use shardc_executor::tensor::Tensor as Array;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Node};
use shardc_ir::interp;
use shardc_ir::ops::Op;
use shardc_ir::ops::table::table;
use shardc_ir::sharding::Sharding;
use shardc_ir::types::Tensor;
use shardc_passes::{Context, Mode, PIPELINE, run_pass};
use shardc_testkit::random::Random;
use shardc_testkit::step;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use trial::Trial;

/// The program's, with which graphs are compiled twice as fast.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Why a program may be refused: it wants in one micro-batch what all of them make.
const REFUSED: [&str; 2] = ["is needed for the whole batch at once", "needs all micro-batches at once"];

/// How often one op may be drawn until a program is not refused.
const TRIES: u64 = 100;

/// How many roundings of the largest element a result may be off, where the op rounds: of 20000
/// programs none is off by more than 27, the gradient of a norm whose parts are larger than itself.
const ROUNDINGS: f64 = 64.0;

/// One program in so many must hold each leaf, call and op.
const LEAST_HELD: u64 = 200;

/// One program in so many must be of each op in each way, and of each function, of which there are
/// fewer.
const LEAST: u64 = 2000;
const LEAST_FUNCTION: u64 = 4000;

/// The ways in which an op cannot be run.
const NEVER: [(&str, &str); 7] = [
    // It has no operands.
    ("range", "partial"),
    // States are whole over micro-batches.
    ("sgd", "in time"),
    ("adam", "in time"),
    // Graphs of one op have no stages and no `zero`.
    ("transfer", "held"),
    ("flat_gather", "held"),
    ("flat_scatter", "held"),
    ("flat_slice", "held"),
];

/// The number of programs of an op that met each case.
#[derive(Debug, Default, Clone, Copy)]
struct Covered {
    ran: u64,
    /// The op works on split values.
    split: u64,
    /// An operand is drawn partial.
    partial: u64,
    /// The op reads or leaves what is partial.
    passed: u64,
    /// The op works in micro-batches.
    in_time: u64,
}

#[test]
fn single_ops_are_the_same_under_every_layout() {
    let count: u64 = std::env::var("SHARDC_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let names = drawn();
    let (mut covered, mut refused) = (BTreeMap::<&str, Covered>::new(), 0);
    let mut held = BTreeMap::<&str, u64>::new();
    for seed in 0..count {
        let name = names[seed as usize % names.len()];
        let (trial, explicit, tries) = (0..TRIES)
            .find_map(|again| {
                let trial = Trial::draw(name, &mut Random(seed * TRIES + again));
                let explicit = told(&trial, seed, || ran(&trial))?;
                Some((trial, explicit, again))
            })
            .unwrap_or_else(|| panic!("`{name}` of program {seed} is always refused"));
        refused += tries;
        note(covered.entry(name).or_default(), &trial, &explicit);
        let ops: BTreeSet<&str> = explicit.nodes().map(|(_, node)| node.op.name()).collect();
        ops.into_iter().for_each(|op| *held.entry(op).or_default() += 1);
    }
    report(&covered, &held, count, refused);
}

/// The ops that compute, and `reshard`; scalar functions once, others three times.
fn drawn() -> Vec<&'static str> {
    let others = Op::names().into_iter().filter(|name| !is_leaf_or_call(name));
    let (functions, others): (Vec<&str>, Vec<&str>) = others.partition(|name| instances::is_function(name));
    [functions, others.clone(), others.clone(), others].concat()
}

fn is_leaf_or_call(name: &str) -> bool {
    let calls = ["accumulate", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "shard_slice", "transfer"];
    ["input", "state", "constant", "host"].contains(&name) || calls.contains(&name) || name.starts_with("flat_")
}

/// Runs `f`; a panic or an error is told with the program.
fn told(trial: &Trial, seed: u64, f: impl FnOnce() -> Result<Option<Graph>, String>) -> Option<Graph> {
    let at = || format!("program {seed}\n{}", trial.text());
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(explicit)) => explicit,
        Ok(Err(why)) => panic!("{why}\n{}", at()),
        Err(panic) => {
            eprintln!("{}", at());
            resume_unwind(panic)
        }
    }
}

/// Compiles, proves and runs a trial, and compares what it computes; gives the explicit graph, none
/// where it is refused.
fn ran(trial: &Trial) -> Result<Option<Graph>, String> {
    let spec = step::spec(&trial.spec).map_err(|d| d[0].to_string())?;
    let cx = Context { spec: &spec, mode: Mode::Train, verify: true };
    let compiled = explicit(&trial.graph, &cx).and_then(|explicit| {
        let program = step::planned(&explicit, &cx)?;
        Ok((explicit, program))
    });
    let (explicit, program) = match compiled {
        Ok(compiled) => compiled,
        Err(errors) if REFUSED.iter().any(|why| errors[0].message.contains(why)) => return Ok(None),
        Err(errors) => return Err(errors[0].to_string()),
    };
    let arrays = |tensors: &BTreeMap<String, Tensor>| -> BTreeMap<String, Array> {
        tensors.iter().map(|(name, tensor)| (name.clone(), tensor.clone().into())).collect()
    };
    let want = interp::run(&trial.graph, &trial.feed).map_err(|why| why.to_string())?;
    let (result, executor) = step::stepped(&program, &arrays(&trial.feed.states), &arrays(&trial.feed.inputs));
    for output in &trial.graph.outputs {
        compare(&output.name, &result.outputs[&output.name], &want[output.value.index()], trial.is_exact())?;
    }
    for state in &trial.graph.states {
        let Some(update) = state.update else { continue };
        let value = executor.get_state(&state.name).expect("the state is there");
        compare(&state.name, &value, &want[update.index()], trial.is_exact())?;
    }
    Ok(Some(explicit))
}

/// The graph after the passes that make communication.
fn explicit(graph: &Graph, cx: &Context<'_>) -> Result<Graph, Diagnostics> {
    let mut graph = graph.clone();
    let begins = graph.phase;
    let passes = PIPELINE.iter().skip_while(|pass| pass.needs(cx.mode) < begins);
    passes.copied().try_for_each(|pass| run_pass(pass, &mut graph, cx))?;
    Ok(graph)
}

/// Equal, or within roundings of the largest element.
fn compare(name: &str, got: &Array, want: &Tensor, is_exact: bool) -> Result<(), String> {
    let unit = match want.ty.dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::BF16 => f64::from(f32::EPSILON) * 65_536.0,
        DType::F16 => f64::from(f32::EPSILON) * 8_192.0,
        DType::I64 | DType::Bool if got.bytes == *want.bytes => return Ok(()),
        DType::I64 | DType::Bool => return Err(format!("`{name}` is {:?}, not {:?}", got.to_i64(), want.to_i64())),
    };
    let (got, want) = (got.to_f64(), want.to_f64());
    let largest = want.iter().filter(|v| v.is_finite()).fold(1.0, |m: f64, v| m.max(v.abs()));
    let bound = if is_exact { 0.0 } else { ROUNDINGS * unit * largest };
    let agree = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= bound;
    match got.iter().zip(&want).position(|pair| !agree(pair)) {
        None if got.len() == want.len() => Ok(()),
        at => Err(format!("element {at:?} of `{name}` is wrong by more than {bound:e}: {got:?}, not {want:?}")),
    }
}

fn note(covered: &mut Covered, trial: &Trial, explicit: &Graph) {
    // A node that stands for a reshard is looked at with the rest of the little graph.
    let is_it = |node: &&Node| node.op == trial.op || matches!(trial.op, Op::Reshard(_));
    let nodes = explicit.nodes().map(|(_, node)| node).filter(is_it);
    let touched: Vec<&Sharding> =
        nodes.flat_map(|node| node.operands.iter().chain(&node.results)).map(|v| explicit.sharding(*v)).collect();
    let time = explicit.mesh.microbatch_axis();
    let mut splits = touched.iter().flat_map(|s| s.dims.iter().flatten());
    covered.ran += 1;
    covered.split += u64::from(splits.any(|split| split.axis != time));
    covered.partial += u64::from(trial.partial);
    covered.passed += u64::from(touched.iter().any(|s| !s.partial.is_empty()));
    covered.in_time += u64::from(touched.iter().any(|s| s.depends_on(time)));
}

/// Prints the table past the test harness, and demands that every op was tried in every way.
fn report(covered: &BTreeMap<&str, Covered>, held: &BTreeMap<&str, u64>, count: u64, refused: u64) {
    let mut text = format!(
        "{count} programs of single ops compute what ops are; {refused} draws were refused\n  \
         ran  split  partial  passed  in time\n"
    );
    let mut rare = vec![];
    for row in table() {
        let Some(c) = covered.get(row.name) else {
            let is_rare = held.get(row.name).copied().unwrap_or(0) < count / LEAST_HELD;
            rare.extend((is_rare && !NEVER.contains(&(row.name, "held"))).then_some((row.name, "held")));
            continue;
        };
        text += &format!("{:5} {:6} {:8} {:7} {:8}  {}\n", c.ran, c.split, c.partial, c.passed, c.in_time, row.name);
        let least = count / if instances::is_function(row.name) { LEAST_FUNCTION } else { LEAST };
        let passes = if ["no", ""].contains(&row.linear.as_str()) { least } else { c.passed };
        for (way, times) in [("split", c.split), ("partial", c.partial), ("passed", passes), ("in time", c.in_time)] {
            rare.extend((times < least && !NEVER.contains(&(row.name, way))).then_some((row.name, way)));
        }
        rare.extend((c.ran < count / LEAST_HELD).then_some((row.name, "ran")));
    }
    for row in Op::names().into_iter().filter(|name| is_leaf_or_call(name)).collect::<Vec<_>>().chunks(6) {
        let cells: Vec<String> = row.iter().map(|op| format!("{:5} {op:<15}", held.get(op).copied().unwrap_or(0))).collect();
        text += &format!("{}\n", cells.concat().trim_end());
    }
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    assert!(rare.is_empty(), "too few of {count} programs have {rare:?}");
}
