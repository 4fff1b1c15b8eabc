//! Random pairs of plans of one model: what a run under the first has saved becomes the files of a
//! run under the second, and back, and training goes on from them as one rank would have gone on.
//! `SHARDC_PROGRAMS` is the number of pairs, 12 without it; 200 is the full count.

use super::support::folder;
use shardc::checkpoint::folder::Folder;
use shardc::checkpoint::manifest::{DataPosition, Position};
use shardc::checkpoint::read::Checkpoint;
use shardc::checkpoint::reshard::reshard;
use shardc::checkpoint::restore::{Differences, compare, restore};
use shardc::checkpoint::saver::{Keep, Saver};
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::graph::Graph;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::spec::Spec;
use shardc_launch::control::Control;
use shardc_testkit::feed;
use shardc_testkit::parallel;
use shardc_testkit::random::Random;
use shardc_testkit::random_graphs::{self, Choices, Model};
use shardc_testkit::random_specs;
use shardc_testkit::step;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Steps before the checkpoint, and behind it.
const STEPS: [u64; 2] = [3, 3];

/// Lines of both plans, and the type of the model; half of all pairs have none.
const PRECISIONS: [(&str, DType); 6] = [
    ("", DType::F64),
    ("precision compute=bf16\n", DType::F32),
    ("", DType::F64),
    ("precision compute=f16\n", DType::F32),
    ("", DType::F64),
    ("precision compute=bf16 gradients=bf16\n", DType::F32),
];

const OPTIMIZERS: [&str; 4] = ["sgd lr=0.1", "adamw lr=0.01", "sgd lr=0.1 momentum=0.9", "adam lr=0.01"];

/// By how much a loss in f64 may miss that of one rank, in part of it.
const EXACT: f64 = 1e-8;

/// By how many times as much as one rank a run in 16 bits may miss the numbers in f64, and by how
/// much more, in part of them: which way single numbers are rounded is luck.
const ROUNDED: (f64, f64) = (1.5, 1.0 / 256.0);

/// What the plans of a pair have.
const KINDS: [(&str, &str); 9] = [
    ("data", "data axis"),
    ("shares of layers", "tensor axis"),
    ("other splits", "shard "),
    ("a pipeline", "pipeline axis"),
    ("zero 1", "zero stage=1"),
    ("zero 2", "zero stage=2"),
    ("zero 3", "zero stage=3"),
    ("micro-batches", "microbatches=2"),
    ("precision", "precision "),
];

#[test]
fn any_plan_gets_the_files_of_its_own_run() {
    let count: usize = std::env::var("SHARDC_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let here = folder("reshard-pairs");
    let kinds = parallel::map(count, |number| {
        // Some draws are no two plans of one model.
        let found = (0..1000).find_map(|draw| pair(&here.join(number.to_string()), number as u64, draw));
        found.unwrap_or_else(|| panic!("there is no pair {number}"))
    });
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    kinds.into_iter().flatten().for_each(|kind| *met.entry(kind).or_default() += 1);
    writeln!(std::io::stderr(), "{count} pairs of plans; plans of each kind: {met:?}").unwrap();
    let rare = KINDS.iter().filter(|(name, _)| met.get(name).is_none_or(|n| *n < count / 6));
    assert!(count < 12 || rare.count() == 0, "too few plans are of some kind: {met:?}");
}

/// A spec of `model` with these lines in place of its own, or none where that is not to be had.
fn plan(random: &mut Random, model: &Model, lines: &str) -> Option<(String, Spec, PlanSet)> {
    let list = (0..120).map(|_| random.below(1 << 30) as u32).collect();
    let drawn = random_specs::draw(&mut Choices::new(list), model);
    // Statistics of parts of the batch are other numbers than those of one rank.
    if drawn.contains("batchnorm") {
        return None;
    }
    let own = drawn.lines().filter(|line| !line.starts_with("optimizer") && !line.starts_with("clip"));
    let text = own.map(|line| format!("{line}\n")).collect::<String>() + lines;
    let spec = step::spec(&text).ok()?;
    let programs = step::programs(&model.graph, &spec).ok()?;
    Some((text, spec, programs))
}

/// Draws a pair and tries it; gives what its plans have. `None` where the draw is no pair.
fn pair(here: &Path, number: u64, draw: u64) -> Option<Vec<&'static str>> {
    let mut random = Random(number * 1_000_003 + draw);
    let (precision, dtype) = PRECISIONS[number as usize % PRECISIONS.len()];
    let list: Vec<u32> = (0..60 + random.below(180)).map(|_| random.below(1 << 30) as u32).collect();
    let model = random_graphs::draw(&mut Choices::new(list.clone()), dtype);
    let optimizer = random.pick(&OPTIMIZERS)?;
    let clip = ["", "clip norm=0.5\n"][random.below(2)];
    let plain = format!("loss {}\noptimizer {optimizer}\n{clip}", model.loss);
    let lines = format!("{plain}{precision}");
    let (a_text, a_spec, a) = plan(&mut random, &model, &lines)?;
    let (b_text, _, b) = plan(&mut random, &model, &lines)?;
    let told = format!("pair {number}, from\n{a_text}\nto\n{b_text}\n");
    let feed = Feed { graph: &model.graph, inputs: &a };
    let total = STEPS[0] + STEPS[1];
    let one = step::programs(&model.graph, &a_spec.reference()).ok()?;
    let wanted = losses(&mut feed.started(&one), &feed, 0..total);
    if wanted.iter().any(|loss| !loss.is_finite()) {
        return None;
    }

    // Under the first plan, and saved.
    let _ = fs::remove_dir_all(here);
    let mut executor = feed.started(&a);
    losses(&mut executor, &feed, 0..STEPS[0]);
    let saved = save(&here.join("saved"), &executor);
    let checkpoint = Checkpoint::open(&saved).unwrap();
    // Parameters that one plan cuts into blocks of different sizes are others in another plan.
    if compare(&checkpoint, &b).ok()? != Differences::default() {
        return None;
    }

    // As a run under the second plan would save it, and as it was.
    let made = reshard(&checkpoint, b.clone(), &Folder::claim(&here.join("made")).unwrap()).unwrap();
    let mut loaded = Executor::new(b.clone(), 1).unwrap();
    restore(&checkpoint, &mut loaded).unwrap();
    assert!(files(&made) == files(&save(&here.join("loaded"), &loaded)), "other files than a run's: {told}");
    let made = Checkpoint::open(&made).unwrap();
    let back = reshard(&made, a.clone(), &Folder::claim(&here.join("back")).unwrap()).unwrap();
    assert!(files(&saved) == files(&back), "other files than there were: {told}");
    for (_, state) in a.states() {
        let (there, had) = (made.tensor(&state.name).unwrap(), executor.get_state(&state.name).unwrap());
        assert!(there == had, "`{}` is another one: {told}", state.name);
    }

    // On from there.
    let mut resumed = Executor::new(b, 1).unwrap();
    restore(&made, &mut resumed).unwrap();
    let found = losses(&mut resumed, &feed, STEPS[0]..total);
    let exact = match precision {
        "" => None,
        _ => {
            let exact = random_graphs::draw(&mut Choices::new(list), DType::F64);
            let spec = Spec { precision: None, ..a_spec.reference() };
            let programs = step::programs(&exact.graph, &spec).ok()?;
            let feed = Feed { graph: &exact.graph, inputs: &programs };
            Some(losses(&mut feed.started(&programs), &feed, 0..total))
        }
    };
    judge(&wanted, exact.as_deref(), &found).unwrap_or_else(|why| panic!("{why}: {told}"));
    fs::remove_dir_all(here).unwrap();
    let both = [a_text, b_text];
    Some(both.iter().flat_map(|text| KINDS.iter().filter(|(_, line)| text.contains(line)).map(|(name, _)| *name)).collect())
}

