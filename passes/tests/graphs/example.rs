//! The small program of the documentation, all the way, under several meshes.

use shardc_executor::tensor::Tensor;
use shardc_ir::text::parse;
use shardc_testkit::step;
use std::collections::BTreeMap;

const GRAPH: &str = r#"graph @mlp  phase imported
  state "w1" : f64[4, 16]  parameter init=model
  state "w2" : f64[16, 4]  parameter init=model
  state "b2" : f64[4]  parameter init=model
  %x  = input "x"                     : f64[8, 4]
  %w1 = state "w1"                    : f64[4, 16]
  %w2 = state "w2"                    : f64[16, 4]
  %b2 = state "b2"                    : f64[4]
  %h  = contract "bk,kn->bn" %x, %w1  : f64[8, 16]
  %a  = gelu_tanh %h                  : f64[8, 16]
  %p  = contract "bn,nm->bm" %a, %w2  : f64[8, 4]
  %y  = add %p, %b2                   : f64[8, 4]
  output "y" %y
"#;

fn wave(n: usize, seed: f64) -> Vec<f64> {
    (0..n).map(|i| ((i as f64 + 1.0) * seed).sin()).collect()
}

fn run(mesh: &str) -> step::Computed {
    let text = format!("{mesh}\nloss mse prediction=y labels=t\noptimizer adamw lr=0.1\nclip norm=0.5\n");
    let spec = step::spec(&text).expect("the spec parses");
    let graph = parse(GRAPH).expect("the graph parses");
    let program = step::programs(&graph, &spec).expect("the program compiles");
    let states = BTreeMap::from([
        ("w1".to_string(), Tensor::from_f64(&[4, 16], &wave(64, 0.37))),
        ("w2".to_string(), Tensor::from_f64(&[16, 4], &wave(64, 0.73))),
        ("b2".to_string(), Tensor::from_f64(&[4], &wave(4, 0.11))),
    ]);
    let inputs = BTreeMap::from([
        ("x".to_string(), Tensor::from_f64(&[8, 4], &wave(32, 0.53))),
        ("t".to_string(), Tensor::from_f64(&[8, 4], &wave(32, 0.19))),
    ]);
    step::step(&program, &states, &inputs)
}

#[test]
fn every_mesh_computes_what_one_device_does() {
    let reference = run("batch 8");
    for mesh in [
        "batch 8 microbatches=2",
        "mesh dp=2\nbatch 8\ndata axis=dp",
        "mesh tp=2\nbatch 8\nshard \"w1\" [-, tp]\nshard \"w2\" [tp, -]",
        "mesh dp=2 tp=2\nbatch 8 microbatches=2\ndata axis=dp\nshard \"w1\" [-, tp]\nshard \"w2\" [tp, -]",
        "mesh tp=4\nbatch 8\nshard \"w1\" [tp, -]\nshard \"b2\" [tp]",
    ] {
        let other = run(mesh);
        for (name, value) in &reference.outputs {
            assert!((value - other.outputs[name]).abs() <= 1e-12 * value.abs(), "{mesh}: {name} {value} {}", other.outputs[name]);
        }
        for (name, values) in &reference.gradients {
            for (a, b) in values.iter().zip(&other.gradients[name]) {
                assert!((a - b).abs() <= 1e-12, "{mesh}: {name} {a} {b}");
            }
        }
    }
}
