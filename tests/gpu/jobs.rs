//! Jobs of the gold models, and their steps on devices.

use super::job;
use super::support::{folder, home};
use serde_json::Value;
use shardc::{Options as CompileOptions, compile};
use shardc_codegen::program::Kernels;
use shardc_codegen::with_prelude;
use shardc_executor::data::{Dataset, Options as DataOptions, input_specs};
use shardc_executor::load::LoadedSet;
use shardc_executor::run::{ExecutionError, Executor};
use shardc_executor::tensor::Tensor;
use shardc_executor::world::World;
use shardc_gpu::choices::Choices;
use shardc_gpu::device::Device;
use shardc_gpu::start::{Open, Options, start};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::reason::Reason;
use shardc_nvrtc::Nvrtc;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A line of the spec.
pub const BF16: &str = "precision compute=bf16 gradients=bf16\n";

/// A compiled job with its data.
pub struct Planned {
    pub name: String,
    pub set: PlanSet,
    pub data: Dataset,
    weights: BTreeMap<String, Tensor>,
    gold: Value,
    is_narrow: bool,
    cubins: Mutex<BTreeMap<u32, Vec<Vec<u8>>>>,
}

/// What training came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// Loss and gradient norm of each step.
    pub lines: Vec<[f64; 2]>,
    /// The bytes of every state.
    pub states: Vec<(String, Vec<u8>)>,
}

impl Planned {
    pub fn new(model: &str, mesh: &str, microbatches: u64, lines: &str) -> Planned {
        static FOLDERS: AtomicUsize = AtomicUsize::new(0);
        let models = home().join("tests/models").join(model);
        let here = folder(&format!("gpu-{model}-{}", FOLDERS.fetch_add(1, Ordering::Relaxed)));
        std::fs::write(here.join("job.shard"), job::spec(model, mesh, microbatches, lines)).unwrap();
        let spec = shardc_frontend::spec::load(&here.join("job.shard")).unwrap_or_else(|e| panic!("{e:?}"));
        let options = CompileOptions { train: true, weights: true, verify: false, certify: false };
        let compiled = compile(&models.join("model.onnx"), &spec, &options).unwrap_or_else(|e| panic!("{model} {mesh}: {e:?}"));
        let set = compiled.plans.training.unwrap().programs;
        let data =
            Dataset::open(&models.join("data.npz"), input_specs(&set), set.first().batch, &DataOptions::default()).unwrap();
        let weights =
            compiled.weights.iter().map(|(name, weight)| (name.clone(), Tensor::from(weight.load().unwrap()))).collect();
        let gold = serde_json::from_str(&std::fs::read_to_string(models.join("gold.json")).unwrap()).unwrap();
        let name = format!("{model} {mesh} {lines}").replace('\n', " ").trim().to_string();
        Planned { name, set, data, weights, gold, is_narrow: lines.contains("16"), cubins: Mutex::default() }
    }

    /// The ranks on devices, at the beginning.
    pub fn started<D: Device + 'static>(&self, open: &dyn Open<D>, graphs: bool) -> Result<Executor, ExecutionError> {
        let assemble = |kernels: &Kernels, arch| self.assembled(kernels, arch);
        let mut choices = Choices::default();
        let options = Options { graphs, tune: false, assemble: &assemble, choices: &mut choices };
        let mut executor = start(LoadedSet::new(self.set.clone()).unwrap(), World::default(), open, options)?;
        self.begin(&mut executor)?;
        Ok(executor)
    }

    /// The ranks on the CPU, at the beginning.
    pub fn on_cpu(&self) -> Executor {
        let mut executor = Executor::new(self.set.clone(), 1).unwrap();
        self.begin(&mut executor).unwrap();
        executor
    }

    fn begin(&self, executor: &mut Executor) -> Result<(), ExecutionError> {
        executor.initialise(|name| self.weights.get(name).cloned())
    }

    /// The machine code of kernels, made once.
    fn assembled(&self, kernels: &Kernels, arch: u32) -> Result<Vec<Vec<u8>>, Reason> {
        let mut cubins = self.cubins.lock().unwrap();
        if let Some(known) = cubins.get(&arch) {
            return Ok(known.clone());
        }
        let texts: Vec<(&str, String)> =
            kernels.all.iter().map(|used| (used.generated.name.as_str(), with_prelude(&used.generated.text))).collect();
        let texts: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let all = Nvrtc::find()?.assemble_all(&texts, arch);
        let all: Vec<Vec<u8>> = all.into_iter().map(|one| Ok(one?.cubin)).collect::<Result<_, Reason>>()?;
        cubins.insert(arch, all.clone());
        Ok(all)
    }

    /// Trains for some steps.
    pub fn train(&self, executor: &mut Executor, steps: u64) -> Result<Trained, ExecutionError> {
        let mut lines = vec![];
        for step in 0..steps {
            let result = executor.step_if_finite(self.data.batch(step))?;
            lines.push(["loss", "grad_norm"].map(|name| result.outputs[name].to_f64()[0]));
        }
        let names = self.set.states().into_iter().map(|(_, state)| state.name.clone());
        let states = names.map(|name| Ok((name.clone(), executor.get_state(&name)?.bytes)));
        Ok(Trained { lines, states: states.collect::<Result<_, ExecutionError>>()? })
    }

    /// Holds losses and norms against PyTorch's, within the tolerances of the CPU backend, whose
    /// own lines are `cpu`.
    pub fn judge(&self, seen: &Trained, cpu: &Trained) -> Result<(), String> {
        job::judge(&self.gold, &seen.lines, self.is_narrow.then_some(&cpu.lines))
    }
}
