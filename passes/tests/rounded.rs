//! The theorem for `precision`: what N ranks compute in 16 bits misses the numbers in f64 by at
//! most half as much again as one rank does, on random graphs under random specs.

use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::graph::Graph;
use shardc_ir::plan::StateRole;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_testkit::random::Random;
use shardc_testkit::random_graphs::{self, Choices};
use shardc_testkit::random_specs;
use shardc_testkit::step::{self, proven, step};
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

#[test]
fn n_ranks_round_as_one_does() {
    let run = |shard: u64| (0..CASES).filter_map(|i| case(shard * CASES + i)).collect::<Vec<_>>();
    let mut all: Vec<(f64, f64, String)> = vec![];
    std::thread::scope(|scope| {
        let shards: Vec<_> = (0..SHARDS).map(|shard| scope.spawn(move || run(shard))).collect();
        for shard in shards {
            all.extend(shard.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    let mut ratios: Vec<f64> = all.iter().map(|(many, one, _)| many / one).collect();
    ratios.sort_by(f64::total_cmp);
    for (many, one, text) in &all {
        if many / one > 1.5 {
            eprintln!("{:.2} {many:e} {one:e} {text}", many / one);
        }
    }
    eprintln!(
        "{} programs, median {} 90% {} 99% {} max {:?}",
        all.len(),
        ratios[ratios.len() / 2],
        ratios[ratios.len() * 9 / 10],
        ratios[ratios.len() * 99 / 100],
        ratios.last()
    );
    assert!(all.len() >= LEAST);
}

fn case(seed: u64) -> Option<(f64, f64, String)> {
    let mut random = Random::new(seed);
    let list: Vec<u32> = (0..60 + random.below(180)).map(|_| random.below(1 << 30) as u32).collect();
    let mut choices = Choices::new(list.clone());
    let model = random_graphs::draw(&mut choices, DType::F32);
    let exact = random_graphs::draw(&mut Choices::new(list), DType::F64);
    let job = format!("{}loss {}\n", random_specs::draw(&mut choices, &model), model.loss);
    let line = LINES[seed as usize % LINES.len()];
    let rounded = step::spec(&format!("{job}{line}\n")).ok()?;
    let plain = step::spec(&job).ok()?.reference();
    let (graph, split) = proven(&model.graph, &rounded).ok()?;
    let (whole, one) = proven(&model.graph, &rounded.reference()).unwrap();
    same_when_erased(&graph, &whole).unwrap_or_else(|why| panic!("another graph than the reference's: {why}\n{job}{line}"));
    let (_, right) = proven(&exact.graph, &plain).unwrap();
    let run = |programs: &PlanSet, graph: &Graph| step(programs, &random_states(graph), &random_inputs(programs, graph));
    let (many, one, right) = (run(&split, &model.graph), run(&one, &model.graph), run(&right, &exact.graph));
    let scale = many.outputs.get("loss_scale").copied().unwrap_or(1.0);
    let unscaled = |gradients: Gradients| -> Gradients {
        gradients.into_iter().map(|(name, g)| (name, g.into_iter().map(|g| g / scale).collect())).collect()
    };
    if many.outputs["grad_norm"].is_infinite() && one.outputs["grad_norm"].is_infinite() {
        return None;
    }
    let (many, one) = (error(&unscaled(many.gradients), &right.gradients), error(&unscaled(one.gradients), &right.gradients));
    Some((many, one, format!("{line} {}", job.replace('\n', "; "))))
}

fn wave(n: u64, seed: f64) -> Vec<f64> {
    (0..n).map(|i| ((i as f64 + 0.5) * seed * 12.9898).sin() * 0.8).collect()
}

fn random_states(graph: &Graph) -> BTreeMap<String, Tensor> {
    let make = |(i, s): (usize, &shardc_ir::graph::State)| {
        let mut values = wave(s.ty.elements(), 1.0 + i as f64 * 0.37);
        if s.role == StateRole::Statistic {
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        (s.name.clone(), Tensor::from_f64(&s.ty.shape, &values).cast(DType::F32).cast(s.ty.dtype))
    };
    graph.states.iter().enumerate().map(make).collect()
}

fn random_inputs(programs: &PlanSet, graph: &Graph) -> BTreeMap<String, Tensor> {
    let y = graph.ty(graph.outputs[0].value).clone();
    let mut inputs = BTreeMap::new();
    for (program, input) in programs.inputs() {
        let buffer = &program.buffers[input.buffer.index()];
        let n: u64 = buffer.shape.iter().product();
        let value = match buffer.dtype {
            DType::I64 => {
                let high = input.range.map_or(y.shape[y.rank() - 1], |(_, high)| high as u64);
                Tensor::from_i64(&buffer.shape, &(0..n).map(|i| ((i * 7 + 3) % high) as i64).collect::<Vec<_>>())
            }
            DType::Bool => Tensor::from_bool(&buffer.shape, &(0..n).map(|i| (i * 7 + 3) % 5 < 3).collect::<Vec<_>>()),
            dtype => Tensor::from_f64(&buffer.shape, &wave(n, 2.3)).cast(DType::F32).cast(dtype),
        };
        inputs.insert(input.name.clone(), value);
    }
    inputs
}
