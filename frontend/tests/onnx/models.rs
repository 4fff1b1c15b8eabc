//! Whole models: they import, the right initializers are trained, and the graph computes what ONNX
//! Runtime computes.

use serde_json::Value;
use shardc_frontend::onnx::{ImportOptions, Imported, import};
use shardc_ir::dtype::DType;
use shardc_ir::interp::{self, Feed};
use shardc_ir::plan::StateRole;
use shardc_ir::types::{Tensor, Type};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Models, from both exporters: folder, batch.
const OWN: [(&str, u64); 7] =
    [("mlp", 32), ("gpt2", 8), ("gpt2-folded", 8), ("llama", 8), ("bert", 8), ("inception", 16), ("vit", 8)];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models").join(name)
}

fn json(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn imported(name: &str, batch: u64, dtype: Option<DType>) -> Imported {
    let options = ImportOptions { batch: Some(batch), dtype, ..ImportOptions::default() };
    import(&folder(name).join("model.onnx"), &options).unwrap_or_else(|errors| panic!("{name}: {errors:#?}"))
}

#[test]
fn trained_sets_are_those_of_the_gold_runs() {
    for (name, batch) in OWN.into_iter().chain([("resnet", 16)]) {
        let gold = json(folder(name).join("gold.json"));
        let expected: BTreeSet<String> =
            gold["onnx_name"].as_object().unwrap().values().map(|v| v.as_str().unwrap().to_string()).collect();
        let imported = imported(name, batch, None);
        let trained: BTreeSet<String> = imported.decisions.iter().filter(|d| d.trained).map(|d| d.name.clone()).collect();
        assert_eq!(trained, expected, "{name}");
        let learned = imported.graph.states.iter().filter(|s| s.role != StateRole::Statistic);
        let states: BTreeSet<String> = learned.map(|s| s.name.clone()).collect();
        assert_eq!(states, expected, "{name}");
    }
}

#[test]
fn graphs_compute_the_logits_of_onnx_runtime() {
    for (name, batch) in OWN {
        let gold = json(folder(name).join("logits.json"));
        let shape: Vec<u64> = numbers(&gold["shape"]).iter().map(|n| *n as u64).collect();
        let dtype = if gold["dtype"] == "int64" { DType::I64 } else { DType::F64 };
        let imported = imported(name, batch, Some(DType::F64));
        let mut feed = Feed::default();
        feed.inputs.insert("x".into(), Tensor::from_f64(Type::new(dtype, shape), &numbers(&gold["x"])));
        for (name, weight) in &imported.weights {
            feed.states.insert(name.clone(), weight.load().unwrap());
        }
        let outputs = interp::outputs(&imported.graph, &feed).unwrap();
        let logits = &outputs["logits"];
        assert_eq!(logits.ty.shape, numbers(&gold["logits_shape"]).iter().map(|n| *n as u64).collect::<Vec<_>>());
        let values = logits.to_f64();
        let (first, last) = (numbers(&gold["logits"]), numbers(&gold["last"]));
        let (ours_first, ours_last) = (&values[..first.len()], &values[values.len() - last.len()..]);
        for (ours, theirs) in ours_first.iter().chain(ours_last).zip(first.iter().chain(&last)) {
            assert!((ours - theirs).abs() < 1e-4, "{name}: {ours_first:?} {ours_last:?} for {first:?} {last:?}");
        }
    }
}
