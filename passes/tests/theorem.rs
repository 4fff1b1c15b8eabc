//! The theorem: a plan for N ranks computes what the same spec computes with one rank on every axis. On random graphs under
//! random specs, the loss, the norm of the gradients and every gradient agree, also between micro-batches and the whole batch, and
//! the output is that of the naive evaluator on the graph as imported; what was covered and refused is printed. Every program is
//! proven to carry out its graph, which is the reference's but for communication.

#[path = "theorem/graphs.rs"]
mod graphs;
#[path = "theorem/specs.rs"]
mod specs;
mod support;

use graphs::{BATCH, Choices};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::graph::Graph;
use shardc_ir::ops::Op;
use shardc_ir::plan::StateRole;
use shardc_ir::verify_plan::erasure::same_when_erased;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use support::{Computed, program, proven, step};

/// Cases of each element type: a tenth in f32.
const CASES: [(DType, u32); 2] = [(DType::F64, 540), (DType::F32, 60)];

/// What the cases went through.
#[derive(Default)]
struct Coverage {
    run: usize,
    ops: BTreeMap<&'static str, usize>,
    collectives: BTreeMap<String, usize>,
    refused: BTreeMap<String, usize>,
}

#[test]
fn n_ranks_compute_what_one_does() {
    let coverage = RefCell::new(Coverage::default());
    for (dtype, cases) in CASES {
        let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let lists = proptest::collection::vec(any::<u32>(), 40..160);
        let outcome = runner.run(&lists, |list| case(list, dtype, &coverage).map_err(TestCaseError::fail));
        if let Err(error) = outcome {
            panic!("{error}");
        }
    }
    report(&coverage.into_inner());
}

/// Prints past the test harness, which keeps `println` of passing tests to itself.
fn report(coverage: &Coverage) {
    let ops: Vec<String> = coverage.ops.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let mut text = format!("{} random programs agree with their reference; ops: {}\n", coverage.run, ops.join(", "));
    for (what, count) in &coverage.collectives {
        text += &format!("{count:5} with {what}\n");
    }
    let refused: usize = coverage.refused.values().sum();
    for (why, count) in &coverage.refused {
        text += &format!("{count:5} refused: {why}\n");
    }
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    assert!(coverage.run >= 500, "{} cases ran", coverage.run);
    assert!(refused * 10 <= coverage.run + refused, "{refused} of {} cases were refused", coverage.run + refused);
}

fn case(list: Vec<u32>, dtype: DType, coverage: &RefCell<Coverage>) -> Result<(), String> {
    let mut choices = Choices::new(list);
    let model = graphs::draw(&mut choices, dtype);
    let text = format!("{}loss {}\n", specs::draw(&mut choices, &model.graph), model.loss);
    let describe = |why: String| format!("{why}\n{text}\n{}", shardc_ir::text::print(&model.graph));
    let spec = support::spec(&text).map_err(|d| describe(format!("the spec does not parse: {}", d[0])))?;
    let (explicit, split) = match proven(&model.graph, &spec) {
        Ok(compiled) => compiled,
        Err(diagnostics) => {
            let words: Vec<&str> = diagnostics[0].message.split('`').step_by(2).collect();
            *coverage.borrow_mut().refused.entry(words.join("…")).or_default() += 1;
            return Ok(());
        }
    };
    let reference = proven(&model.graph, &spec.reference());
    let (whole, reference) = reference.map_err(|d| describe(format!("no reference: {}", d[0])))?;
    same_when_erased(&explicit, &whole).map_err(|why| describe(format!("another graph than the reference's: {why}")))?;
    let states = random_states(&model.graph);
    let inputs = random_inputs(&split, &model.graph);
    let (got, want) = (step(&split, &states, &inputs), step(&reference, &states, &inputs));
    agree(&got, &want, dtype).map_err(describe)?;
    if spec.microbatches() > 1 {
        let mut whole = spec.reference();
        whole.batch.iter_mut().for_each(|batch| batch.value.microbatches = 1);
        let whole = program(&model.graph, &whole).map_err(|d| describe(format!("no program of one micro-batch: {}", d[0])))?;
        let whole = step(&whole, &states, &inputs);
        agree(&got, &whole, dtype).map_err(|why| describe(format!("against one micro-batch: {why}")))?;
    }
    let (compiled, naive) = support::outputs(&model.graph, &spec, &states, &inputs);
    let (size, tolerance) = (naive.iter().fold(1e-3, |m: f64, v| m.max(v.abs())), if dtype == DType::F64 { 1e-10 } else { 1e-4 });
    if compiled.iter().zip(&naive).any(|(a, b)| (a - b).is_nan() || (a - b).abs() > tolerance * size) {
        return Err(describe("the output is not that of the naive evaluator".to_string()));
    }
    note(&mut coverage.borrow_mut(), &model.graph, &split);
    Ok(())
}

