//! The theorem: a plan for N ranks computes what the same spec computes with one rank on every
//! axis. On random graphs under random specs, the loss, the norm of the gradients, every gradient
//! and every updated parameter agree, also between micro-batches and the whole batch, and the
//! output is that of the naive evaluator on the graph as imported; what was covered and refused is
//! printed, and every op that models can hold must be. Every program is proven to carry out its
//! graph, which is the reference's but for communication.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::dtype::DType;
use shardc_ir::graph::Graph;
use shardc_ir::ops::Op;
use shardc_ir::spec::{Located, Spec, Zero, ZeroStage};
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_testkit::feed;
use shardc_testkit::parallel;
use shardc_testkit::random_graphs::{self, BATCHES, Choices};
use shardc_testkit::random_specs;
use shardc_testkit::step::{self, Computed, proven, step};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// The program's, with which graphs are compiled twice as fast.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Lists of draws, and the cases of each by element type: a tenth in f32.
const SHARDS: usize = 4;
const CASES: [(DType, u32); 2] = [(DType::F64, 900), (DType::F32, 100)];

/// Programs that must hold each op.
const LEAST: usize = 20;

/// Programs that must be of each strategy and of each schedule, and of each two strategies.
const OF_STRATEGY: usize = 200;
const OF_PAIR: usize = 40;

/// What splits up a job, as [`strategies`] finds it.
const STRATEGIES: [&str; 10] =
    ["data", "tensor", "sequence", "pipeline", "zero 1", "zero 2", "zero 3", "groups of zero", "scopes", "recompute"];

/// The schedules of pipelines.
const SCHEDULES: [&str; 4] = ["gpipe", "1f1b", "interleaved(chunks=2)", "zb-h1"];

/// Ops that no program holds in the end, and why.
const NEVER: [(&str, &str); 2] =
    [("reshard", "every one becomes communication"), ("round_to", "a `precision` line makes it, as in rounded.rs")];

/// The programs and ops that the cases met.
#[derive(Default)]
struct Coverage {
    run: usize,
    depth: usize,
    /// Nodes that were computed again.
    repeated: usize,
    /// Programs that hold each op, as imported or at the end.
    ops: BTreeMap<&'static str, usize>,
    kinds: BTreeMap<String, usize>,
    refused: BTreeMap<String, usize>,
}

#[test]
fn n_ranks_compute_what_one_does() {
    let run = |shard: u8| {
        let coverage = RefCell::new(Coverage::default());
        for (dtype, cases) in CASES {
            let config = Config { cases, failure_persistence: None, max_shrink_iters: 300, ..Config::default() };
            let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[shard + 1; 32]);
            let mut runner = TestRunner::new_with_rng(config, rng);
            let lists = proptest::collection::vec(any::<u32>(), 60..240);
            let outcome = runner.run(&lists, |list| case(list, dtype, &coverage).map_err(TestCaseError::fail));
            match outcome {
                Ok(()) => {}
                Err(TestError::Fail(why, _)) => panic!("{why}"),
                Err(error) => panic!("{error}"),
            }
        }
        coverage.into_inner()
    };
    let mut total = Coverage::default();
    parallel::map(SHARDS, |shard| run(shard as u8)).into_iter().for_each(|coverage| total.add(coverage));
    report(&total);
}

impl Coverage {
    /// Counts a refusal by its words, without names and numbers.
    fn refuse(&mut self, when: &str, diagnostics: &Diagnostics) -> Result<(), String> {
        let message = &diagnostics[0].message;
        if message.contains("a bug of shardc") {
            return Err(message.clone());
        }
        let words: Vec<&str> = message.split(['`', '"']).step_by(2).collect();
        let words = words.join("…").replace(|c: char| c.is_ascii_digit(), "#");
        *self.refused.entry(format!("{when}{words}")).or_default() += 1;
        Ok(())
    }

