//! Evaluation as a library: one executor evaluates as often as it is asked, with the states that it
//! has by then; accuracy and perplexity are those that the outputs give.

use crate::support::{example, folder, shardc};
use serde_json::Value;
use shardc::evaluation::{Evaluation, Score};
use shardc::{Compiled, EvaluationFacts, Options};
use shardc_executor::data::{Dataset, Options as DataOptions, input_specs, read_npz, write_npz};
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_frontend::spec;
use shardc_ir::spec::Spec;
use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::Arc;

const DIGITS: &str = "batch 100\nloss cross_entropy labels=y\n";

/// A job that evaluates, and an executor of it without weights.
fn job(model: &str, lines: &str) -> (Compiled, Spec, Executor) {
    let spec = spec::parse(Path::new("job.shard"), lines).expect("the spec is good");
    let options = Options { train: false, ..Options::default() };
    let compiled = shardc::compile(Path::new(&example(model)), &spec, &options).expect("the job compiles");
    let executor = Executor::new(compiled.plans.eval.programs.clone(), 1).expect("the program loads");
    (compiled, spec, executor)
}

fn evaluation(compiled: &Compiled, spec: &Spec) -> Evaluation {
    let eval = &compiled.plans.eval;
    Evaluation::new(spec, &eval.programs, EvaluationFacts::of(&eval.graph, spec))
}

fn data(executor: &Executor, path: &str) -> Dataset {
    let inputs = input_specs(executor.programs());
    Dataset::open(Path::new(&example(path)), inputs, 1, &DataOptions::default()).expect("the data fits")
}

/// The model's own states, or all zero.
fn set(executor: &mut Executor, compiled: &Compiled, zero: bool) {
    let weight = |name: &str| {
        let weight = Tensor::from(compiled.weights[name].load().expect("a weight"));
        Some(if zero { Tensor::zeros(weight.dtype, &weight.shape) } else { weight })
    };
    executor.initialise(weight).expect("the weights fit");
}

#[test]
fn one_executor_evaluates_whenever_its_states_change() {
    let (compiled, spec, mut executor) = job("digits/model.onnx", DIGITS);
    let data = data(&executor, "digits/test.npz");
    let mut evaluation = evaluation(&compiled, &spec);
    let mut run = |executor: &mut Executor| {
        let totals = evaluation.run(executor, &data, || false).expect("no rank fails").expect("nothing stops it");
        assert_eq!((totals.samples, totals.left), (512, 0), "the last 12 samples are filled up");
        evaluation.score(&totals)
    };
    set(&mut executor, &compiled, false);
    let first = run(&mut executor);
    assert_eq!(run(&mut executor), first);
    // All logits are equal, and the first of them is the largest.
    set(&mut executor, &compiled, true);
    let zero = run(&mut executor);
    let arrays = read_npz(fs::File::open(example("digits/test.npz")).expect("a file")).expect("arrays");
    let zeros = arrays["y"].to_i64().iter().filter(|label| **label == 0).count();
    assert_eq!((zero.labels, zero.accuracy, zero.perplexity), (Some(512), Some(zeros as f64 / 512.0), None));
    assert!((zero.loss.expect("a loss") - 10f64.ln()).abs() < 1e-6, "{zero:?}");
    set(&mut executor, &compiled, false);
    assert_eq!(run(&mut executor), first);
    let asked = Cell::new(0);
    let stop = || asked.replace(asked.get() + 1) == 2;
    assert!(evaluation.run(&mut executor, &data, stop).expect("no rank fails").is_none());
    assert_eq!(asked.get(), 3, "it is asked before each step");
}

/// Several labels a sample: a model that knows nothing is as uncertain as its classes are many.
#[test]
fn tokens_have_a_perplexity() {
    let lines = "batch 8\nloss cross_entropy logits=logits labels=targets";
    for (more, measured) in [("\n", true), (" label_smoothing=0.1\n", false)] {
        let (compiled, spec, mut executor) = job("tiny-gpt/model.onnx", &format!("{lines}{more}"));
        let data = data(&executor, "tiny-gpt/corpus.txt");
        set(&mut executor, &compiled, true);
        let mut evaluation = evaluation(&compiled, &spec);
        let totals = evaluation.run(&mut executor, &data, || false).expect("no rank fails").expect("nothing stops it");
        let Score { loss, labels, accuracy, perplexity } = evaluation.score(&totals);
        assert_eq!((labels, accuracy, perplexity.is_some()), (Some(data.samples() * 64), None, measured));
        assert!((loss.expect("a loss").exp() - 256.0).abs() < 0.01 && (perplexity.unwrap_or(256.0) - 256.0).abs() < 0.01);
    }
}

