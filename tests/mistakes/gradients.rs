//! Gradients that are a little wrong, and differences of the loss that tell nothing of them.

use super::support::folder;
use super::{Mistake, found, jobs};
use prost::Message;
use shardc::certify::{Subject, certify};
use shardc::{Options, compile, derive};
use shardc_frontend::spec;
use shardc_ir::builder::Builder;
use shardc_ir::graph::Graph;
use shardc_testkit::onnx;
use std::fs;
use std::path::Path;
use tract_onnx::pb::tensor_proto::DataType;

/// The graph with another gradient of one of its state variables.
fn with_gradient_times(factor: f64, training: &Graph, state: usize) -> Graph {
    let mut b = Builder::extend(training.clone());
    let scaled = b.scale(training.states[state].gradient.expect("it is trained"), factor);
    b.graph_mut().states[state].gradient = Some(scaled);
    b.finish()
}

/// Parameters are tried in groups: of each the gradient is made a little too large, and is named.
#[test]
fn the_gradient_that_is_a_little_wrong_is_named() {
    let job = jobs::all().into_iter().find(|job| job.name == "gpt2").expect("there is one");
    let training = job.graphs.reference.as_ref().expect("it trains");
    let parameters: Vec<usize> = (0..training.states.len()).filter(|i| training.states[*i].gradient.is_some()).collect();
    assert!(parameters.len() >= 24, "some move together");
    for parameter in parameters {
        let (eval, spec) = (job.graphs.programs.eval.clone(), job.text.clone());
        let mistake = Mistake { training: with_gradient_times(1.01, training, parameter), eval, spec, what: String::new() };
        let name = &training.states[parameter].name;
        let why = found(&job, &mistake, name).unwrap_or_else(|| panic!("nothing is said of `{name}`"));
        assert!(why.starts_with(&format!("the gradient of `{name}` says ")), "{name}: {why}");
    }
}

/// Where runs are too dear to halve a group until one parameter is left, the group is named.
#[test]
fn what_is_wrong_in_a_group_is_told_however_few_runs_are_left() {
    let mut model = onnx::model(20);
    onnx::input(&mut model, "x", DataType::Float, &[192, 1024]);
    onnx::initializer(&mut model, onnx::weight("W", &[1024, 1024], 1));
    onnx::node(&mut model, "MatMul", "x W", "h0", vec![]);
    for i in 0..48 {
        onnx::initializer(&mut model, onnx::weight(&format!("b{i}"), &[1024], i + 2));
        onnx::node(&mut model, "Add", &format!("h{i} b{i}"), &format!("h{}", i + 1), vec![]);
    }
    onnx::node(&mut model, "Tanh", "h48", "y", vec![]);
    onnx::output(&mut model, "y");
    let file = folder("mistakes-groups").join("model.onnx");
    fs::write(&file, model.encode_to_vec()).expect("a file can be written");
    let text = "batch 192\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";
    let spec = spec::parse(Path::new("job.shard"), text).expect("a good spec");
    let (graphs, imported) = derive(&file, &spec, &Options::default()).expect("it can be compiled");
    let training = graphs.reference.expect("it trains");
    let certified = |reference: &Graph| {
        certify(&Subject {
            reference: Some(reference),
            eval: &graphs.programs.eval,
            imported: &imported,
            model: &file,
            spec: &spec,
            learning_rate: spec.learning_rate(),
        })
    };
    let good = certified(&training).expect("nothing is wrong");
    assert!(good.certified.iter().any(|finding| finding.what == "gradients"), "{good:?}");
    for name in ["b0", "b5", "b10"] {
        let state = training.states.iter().position(|state| state.name == name).expect("a parameter");
        let why = certified(&with_gradient_times(1.5, &training, state)).expect_err(name).to_string();
        assert!(why.starts_with("the gradient") && why.contains("where the loss gains"), "{name}: {why}");
    }
}

/// Beside a large number, or on a steep wave, no difference of the loss says what a parameter does:
/// that proves nothing of its gradient.
#[test]
fn differences_that_agree_on_nothing_are_a_doubt() {
    let here = folder("mistakes-doubts");
    for (name, number) in [("large", 1e10), ("larger", 1e20), ("steep", 1e6)] {
        let mut model = onnx::model(20);
        onnx::input(&mut model, "x", DataType::Float, &[4, 8]);
        onnx::initializer(&mut model, onnx::floats("W", &[8, 4], &[0.25; 32]));
        onnx::initializer(&mut model, onnx::floats("number", &[], &[number]));
        onnx::node(&mut model, "MatMul", "x W", "h", vec![]);
        if name == "steep" {
            onnx::node(&mut model, "Mul", "h number", "turns", vec![]);
            onnx::node(&mut model, "Sin", "turns", "y", vec![]);
        } else {
            onnx::node(&mut model, "Add", "h number", "y", vec![]);
        }
        onnx::output(&mut model, "y");
        let file = here.join(format!("{name}.onnx"));
        fs::write(&file, model.encode_to_vec()).unwrap();
        let text = "batch 4\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";
        let spec = spec::parse(Path::new("job.shard"), text).unwrap_or_else(|e| panic!("{e:?}"));
        let options = Options { train: true, certify: true, ..Options::default() };
        let compiled = compile(&file, &spec, &options).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let said: Vec<String> = compiled.warnings.iter().map(|warning| warning.message.clone()).collect();
        assert!(said.iter().any(|said| said.contains("the gradient of `W` is held against nothing")), "{name}: {said:?}");
    }
}
