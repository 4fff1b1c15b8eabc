//! Training on the software CUDA: PyTorch's losses, and the same bits whatever the order of work.

use super::fake::{is_full, is_inside, seeds};
use super::jobs::{BF16, Planned, Trained};
use shardc_fakecuda::control;
use shardc_gpu::start::OwnGpu;

const STEPS: u64 = 3;

/// Trains under every seed, with graphs and once without.
fn trains(model: &str, mesh: &str, microbatches: u64, lines: &str) {
    let job = Planned::new(model, mesh, microbatches, lines);
    let cpu = job.train(&mut job.on_cpu(), STEPS).unwrap();
    let mut first: Option<Trained> = None;
    for seed in 0..=seeds() {
        control::reset(seed);
        let graphs = seed < seeds();
        let trained = {
            let mut executor = job.started(&OwnGpu, graphs).unwrap_or_else(|e| panic!("{}, seed {seed}: {e}", job.name));
            job.train(&mut executor, STEPS).unwrap_or_else(|e| panic!("{}, seed {seed}: {e}\n{}", job.name, control::reports()))
        };
        assert_eq!(control::reports(), "", "{}, seed {seed}", job.name);
        job.judge(&trained, &cpu).unwrap_or_else(|why| panic!("{}: {why}", job.name));
        let first = first.get_or_insert_with(|| trained.clone());
        assert!(*first == trained, "{}: seed {seed} gives other bits", job.name);
    }
    eprintln!("{}: {} seeds, {STEPS} steps, the same bits", job.name, seeds() + 1);
}

const MODELS: [&str; 8] = ["bert", "gpt2", "gpt2-folded", "inception", "llama", "mlp", "resnet", "vit"];

#[test]
fn models_train_on_one_rank() {
    if is_inside("trains::models_train_on_one_rank", &[]) {
        let few = ["mlp", "gpt2"];
        for model in MODELS.iter().filter(|model| is_full() || few.contains(model)) {
            trains(model, "dp=1", 1, "");
            if is_full() {
                trains(model, "dp=1", 1, BF16);
            }
        }
    }
}

/// The strategies: a mesh, micro-batches, lines of the spec.
const MESHES: [(&str, u64, &str); 10] = [
    ("dp=2", 1, ""),
    ("tp=2", 1, ""),
    ("pp=2", 4, "pipeline axis=pp schedule=1f1b\n"),
    ("dp=2", 1, "zero stage=3 axis=dp\n"),
    ("dp=2 tp=1", 2, "zero stage=2 axis=dp\n"),
    ("dp=4", 1, ""),
    ("tp=4", 1, ""),
    ("pp=4", 4, "pipeline axis=pp schedule=1f1b\n"),
    ("dp=4", 1, "zero stage=3 axis=dp\n"),
    ("dp=2 tp=2", 2, "zero stage=1 axis=dp\n"),
];

fn strategies(model: &str, few: &[usize]) {
    for (at, (mesh, microbatches, lines)) in MESHES.into_iter().enumerate() {
        if is_full() || few.contains(&at) {
            trains(model, mesh, microbatches, lines);
            if is_full() {
                trains(model, mesh, microbatches, &format!("{lines}{BF16}"));
            }
        }
    }
}

#[test]
fn strategies_train_gpt2() {
    if is_inside("trains::strategies_train_gpt2", &[]) {
        strategies("gpt2", &[0, 2, 9]);
    }
}

#[test]
fn strategies_train_llama() {
    if is_inside("trains::strategies_train_llama", &[]) {
        strategies("llama", &[3]);
    }
}
