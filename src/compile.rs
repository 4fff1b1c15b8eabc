//! Compiles a job: the passes over a model as a spec says, the programs of its ranks, their proof
//! and the certificate of its graphs.
//!
//! ```no_run
//! use shardc::{Options, compile};
//! use std::path::Path;
//!
//! let spec = shardc_frontend::spec::load(Path::new("job.shard")).unwrap();
//! let job = compile(Path::new("model.onnx"), &spec, &Options::default()).unwrap();
//! for (kind, plan) in job.plans.iter() {
//!     println!("{kind}: {} bytes a rank", plan.programs.fullest().arena_bytes);
//! }
//! ```

use crate::certificate::Certificate;
use crate::certify::{Subject, certify};
use crate::proof::{Disproof, Proven};
use crate::{fitting, import, proof};
use shardc_frontend::initializers::{Decision, StoredCopy};
use shardc_frontend::onnx::{self, Weight};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::graph::Graph;
use shardc_ir::programs::{Plan, ProgramKind, Programs};
use shardc_ir::spec::Spec;
use shardc_passes::{Context, Mode, Pass, planning};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// The options of a compilation.
pub struct Options {
    /// Whether training is wanted; without it a spec needs no `batch`, `loss` and `optimizer`.
    pub train: bool,
    /// Whether the model's weights must be there.
    pub weights: bool,
    /// Whether the graph is verified after each pass.
    pub verify: bool,
    /// Whether the graphs are certified.
    pub certify: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { train: true, weights: true, verify: cfg!(debug_assertions), certify: false }
    }
}

/// A compiled job.
#[derive(Debug)]
pub struct Compiled {
    /// The programs with the graphs that they carry out.
    pub plans: Programs<Plan>,
    /// The graph of the same step of training on one rank, where the job trains.
    pub reference: Option<Graph>,
    /// The model's graph as it was imported.
    pub imported: Graph,
    /// The initial elements of each state variable that has them from the model, by name.
    pub weights: BTreeMap<String, Weight>,
    /// For each float initializer whether it is trained, and why.
    pub decisions: Vec<Decision>,
    /// Initializers that are views of trained ones, and are exported with them.
    pub copies: Vec<StoredCopy>,
    /// The model's file, with a tensor for each parameter that the exporter had merged: what
    /// exports begin with.
    pub model: Arc<Vec<u8>>,
    /// The proof of each program.
    pub proven: Vec<Proven>,
    /// What was found of the graphs, if they were to be certified.
    pub certificate: Option<Certificate>,
    /// The warnings for the user.
    pub warnings: Diagnostics,
}

/// Runs the passes over the model at `model` as `spec` says, and `observe` after each of them,
/// until it breaks off.
///
/// # Errors
/// As [`compile`], as far as passes find it.
pub fn trace<B>(
    model: &Path,
    spec: &Spec,
    options: &Options,
    mut observe: impl FnMut(Mode, &str, &Graph) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, Diagnostics> {
    let imported = imported(model, spec, options)?;
    for mode in Mode::ALL.iter().copied().filter(|mode| options.train || *mode == Mode::Evaluate) {
        let cx = Context { spec, mode, verify: options.verify };
        let seen = |pass: &dyn Pass, graph: &Graph| observe(mode, pass.name(), graph);
        if let ControlFlow::Break(broken) = shardc_passes::observed(imported.graph.clone(), &cx, seen)? {
            return Ok(ControlFlow::Break(broken));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The model as the spec wants it.
fn imported(model: &Path, spec: &Spec, options: &Options) -> Result<onnx::Imported, Diagnostics> {
    if options.train {
        spec.require_training()?;
    }
    import::import(model, spec, options.train, options.weights)
}

/// The explicit graphs of a job.
#[derive(Debug)]
pub struct Graphs {
    /// Those of its programs.
    pub programs: Programs<Graph>,
    /// That of the same step of training on one rank, where the job trains.
    pub reference: Option<Graph>,
}

/// The graphs of the model at `model` as `spec` says, and what was imported.
///
/// # Errors
/// As [`compile`], as far as passes find it.
pub fn derive(model: &Path, spec: &Spec, options: &Options) -> Result<(Graphs, onnx::Imported), Diagnostics> {
    let imported = imported(model, spec, options)?;
    let graph =
        |spec: &Spec, mode: Mode| shardc_passes::run(imported.graph.clone(), &Context { spec, mode, verify: options.verify });
    let programs = Programs::try_new(options.train, |kind| graph(spec, mode_of(kind)))?;
    let reference = match &programs.training {
        Some(training) if spec.is_reference() => Some(training.clone()),
        Some(_) => Some(graph(&spec.reference(), Mode::Train)?),
        None => None,
    };
    Ok((Graphs { programs, reference }, imported))
}

/// Compiles the model at `model` as `spec` says.
///
/// # Errors
/// All that is wrong with the model or the spec, as far as it can be told at once.
pub fn compile(model: &Path, spec: &Spec, options: &Options) -> Result<Compiled, Diagnostics> {
    let (Graphs { programs, reference }, imported) = derive(model, spec, options)?;
    let plans = programs.try_map(|kind, graph| {
        let programs = planning::plan(&graph, &Context { spec, mode: mode_of(kind), verify: options.verify })?;
        Ok::<_, Diagnostics>(Plan { programs, graph })
    })?;
    shardc_passes::check_axes(&plans.main().graph, spec)?;
    for (kind, plan) in plans.iter() {
        // Plans that no backend takes, such as those with tensors of very many dimensions, are
        // refused before they are proven.
        let cannot = |why| Diagnostic::error(format!("the {kind} plan cannot run: {why}"));
        plan.programs.check_tables().map_err(cannot)?;
    }
    if let (Err(error), Some(limit)) = (proof::check_memory(&plans, spec), &spec.device_memory) {
        return Err(error.help(fitting::help(&imported.graph, spec, limit)).into());
    }
    let wrong =
        |Disproof { kind, violation }| Diagnostic::error(format!("a bug of shardc: the {kind} plan is wrong: {violation}"));
    let proven = proof::prove(&plans, reference.as_ref(), spec).map_err(wrong)?;
    let subject = Subject {
        reference: reference.as_ref(),
        eval: &plans.eval.graph,
        imported: &imported,
        model,
        spec,
        learning_rate: plans.training.as_ref().map(|plan| plan.programs.first().learning_rate),
    };
    let certificate = if options.certify { Some(certified(&subject)?) } else { None };
    let file = Place::File(model.to_path_buf());
    let onnx::Imported { graph, weights, decisions, copies, model, mut warnings, .. } = imported;
    let doubts = certificate.iter().flat_map(|certificate: &Certificate| &certificate.doubted);
    warnings.extend(doubts.map(|doubt| Diagnostic::warning(doubt.how.clone()).at(file.clone())));
    Ok(Compiled { plans, reference, imported: graph, weights, decisions, copies, model, proven, certificate, warnings })
}

fn certified(subject: &Subject<'_>) -> Result<Certificate, Diagnostic> {
    certify(subject).map_err(|why| {
        let error =
            Diagnostic::error(format!("a bug of shardc: what was made of the model is not what the spec asks for: {why}"));
        error.at(Place::File(subject.model.to_path_buf())).help("`--no-certificate` compiles it all the same")
    })
}

/// The mode in which passes make the graph of a program.
pub(crate) fn mode_of(kind: ProgramKind) -> Mode {
    match kind {
        ProgramKind::Train | ProgramKind::Reference => Mode::Train,
        ProgramKind::Eval => Mode::Evaluate,
    }
}