    fn add(&mut self, other: Coverage) {
        self.run += other.run;
        self.depth += other.depth;
        self.repeated += other.repeated;
        let add = |all: &mut BTreeMap<String, usize>, more: BTreeMap<String, usize>| {
            more.into_iter().for_each(|(what, count)| *all.entry(what).or_default() += count);
        };
        other.ops.into_iter().for_each(|(op, count)| *self.ops.entry(op).or_default() += count);
        add(&mut self.kinds, other.kinds);
        add(&mut self.refused, other.refused);
    }
}

/// Prints past the test harness, which keeps `println` of passing tests to itself.
fn report(coverage: &Coverage) {
    let (run, refused) = (coverage.run, coverage.refused.values().sum::<usize>());
    let mut text =
        format!("{run} random programs, {} ops deep, agree with their reference; of them hold\n", coverage.depth / run.max(1));
    let count = |op: &str| coverage.ops.get(op).copied().unwrap_or(0);
    for row in Op::names().chunks(6) {
        let cells: Vec<String> = row.iter().map(|op| format!("{:5} {op:<15}", count(op))).collect();
        text += &format!("{}\n", cells.concat().trim_end());
    }
    text += &format!("{} nodes of the forward pass were computed again\n", coverage.repeated);
    for (what, count) in &coverage.kinds {
        text += &format!("{count:5} {what}\n");
    }
    for (why, count) in &coverage.refused {
        text += &format!("{count:5} refused: {why}\n");
    }
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    assert!(run >= 2500, "{run} cases ran");
    assert!(coverage.repeated >= 5000, "only {} nodes were computed again", coverage.repeated);
    assert!(refused * 10 <= run + refused, "{refused} of {} cases were refused", run + refused);
    let never = |op: &&str| NEVER.iter().any(|(name, _)| name == op);
    let rare: Vec<&str> = Op::names().into_iter().filter(|op| !never(op) && count(op) < LEAST).collect();
    assert!(rare.is_empty(), "fewer than {LEAST} programs hold {rare:?}");
    let schedules = SCHEDULES.iter().map(|schedule| format!("in a pipeline with schedule={schedule}"));
    let single = schedules.chain(STRATEGIES.iter().map(|strategy| format!("with {strategy}")));
    let pairs =
        (0..STRATEGIES.len()).flat_map(|i| STRATEGIES[..i].iter().map(move |a| format!("with {a} and {}", STRATEGIES[i])));
    let least = single.map(|kind| (kind, OF_STRATEGY)).chain(pairs.map(|kind| (kind, OF_PAIR)));
    let met = |kind: &str| coverage.kinds.get(kind).copied().unwrap_or(0);
    let rare: Vec<String> = least.filter(|(kind, least)| met(kind) < *least).map(|(kind, _)| kind).collect();
    assert!(rare.is_empty(), "too few programs are {rare:?}");
}

fn case(list: Vec<u32>, dtype: DType, coverage: &RefCell<Coverage>) -> Result<(), String> {
    let mut choices = Choices::new(list);
    let model = random_graphs::draw(&mut choices, dtype);
    let text = format!("{}loss {}\n", random_specs::draw(&mut choices, &model), model.loss);
    let describe = |why: String| format!("{why}\n{text}\n{}", shardc_ir::text::print(&model.graph));
    let spec = step::spec(&text).map_err(|d| describe(format!("the spec does not parse: {}", d[0])))?;
    let (graph, split) = match proven(&model.graph, &spec) {
        Ok(compiled) => compiled,
        Err(diagnostics) => {
            return coverage.borrow_mut().refuse("", &diagnostics).map_err(describe);
        }
    };
    let reference = |spec: &Spec| proven(&model.graph, spec).map_err(|d| describe(format!("no reference: {}", d[0])));
    let (whole, one) = reference(&spec.reference())?;
    same_when_erased(&graph, &whole).map_err(|why| describe(format!("another graph than the reference's: {why}")))?;
    let states = feed::states(&model.graph, dtype, 0);
    let inputs = feed::inputs(&split, &model.graph, dtype, 0);
    let (got, want) = (step(&split, &states, &inputs), step(&one, &states, &inputs));
    agree(&got, &want, dtype).map_err(describe)?;
    if !spec.recompute.is_empty() {
        let keeping = Spec { recompute: vec![], ..spec.clone() };
        let kept = step(&reference(&keeping)?.1, &states, &inputs);
        if got != kept {
            return Err(describe("what is computed again has other bits".to_string()));
        }
        coverage.borrow_mut().repeated += repeats(&graph);
    }
    if spec.microbatches() > 1 {
        let mut whole = spec.reference();
        whole.batch.iter_mut().for_each(|batch| batch.value.microbatches = 1);
        let whole = step(&reference(&whole)?.1, &states, &inputs);
        agree(&got, &whole, dtype).map_err(|why| describe(format!("against one micro-batch: {why}")))?;
    }
    let (compiled, naive) = match step::outputs(&model.graph, &spec, &states, &inputs) {
        Ok(outputs) => outputs,
        Err(diagnostics) => return coverage.borrow_mut().refuse("in evaluation: ", &diagnostics).map_err(describe),
    };
    let (size, tolerance) = (naive.iter().fold(1e-3, |m: f64, v| m.max(v.abs())), if dtype == DType::F64 { 1e-10 } else { 1e-4 });
    if compiled.len() != naive.len()
        || compiled.iter().zip(&naive).any(|(a, b)| (a - b).is_nan() || (a - b).abs() > tolerance * size)
    {
        return Err(describe("the output is not that of the naive evaluator".to_string()));
    }
    note(&mut coverage.borrow_mut(), &model.graph, &graph, &spec, &text);
    Ok(())
}

