//! Training on the software CUDA: PyTorch's losses, and the same bits whatever the order of work.

use super::card::Card;
use super::fake::{is_full, is_inside, seeds, told};
use super::jobs::{BF16, Planned, Trained};
use shardc_fakecuda::control;
use shardc_gpu::start::OwnGpu;

const STEPS: u64 = 3;

/// What training gives, in a world of that seed.
fn trained(job: &Planned, seed: u64, graphs: bool) -> Trained {
    control::reset(seed);
    let trained = {
        let mut executor = job.started(&OwnGpu, graphs).unwrap_or_else(|e| panic!("{}, seed {seed}: {e}", job.name));
        job.train(&mut executor, STEPS).unwrap_or_else(|e| panic!("{}, seed {seed}: {e}\n{}", job.name, control::reports()))
    };
    assert_eq!(control::reports(), "", "{}, seed {seed}", job.name);
    trained
}

/// Whether this machine has a GPU for each rank.
fn has_gpus(job: &Planned) -> bool {
    let (ranks, gpus) = (job.set.mesh().world_size(), Card::count());
    if gpus < ranks {
        eprintln!("skipped: {} is for {ranks} GPUs, and there are {gpus}", job.name);
    }
    gpus >= ranks
}

/// Trains under every seed, with graphs and once without.
fn trains(model: &str, mesh: &str, microbatches: u64, lines: &str) {
    let job = Planned::new(model, mesh, microbatches, lines);
    if !has_gpus(&job) {
        return;
    }
    let cpu = job.train(&mut job.on_cpu(), STEPS).unwrap();
    let mut first: Option<Trained> = None;
    for seed in 0..=seeds() {
        let trained = trained(&job, seed, seed < seeds());
        job.judge(&trained, &cpu).unwrap_or_else(|why| panic!("{}: {why}", job.name));
        let first = first.get_or_insert_with(|| trained.clone());
        assert!(*first == trained, "{}: seed {seed} gives other bits", job.name);
    }
    eprintln!("{}: {} seeds, {STEPS} steps, the same bits", job.name, seeds() + 1);
}

/// Two small jobs, one of them in 16 bits.
fn few() -> [Planned; 2] {
    [Planned::new("mlp", "dp=1", 2, ""), Planned::new("gpt2", "dp=1", 1, BF16)]
}

#[test]
fn graphs_give_the_bits_of_single_calls() {
    if is_inside("trains::graphs_give_the_bits_of_single_calls", &[]) {
        let jobs = few();
        for job in &jobs {
            assert!(trained(job, 1, true) == trained(job, 1, false), "{}: a graph gives other bits", job.name);
        }
        told(&format!("{} jobs, {STEPS} steps", jobs.len()));
    }
}

#[test]
fn runs_give_the_same_bits() {
    if is_inside("trains::runs_give_the_same_bits", &[]) {
        let jobs = few();
        for job in &jobs {
            assert!(trained(job, 1, true) == trained(job, 2, true), "{}: a second run gives other bits", job.name);
        }
        told(&format!("{} jobs, {STEPS} steps", jobs.len()));
    }
}

const MODELS: [&str; 8] = ["bert", "gpt2", "gpt2-folded", "inception", "llama", "mlp", "resnet", "vit"];

#[test]
fn models_train_on_one_rank() {
    if is_inside("trains::models_train_on_one_rank", &[]) {
        let few = ["mlp", "gpt2"];
        let models: Vec<&str> = MODELS.into_iter().filter(|model| is_full() || few.contains(model)).collect();
        for model in &models {
            trains(model, "dp=1", 1, "");
            if is_full() || *model == "gpt2" {
                trains(model, "dp=1", 1, BF16);
            }
        }
        let narrow = if is_full() { "and bf16" } else { "and one in bf16" };
        told(&format!("{} models in f32 {narrow}, {STEPS} steps, {} runs each", models.len(), seeds() + 1));
    }
}

/// The strategies: a mesh, micro-batches, lines of the spec.
const MESHES: [(&str, u64, &str); 11] = [
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
    ("pp=2 tp=2", 4, "pipeline axis=pp schedule=1f1b\n"),
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
        strategies("gpt2", &[0, 2, 9, 10]);
    }
}

#[test]
fn strategies_train_llama() {
    if is_inside("trains::strategies_train_llama", &[]) {
        strategies("llama", &[3]);
    }
}
