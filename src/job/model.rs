//! A job that is compiled from a model, and the model that is written with what was trained.

use super::export;
use super::{EachPiece, Job, Model, Weights};
use crate::compile::{Compiled, Options, compile};
use crate::error::Error;
use crate::graphs::EvaluationFacts;
use crate::plan_dir;
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_frontend::initializers::StoredCopy;
use shardc_frontend::onnx::{self, Export};
use shardc_frontend::spec;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::spec::{Batch, Located, Source, Spec};
use shardc_ir::types::{Tensor as Value, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What exports begin with.
#[derive(Debug)]
pub(super) struct Exported {
    /// A model file, perhaps without its weights.
    pub bytes: Arc<Vec<u8>>,
    /// Initializers that are views of trained ones.
    pub copies: Vec<StoredCopy>,
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
        Ok(Job::of(compile(model, &spec, options)?, model, spec))
    }

    /// As [`Job::open`]; the graphs are certified too, and all is kept in the plan directory `to`,
    /// in place of an older one's files.
    ///
    /// # Errors
    /// As [`Job::open`]; a folder that holds something else, or cannot be written.
    pub fn compile_to(model: impl AsRef<Path>, spec: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Job, Error> {
        let (model, to) = (model.as_ref(), to.as_ref());
        plan_dir::check_target(to)?;
        let spec = spec::load(spec.as_ref())?;
        let compiled = compile(model, &spec, &Options { train: spec.trains(), certify: true, ..Options::default() })?;
        plan_dir::write(to, &compiled, model, &spec, true)?;
        Ok(Job { plan: Some(to.to_path_buf()), ..Job::of(compiled, model, spec) })
    }

    fn of(compiled: Compiled, model: &Path, spec: Spec) -> Job {
        let Compiled { plans, reference, weights, decisions, copies, model: bytes, proven, warnings, .. } = compiled;
        Job {
            facts: EvaluationFacts::of(&plans.eval.graph, &spec),
            programs: plans.map(|plan| plan.programs),
            model: Model { file: model.to_path_buf(), exported: Exported { bytes, copies } },
            weights: Weights::Model(weights),
            odd: BTreeSet::new(),
            plan: None,
            spec,
            reference,
            proven,
            decisions,
            warnings,
        }
    }

    /// Drops the model's bytes, but for what an export begins with, if there will be one.
    pub(super) fn forget_model(&mut self, exports: bool) -> Result<(), Error> {
        let bytes = std::mem::take(&mut self.model.exported.bytes);
        if exports {
            let states = self.programs.main().states().into_iter().map(|(_, state)| state).filter(|s| s.role.is_of_model());
            let copies = self.model.exported.copies.iter().map(|copy| copy.name.clone());
            let names = states.map(|s| s.initializer().to_string()).chain(copies).collect();
            self.model.exported.bytes = Arc::new(onnx::forget_weights(&self.model.file, bytes, &names)?);
        }
        Ok(())
    }

    /// The programs of evaluation for `samples` samples at once, on one rank.
    ///
    /// # Errors
    /// If the model cannot run with so many.
    pub fn resized(&self, samples: u64) -> Result<PlanSet, Diagnostics> {
        let mut spec = self.spec.reference();
        let source = spec.batch.as_ref().map_or(Source { line: 1, span: (0, 0) }, |batch| batch.source);
        spec.batch = Some(Located { value: Batch { size: samples, microbatches: 1 }, source });
        if self.plan.is_some() {
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
        self.export_from(executor.programs(), |name, each| executor.initializer_in_pieces(name, each), to)
    }

    /// [`Job::export`] of the initializers that `pieces` hands over, for the state of `programs`:
    /// the elements of one in order, in any number of arrays.
    ///
    /// # Errors
    /// Those of `pieces`; if the file cannot be written.
    pub fn export_from(
        &self,
        programs: &PlanSet,
        pieces: impl Fn(&str, EachPiece<'_>) -> Result<(), Error>,
        to: &Path,
    ) -> Result<Option<PathBuf>, Error> {
        let Model { file, exported: Exported { bytes, copies } } = &self.model;
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
        let typed = |name: &str, each: EachPiece<'_>| {
            let dtype = types.get(name).map(|ty| ty.dtype);
            pieces(name, &mut |piece| {
                let dtype = dtype.unwrap_or(piece.dtype);
                each(piece.into_dtype(dtype))
            })
        };
        let mut elements = |name: &str, each: &mut dyn FnMut(Value) -> Result<(), Error>| {
            let Some(copy) = copies.get(name) else { return typed(name, &mut |piece| each(piece.into())) };
            let mut of = Tensor { dtype: types[&copy.of].dtype, shape: types[&copy.of].shape.clone(), bytes: vec![] };
            typed(&copy.of, &mut |piece| {
                of.bytes.extend(piece.bytes);
                Ok(())
            })?;
            each(copy.elements(&of.into()).map_err(|why| Error::Machine(why.into()))?)
        };
        export::write(&Export::new(file, bytes.clone(), &types)?, &mut elements, to, file)
    }
}