fn note(coverage: &mut Coverage, imported: &Graph, explicit: &Graph, spec: &Spec, text: &str) {
    coverage.run += 1;
    coverage.depth += depth(imported);
    let ops: BTreeSet<&str> = imported.nodes().chain(explicit.nodes()).map(|(_, node)| node.op.name()).collect();
    ops.into_iter().for_each(|op| *coverage.ops.entry(op).or_default() += 1);
    let axes = spec.mesh().rank_axes().len();
    let (tensor, sequence) = (!spec.tensor.is_empty(), spec.sequence.is_some());
    let shards = text.lines().filter(|line| line.starts_with("shard"));
    let has = |what: &str| shards.clone().any(|line| line.contains(what));
    let mut kinds = vec![format!("with {axes} axes"), format!("in {} micro-batches", spec.microbatches())];
    for (form, name) in
        [("|", "blocks of different sizes"), ("*", "blocks"), (":", "letters"), (" (", "several axes on a dimension")]
    {
        if has(form) {
            kinds.push(format!("with {name}"));
        }
    }
    let blocks = explicit.states.iter().any(|state| state.block.is_some());
    kinds.extend(blocks.then(|| "with parameters in parts".to_string()));
    kinds.extend(tensor.then(|| "with a `tensor` line".to_string()));
    kinds.extend(sequence.then(|| "with a `sequence` line".to_string()));
    kinds.extend(text.contains("=3").then(|| "with an axis of 3".to_string()));
    if let Some(line) = text.lines().find(|line| line.starts_with("pipeline")) {
        kinds.push(format!("in a pipeline with {}", line.rsplit(' ').next().unwrap_or_default()));
        kinds.extend(text.contains("\nplace").then(|| "in a pipeline with a part of the model placed".to_string()));
    }
    kinds.extend(strategies(spec));
    kinds.push(format!("under {}", text.lines().last().unwrap_or_default()));
    for kind in kinds {
        *coverage.kinds.entry(kind).or_default() += 1;
    }
}