fn note(coverage: &mut Coverage, graph: &Graph, program: &shardc_ir::plan::Program) {
    coverage.run += 1;
    for (_, node) in graph.nodes() {
        *coverage.ops.entry(node.op.name()).or_default() += 1;
    }
    let mut kinds: Vec<String> = program
        .tasks
        .iter()
        .flat_map(|t| &t.steps)
        .filter_map(|s| match &s.kernel {
            shardc_ir::kernel::Kernel::Collective(c) => Some(format!("{:?}", c.kind)),
            _ => None,
        })
        .collect();
    if program.mesh.microbatches() > 1 {
        kinds.push("micro-batches".into());
    }
    kinds.sort();
    kinds.dedup();
    for kind in kinds {
        *coverage.collectives.entry(kind).or_default() += 1;
    }
}

/// Tolerances: f64 1e-10; f32 1e-5 for loss and norm, 1e-4 of the global norm for each gradient, and of a running statistic.
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
    for (name, values) in &want.statistics {
        let size = values.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
        if values.iter().zip(&got.statistics[name]).any(|(a, b)| (a - b).is_nan() || (a - b).abs() > gradient * size) {
            return Err(format!("the statistic {name} is {:?}, the reference has {values:?}", got.statistics[name]));
        }
    }
    Ok(())
}

fn wave(n: u64, seed: f64) -> Vec<f64> {
    (0..n).map(|i| ((i as f64 + 0.5) * seed * 12.9898).sin() * 0.8).collect()
}

fn tensor(dtype: DType, shape: &[u64], values: &[f64]) -> Tensor {
    Tensor::from_f64(shape, values).cast(dtype)
}

fn random_states(graph: &Graph) -> BTreeMap<String, Tensor> {
    let make = |(i, s): (usize, &shardc_ir::graph::State)| {
        let mut values = wave(s.ty.elements(), 1.0 + i as f64 * 0.37);
        if s.role == StateRole::Statistic {
            // A variance is positive.
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        (s.name.clone(), tensor(s.ty.dtype, &s.ty.shape, &values))
    };
    graph.states.iter().enumerate().map(make).collect()
}

fn random_inputs(program: &shardc_ir::plan::Program, graph: &Graph) -> BTreeMap<String, Tensor> {
    let y = graph.ty(graph.outputs[0].value).clone();
    let mut inputs = BTreeMap::new();
    for input in &program.inputs {
        let buffer = &program.buffers[input.buffer.index()];
        let n: u64 = buffer.shape.iter().product();
        let value = match buffer.dtype {
            DType::I64 => {
                let high = input.range.map_or(y.shape[y.rank() - 1], |(_, high)| high as u64);
                Tensor::from_i64(&buffer.shape, &(0..n).map(|i| ((i * 7 + 3) % high) as i64).collect::<Vec<_>>())
            }
            dtype => tensor(dtype, &buffer.shape, &wave(n, 2.3)),
        };
        inputs.insert(input.name.clone(), value);
    }
    inputs
}

#[test]
fn the_batch_of_random_graphs_divides() {
    assert_eq!(BATCH % 8, 0);
    let model = graphs::draw(&mut Choices::new(vec![3; 100]), DType::F32);
    assert!(model.graph.nodes().any(|(_, n)| matches!(n.op, Op::Contract(_))));
}
