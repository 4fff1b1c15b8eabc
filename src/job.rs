//! A job: a model and a spec that are compiled, or a plan directory; the same from there on.

mod divergence;
mod evaluate;
mod export;

pub use evaluate::Evaluated;

pub(crate) use divergence::{check_weights, of_step};

use crate::cuda::run::{How, Ranks};
use crate::error::Error;
use crate::machine::{Device, Machine};
use crate::plan_dir::{self, PlanDir, Trust};
use crate::proof::plan_reference;
use crate::{Compiled, Options, compile, cuda, labels_are_inputs};
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

/// A job: what its model and its spec come to.
#[derive(Debug)]
pub struct Job {
    /// The spec.
    pub spec: Spec,
    /// The programs.
    pub programs: Programs,
    /// The graph of the step of training on one rank, where the job trains.
    reference: Option<Graph>,
    /// The decision about each initializer of the model: whether it is trained, and why.
    pub decisions: Vec<Decision>,
    /// What compiling it has to say to the user.
    pub warnings: Diagnostics,
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
#[derive(Debug)]
struct Model {
    /// Its file: what is compiled again for another batch, and beside which external data is.
    file: PathBuf,
    /// A model file, perhaps without its weights.
    bytes: Arc<Vec<u8>>,
    /// Initializers that are views of trained ones.
    copies: Vec<StoredCopy>,
}

/// The source of initial elements.
#[derive(Debug)]
enum Weights {
    Model(BTreeMap<String, Weight>),
    Plan { elements: BTreeMap<String, Tensor>, path: PathBuf },
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

impl Job {
    /// Compiles the model at `model` as the spec at `spec` says, to train it, and proves its plans.
    ///
    /// # Errors
    /// All that is wrong with the model or the spec, as far as it can be told at once.
    pub fn open(model: impl AsRef<Path>, spec: impl AsRef<Path>) -> Result<Job, Error> {
        let spec = spec::load(spec.as_ref())?;
        Job::compile(model.as_ref(), spec, &Options::default())
    }

    /// As [`Job::open`], to evaluate the model alone: the spec needs no `batch`, `loss` and
    /// `optimizer`.
    ///
    /// # Errors
    /// As [`Job::open`].
    pub fn open_to_evaluate(model: impl AsRef<Path>, spec: impl AsRef<Path>) -> Result<Job, Error> {
        let spec = spec::load(spec.as_ref())?;
        Job::compile(model.as_ref(), spec, &Options { train: false, ..Options::default() })
    }

    /// Compiles the model at `model` as `spec` says.
    ///
    /// # Errors
    /// As [`Job::open`].
    pub fn compile(model: &Path, spec: Spec, options: &Options) -> Result<Job, Error> {
        let Compiled { plans, reference, weights, decisions, copies, model: bytes, warnings, .. } =
            compile(model, &spec, options)?;
        Ok(Job {
            labels_are_inputs: labels_are_inputs(&plans.eval.graph, &spec),
            programs: plans.map(|plan| plan.programs),
            model: Model { file: model.to_path_buf(), bytes, copies },
            weights: Weights::Model(weights),
            odd: BTreeSet::new(),
            plan: None,
            spec,
            reference,
            decisions,
            warnings,
        })
    }

    /// Opens a plan directory, which is proven again as far as it is not trusted.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn open_plan(path: impl AsRef<Path>, trust: Trust) -> Result<Job, Error> {
        let plan = plan_dir::read(path.as_ref(), trust)?;
        let weights = Weights::Plan { elements: plan.weights()?, path: plan.path.clone() };
        let file = plan_dir::model_path(&plan.path);
        let model = Model { file, bytes: Arc::new(plan.model()?), copies: plan.manifest.copies };
        let PlanDir { spec, programs, reference, labels_are_inputs, path, .. } = plan;
        let decisions = planned(&programs);
        let (plan, odd, warnings) = (Some(path), BTreeSet::new(), vec![]);
        Ok(Job { spec, programs, reference, labels_are_inputs, decisions, warnings, model, weights, odd, plan })
    }

    /// The programs of training.
    ///
    /// # Errors
    /// If the job only evaluates.
    pub fn training(&self) -> Result<&PlanSet, Error> {
        self.programs.training.as_ref().ok_or_else(|| self.only_evaluates())
    }

    /// The program of training on one rank, which that over many is compared with.
    ///
    /// # Errors
    /// If the job only evaluates.
    pub fn reference(&self) -> Result<PlanSet, Error> {
        let graph = self.reference.as_ref().ok_or_else(|| self.only_evaluates())?;
        Ok(plan_reference(graph, &self.spec)?.into())
    }

    fn only_evaluates(&self) -> Error {
        Error::User(self.spec.require_training().err().unwrap_or_default())
    }

