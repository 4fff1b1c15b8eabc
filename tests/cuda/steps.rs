//! Whole steps of training from launch tables, every kernel executed on the host: losses and
//! gradient norms are PyTorch's, within the tolerances for f32 of `tests/jobs/gold.rs`, and states
//! the CPU backend's. In 16 bits, and in TF32, gradients miss those in 32 as little as the CPU
//! backend's do.

use super::launched::Device;
use super::support::objects;
use super::{Extent, extent, job, of_extent, own_folder, tf32};
use serde_json::Value;
use shardc::{Options, compile};
use shardc_codegen::program::Kernels;
use shardc_codegen::table::{Table, Work, check, derive};
use shardc_codegen::{MATH, PARTS};
use shardc_cuda_testing::host::Host;
use shardc_executor::cpu::threads::Threads;
use shardc_executor::data::{Dataset, Options as DataOptions, input_specs, write_npz};
use shardc_executor::load::LoadedSet;
use shardc_executor::rank::Rank;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferId, Program, StateRole, StateVariable};
use shardc_testkit::random::Random;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// By how much a state may miss that of the CPU backend, beside its part of the largest one.
const STATES: f64 = 2e-5;

/// A line of the spec.
const BF16: &str = "precision compute=bf16 gradients=bf16\n";

/// Drawn weights of a model without its own.
const WEIGHTS: usize = 2 << 20;

/// Data for a few steps of a model without its own.
fn made_up(program: &Program, folder: &Path) -> PathBuf {
    let mut random = Random(2);
    let arrays = program.inputs.iter().map(|input| {
        let buffer = &program.buffers[input.buffer.index()];
        let mut shape = buffer.shape.clone();
        shape[0] *= 4;
        let (low, high) = input.range.expect("an input of indices");
        let value = |_| (low + random.below((high - low) as usize) as i64) as f64;
        let values: Vec<f64> = (0..shape.iter().product()).map(value).collect();
        (input.name.clone(), Tensor::from_f64(&shape, &values).cast(buffer.dtype))
    });
    write_npz(&folder.join("data.npz"), &arrays.collect()).unwrap();
    folder.join("data.npz")
}

/// What came of training by a table.
struct Trained {
    /// Each step's loss and gradient norm.
    seen: Vec<[f64; 2]>,
    /// The memory behind the first step, and behind the last.
    first: Vec<u8>,
    last: Vec<u8>,
}

/// A job on one rank, and PyTorch's run of it, where there is one.
struct Subject {
    program: Program,
    table: Table,
    kernels: Kernels,
    data: Dataset,
    weights: BTreeMap<String, Tensor>,
    gold: Option<Value>,
    is_narrow: bool,
}

impl Subject {
    fn new(model: &str, microbatches: u64, line: &str, is_plain: bool) -> Subject {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(model);
        let scratch = own_folder(&format!("cuda-steps-{model}"));
        std::fs::write(scratch.join("job.shard"), job::spec(model, "dp=1", microbatches, line)).unwrap();
        let spec = shardc_frontend::spec::load(&scratch.join("job.shard")).unwrap();
        let options = Options { train: true, weights: true, verify: false, certify: false };
        // Of a graph alone the weights are drawn, as far from 0 as GPT-2's are at the beginning.
        let mut random = Random(1);
        let weights: Vec<u8> = (0..WEIGHTS).flat_map(|_| ((random.unit() - 0.5) as f32 / 16.0).to_le_bytes()).collect();
        std::fs::write(scratch.join("weights.data"), weights).unwrap();
        std::fs::copy(folder.join("model.onnx"), scratch.join("model.onnx")).unwrap();
        let compiled = compile(&scratch.join("model.onnx"), &spec, &options).unwrap();
        let set: PlanSet = compiled.plans.training.unwrap().programs;
        let program = set.first().clone();
        let data = if folder.join("data.npz").exists() { folder.join("data.npz") } else { made_up(&program, &scratch) };
        let data = Dataset::open(&data, input_specs(&set), program.batch, &DataOptions::default()).unwrap();
        let weights =
            compiled.weights.iter().map(|(name, weight)| (name.clone(), Tensor::from(weight.load().unwrap()))).collect();
        let gold = std::fs::read_to_string(folder.join("gold.json")).ok().map(|text| serde_json::from_str(&text).unwrap());
        let mut kernels = if is_plain { Kernels::plain() } else { Kernels::default() };
        let table = derive(&program, &mut kernels);
        check(&table, &program, &mut kernels).unwrap_or_else(|why| panic!("{model}: {why}"));
        Subject { program, table, kernels, data, weights, gold, is_narrow: line.contains("compute=") }
    }

    /// The CPU backend's ranks, at the beginning.
    fn executor(&self) -> Executor {
        let mut executor = Executor::new(self.program.clone(), 1).unwrap();
        executor.initialise(|name| self.weights.get(name).cloned()).unwrap();
        executor
    }