/// Whether losses `found` behind the checkpoint are those of one rank, as far as rounding lets.
fn judge(wanted: &[f64], exact: Option<&[f64]>, found: &[f64]) -> Result<(), String> {
    let missed = exact.into_iter().flat_map(|exact| exact.iter().zip(wanted).map(|(exact, one)| (exact - one).abs()));
    let missed = missed.fold(0.0, f64::max);
    for (i, loss) in found.iter().enumerate() {
        let step = STEPS[0] as usize + i;
        let (want, allowed) = match exact {
            None => (wanted[step], EXACT * wanted[step].abs().max(1e-3)),
            Some(exact) => (exact[step], ROUNDED.0 * missed + ROUNDED.1 * exact[step].abs().max(1e-3)),
        };
        let off = (loss - want).abs();
        if off.is_nan() || off > allowed {
            return Err(format!("at step {step} the loss is {loss}, and should be {want} within {allowed:e}"));
        }
    }
    Ok(())
}

/// What a model begins with, and reads at each step.
struct Feed<'a> {
    graph: &'a Graph,
    inputs: &'a PlanSet,
}

impl Feed<'_> {
    fn started(&self, programs: &PlanSet) -> Executor {
        let states = feed::states(self.graph, DType::F32, 0);
        let mut executor = Executor::new(programs.clone(), 1).unwrap();
        executor.initialise(|name| states.get(name).cloned()).unwrap();
        executor
    }

    fn batch(&self, programs: &PlanSet, step: u64) -> Arc<Vec<Tensor>> {
        let inputs = feed::inputs(self.inputs, self.graph, DType::F32, step);
        Arc::new(programs.inputs().into_iter().map(|(_, input)| inputs[&input.name].clone()).collect())
    }
}

/// The loss of each of the steps.
fn losses(executor: &mut Executor, feed: &Feed<'_>, steps: std::ops::Range<u64>) -> Vec<f64> {
    let mut loss = |step: u64| {
        let batch = feed.batch(&executor.programs().clone(), step);
        executor.step(batch).unwrap().outputs["loss"].first().unwrap()
    };
    steps.map(&mut loss).collect()
}

/// Saves a checkpoint as a run does, at a position that is not of this run only.
fn save(to: &Path, executor: &Executor) -> PathBuf {
    let keep = Keep { latest: 1, best: false };
    let mut saver = Saver::new(to, keep, executor, Arc::new(Control::alone())).unwrap();
    let data = DataPosition { epoch: 2, sample: 5, samples: 99, shuffle: true };
    saver
        .save(executor, Position { step: executor.next_step(), seed: 7, data, validation_loss: Some(0.1), validations: None })
        .unwrap();
    saver.settle();
    saver.news().unwrap().result.unwrap()
}

/// The names and bytes of the files of a checkpoint.
fn files(checkpoint: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap())).collect()
}
