//! The examples of the page compile, and its defaults are those of the compiler.

use crate::page::{Fence, code, forms, only_code, page, sections};
use crate::support::{example, folder};
use crate::{file, read};
use prost::Message;
use serde_json::Value;
use shardc::{Compiled, Options, compile};
use shardc_frontend::spec::statement_kinds;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::spec::Spec;
use shardc_testkit::onnx::{floats, initializer, input, model, node, output};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Size;

/// A spec without the places of its parts.
pub(crate) fn said(text: &str) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.remove("source");
                map.values_mut().for_each(strip);
            }
            Value::Array(list) => list.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let spec = read(&file(text)).unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
    let mut value = serde_json::to_value(spec).expect("JSON");
    strip(&mut value);
    value
}

#[test]
fn every_default_is_true() {
    let mut checked = 0;
    for section in sections() {
        for form in forms(&section) {
            for (option, (_, cell)) in &form.rows {
                let Some(default) = only_code(cell) else { continue };
                let line = form.without(option);
                assert_eq!(
                    said(&line),
                    said(&format!("{line} {option}={default}")),
                    "`{option}` of `{}` is `{default}`",
                    form.title
                );
                checked += 1;
            }
        }
    }
    assert!(checked >= 25, "{checked} defaults");
}

/// If the page says that a job without a statement is that of a line, it is.
#[test]
fn what_holds_without_a_statement_is_true() {
    let mut checked = 0;
    for section in sections() {
        let (_, after) = section.text.split_once("Without it, ").expect("what holds without it");
        let sentence = after.split(". ").next().expect("a sentence");
        let Some(line) = code(sentence).into_iter().find(|word| word.starts_with(&format!("{} ", section.name))) else {
            continue;
        };
        let model = Model::named("digits");
        let (without, with) = (model.compile(&[]), model.compile(&[&line]));
        let programs = |compiled: Compiled| compiled.plans.map(|plan| plan.programs);
        assert_eq!(programs(without), programs(with), "`{line}`");
        checked += 1;
    }
    assert_eq!(checked, 2, "schedule and seed");
}

/// A model that examples are for, and the lines that a job of it has where an example does not say
/// otherwise.
struct Model {
    file: PathBuf,
    lines: &'static [&'static str],
}

impl Model {
    fn named(name: &str) -> Model {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
        let (file, lines): (PathBuf, &[&str]) = match name {
            "digits" => {
                (example("digits/model.onnx").into(), &["batch 64", "loss cross_entropy labels=y", "optimizer sgd lr=0.1"])
            }
            "tiny-gpt" => (
                example("tiny-gpt/model.onnx").into(),
                &["batch 8", "loss cross_entropy labels=targets", "optimizer adamw lr=1e-3"],
            ),
            "grouped" => (tests.join("grouped/model.onnx"), &["batch 8", "loss cross_entropy labels=y", "optimizer sgd lr=0.1"]),
            "batchnorm" => {
                (tests.join("batchnorm/model.onnx"), &["batch 32", "loss cross_entropy labels=y", "optimizer sgd lr=0.1"])
            }
            "own-loss" => (tests.join("losses/own-rms.onnx"), &["batch 8", "optimizer sgd lr=0.1"]),
            "exported" => (
                exported(),
                &[
                    "batch 4",
                    "bind seq=8",
                    "loss cross_entropy labels=y",
                    "optimizer sgd lr=0.1",
                    "tie \"wte.weight\" \"onnx::MatMul_364\"^T",
                    "untie \"*\"",
                ],
            ),
            other => panic!("which model is `{other}`?"),
        };
        Model { file, lines }
    }

    /// The job with these lines, in the place of its own lines of the same statements.
    fn compile(&self, lines: &[&str]) -> Compiled {
        let given: BTreeSet<&str> = lines.iter().filter_map(|line| line.split_whitespace().next()).collect();
        let own = self.lines.iter().filter(|line| !given.contains(line.split(' ').next().unwrap_or_default()));
        let text: String = own.chain(lines).map(|line| format!("{line}\n")).collect();
        let told =
            |errors: Diagnostics| -> Spec { panic!("{text}\n{}", errors.iter().map(|e| format!("{e}\n")).collect::<String>()) };
        let spec = read(&text).unwrap_or_else(told);
        compile(&self.file, &spec, &Options::default()).unwrap_or_else(|errors| panic!("{text}\n{errors:#?}"))
    }
}

