//! The gradient of every ONNX op, as it is imported: the compiled program against finite
//! differences of the naive evaluator in f64, on the cases of `testkit/src/onnx/cases.json`.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use serde_json::Value;
use shardc_executor::run::Executor;
use shardc_frontend::onnx::{ImportOptions, Imported};
use shardc_ir::dtype::DType;
use shardc_ir::interp::{self, Feed};
use shardc_ir::plan::set::Name;
use shardc_ir::types::Tensor;
use shardc_passes::{Context, Mode};
use shardc_testkit::onnx::cases::{self, attribute, read};
use shardc_testkit::onnx::*;
use std::path::Path;
use std::sync::Arc;
use tract_onnx::pb;

/// The step of the differences.
const STEP: f64 = 1e-5;

/// More elements than this are a sample of them.
const MAX_ELEMENTS: usize = 64;

/// Whether an input of a case is a parameter here: floats that need not be known.
fn is_parameter(input: &Value) -> bool {
    input["dtype"] == "f32" && input["known"] != true
}

/// The case with its floats as initializers, and the sum of its float outputs, each element
/// weighted differently, as the loss.
fn model_of(case: &Value) -> Option<pb::ModelProto> {
    let (inputs, outputs) = (case["inputs"].as_array().unwrap(), case["outputs"].as_array().unwrap());
    if !inputs.iter().any(is_parameter) || !outputs.iter().any(|o| o["dtype"] == "f32") {
        return None;
    }
    let mut m = model(case["opset"].as_i64().unwrap());
    let mut names = vec![];
    for (i, value) in inputs.iter().enumerate() {
        names.push(match value {
            Value::Null => "-".to_string(),
            value if is_parameter(value) => format!("i{i}"),
            _ => format!("c{i}"),
        });
        if is_parameter(value) {
            initializer(&mut m, proto(&names[i], &read(value)));
        } else if !value.is_null() {
            node(&mut m, "Constant", "", &names[i], vec![tensor("value", proto("", &read(value)))]);
        }
    }
    let results: Vec<String> = (0..outputs.len()).map(|i| format!("o{i}")).collect();
    let attributes = case["attributes"].as_object().unwrap().iter().map(|(name, v)| attribute(name, v)).collect();
    node(&mut m, case["op"].as_str().unwrap(), &names.join(" "), &results.join(" "), attributes);
    let mut terms = vec![];
    // Statistics of normalisations are no results that a loss may read.
    let count = if case["op"].as_str().unwrap().ends_with("Normalization") { 1 } else { outputs.len() };
    for (i, value) in outputs[..count].iter().enumerate().filter(|(_, value)| value["dtype"] == "f32") {
        let ty = read(value).ty;
        let weights: Vec<f64> = (0..ty.elements()).map(|i| (i as f64 * 0.7 + 0.3).sin() + 0.1).collect();
        node(&mut m, "Constant", "", &format!("w{i}"), vec![tensor("value", proto("", &Tensor::from_f64(ty, &weights)))]);
        node(&mut m, "Mul", &format!("o{i} w{i}"), &format!("p{i}"), vec![]);
        node(&mut m, "ReduceSum", &format!("p{i}"), &format!("s{i}"), vec![int("keepdims", 0)]);
        terms.push(format!("s{i}"));
    }
    node(&mut m, "Sum", &terms.join(" "), "loss", vec![]);
    output(&mut m, "loss");
    Some(m)
}

/// The gradient of each parameter, as the compiled program gives it: 0 where nothing flows back.
fn gradients(imported: &Imported) -> Vec<(String, Vec<f64>)> {
    let text = "mesh d=1\nbatch 1\nloss output=loss\noptimizer sgd lr=1\n";
    let spec = shardc_frontend::spec::parse(Path::new("job.shard"), text).unwrap();
    let cx = Context { spec: &spec, mode: Mode::Train, verify: true };
    let program = match shardc_passes::compile(imported.graph.clone(), &cx).map(|programs| programs.into_first()) {
        Ok(program) => program,
        Err(errors) if errors[0].message == "the loss depends on no trained parameter" => {
            return imported.weights.iter().map(|(name, w)| (name.clone(), vec![0.0; w.ty.elements() as usize])).collect();
        }
        Err(errors) => panic!("{errors:#?}"),
    };
    let mut executor = Executor::new(program, 1).unwrap();
    executor.initialise(|name| imported.weights.get(name).map(|w| w.load().unwrap().into())).unwrap();
    executor.step(Arc::new(vec![])).unwrap();
    let gradient = |name| match &name {
        Name::Gradient(of) => Some((of.clone(), executor.read(&name).unwrap().to_f64())),
        _ => None,
    };
    executor.programs().names().into_iter().filter_map(gradient).collect()
}

/// The loss with one element of one parameter moved.
fn loss(imported: &Imported, states: &Feed, name: &str, element: usize, by: f64) -> f64 {
    let mut feed = states.clone();
    let moved = feed.states.get_mut(name).unwrap();
    let mut values = moved.to_f64();
    values[element] += by;
    *moved = Tensor::from_f64(moved.ty.clone(), &values);
    interp::outputs(&imported.graph, &feed).map_or(f64::NAN, |outputs| outputs["loss"].to_f64()[0])
}

#[test]
fn gradients_of_imported_ops_agree_with_finite_differences() {
    let (mut checked, mut kinks, mut wrong) = (0, 0, vec![]);
    for case in &cases::all() {
        let Some(model) = model_of(case) else { continue };
        let train = |name: &str| name.starts_with('i');
        let options = ImportOptions { dtype: Some(DType::F64), train: &train, freeze: &|_| true, ..ImportOptions::default() };
        let imported = import_model(&model, &options).unwrap_or_else(|errors| panic!("{}: {errors:#?}", case["name"]));
        let mut feed = Feed::default();
        for (name, weight) in &imported.weights {
            feed.states.insert(name.clone(), weight.load().unwrap());
        }
        for (name, gradient) in gradients(&imported) {
            let every = gradient.len().div_ceil(MAX_ELEMENTS).max(1);
            for i in (0..gradient.len()).step_by(every) {
                let [low, middle, high] = [-STEP, 0.0, STEP].map(|by| loss(&imported, &feed, &name, i, by));
                let (left, right) = ((middle - low) / STEP, (high - middle) / STEP);
                let scale = 1.0 + left.abs().max(right.abs());
                if !left.is_finite() || !right.is_finite() || (left - right).abs() > 1e-3 * scale {
                    kinks += 1;
                } else if (gradient[i] - (left + right) / 2.0).abs() > 1e-5 * scale {
                    wrong.push(format!("{} `{name}`[{i}]: {} is not {left}..{right}", case["name"], gradient[i]));
                } else {
                    checked += 1;
                }
            }
        }
    }
    println!("{checked} slopes agree, {kinks} are at kinks");
    assert!(wrong.is_empty(), "{} slopes: {wrong:#?}", wrong.len());
    assert!(checked > 1500, "{checked} slopes checked");
}
