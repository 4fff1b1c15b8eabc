//! Whole steps of training, every kernel of them executed on the host one after another over the
//! plan's arena: losses and gradient norms are PyTorch's, within the tolerances for f32 of
//! `tests/gold.rs`, and parameters the CPU backend's.

use super::memory::Memory;
use super::{is_full, job, own_folder};
use serde_json::Value;
use shardc::{Options, compile};
use shardc_codegen::{Cuda, Generated, MATH, PARTS, generate};
use shardc_cuda_testing::host::{Host, Order};
use shardc_executor::cpu::threads::Threads;
use shardc_executor::data::{Dataset, Options as DataOptions, input_specs};
use shardc_executor::load::LoadedSet;
use shardc_executor::rank::Rank;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{ALIGNMENT, BufferId, Program, Row, Step, View};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// By how much a parameter may miss that of the CPU backend, beside its part of the largest one.
const PARAMETERS: f64 = 2e-5;

/// A job on one rank, and PyTorch's run of it.
struct Subject {
    program: Program,
    data: Dataset,
    weights: BTreeMap<String, Tensor>,
    gold: Value,
    scratch: PathBuf,
}

impl Subject {
    fn new(model: &str) -> Subject {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(model);
        let scratch = own_folder(&format!("cuda-steps-{model}"));
        std::fs::write(scratch.join("job.shard"), job::spec(model, "dp=1", 1, "")).unwrap();
        let spec = shardc_frontend::spec::load(&scratch.join("job.shard")).unwrap();
        let options = Options { train: true, weights: true, verify: false, certify: false };
        let compiled = compile(&folder.join("model.onnx"), &spec, &options).unwrap();
        let set: PlanSet = compiled.plans.training.unwrap().programs;
        let program = set.first().clone();
        let data = Dataset::open(&folder.join("data.npz"), input_specs(&set), program.batch, &DataOptions::default()).unwrap();
        let weights =
            compiled.weights.iter().map(|(name, weight)| (name.clone(), Tensor::from(weight.load().unwrap()))).collect();
        let gold = serde_json::from_str(&std::fs::read_to_string(folder.join("gold.json")).unwrap()).unwrap();
        Subject { program, data, weights, gold, scratch }
    }

    /// The CPU backend's ranks, at the beginning.
    fn executor(&self) -> Executor {
        let mut executor = Executor::new(self.program.clone(), 1).unwrap();
        executor.initialise(|name| self.weights.get(name).cloned()).unwrap();
        executor
    }

    /// The kernel of each step, task by task.
    fn kernels(&self) -> Vec<Vec<Generated>> {
        let backend = Cuda { mesh: self.program.mesh.clone(), aligned: true };
        let kernel = |step: &Step| {
            assert!(step.reads.iter().chain(&step.writes).all(|view| view.offset.is_multiple_of(ALIGNMENT)));
            generate(&step.kernel, &backend, &self.program.in_place(step)).unwrap()
        };
        self.program.tasks.iter().map(|task| task.steps.iter().map(kernel).collect()).collect()
    }

    /// Where an operand lies.
    fn range(&self, view: &View) -> Range<usize> {
        let start = (self.program.buffers[view.buffer.index()].offset + view.offset) as usize;
        start..start + view.bytes as usize
    }

    /// The only number of an output.
    fn output(&self, arena: &[u8], name: &str) -> f64 {
        let output = self.program.outputs.iter().find(|output| output.name == name).unwrap();
        self.tensor(arena, output.buffer).to_f64()[0]
    }

    fn tensor(&self, arena: &[u8], id: BufferId) -> Tensor {
        let buffer = &self.program.buffers[id.index()];
        let bytes = buffer.local.iter().product::<u64>() * buffer.dtype.bytes();
        let bytes = arena[self.range(&View { buffer: id, offset: 0, bytes })].to_vec();
        Tensor { dtype: buffer.dtype, shape: buffer.shape.clone(), bytes }
    }

    /// Trains for `steps` steps by the kernels, over memory that begins as the CPU backend's does.
    /// Gives each step's loss and gradient norm, and the memory behind the last.
    fn train(&self, kernels: &[Vec<Generated>], host: &Host, steps: u64) -> Result<(Vec<[f64; 2]>, Vec<u8>), String> {
        let loaded = LoadedSet::new(self.program.clone()).unwrap();
        let start = self.executor();
        let states = self.program.states.iter().map(|state| start.get_state(&state.name).unwrap().bytes);
        let mut states: Vec<Vec<u8>> = states.collect();
        let (mut seen, mut arena) = (vec![], vec![]);
        for number in 0..steps {
            let mut rank = Rank::new(loaded.of_rank(0).clone(), 0, Threads(1)).unwrap();
            for (state, bytes) in self.program.states.iter().zip(&states) {
                rank.set_part(state.buffer, bytes).unwrap();
            }
            rank.begin(number, &self.data.batch(number)).unwrap();
            arena = rank.arena().bytes(0..self.program.arena_bytes).unwrap().to_vec();
            for row in &self.program.order {
                let Row::Run { task, .. } = row else { return Err("a message on one rank".into()) };
                let task = *task as usize;
                for (step, kernel) in self.program.tasks[task].steps.iter().zip(&kernels[task]) {
                    let run = self.run(step, kernel, host, &mut arena);
                    run.map_err(|why| format!("step {number}, `{}`: {why}", self.program.text_of(step)))?;
                }
            }
            states = self.program.states.iter().map(|state| self.tensor(&arena, state.buffer).bytes).collect();
            seen.push(["loss", "grad_norm"].map(|name| self.output(&arena, name)));
        }
        Ok((seen, arena))
    }