/// Every strategy of the spec in the order of [`STRATEGIES`], and every two.
fn strategies(spec: &Spec) -> Vec<String> {
    let mut found: Vec<String> = vec![];
    let everywhere = spec.data_everywhere();
    found.extend(everywhere.map(|_| "data".to_string()));
    let splits_weights = !spec.tensor.is_empty() || !spec.shard.is_empty();
    found.extend(splits_weights.then(|| "tensor".to_string()));
    found.extend(spec.sequence.as_ref().map(|_| "sequence".to_string()));
    found.extend(spec.pipeline.as_ref().map(|_| "pipeline".to_string()));
    let stages: BTreeSet<ZeroStage> = spec.zero.iter().map(|zero| zero.value.stage).collect();
    found.extend(stages.iter().filter(|stage| **stage != ZeroStage::Replicated).map(|stage| format!("zero {}", *stage as u8)));
    let groups = |zero: &Located<Zero>| everywhere.is_some_and(|data| data.value.axes.len() > zero.value.axes.len());
    found.extend(spec.zero.iter().any(groups).then(|| "groups of zero".to_string()));
    let scopes = spec.data.iter().any(|line| line.value.on.is_some()) || spec.zero.iter().any(|line| line.value.on.is_some());
    found.extend(scopes.then(|| "scopes".to_string()));
    found.extend((!spec.recompute.is_empty()).then(|| "recompute".to_string()));
    let pairs = found.iter().enumerate().flat_map(|(i, a)| found[..i].iter().map(move |b| format!("with {b} and {a}")));
    found.iter().map(|strategy| format!("with {strategy}")).chain(pairs).collect()
}

/// How many nodes are computed again.
fn repeats(graph: &Graph) -> usize {
    graph.nodes().filter(|(_, node)| node.origin.reason.as_deref() == Some("computed again")).count()
}

/// The ops on the longest path.
fn depth(graph: &Graph) -> usize {
    let mut depths = vec![0; graph.value_count()];
    for (_, node) in graph.nodes() {
        let below = node.operands.iter().map(|v| depths[v.index()]).max().unwrap_or(0);
        node.results.iter().for_each(|v| depths[v.index()] = below + 1);
    }
    depths.into_iter().max().unwrap_or(0)
}

/// Tolerances: f64 1e-10; f32 1e-5 for loss and norm, 1e-4 of the global norm for each gradient,
/// and of a running statistic.
fn agree(got: &Computed, want: &Computed, dtype: DType) -> Result<(), String> {
    let (scalar, gradient) = if dtype == DType::F64 { (1e-10, 1e-10) } else { (1e-5, 1e-4) };
    for (name, value) in &want.outputs {
        let other = got.outputs[name];
        let error = (value - other).abs();
        if error.is_nan() || error > scalar * value.abs().max(1e-3) {
            return Err(format!("{name} is {other}, the reference has {value}"));
        }
    }
    if want.gradients.is_empty() || want.gradients.len() != got.gradients.len() {
        return Err(format!("{} gradients, the reference has {}", got.gradients.len(), want.gradients.len()));
    }
    let norm = want.outputs["grad_norm"].max(1e-3);
    for (name, values) in &want.gradients {
        let difference: f64 = values.iter().zip(&got.gradients[name]).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
        if difference.is_nan() || difference > gradient * norm {
            return Err(format!("the gradient of {name} is off by {difference:e} of {norm:e}"));
        }
    }
    // An optimizer may make a step of any gradient, however small: of rounding, too.
    let least = if dtype == DType::F64 { 1e-4 } else { 1e-2 } * norm;
    for (name, values) in &want.parameters {
        let Some(gradients) = want.gradients.get(name) else { continue };
        let off = |((a, b), g): ((&f64, &f64), &f64)| g.abs() > least && ((a - b).is_nan() || (a - b).abs() > gradient);
        if values.iter().zip(&got.parameters[name]).zip(gradients).any(off) {
            return Err(format!("the updated {name} is {:?}, the reference has {values:?}", got.parameters[name]));
        }
    }
    for (name, values) in &want.statistics {
        let size = values.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
        if values.iter().zip(&got.statistics[name]).any(|(a, b)| (a - b).is_nan() || (a - b).abs() > gradient * size) {
            return Err(format!("the statistic {name} is {:?}, the reference has {values:?}", got.statistics[name]));
        }
    }
    Ok(())
}

#[test]
fn random_graphs_are_deep() {
    for start in 0..50 {
        let model = random_graphs::draw(&mut Choices::new((start..start + 100).collect()), DType::F32);
        assert!(BATCHES.contains(&model.batch) && depth(&model.graph) >= 8, "{}", shardc_ir::text::print(&model.graph));
    }
}