    /// The arena of a rank of the CPU backend that is about to do step `number`.
    fn arena(&self, number: u64) -> Vec<u8> {
        let loaded = LoadedSet::new(self.program.clone()).unwrap();
        let start = self.executor();
        let mut rank = Rank::new(loaded.of_rank(0).clone(), 0, Threads(1)).unwrap();
        for state in &self.program.states {
            rank.set_part(state.buffer, &start.get_state(&state.name).unwrap().bytes).unwrap();
        }
        rank.begin(number, &self.data.batch(number)).unwrap();
        rank.arena().bytes(0..self.program.arena_bytes).unwrap().to_vec()
    }

    fn tensor(&self, memory: &[u8], id: BufferId) -> Tensor {
        let buffer = &self.program.buffers[id.index()];
        let bytes = buffer.local.iter().product::<u64>() * buffer.dtype.bytes();
        let bytes = memory[buffer.offset as usize..(buffer.offset + bytes) as usize].to_vec();
        Tensor { dtype: buffer.dtype, shape: buffer.shape.clone(), bytes }
    }

    /// The only number of an output.
    fn output(&self, memory: &[u8], name: &str) -> f64 {
        let output = self.program.outputs.iter().find(|output| output.name == name).unwrap();
        self.tensor(memory, output.buffer).to_f64()[0]
    }

    /// Trains for `steps` steps by the table.
    fn train(&self, host: &Host, steps: u64) -> Result<Trained, String> {
        let mut device = Device::new(&self.program, &self.table, &self.kernels, host, &self.arena(0));
        let (mut seen, mut first) = (vec![], vec![]);
        for number in 0..steps {
            device.step(&self.arena(number)).map_err(|why| format!("step {number}, {why}"))?;
            seen.push(["loss", "grad_norm"].map(|name| self.output(&device.memory, name)));
            if number == 0 {
                first.clone_from(&device.memory);
            }
        }
        Ok(Trained { seen, first, last: device.memory })
    }

    /// Holds losses and norms against PyTorch's, else against those of the CPU backend, `cpu`.
    fn judge(&self, seen: &[[f64; 2]], cpu: &[[f64; 2]]) -> Result<(), String> {
        let of_cpu = || {
            let lines = [0, 1].map(|at| cpu.iter().map(|line| line[at]).collect::<Vec<f64>>());
            let run = serde_json::json!({ "loss": lines[0], "grad_norm": lines[1] });
            serde_json::json!({ "float64": run.clone(), "float32": run })
        };
        let gold = self.gold.clone().unwrap_or_else(of_cpu);
        job::judge(&gold, seen, self.is_narrow.then_some(cpu))
    }