    fn run(&self, step: &Step, kernel: &Generated, host: &Host, arena: &mut [u8]) -> Result<(), String> {
        let bytes = |views: &[View]| views.iter().map(|view| arena[self.range(view)].to_vec()).collect();
        let mut memory = Memory::of(bytes(&step.reads), bytes(&step.writes));
        memory.launch(kernel, &[0, 0], |job| host.run(job, Order::Forward).map(|ran| ran.operands))?;
        for (view, bytes) in step.writes.iter().zip(memory.writes) {
            arena[self.range(view)].copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Holds losses and norms against PyTorch's.
    fn judge(&self, seen: &[[f64; 2]]) -> Result<(), String> {
        let gold = |of: &str, what: &str, step: usize| self.gold[of][what][step].as_f64().unwrap();
        for (step, [loss, norm]) in seen.iter().copied().enumerate() {
            let (want, want_norm) = (gold("float64", "loss", step), gold("float64", "grad_norm", step));
            let noise = (gold("float32", "loss", step) - want).abs();
            let is_near = |found: f64, want: f64, allowed: f64| (found - want).abs() <= allowed;
            if !is_near(loss, want, 2e-5 + 20.0 * noise) {
                return Err(format!("step {step}: loss {loss}, PyTorch {want}"));
            }
            if !is_near(norm, want_norm, want_norm * (1e-3 + 50.0 * noise)) {
                return Err(format!("step {step}: gradient norm {norm}, PyTorch {want_norm}"));
            }
        }
        Ok(())
    }

    fn host(&self, kernels: &[Vec<Generated>], name: &str) -> Host {
        let texts: BTreeMap<String, String> =
            kernels.iter().flatten().map(|kernel| (kernel.name.clone(), kernel.text.clone())).collect();
        let texts: Vec<(String, String)> = texts.into_iter().collect();
        Host::build(&self.scratch.join(name), &format!("{MATH}{PARTS}"), &texts).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// Trains a model so, and holds it against PyTorch and the CPU backend.
fn trains(model: &str, steps: u64) {
    if !Host::available() {
        eprintln!("skipped: no g++ for kernels on the host");
        return;
    }
    let subject = Subject::new(model);
    let kernels = subject.kernels();
    let host = subject.host(&kernels, "good");
    let (seen, arena) = subject.train(&kernels, &host, steps).unwrap_or_else(|why| panic!("{model}: {why}"));
    subject.judge(&seen).unwrap_or_else(|why| panic!("{model}: {why}"));
    let mut executor = subject.executor();
    for step in 0..steps {
        executor.step(subject.data.batch(step)).unwrap();
    }
    for state in &subject.program.states {
        let [found, want] = [subject.tensor(&arena, state.buffer), executor.get_state(&state.name).unwrap()].map(|t| t.to_f64());
        let largest = want.iter().fold(0f64, |most, value| most.max(value.abs()));
        let apart = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f64, f64::max);
        assert!(apart <= PARAMETERS * largest.max(1e-3), "{model}: `{}` is {apart:e} from the CPU backend's", state.name);
    }
}

#[test]
fn whole_steps_of_mlp_are_pytorchs() {
    trains("mlp", if is_full() { 12 } else { 3 });
}

#[test]
fn whole_steps_of_resnet_are_pytorchs() {
    if !is_full() {
        eprintln!("skipped: steps of resnet, which `SHARDC_CUDA=all` runs");
        return;
    }
    trains("resnet", 6);
}

#[test]
fn a_wrong_kernel_of_a_step_is_seen() {
    if !Host::available() {
        eprintln!("skipped: no g++ for kernels on the host");
        return;
    }
    let subject = Subject::new("mlp");
    let mut kernels = subject.kernels();
    let state = subject.program.states[0].buffer;
    let steps = subject.program.tasks.iter().map(|task| &task.steps);
    let mut all = steps.zip(&mut kernels).flat_map(|(steps, kernels)| steps.iter().zip(kernels));
    let (_, update) = all.find(|(step, _)| step.writes.iter().any(|view| view.buffer == state)).expect("an update");
    let damaged = update.text.replacen(" - ", " + ", 1);
    assert_ne!(damaged, update.text);
    update.text = damaged;
    let host = subject.host(&kernels, "damaged");
    let (seen, _) = subject.train(&kernels, &host, 3).unwrap();
    assert!(subject.judge(&seen).is_err(), "training with a wrong update has PyTorch's losses: {seen:?}");
}
