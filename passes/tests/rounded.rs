//! The theorem for `precision`: what N ranks compute in 16 bits misses the numbers in f64 by at
//! most half as much again as one rank does, on random graphs under random specs.

use shardc_ir::dtype::DType;
use shardc_ir::graph::Graph;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_testkit::feed;
use shardc_testkit::random::Random;
use shardc_testkit::random_graphs::{self, Choices};
use shardc_testkit::random_specs;
use shardc_testkit::step::{self, Computed, proven, step};
use std::collections::BTreeMap;

/// Threads that draw cases, and the cases of each.
const SHARDS: u64 = 2;
const CASES: u64 = 400;

/// Programs that must be compared.
const LEAST: usize = 400;

const LINES: [&str; 6] = [
    "precision compute=bf16",
    "precision compute=bf16 reduce=bf16",
    "precision compute=bf16 gradients=bf16",
    "precision compute=f16 loss_scale=1",
    "precision compute=f16 gradients=f16 loss_scale=1",
    "precision compute=f16",
];

type Gradients = BTreeMap<String, Vec<f64>>;

/// The norm of the difference, in part of that of `exact`.
fn error(found: &Gradients, exact: &Gradients) -> f64 {
    let sum = |f: &dyn Fn(&String, usize) -> f64| -> f64 {
        exact.iter().map(|(name, values)| (0..values.len()).map(|i| f(name, i).powi(2)).sum::<f64>()).sum()
    };
    (sum(&|name, i| found[name][i] - exact[name][i]) / sum(&|name, i| exact[name][i])).sqrt()
}

/// What N ranks and one rank of a program miss the numbers in f64 by.
struct Missed {
    many: f64,
    one: f64,
    /// Whether gradients are kept in 16 bits, so that each rank rounds its part of them.
    narrow: bool,
}

/// The root of the mean square of errors over those of one rank.
fn ratio(all: &[&Missed]) -> f64 {
    let sum = |f: fn(&Missed) -> f64| all.iter().map(|missed| f(missed).powi(2)).sum::<f64>();
    (sum(|missed| missed.many) / sum(|missed| missed.one)).sqrt()
}

#[test]
fn n_ranks_round_as_one_does() {
    let run = |shard: u64| (0..CASES).filter_map(|i| case(shard * CASES + i)).collect::<Vec<_>>();
    let mut all: Vec<Missed> = vec![];
    std::thread::scope(|scope| {
        let shards: Vec<_> = (0..SHARDS).map(|shard| scope.spawn(move || run(shard))).collect();
        for shard in shards {
            all.extend(shard.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    let (narrow, wide): (Vec<&Missed>, Vec<&Missed>) = all.iter().partition(|missed| missed.narrow);
    let within = |missed: &&&Missed| missed.many <= 1.5 * missed.one;
    let share = wide.iter().filter(within).count() as f64 / wide.len() as f64;
    eprintln!(
        "{} programs; errors of N ranks over those of one: {:.3}, {:.1} % within 1.5; with gradients in 16 bits {:.3}",
        all.len(),
        ratio(&wide),
        100.0 * share,
        ratio(&narrow)
    );
    assert!(all.len() >= LEAST, "{} programs", all.len());
    assert!(ratio(&wide) <= 1.5 && share >= 0.9, "{} {share}", ratio(&wide));
}

fn case(seed: u64) -> Option<Missed> {
    let mut random = Random(seed);
    let list: Vec<u32> = (0..60 + random.below(180)).map(|_| random.below(1 << 30) as u32).collect();
    let mut choices = Choices::new(list.clone());
    let model = random_graphs::draw(&mut choices, DType::F32);
    let exact = random_graphs::draw(&mut Choices::new(list), DType::F64);
    let job = format!("{}loss {}\n", random_specs::draw(&mut choices, &model), model.loss);
    let line = LINES[seed as usize % LINES.len()];
    let rounded = step::spec(&format!("{job}{line}\n")).ok()?;
    let plain = step::spec(&job).ok()?.reference();
    let (graph, split) = proven(&model.graph, &rounded).ok()?;
    let (whole, one) = proven(&model.graph, &rounded.reference()).expect("a reference");
    same_when_erased(&graph, &whole).unwrap_or_else(|why| panic!("another graph than the reference's: {why}\n{job}{line}"));
    let (_, right) = proven(&exact.graph, &plain).expect("a reference");
    let run = |programs: &PlanSet, graph: &Graph| {
        step(programs, &feed::states(graph, DType::F32), &feed::inputs(programs, graph, DType::F32))
    };
    let (many, one, right) = (run(&split, &model.graph), run(&one, &model.graph), run(&right, &exact.graph));
    let scale = many.outputs.get("loss_scale").copied().unwrap_or(1.0);
    let unscaled = |gradients: Gradients| -> Gradients {
        gradients.into_iter().map(|(name, g)| (name, g.into_iter().map(|g| g / scale).collect())).collect()
    };
    // At the first scale some overflow, and of some losses nothing flows back.
    let norm = |computed: &Computed| computed.outputs["grad_norm"];
    if norm(&right) == 0.0 || !norm(&many).is_finite() || !norm(&one).is_finite() {
        return None;
    }
    let (many, one) = (error(&unscaled(many.gradients), &right.gradients), error(&unscaled(one.gradients), &right.gradients));
    Some(Missed { many, one, narrow: line.contains("gradients") })
}