    /// Starts all ranks of `programs` at the job's initial state.
    ///
    /// # Errors
    /// If weights are missing, or the machine cannot hold the ranks.
    pub fn start(&self, programs: &PlanSet, machine: &Machine) -> Result<Executor, Error> {
        match machine.device {
            Device::Cpu => self.start_on_cpu(programs, machine),
            Device::Cuda(how) => self.start_on_gpus(programs, Ranks::All, machine, how),
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
        machine: &Machine,
    ) -> Result<Executor, Error> {
        if let Device::Cuda(how) = machine.device {
            return self.start_on_gpus(programs, Ranks::One(control, local), machine, how);
        }
        let threads = machine.threads_per_rank(programs);
        let mut executor = Executor::among(control, machine.world(), programs.clone(), threads)?;
        self.reset(&mut executor)?;
        Ok(executor)
    }

    fn start_on_gpus(&self, programs: &PlanSet, ranks: Ranks, machine: &Machine, how: How) -> Result<Executor, Error> {
        let mut executor = cuda::run::start(programs, ranks, machine.world(), self.plan.as_deref(), how)?;
        self.reset(&mut executor)?;
        Ok(executor)
    }

    /// Starts `programs` at the job's initial state on the CPU.
    ///
    /// # Errors
    /// As [`Job::start`].
    pub fn start_on_cpu(&self, programs: &PlanSet, machine: &Machine) -> Result<Executor, Error> {
        let mut executor = Executor::within(machine.world(), programs.clone(), machine.threads_per_rank(programs))?;
        self.reset(&mut executor)?;
        Ok(executor)
    }

    /// Drops what only the beginning of training needs: the weights, which the ranks hold by now,
    /// and the model's bytes but for what an export begins with.
    ///
    /// # Errors
    /// If the model cannot be taken apart.
    pub fn forget_weights(&mut self, exports: bool) -> Result<(), Error> {
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
    pub fn reset(&self, executor: &mut Executor) -> Result<(), Error> {
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
    pub fn export(&self, executor: &Executor, to: &Path) -> Result<Option<PathBuf>, Error> {
        self.export_from(executor.programs(), |name| Ok(executor.initializer(name)?), to)
    }

    /// [`Job::export`] of what `initializer` gives, whole, for the state of `programs`.
    ///
    /// # Errors
    /// Those of `initializer`; if the file cannot be written.
    pub fn export_from(
        &self,
        programs: &PlanSet,
        initializer: impl Fn(&str) -> Result<Tensor, Error>,
        to: &Path,
    ) -> Result<Option<PathBuf>, Error> {
        let Model { file, bytes, copies } = &self.model;
        let mut types: BTreeMap<String, Type> = BTreeMap::new();
        for (program, state) in programs.states().into_iter().filter(|(_, s)| s.role.is_of_model()) {
            let buffer = &program.buffers[state.buffer.index()];
            let shape = state.block.as_ref().map_or(buffer.shape.clone(), |block| block.whole_shape(&buffer.shape));
            types.insert(state.initializer().to_string(), Type::new(buffer.dtype, shape));
        }
        let copies: BTreeMap<&str, &StoredCopy> = copies.iter().map(|copy| (copy.name.as_str(), copy)).collect();
        for copy in copies.values() {
            let of = types.get(&copy.of).ok_or_else(|| Error::Machine(format!("`{}` is lost", copy.of)))?;
            types.insert(copy.name.clone(), copy.ty(of));
        }
        let initializer = |name: &str| {
            let found = initializer(name)?;
            Ok::<_, Error>(match types.get(name) {
                Some(ty) if ty.dtype != found.dtype => found.cast(ty.dtype),
                _ => found,
            })
        };
        let elements = |name: &str| match copies.get(name) {
            Some(copy) => copy.elements(&initializer(&copy.of)?.into()).map_err(|why| Error::Machine(why.into())),
            None => Ok(initializer(name)?.into()),
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

impl Batches {
    /// The data at `paths` for `inputs`, with `context` tokens in a window of text.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn of(self, paths: &[PathBuf], context: Option<u64>, inputs: Vec<InputSpec>) -> Result<Dataset, Error> {
        let Batches { size, shuffle, seed, place } = self;
        let options = DataOptions { context, shuffle, seed, batch_place: place };
        Ok(Dataset::open_all(paths, inputs, size, &options)?)
    }
}

impl Job {
    /// The batches of a step of training.
    pub fn batches(&self, programs: &PlanSet) -> Batches {
        let program = programs.first();
        let place = self.spec.batch.as_ref().map(|batch| self.spec.place_of(batch.source));
        Batches { size: program.batch, shuffle: false, seed: program.seed, place }
    }
}
