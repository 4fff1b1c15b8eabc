//! The masks of dropout: the same to the bit under every mesh and any number of micro-batches,
//! others at every step and in every dropout, as asked for by seed, and none in evaluation.

use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_ir::graph::{Graph, Output};
use shardc_ir::kernel::Kernel;
use shardc_ir::philox::{threshold, word};
use shardc_ir::text::parse;
use shardc_passes::{Context, Mode, planning};
use shardc_testkit::step;
use std::collections::BTreeMap;
use std::sync::Arc;

const GRAPH: &str = r#"graph @drop  phase imported
  state "w" : f64[6, 8]  parameter init=model
  %x  = input "x"                                  : f64[8, 4, 6]
  %w  = state "w"                                  : f64[6, 8]
  %a, %seen = dropout ratio=0.25 stream=1 %x       : (f64[8, 4, 6], bool[8, 4, 6])
  %h  = contract "btk,kn->btn" %a, %w              : f64[8, 4, 8]
  %y, %kept = dropout ratio=0.5 stream=2 %h        : (f64[8, 4, 8], bool[8, 4, 8])
  output "y" %y
"#;

const MESHES: [&str; 6] = [
    "batch 8",
    "mesh dp=2\nbatch 8\ndata axis=dp",
    "batch 8 microbatches=4",
    "mesh dp=4\nbatch 8 microbatches=2\ndata axis=dp",
    "mesh tp=2\nbatch 8\nshard \"w\" [-, 2*tp]",
    "mesh dp=2 tp=2\nbatch 8 microbatches=2\ndata axis=dp\nshard \"w\" [-, tp]",
];

fn graph() -> Graph {
    parse(GRAPH).expect("the graph parses")
}

fn spec(mesh: &str, seed: u64) -> shardc_ir::spec::Spec {
    let text = format!("{mesh}\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\nseed {seed}\n");
    step::spec(&text).expect("the spec parses")
}

/// The masks by name, at each of two steps.
fn masks(mesh: &str, seed: u64) -> Vec<BTreeMap<String, Vec<u8>>> {
    let spec = spec(mesh, seed);
    let cx = Context { spec: &spec, mode: Mode::Train, verify: true };
    let mut graph = shardc_passes::run(graph(), &cx).expect("the graph compiles");
    for name in ["seen", "kept"] {
        let value = graph.named(name).expect("the mask keeps its name");
        graph.outputs.push(Output { name: name.into(), value });
    }
    let program = planning::plan(&graph, &cx).expect("the graph is planned").into_first();
    shardc_ir::verify_plan::verify(&program, &graph).expect("the plan is right");
    let mut executor = Executor::new(program.clone(), 1).expect("the program loads");
    let wave = |shape: &[u64]| {
        let n: u64 = shape.iter().product();
        Tensor::from_f64(shape, &(0..n).map(|i| (i as f64).sin()).collect::<Vec<_>>())
    };
    executor.set_state("w", &wave(&[6, 8])).expect("states fit");
    let shapes = program.inputs.iter().map(|input| &program.buffers[input.buffer.index()].shape);
    let batch: Arc<Vec<Tensor>> = Arc::new(shapes.map(|shape| wave(shape)).collect());
    let mut step = || {
        let outputs = executor.step(batch.clone()).expect("the step runs").outputs;
        ["seen", "kept"].map(|name| (name.to_string(), outputs[name].bytes.clone())).into_iter().collect()
    };
    vec![step(), step()]
}

#[test]
fn masks_are_the_same_under_every_mesh() {
    for mesh in MESHES {
        for (seed, steps) in [(7u64, masks(mesh, 7)), (8, masks(mesh, 8))] {
            for (step, masks) in steps.iter().enumerate() {
                for (name, stream, ratio) in [("seen", 1, 0.25), ("kept", 2, 0.5)] {
                    let expected: Vec<u8> = (0..masks[name].len() as u64)
                        .map(|i| u8::from(word(i, seed, stream, step as u64 + 1) >= threshold(ratio)))
                        .collect();
                    assert_eq!(masks[name], expected, "{name} at step {step} under {mesh}");
                }
            }
        }
    }
}

#[test]
fn evaluation_draws_nothing() {
    for mesh in MESHES {
        let spec = spec(mesh, 7);
        let cx = Context { spec: &spec, mode: Mode::Evaluate, verify: true };
        let program = shardc_passes::compile(graph(), &cx).expect("the graph compiles").into_first();
        let mut steps = program.tasks.iter().flat_map(|t| &t.steps);
        assert!(!steps.any(|s| matches!(s.kernel, Kernel::Random(_))), "{mesh}");
    }
}

/// A value that the spec names stays, and is what went in.
#[test]
fn a_named_dropout_stays_in_evaluation() {
    let spec = spec("mesh tp=2\nbatch 8\nshard \"a\" [-, -, tp]", 7);
    let cx = Context { spec: &spec, mode: Mode::Evaluate, verify: true };
    let graph = shardc_passes::run(graph(), &cx).expect("the graph compiles");
    let ops: Vec<&str> = graph.nodes().map(|(_, node)| node.op.name()).filter(|name| *name == "dropout").collect();
    assert_eq!(ops.len(), 1);
}