    /// The kernels; `text` gives that of each name.
    fn host(&self, text: impl Fn(&str, &str) -> String) -> Host {
        let all = self.kernels.all.iter().map(|used| &used.generated);
        let texts: Vec<(String, String)> = all.map(|of| (of.name.clone(), text(&of.name, &of.text))).collect();
        Host::build(&objects(), &format!("{MATH}{PARTS}"), &texts).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// Trains a model so, and holds it against PyTorch and the CPU backend.
fn trains(model: &str, microbatches: u64, line: &str, steps: u64) {
    trained(Subject::new(model, microbatches, line, false), model, steps);
}

/// The same with products by kernels of ours alone.
fn trains_plainly(model: &str, steps: u64) {
    trained(Subject::new(model, 1, "", true), model, steps);
}

fn trained(subject: Subject, model: &str, steps: u64) {
    if !Host::available() {
        eprintln!("skipped: no g++ for kernels on the host");
        return;
    }
    let host = subject.host(|_, text| text.to_owned());
    let Trained { seen, first, last } = subject.train(&host, steps).unwrap_or_else(|why| panic!("{model}: {why}"));
    let mut executor = subject.executor();
    let mut cpu = vec![];
    for step in 0..steps {
        let result = executor.step(subject.data.batch(step)).unwrap();
        let number = |name: &str| result.outputs.iter().find(|(own, _)| *own == name).unwrap().1.to_f64()[0];
        cpu.push(["loss", "grad_norm"].map(number));
    }
    subject.judge(&seen, &cpu).unwrap_or_else(|why| panic!("{model}: {why}"));
    if subject.is_narrow {
        return as_exact(model, &subject, &first);
    }
    // An optimizer that divides gradients by their size makes whole steps of rounding alone.
    let divides = subject.program.states.iter().any(|state| state.name.ends_with(".v"));
    for state in subject.program.states.iter().filter(|state| !divides || is_first_moment(state)) {
        let [found, want] = [subject.tensor(&last, state.buffer), executor.get_state(&state.name).unwrap()].map(|t| t.to_f64());
        let largest = want.iter().fold(0f64, |most, value| most.max(value.abs()));
        let apart = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f64, f64::max);
        let allowed = STATES * largest.max(1e-3);
        assert!(apart <= allowed, "{model}: `{}` is {apart:e} from the CPU backend's, not {allowed:e}", state.name);
    }
}

/// Whether a state is a part of the gradient behind the first step.
fn is_first_moment(state: &StateVariable) -> bool {
    state.role == StateRole::Moment && state.name.ends_with(".m")
}

/// Holds the gradients of a first step of rounded products, behind which `memory` is, against those
/// in 32 bits of the CPU backend: all of them together miss them by little more than those that the
/// CPU backend makes of rounded products do.
fn as_exact(model: &str, subject: &Subject, memory: &[u8]) {
    let moments = |subject: &Subject| -> Vec<f64> {
        let mut executor = subject.executor();
        executor.step(subject.data.batch(0)).unwrap();
        let states = subject.program.states.iter().filter(|state| is_first_moment(state));
        states.flat_map(|state| executor.get_state(&state.name).unwrap().to_f64()).collect()
    };
    let states = subject.program.states.iter().filter(|state| is_first_moment(state));
    let found: Vec<f64> = states.flat_map(|state| subject.tensor(memory, state.buffer).to_f64()).collect();
    let wide = moments(&Subject::new(model, 1, "", false));
    assert!(wide.len() > 1000 && found.len() == wide.len(), "{model}: {} and {} moments", found.len(), wide.len());
    let missed = |own: &[f64]| own.iter().zip(&wide).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    let (device, cpu) = (missed(&found), missed(&moments(subject)));
    assert!(
        cpu > 0.0 && device <= job::AS_EXACT * cpu,
        "{model}: gradients miss those in 32 bits by {device:e}, the CPU's by {cpu:e}"
    );
    eprintln!("{model}: rounded gradients miss those in 32 bits {:.3} times as far as the CPU backend's", device / cpu);
}

/// Whether a test that takes its time is to run.
fn is_wanted(what: &str) -> bool {
    let is_few = extent() == Extent::Few;
    if is_few {
        eprintln!("skipped: {what}, which `tests/cuda.sh` runs");
    }
    !is_few
}

/// How many of so many steps are done: a second one, which reads what the first has updated, where
/// there are three, and one of two.
fn share(steps: u64) -> u64 {
    of_extent(0, steps.div_ceil(2).min(2), steps)
}

/// Trains by rounded products; where shares are run, a decoder, an encoder and a net of
/// convolutions.
fn trains_rounded(model: &str, steps: u64) {
    if extent() == Extent::All || ["gpt2", "bert", "resnet"].contains(&model) {
        trains(model, 1, BF16, share(steps));
    }
}

#[test]
fn whole_steps_of_mlp_are_pytorchs() {
    trains_plainly("mlp", of_extent(3, 3, 12));
    trains("mlp", 1, "", 3);
    trains("mlp", 2, "", 3);
}

#[test]
fn whole_steps_of_resnet_are_pytorchs() {
    if is_wanted("steps of resnet") {
        trains_plainly("resnet", share(6));
        trains("resnet", 1, "", 2);
        trains_rounded("resnet", 2);
    }
}

#[test]
fn whole_steps_of_gpt2_are_pytorchs() {
    if is_wanted("steps of gpt2") {
        trains("gpt2", 1, "", share(3));
        trains_rounded("gpt2", 2);
        trains("gpt2", 1, tf32::LINE, 1);
    }
}

#[test]
fn whole_steps_of_char_gpt_are_the_cpus() {
    if is_wanted("steps of char-gpt") {
        // A second step would begin where rounding alone has moved some parameters.
        trains("char-gpt", 1, "", 1);
        trains("char-gpt", 1, BF16, 1);
    }
}

#[test]
fn whole_steps_of_llama_are_pytorchs() {
    if is_wanted("steps of llama") {
        trains("llama", 1, "", share(3));
        trains_rounded("llama", 2);
    }
}

#[test]
fn whole_steps_of_bert_vit_and_inception_are_pytorchs() {
    if is_wanted("steps of bert, vit and inception") {
        for model in ["bert", "vit", "inception"] {
            trains(model, 1, "", share(3));
            trains_rounded(model, 2);
        }
    }
}

#[test]
fn a_wrong_kernel_of_a_step_is_seen() {
    if !Host::available() {
        eprintln!("skipped: no g++ for kernels on the host");
        return;
    }
    let subject = Subject::new("mlp", 1, "", true);
    let state = subject.program.buffers[subject.program.states[0].buffer.index()].offset;
    let rows = subject.table.sections.iter().flat_map(|section| &section.rows);
    let update = |work: &Work| match work {
        Work::Launch { kernel, pointers, .. } => {
            pointers.iter().any(|p| p.is_written && p.range.start == state).then(|| kernel.clone())
        }
        _ => None,
    };
    let update = { rows }.find_map(|row| update(&row.work)).expect("an update");
    let host = subject.host(|name, text| match name == update {
        true => text.replacen(" - ", " + ", 1),
        false => text.to_owned(),
    });
    let Trained { seen, .. } = subject.train(&host, 3).unwrap();
    assert!(subject.judge(&seen, &[]).is_err(), "training with a wrong update has PyTorch's losses: {seen:?}");
}
