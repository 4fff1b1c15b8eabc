//! A job: a model and a spec that are compiled, or a plan directory; the same from there on.
//!
//! | to | call |
//! |---|---|
//! | compile a model under a spec | [`Job::open`], [`Job::open_to_evaluate`], [`Job::compile`] |
//! | keep what was compiled as a plan directory | [`Job::compile_to`] |
//! | prove a plan directory, and open it | [`Job::open_plan`]; the proof is [`Job::proven`] |
//! | train: step by step, or whole; with checkpoints | [`Job::train`], and [`crate::training`] |
//! | evaluate | [`Job::evaluate`] |
//! | export what was trained | [`Job::export`] |
//!
//! ```no_run
//! use shardc::plan_dir::Trust;
//! use shardc::{Job, Machine};
//!
//! Job::compile_to("model.onnx", "dp2.shard", "plan")?;
//! let job = Job::open_plan("plan", Trust::Nothing)?;
//! for proven in &job.proven {
//!     let proof = &proven.proof;
//!     println!("{}: {} ranks, {} bytes on one", proven.kind, proof.ranks, proof.peak_bytes);
//! }
//! let evaluated = job.evaluate(&Machine::default(), &["test.npz".into()], None, false)?;
//! println!("loss {:?} over {} samples", evaluated.score.loss, evaluated.samples);
//! # Ok::<_, shardc::Error>(())
//! ```

mod divergence;
mod evaluate;
#[cfg(feature = "onnx")]
mod export;
#[cfg(feature = "onnx")]
mod model;

pub use evaluate::Evaluated;

pub(crate) use divergence::of_step;

use crate::cuda;
use crate::cuda::run::{How, Ranks};
use crate::error::Error;
use crate::graphs::EvaluationFacts;
use crate::machine::{Device, Machine};
use crate::plan_dir::{self, PlanDir, Trust};
use crate::proof::{Proven, plan_reference};
use shardc_executor::data::{Dataset, InputSpec, Options as DataOptions};
use shardc_executor::oddity::Oddity;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_frontend::initializers::Decision;
#[cfg(feature = "onnx")]
use shardc_frontend::onnx::Weight;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::graph::Graph;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, StateRole, StateVariable};
use shardc_ir::programs::Programs;
use shardc_ir::spec::Spec;
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
    /// What was proven of each program.
    pub proven: Vec<Proven>,
    /// The decision about each initializer of the model: whether it is trained, and why.
    pub decisions: Vec<Decision>,
    /// What compiling it has to say to the user.
    pub warnings: Diagnostics,
    /// What its graph of evaluation says.
    pub facts: EvaluationFacts,
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
    /// What exports begin with.
    #[cfg(feature = "onnx")]
    exported: model::Exported,
}

/// The source of initial elements.
#[derive(Debug)]
enum Weights {
    #[cfg(feature = "onnx")]
    Model(BTreeMap<String, Weight>),
    Plan {
        elements: BTreeMap<String, Tensor>,
        path: PathBuf,
    },
    /// The ranks have them, and no rank starts with them any more.
    Forgotten,
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
    /// Opens a plan directory, which is proven again as far as it is not trusted.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn open_plan(path: impl AsRef<Path>, trust: Trust) -> Result<Job, Error> {
        let plan = plan_dir::read(path.as_ref(), trust)?;
        let weights = Weights::Plan { elements: plan.weights()?, path: plan.path.clone() };
        let file = plan_dir::model_path(&plan.path);
        #[cfg(feature = "onnx")]
        let exported = model::Exported { bytes: Arc::new(plan.model()?), copies: plan.manifest.copies };
        let model = Model {
            file,
            #[cfg(feature = "onnx")]
            exported,
        };
        let PlanDir { spec, programs, reference, facts, proven, path, .. } = plan;
        let decisions = planned(&programs);
        let (plan, odd, warnings) = (Some(path), BTreeSet::new(), vec![]);
        Ok(Job { spec, programs, reference, proven, facts, decisions, warnings, model, weights, odd, plan })
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

    /// Looks which weights are not finite to begin with, before they are forgotten: an export
    /// refuses the others.
    pub fn look_at_weights(&mut self) {
        let states = self.programs.main().states().into_iter().map(|(_, state)| state);
        let states = states.filter(|s| s.role.is_of_model()).map(|s| s.initializer());
        let is_odd = |name: &&str| self.initial(name).is_ok_and(|initial| Oddity::of(initial.dtype, &initial.bytes).is_some());
        self.odd = states.filter(is_odd).map(String::from).collect();
    }

    /// Drops what only the beginning of training needs: the weights, which the ranks hold by now,
    /// and the model's bytes but for what an export begins with.
    ///
    /// # Errors
    /// If the model cannot be taken apart.
    #[cfg_attr(not(feature = "onnx"), expect(unused_variables, reason = "without it nothing is exported"))]
    pub fn forget_weights(&mut self, exports: bool) -> Result<(), Error> {
        self.weights = Weights::Forgotten;
        #[cfg(feature = "onnx")]
        self.forget_model(exports)?;
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
            #[cfg(feature = "onnx")]
            Weights::Model(weights) => match weights.get(name) {
                Some(weight) => weight.load().map(Tensor::from),
                None => Err(Diagnostic::error(format!("the model has no weights for `{name}`"))),
            },
            Weights::Forgotten => Err(Diagnostic::error(format!("the weights of `{name}` are forgotten: the ranks have them"))),
            Weights::Plan { elements, path } => elements.get(name).cloned().ok_or_else(|| {
                Diagnostic::error(format!("this plan has no weights for `{name}`"))
                    .at(Place::File(path.clone()))
                    .help("compile it without `--no-weights`, or with an `init` line")
            }),
        }
    }
}

/// Takes a part of an array's elements, behind those that it took before.
pub type EachPiece<'e> = &'e mut dyn FnMut(Tensor) -> Result<(), Error>;

/// How data is cut into batches.
#[derive(Debug, Default)]
pub struct Batches {
    /// Samples in each.
    pub size: u64,
    /// Whether samples come in random order.
    pub shuffle: bool,
    /// Seeds the order.
    pub seed: u64,
    /// At most so many samples, spread evenly over all.
    pub samples: Option<u64>,
    /// The line of the spec that sets the size.
    pub place: Option<Place>,
}

impl Batches {
    /// The data at `paths` for `inputs`, with `context` tokens in a window of text.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn of(self, paths: &[PathBuf], context: Option<u64>, inputs: Vec<InputSpec>) -> Result<Dataset, Error> {
        let Batches { size, shuffle, seed, samples, place } = self;
        let options = DataOptions { context, shuffle, seed, samples, batch_place: place };
        Ok(Dataset::open_all(paths, inputs, size, &options)?)
    }
}

impl Job {
    /// The batches of a step of training.
    pub fn batches(&self, programs: &PlanSet) -> Batches {
        let program = programs.first();
        let place = self.spec.batch.as_ref().map(|batch| self.spec.place_of(batch.source));
        Batches { size: program.batch, seed: program.seed, place, ..Batches::default() }
    }
}
