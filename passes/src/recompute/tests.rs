//! What `budget=` chooses beside every choice that there is, each planned.

use super::budget::Search;
use super::frontier::{Mix, TREATMENTS};
use super::keep::Forward;
use super::{Recompute, budget};
use crate::pass::{Context, Mode};
use crate::{PIPELINE, run_pass};
use shardc_ir::graph::Graph;
use shardc_ir::spec::{Located, Source, Spec};
use shardc_ir::text;
use shardc_testkit::parallel;
use shardc_testkit::random::Random;
use std::path::Path;

/// A chain of blocks of random widths, some of them residual, with some activations each, as text.
fn model(random: &mut Random, blocks: usize) -> String {
    let (mut states, mut nodes, mut last) = (String::new(), String::new(), "x".to_string());
    for i in 0..blocks {
        let width = [8, 16, 48, 96, 160][random.below(5)];
        let residual = random.below(3) > 0;
        for (name, from, to) in [("v", 32, width), ("w", width, 32)] {
            states += &format!("  state \"{name}{i}\" : f32[{from}, {to}]  parameter init=model\n");
            nodes += &format!("  %{name}{i} = state \"{name}{i}\" : f32[{from}, {to}]\n");
        }
        nodes += &format!("  %p{i} = contract \"bk,kn->bn\" %{last}, %v{i} : f32[16, {width}] @h.{i}\n");
        let mut inner = format!("p{i}");
        for k in 0..random.below(4) {
            let op = ["tanh", "gelu_tanh", "sigmoid", "relu"][random.below(4)];
            nodes += &format!("  %a{i}.{k} = {op} %{inner} : f32[16, {width}] @h.{i}\n");
            inner = format!("a{i}.{k}");
        }
        nodes += &format!("  %q{i} = contract \"bk,kn->bn\" %{inner}, %w{i} : f32[16, 32] @h.{i}\n");
        last = if residual {
            nodes += &format!("  %x{i} = add %{last}, %q{i} : f32[16, 32] @h.{i}\n");
            format!("x{i}")
        } else {
            format!("q{i}")
        };
    }
    format!("graph @chain  phase imported\n{states}  %x = input \"x\" : f32[16, 32]\n{nodes}  output \"y\" %{last}\n")
}

fn spec(lines: &str) -> Spec {
    let text = format!("{lines}loss mse prediction=y labels=t\noptimizer sgd lr=0.1\n");
    shardc_frontend::spec::parse(Path::new("job.shard"), &text).expect("a spec")
}

/// The explicit graph on which the pass runs.
fn explicit(text: &str, cx: &Context<'_>) -> Graph {
    let mut graph = text::parse(text).expect("a graph");
    graph.mesh = cx.spec.mesh();
    for pass in PIPELINE.iter().filter(|pass| pass.modes().contains(&cx.mode) && pass.name() != "recompute") {
        run_pass(*pass, &mut graph, cx).expect("it passes");
    }
    graph
}

/// Every mix, with its FLOPs and planned bytes.
fn every(search: &mut Search<'_, '_>) -> Vec<Mix> {
    let count = search.count();
    let mix = |mut number: usize| {
        let mut treatments = vec![];
        for _ in 0..count {
            treatments.push((number % TREATMENTS) as u8);
            number /= TREATMENTS;
        }
        treatments
    };
    (0..TREATMENTS.pow(count as u32))
        .map(mix)
        .map(|treatments| Mix {
            flops: search.extra(&treatments),
            peak: search.peak(&treatments).expect("it is planned"),
            treatments,
        })
        .collect()
}

/// Budgets between the least and the most that a drawn model needs: how many, for how many of them
/// the best mix was found, and of how many that is neither to keep everything nor to keep nothing.
fn budgets_of(seed: u64) -> [usize; 3] {
    let (mut budgets, mut exact, mut between) = (0, 0, 0);
    let random = &mut Random(seed);
    let blocks = 3 + random.below(3);
    let lines =
        ["batch 16\n", "batch 16 microbatches=4\n", "mesh dp=2\nbatch 16 microbatches=2\ndata axis=dp\n"][random.below(3)];
    let (graph, spec) = (model(random, blocks), spec(lines));
    let cx = Context { spec: &spec, mode: Mode::Train, verify: true };
    let graph = explicit(&graph, &cx);
    let forward = Forward::of(&graph);
    let all = every(&mut Search::of(&forward, 1, &cx, 0));
    let (least, most) = (all.iter().map(|mix| mix.peak).min().unwrap_or(0), all[0].peak);
    for part in 0..=6 {
        let limit = least + (most - least) * part / 6;
        let fitting = all.iter().filter(|mix| mix.peak <= limit).map(|mix| mix.flops);
        let best = fitting.min().expect("the least fits");
        for few in [0, all.len()] {
            let found = Search::of(&forward, 1, &cx, few).best(limit).expect("it plans").expect("the least fits");
            assert!(found.peak <= limit, "seed {seed}: {} bytes of {limit}", found.peak);
            assert!(
                found.flops as f64 <= 1.02 * best as f64,
                "seed {seed} part {part} few {few}: {} FLOPs, the best {best} of {blocks} blocks",
                found.flops
            );
            exact += usize::from(found.flops == best);
            budgets += 1;
        }
        between += usize::from(best > 0 && best < all.iter().map(|mix| mix.flops).max().unwrap_or(0));
        let built = budget::built(&forward, &Located { value: limit, source: Source { line: 1, span: (0, 1) } }, &cx);
        let bytes = crate::planning::plan(&built.expect("the least fits"), &cx).expect("it plans").fullest().arena_bytes;
        assert!(bytes <= limit, "{bytes} bytes of {limit}");
    }
    let below = Located { value: least.saturating_sub(1), source: Source { line: 1, span: (0, 1) } };
    let refused = budget::built(&forward, &below, &cx).expect_err("nothing fits");
    assert!(refused[0].message.contains("the least that was found is"), "{}", refused[0].message);
    [budgets, exact, between]
}

#[test]
fn a_budget_costs_little_more_than_the_best_mix_and_is_kept() {
    let all = parallel::map(16, |seed| budgets_of(seed as u64));
    let [budgets, exact, between] = [0, 1, 2].map(|of| all.iter().map(|counts| counts[of]).sum::<usize>());
    assert!(budgets >= 200 && exact * 10 >= budgets * 9 && between >= 40, "{exact} of {budgets} exact, {between} between");
}

/// The way to the same choice is the same each time, and does nothing where all fits.
#[test]
fn a_budget_that_all_fits_changes_nothing() {
    let spec = spec("batch 16\nrecompute budget=1GiB\n");
    let cx = Context { spec: &spec, mode: Mode::Train, verify: true };
    let graph = explicit(&model(&mut Random(1), 5), &cx);
    let mut same = graph.clone();
    run_pass(&Recompute, &mut same, &cx).expect("it fits");
    assert_eq!(text::print(&same), text::print(&graph));
    let least = every(&mut Search::of(&Forward::of(&graph), 1, &cx, 0)).iter().map(|mix| mix.peak).min().unwrap_or(0);
    let limit = Located { value: least + least / 8, source: Source { line: 1, span: (0, 1) } };
    let built = || text::print(&budget::built(&Forward::of(&graph), &limit, &cx).expect("it fits"));
    assert_eq!(built(), built());
}
