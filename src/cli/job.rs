//! The job that a command runs: a plan directory, or a model and a spec compiled on the spot; the
//! same from there on.

use super::export;
use super::failure::Failure;
use super::machine::{DeviceKind, MachineArgs};
use super::overwrite::Files;
use crate::cuda::run::Ranks;
use crate::plan_dir::{self, PlanDir, Trust};
use crate::proof::plan_reference;
use crate::{Options, compile, cuda, labels_are_inputs, report};
use clap::Args;
use shardc_executor::data::{Dataset, InputSpec, Options as DataOptions};
use shardc_executor::oddity::Oddity;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_frontend::onnx::{self, Decision, Export, StoredCopy, Weight};
use shardc_frontend::spec;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::graph::Graph;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, StateRole, StateVariable};
use shardc_ir::programs::Programs;
use shardc_ir::spec::{Batch, Located, Source, Spec};
use shardc_ir::types::Type;
use shardc_launch::control::Control;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The source of a job.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// A plan directory, or an ONNX model together with --spec
    #[arg(value_name = "PLAN|MODEL.onnx")]
    source: PathBuf,
    /// The sharding spec of the model
    #[arg(long, value_name = "JOB.shard")]
    spec: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
}

/// What is believed of a plan directory.
#[derive(Debug, Clone, Args)]
pub struct TrustArgs {
    /// Believe a plan directory's graphs, and do not compile its model and spec again
    #[arg(long)]
    trust_graphs: bool,
}

impl TrustArgs {
    /// What is believed.
    pub fn trust(&self) -> Trust {
        if self.trust_graphs { Trust::Graphs } else { Trust::Nothing }
    }
}

/// The data of a job.
#[derive(Debug, Args)]
pub struct DataArgs {
    /// `.npz`, a folder of `.npy`, `.safetensors`, or tokens: `.txt` (bytes), `.bin` (u16); several
    /// times, or a folder, for several files of one kind
    #[arg(long = "data", value_name = "DATA", required = true)]
    pub path: Vec<PathBuf>,
    /// Tokens in a window of text; by default what the model says
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..))]
    pub context: Option<u64>,
}

/// The job that a command runs.
pub struct Job {
    /// The spec.
    pub spec: Spec,
    /// The programs.
    pub programs: Programs,
    /// The graph of the step of training on one rank, where the job trains.
    reference: Option<Graph>,
    /// The decision about each initializer of the model: whether it is trained, and why.
    pub decisions: Vec<Decision>,
    /// Whether the model takes the labels of the loss as an input.
    pub labels_are_inputs: bool,
    model: Model,
    weights: Weights,
    /// Initializers that begin with numbers that are not finite, once the weights are forgotten.
    odd: BTreeSet<String>,
    /// The plan directory, if it is of one.
    plan: Option<PathBuf>,
}

/// The model that a job came from, as exports begin with it.
struct Model {
    /// Its file: what is compiled again for another batch, and beside which external data is.
    file: PathBuf,
    /// A model file, perhaps without its weights.
    bytes: Arc<Vec<u8>>,
    /// Initializers that are views of trained ones.
    copies: Vec<StoredCopy>,
}

/// The source of initial elements.
enum Weights {
    Model(BTreeMap<String, Weight>),
    Plan { elements: BTreeMap<String, Tensor>, path: PathBuf },
}

impl JobArgs {
    /// The job of a plan directory, or of a model and a spec.
    pub fn new(source: PathBuf, spec: Option<PathBuf>, trust: TrustArgs) -> JobArgs {
        JobArgs { source, spec, trust }
    }

    /// The files that are read to open the job.
    pub fn files(&self) -> Files {
        let files = match self.source.is_dir() {
            true => Files::default().reads_plan(&self.source),
            false => Files::default().reads_model(&self.source),
        };
        self.spec.iter().fold(files, |files, spec| files.reads("the spec", spec))
    }