/// A small language model as exporters write it: symbolic sizes, a head that is the transpose of
/// the embedding, two norms with one scale, and logits scaled by a number.
fn exported() -> PathBuf {
    const WORDS: usize = 12;
    const WIDTH: usize = 4;
    let mut model = model(17);
    input(&mut model, "tokens", DataType::Int64, &[-1, -2]);
    name_dimensions(&mut model, ["batch", "seq"]).expect("an input with a shape");
    let table: Vec<f32> = (0..WORDS * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
    let turned: Vec<f32> = (0..WORDS * WIDTH).map(|i| table[i % WORDS * WIDTH + i / WORDS]).collect();
    let (words, width) = (WORDS as i64, WIDTH as i64);
    for tensor in [
        floats("wte.weight", &[words, width], &table),
        floats("norm.weight", &[width], &[1.0; WIDTH]),
        floats("onnx::MatMul_364", &[width, words], &turned),
        floats("logit_scale", &[], &[2.0]),
    ] {
        initializer(&mut model, tensor);
    }
    for (op, inputs, output) in [
        ("Gather", "wte.weight tokens", "embedded"),
        ("LayerNormalization", "embedded norm.weight", "first"),
        ("Relu", "first", "active"),
        ("LayerNormalization", "active norm.weight", "second"),
        ("MatMul", "second onnx::MatMul_364", "product"),
        ("Mul", "product logit_scale", "logits"),
    ] {
        node(&mut model, op, inputs, output, vec![]);
    }
    output(&mut model, "logits");
    let file = folder(&format!("spec-page-{:?}", std::thread::current().id())).join("model.onnx");
    fs::write(&file, model.encode_to_vec()).expect("the model is written");
    file
}

/// Makes the dimensions of the first input symbols.
fn name_dimensions(model: &mut pb::ModelProto, names: [&str; 2]) -> Option<()> {
    let pb::type_proto::Value::TensorType(tensor) = model.graph.as_mut()?.input[0].r#type.as_mut()?.value.as_mut()?;
    for (dim, name) in tensor.shape.as_mut()?.dim.iter_mut().zip(names) {
        dim.value = Some(Size::DimParam(name.to_string()));
    }
    Some(())
}

/// The jobs of a fence: lines of a statement that may come once are alternatives where there are
/// several.
pub(crate) fn jobs(fence: &Fence) -> Vec<Vec<&'static str>> {
    let lines: Vec<&str> = fence.lines.iter().copied().filter(|line| !line.trim().is_empty()).collect();
    let word = |line: &str| line.split_whitespace().next().unwrap_or_default().to_string();
    let once = |line: &str| statement_kinds().any(|kind| kind.name == word(line) && !kind.repeats);
    let same = |line: &str| lines.iter().filter(|other| word(other) == word(line)).count();
    let number = lines.iter().filter(|line| once(line)).map(|line| same(line)).max().unwrap_or(1);
    let job = |n: usize| {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let taken = |line: &&&str| {
            let count = seen.entry(word(line)).or_default();
            *count += 1;
            !once(line) || same(line) == 1 || *count == n + 1
        };
        lines.iter().filter(taken).copied().collect()
    };
    (0..number).map(job).collect()
}

#[test]
fn every_example_compiles() {
    let (whole, sections) = page();
    assert!(whole.len() >= 2, "a job for one rank, and one for several");
    for fence in &whole {
        let job = read(&fence.lines.join("\n")).expect("a spec");
        assert_eq!(job.require_training(), Ok(()), "the first jobs are whole");
    }
    let mut compiled = 0;
    for fence in whole.iter().chain(sections.iter().flat_map(|section| &section.fences)) {
        let model = Model::named(fence.model);
        for job in jobs(fence) {
            model.compile(&job);
            compiled += 1;
        }
        assert!(fence.lines.iter().all(|line| line.chars().count() <= 96), "a terminal shows it indented by 4");
    }
    assert!(compiled > 30, "{compiled} jobs");
}