/// `eval` prints the share that its own outputs give, of the labels that count.
#[test]
fn accuracy_is_that_of_the_outputs() {
    let here = folder("accuracy");
    let mut arrays = read_npz(fs::File::open(example("digits/test.npz")).expect("a file")).expect("arrays");
    let mut labels = arrays["y"].to_i64();
    labels.iter_mut().step_by(7).for_each(|label| *label = -1);
    arrays.insert("y".to_string(), Tensor::from_i64(&[512], &labels));
    write_npz(&here.join("data.npz"), &arrays).expect("data is written");
    let model = example("digits/model.onnx");
    let counted = labels.iter().filter(|label| **label >= 0).count();
    for batch in ["batch 100", "batch 64", "mesh tp=2\nbatch 100\nshard \"fc3.weight\" [tp, -]"] {
        fs::write(here.join("job.shard"), format!("{batch}\nloss cross_entropy labels=y ignore_index=-1\n")).expect("a spec");
        let arguments = ["eval", &model, "--spec", "job.shard", "--data", "data.npz"];
        let ran = shardc(&here, &[&arguments[..], &["--json", "--outputs", "out.npz"]].concat()).expect(0);
        let result: Value = serde_json::from_str(&ran.out).expect("JSON");
        let outputs = read_npz(fs::File::open(here.join("out.npz")).expect("a file")).expect("arrays");
        let logits = outputs["logits"].to_f64();
        let hit = |(row, label): (&[f64], &i64)| *label >= 0 && row.iter().all(|x| *x <= row[*label as usize]);
        let hits = logits.chunks(10).zip(&labels).filter(|pair| hit(*pair)).count();
        assert_eq!((&result["labels"], &result["perplexity"]), (&Value::from(counted), &Value::Null));
        assert_eq!(result["accuracy"].as_f64(), Some(hits as f64 / counted as f64), "{batch}");
        let text = shardc(&here, &arguments).expect(0).out;
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("loss      "), "{text}");
        assert_eq!(lines[1..], [format!("accuracy  {:.2} %", 100.0 * hits as f64 / counted as f64)], "{text}");
    }
}

/// Samples that cannot be filled up are left to the caller, and add up to the same score.
#[test]
fn the_rest_may_be_a_batch_of_its_own() {
    let (compiled, spec, mut executor) = job("digits/model.onnx", DIGITS);
    let data = data(&executor, "digits/test.npz");
    set(&mut executor, &compiled, false);
    let totals = evaluation(&compiled, &spec).run(&mut executor, &data, || false).expect("no rank fails");
    let filled_up = evaluation(&compiled, &spec).score(&totals.expect("nothing stops it"));
    // As if the model read the labels.
    let eval = &compiled.plans.eval;
    let facts = EvaluationFacts { labels_are_inputs: true, ..EvaluationFacts::of(&eval.graph, &spec) };
    let mut evaluation = Evaluation::new(&spec, &eval.programs, facts).keep_outputs();
    let mut totals = evaluation.run(&mut executor, &data, || false).expect("no rank fails").expect("nothing stops it");
    assert_eq!((totals.samples, totals.left), (500, 12));
    assert_eq!(evaluation.score(&totals).labels, Some(500));
    let (_, _, mut small) = job("digits/model.onnx", "batch 12\nloss cross_entropy labels=y\n");
    set(&mut small, &compiled, false);
    let rest = Arc::new(evaluation.rest(&data, &totals));
    let result = small.step(rest.clone()).expect("no rank fails");
    evaluation.add_rest(&mut totals, &rest, result);
    let score = evaluation.score(&totals);
    assert_eq!((totals.samples, totals.left, &totals.outputs.arrays["logits"].shape[..]), (512, 0, &[512, 10][..]));
    assert_eq!((score.labels, score.accuracy), (Some(512), filled_up.accuracy));
    assert!((score.loss.expect("a loss") - filled_up.loss.expect("a loss")).abs() < 1e-6, "{score:?} and {filled_up:?}");
}