    /// Opens the plan directory, or compiles the model; `train` says whether training is wanted.
    ///
    /// # Errors
    /// All that is wrong with what is named.
    pub fn open(&self, train: bool) -> Result<Job, Failure> {
        match (&self.spec, self.source.is_dir()) {
            (Some(_), true) => Err(Failure::Usage(format!(
                "`{}` is a folder: a plan directory has its own spec, leave out --spec",
                self.source.display()
            ))),
            (None, true) => open_plan(plan_dir::read(&self.source, self.trust.trust())?),
            (Some(_), false) if self.trust.trust_graphs => Err(Failure::Usage(format!(
                "`--trust-graphs` is about plan directories, and `{}` is a model",
                self.source.display()
            ))),
            (Some(spec), false) => open_model(&self.source, spec, train),
            (None, false) if self.source.extension().is_some_and(|e| e == "onnx") => {
                Err(Failure::Usage("a model needs a spec: add `--spec JOB.shard`".to_string()))
            }
            // Says that there is no plan directory.
            (None, false) => open_plan(plan_dir::read(&self.source, self.trust.trust())?),
        }
    }
}

fn open_plan(plan: PlanDir) -> Result<Job, Failure> {
    let weights = Weights::Plan { elements: plan.weights()?, path: plan.path.clone() };
    let file = plan_dir::model_path(&plan.path);
    let model = Model { file, bytes: Arc::new(plan.model()?), copies: plan.manifest.copies };
    let PlanDir { spec, programs, reference, labels_are_inputs, path, .. } = plan;
    let decisions = planned(&programs);
    let plan = Some(path);
    Ok(Job { spec, programs, reference, labels_are_inputs, decisions, model, weights, odd: BTreeSet::new(), plan })
}

/// The decisions of a plan: it knows its state variables, and no longer why they are what they are.
fn planned(programs: &Programs) -> Vec<Decision> {
    let decision = |(program, state): (&Program, &StateVariable)| {
        let why = match state.role {
            StateRole::Parameter => "a parameter of the plan",
            StateRole::Frozen => "kept as it is by the plan",
            StateRole::Statistic => "a running statistic",
            StateRole::Moment | StateRole::Scaling => return None,
        };
        let shape = program.buffers[state.buffer.index()].shape.clone();
        let trained = state.role == StateRole::Parameter;
        Some(Decision { name: state.name.clone(), alias: None, trained, why: why.to_string(), shape })
    };
    programs.main().states().into_iter().filter_map(decision).collect()
}

fn open_model(model: &Path, spec: &Path, train: bool) -> Result<Job, Failure> {
    let spec = spec::load(spec)?;
    let compiled = compile(model, &spec, &Options { train, ..Options::default() })?;
    report::print(&compiled.warnings);
    let model = Model { file: model.to_path_buf(), bytes: compiled.model, copies: compiled.copies };
    let labels_are_inputs = labels_are_inputs(&compiled.plans.eval.graph, &spec);
    let (programs, decisions) = (compiled.plans.map(|plan| plan.programs), compiled.decisions);
    Ok(Job {
        spec,
        programs,
        reference: compiled.reference,
        labels_are_inputs,
        decisions,
        model,
        weights: Weights::Model(compiled.weights),
        odd: BTreeSet::new(),
        plan: None,
    })
}

impl Job {
    /// The programs of training.
    ///
    /// # Errors
    /// If the job only evaluates.
    pub fn training(&self) -> Result<&PlanSet, Failure> {
        self.programs.training.as_ref().ok_or_else(|| self.only_evaluates())
    }

    /// The program of training on one rank, which that over many is compared with.
    ///
    /// # Errors
    /// If the job only evaluates.
    pub fn reference(&self) -> Result<PlanSet, Failure> {
        let graph = self.reference.as_ref().ok_or_else(|| self.only_evaluates())?;
        Ok(plan_reference(graph, &self.spec)?.into())
    }

    fn only_evaluates(&self) -> Failure {
        Failure::User(self.spec.require_training().err().unwrap_or_default())
    }

