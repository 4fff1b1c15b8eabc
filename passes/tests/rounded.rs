//! The theorem for `precision`: what N ranks compute in 16 bits misses the numbers in f64 by at
//! most half as much again as one rank does, on random graphs under random specs.

use shardc_ir::dtype::DType;
use shardc_ir::graph::Graph;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_testkit::feed;
use shardc_testkit::parallel;
use shardc_testkit::random::Random;
use shardc_testkit::random_graphs::{self, Choices};
use shardc_testkit::random_specs;
use shardc_testkit::step::{self, Computed, first_steps, proven};
use std::collections::BTreeMap;

/// The program's, with which graphs are compiled twice as fast.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Programs that are drawn.
const CASES: usize = 800;

/// Draws of the numbers of a program.
const DRAWS: u64 = 9;

/// Programs with wide gradients that must be as near.
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

/// What N ranks and one rank of a program miss the numbers in f64 by: the median over several draws
/// of its numbers, for in one draw a sum may round to nothing, or a rectifier may flip.
struct Missed {
    many: f64,
    one: f64,
    /// Whether gradients are kept in 16 bits, so that each rank rounds its part of them.
    narrow: bool,
}

fn median(mut errors: Vec<f64>) -> f64 {
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 2]
}

fn root_mean_square(errors: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = errors.len() as f64;
    (errors.map(|error| error.powi(2)).sum::<f64>() / n).sqrt()
}

/// The root of the mean square of errors over that of one rank's.
fn ratio(all: &[&Missed]) -> f64 {
    root_mean_square(all.iter().map(|missed| missed.many)) / root_mean_square(all.iter().map(|missed| missed.one))
}

#[test]
fn n_ranks_round_as_one_does() {
    let all: Vec<Missed> = parallel::map(CASES, |i| case(i as u64)).into_iter().flatten().collect();
    let (narrow, wide): (Vec<&Missed>, Vec<&Missed>) = all.iter().partition(|missed| missed.narrow);
    let within = |all: &[&Missed]| all.iter().filter(|missed| missed.many <= 1.5 * missed.one).count();
    let ratios = [ratio(&wide), ratio(&narrow)];
    assert!(ratios.iter().all(|ratio| *ratio <= 1.5), "errors of N ranks are {ratios:?} of those of one");
    let close = within(&wide);
    assert!(close >= LEAST, "{close} programs are within half as much again");
    assert!(close * 100 >= wide.len() * 99, "of {} programs {close} are within half as much again", wide.len());
    // Each rank rounds its part of a gradient of 16 bits, before parts are added.
    let close = within(&narrow);
    assert!(close * 10 >= narrow.len() * 9, "of {} with such gradients {close} are", narrow.len());
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
        let drawn = |draw| (feed::states(graph, DType::F32, draw), feed::inputs(programs, graph, DType::F32, draw));
        first_steps(programs, (0..DRAWS).map(drawn))
    };
    let missed = |((right, many), one): ((Computed, Computed), Computed)| -> Option<(f64, f64)> {
        // Of some losses nothing flows back, and some gradients overflow.
        let norm = |computed: &Computed| computed.outputs["grad_norm"];
        let usable = norm(&right) != 0.0 && norm(&many).is_finite() && norm(&one).is_finite();
        usable.then(|| (error(&unscaled(many), &right.gradients), error(&unscaled(one), &right.gradients)))
    };
    let computed = run(&right, &exact.graph).into_iter().zip(run(&split, &model.graph)).zip(run(&one, &model.graph));
    let draws: Vec<(f64, f64)> = computed.filter_map(missed).collect();
    let middle = |of: fn(&(f64, f64)) -> f64| median(draws.iter().map(of).collect());
    (!draws.is_empty()).then(|| Missed { many: middle(|d| d.0), one: middle(|d| d.1), narrow: line.contains("gradients") })
}

/// The gradients of a step, without its loss scale.
fn unscaled(computed: Computed) -> Gradients {
    let scale = computed.outputs.get("loss_scale").copied().unwrap_or(1.0);
    computed.gradients.into_iter().map(|(name, g)| (name, g.into_iter().map(|g| g / scale).collect())).collect()
}