    /// Starts all ranks of `programs` at the job's initial state, on what the machine's arguments
    /// say.
    ///
    /// # Errors
    /// If weights are missing, or the machine cannot hold the ranks.
    pub fn start(&self, programs: &PlanSet, machine: &MachineArgs) -> Result<Executor, Failure> {
        match machine.device {
            DeviceKind::Cpu => self.start_on_cpu(programs, machine),
            DeviceKind::Cuda => self.start_on_gpus(programs, Ranks::All, machine),
        }
    }

    /// Starts the rank of `control`, a process of its own with the number `local` on its machine,
    /// as [`Job::start`] starts all.
    ///
    /// # Errors
    /// As [`Job::start`], here or on another rank.
    pub fn start_among(
        &self,
        (control, local): (Arc<Control>, u64),
        programs: &PlanSet,
        machine: &MachineArgs,
    ) -> Result<Executor, Failure> {
        if machine.device == DeviceKind::Cuda {
            return self.start_on_gpus(programs, Ranks::One(control, local), machine);
        }
        let threads = machine.threads_per_rank(programs);
        let mut executor = Executor::among(control, machine.world(), programs.clone(), threads)?;
        self.reset(&mut executor)?;
        Ok(executor)
    }

    fn start_on_gpus(&self, programs: &PlanSet, ranks: Ranks, machine: &MachineArgs) -> Result<Executor, Failure> {
        let mut executor = cuda::run::start(programs, ranks, machine.world(), self.plan.as_deref(), machine.how())?;
        self.reset(&mut executor)?;
        Ok(executor)
    }

    /// Starts `programs` at the job's initial state on the CPU.
    ///
    /// # Errors
    /// As [`Job::start`].
    pub fn start_on_cpu(&self, programs: &PlanSet, machine: &MachineArgs) -> Result<Executor, Failure> {
        let mut executor = Executor::within(machine.world(), programs.clone(), machine.threads_per_rank(programs))?;
        self.reset(&mut executor)?;
        Ok(executor)
    }

    /// Drops what only the beginning of training needs: the weights, which the ranks hold by now,
    /// and the model's bytes but for what an export begins with.
    ///
    /// # Errors
    /// If the model cannot be taken apart.
    pub fn forget_weights(&mut self, exports: bool) -> Result<(), Failure> {
        if exports {
            let states = self.programs.main().states().into_iter().map(|(_, state)| state);
            let states = states.filter(|s| s.role.is_of_model()).map(|s| s.initializer());
            let is_odd =
                |name: &&str| self.initial(name).is_ok_and(|initial| Oddity::of(initial.dtype, &initial.bytes).is_some());
            self.odd = states.filter(is_odd).map(String::from).collect();
        }
        self.weights = Weights::Model(BTreeMap::new());
        let bytes = std::mem::take(&mut self.model.bytes);
        if exports {
            let states = self.programs.main().states().into_iter().map(|(_, state)| state).filter(|s| s.role.is_of_model());
            let names = states.map(|s| s.initializer().to_string()).chain(self.model.copies.iter().map(|c| c.name.clone()));
            self.model.bytes = Arc::new(onnx::forget_weights(&self.model.file, bytes, &names.collect())?);
        }
        Ok(())
    }

    /// Puts every state variable back to its beginning.
    ///
    /// # Errors
    /// If weights are missing.
    pub fn reset(&self, executor: &mut Executor) -> Result<(), Failure> {
        let mut missing = None;
        let result = executor.initialise(|name| match self.initial(name) {
            Ok(tensor) => Some(tensor),
            Err(error) => {
                missing = Some(error);
                None
            }
        });
        match missing {
            Some(error) => Err(error.into()),
            None => Ok(result?),
        }
    }

    /// Whether the data's array of that name is the labels of the loss.
    pub fn is_label(&self, name: &str) -> bool {
        self.spec.labels().is_some_and(|labels| labels.value == name)
    }

    /// The programs of evaluation for `samples` samples at once, on one rank.
    ///
    /// # Errors
    /// If the model cannot run with so many.
    pub fn resized(&self, samples: u64) -> Result<PlanSet, Diagnostics> {
        let mut spec = self.spec.reference();
        let source = spec.batch.as_ref().map_or(Source { line: 1, span: (0, 0) }, |batch| batch.source);
        spec.batch = Some(Located { value: Batch { size: samples, microbatches: 1 }, source });
        if matches!(self.weights, Weights::Plan { .. }) {
            spec = spec.of_plan();
        }
        let options = Options { train: false, weights: false, ..Options::default() };
        Ok(compile(&self.model.file, &spec, &options)?.plans.eval.programs)
    }

    /// Writes the model with its parameters as they are now; where its weights were in a file of
    /// their own, they are again, in the one that is given.
    ///
    /// # Errors
    /// If a rank failed or the file cannot be written.
    pub fn export(&self, executor: &Executor, to: &Path) -> Result<Option<PathBuf>, Failure> {
        let Model { file, bytes, copies } = &self.model;
        let mut types: BTreeMap<String, Type> = BTreeMap::new();
        for (program, state) in executor.programs().states().into_iter().filter(|(_, s)| s.role.is_of_model()) {
            let buffer = &program.buffers[state.buffer.index()];
            let shape = state.block.as_ref().map_or(buffer.shape.clone(), |block| block.whole_shape(&buffer.shape));
            types.insert(state.initializer().to_string(), Type::new(buffer.dtype, shape));
        }
        let copies: BTreeMap<&str, &StoredCopy> = copies.iter().map(|copy| (copy.name.as_str(), copy)).collect();
        for copy in copies.values() {
            let of = types.get(&copy.of).ok_or_else(|| Failure::Machine(format!("`{}` is lost", copy.of)))?;
            types.insert(copy.name.clone(), copy.ty(of));
        }
        let elements = |name: &str| match copies.get(name) {
            Some(copy) => copy.elements(&executor.initializer(&copy.of)?.into()).map_err(|why| Failure::Machine(why.into())),
            None => Ok(executor.initializer(name)?.into()),
        };
        export::write(&Export::new(file, bytes.clone(), &types)?, elements, to, file)
    }

    /// A place in the model or plan, such as `value "logits"`.
    pub fn place(&self, what: String) -> Place {
        Place::Model { file: self.model.file.clone(), what }
    }

    /// Whether the elements that the initializer `name` began with are finite, as those that the
    /// spec makes are.
    pub fn began_finite(&self, name: &str) -> bool {
        !self.odd.contains(name)
    }

    fn initial(&self, name: &str) -> Result<Tensor, Diagnostic> {
        match &self.weights {
            Weights::Model(weights) => match weights.get(name) {
                Some(weight) => weight.load().map(Tensor::from),
                None => Err(Diagnostic::error(format!("the model has no weights for `{name}`"))),
            },
            Weights::Plan { elements, path } => elements.get(name).cloned().ok_or_else(|| {
                Diagnostic::error(format!("this plan has no weights for `{name}`"))
                    .at(Place::File(path.clone()))
                    .help("compile it without `--no-weights`, or with an `init` line")
            }),
        }
    }
}

impl DataArgs {
    /// Reads the data for `inputs`.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn open(&self, inputs: Vec<InputSpec>, batches: Batches) -> Result<Dataset, Failure> {
        let Batches { size, shuffle, seed, place } = batches;
        let options = DataOptions { context: self.context, shuffle, seed, batch_place: place };
        Ok(Dataset::open_all(&self.path, inputs, size, &options)?)
    }
}

/// How data is cut into batches.
#[derive(Debug, Default)]
pub struct Batches {
    /// Samples in each.
    pub size: u64,
    /// Whether samples come in random order.
    pub shuffle: bool,
    /// Seeds the order.
    pub seed: u64,
    /// The line of the spec that sets the size.
    pub place: Option<Place>,
}

impl Job {
    /// The batches of a step of training.
    pub fn batches(&self, programs: &PlanSet) -> Batches {
        let program = programs.first();
        let place = self.spec.batch.as_ref().map(|batch| self.spec.place_of(batch.source));
        Batches { size: program.batch, shuffle: false, seed: program.seed, place }
    }
}
