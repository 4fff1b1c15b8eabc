//! The facade: compiles a model and a spec to plans, and the command line around it.

pub mod cli;
pub mod failure;
pub mod import;
pub mod plan_dir;
pub mod proof;
pub mod replace;
pub mod report;

use shardc_frontend::onnx::{Copy, Decision, Weight};
use shardc_frontend::spec::unsupported;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::Graph;
use shardc_ir::ops::Op;
use shardc_ir::plan::Program;
use shardc_ir::spec::Spec;
use shardc_passes::{Context, Mode, planning};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What to compile.
pub struct Options<'a> {
    /// Whether training is wanted; without it a spec needs no `batch`, `loss` and `optimizer`.
    pub train: bool,
    /// Whether the model's weights must be there.
    pub weights: bool,
    /// Whether the graph is verified after each pass.
    pub verify: bool,
    /// Sees the graph after each pass.
    pub observe: &'a dyn Fn(Mode, &str, &Graph),
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options { train: true, weights: true, verify: cfg!(debug_assertions), observe: &|_, _, _| {} }
    }
}

/// A compiled job.
#[derive(Debug)]
pub struct Compiled {
    /// The programs.
    pub programs: Programs,
    /// The explicit graphs that they carry out.
    pub graphs: Graphs,
    /// The initial elements of each state variable that has them from the model, by name.
    pub weights: BTreeMap<String, Weight>,
    /// For each float initializer whether it is trained, and why.
    pub decisions: Vec<Decision>,
    /// Initializers that are views of trained ones, and are exported with them.
    pub copies: Vec<Copy>,
    /// The model's file, with a tensor for each parameter that the exporter had merged: what exports begin with.
    pub model: Arc<Vec<u8>>,
    /// What the user should know.
    pub warnings: Diagnostics,
}

/// What a job runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Programs {
    /// A step of training, and the same on one rank: what it is compared with.
    pub training: Option<Training>,
    /// The model's outputs, with the loss where the spec has one.
    pub eval: Program,
}

/// The explicit graphs that a job's programs carry out.
#[derive(Debug, Clone)]
pub struct Graphs {
    /// Of a step of training, and of its reference.
    pub training: Option<(Graph, Graph)>,
    /// Of evaluation.
    pub eval: Graph,
}

impl Graphs {
    /// The graph of the program of that name.
    pub fn of(&self, name: &str) -> &Graph {
        match (name, &self.training) {
            ("train", Some((graph, _))) => graph,
            ("reference", Some((_, reference))) => reference,
            _ => &self.eval,
        }
    }

    /// Whether the labels of the loss are an input of the model too, as those of an autoencoder.
    pub fn labels_are_inputs(&self, spec: &Spec) -> bool {
        let labels = spec.labels().map(|labels| &labels.value);
        self.eval.nodes().any(|(_, node)| matches!(&node.op, Op::Input(input) if !input.label && Some(&input.name) == labels))
    }
}

/// A step of training.
#[derive(Debug, Clone, PartialEq)]
pub struct Training {
    /// Over the spec's mesh.
    pub program: Program,
    /// With every axis of the mesh 1.
    pub reference: Program,
}

impl Programs {
    /// The program of training, or that of evaluation where nothing is trained.
    pub fn main(&self) -> &Program {
        self.training.as_ref().map_or(&self.eval, |training| &training.program)
    }

    /// All programs, by the names of their files.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &Program)> {
        let training = self.training.iter().flat_map(|t| [("train", &t.program), ("reference", &t.reference)]);
        training.chain([("eval", &self.eval)])
    }
}

/// Compiles the model at `model` as `spec` says.
///
/// # Errors
/// All that is wrong with the model or the spec, as far as it can be told at once.
pub fn compile(model: &Path, spec: &Spec, options: &Options<'_>) -> Result<Compiled, Diagnostics> {
    let mut errors = unsupported(spec);
    if options.train {
        errors.extend(spec.require_training().err().into_iter().flatten());
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let imported = import::import(model, spec, options.train, options.weights)?;
    let plan = |spec: &Spec, mode: Mode, observe: &dyn Fn(Mode, &str, &Graph)| {
        let cx = Context { spec, mode, verify: options.verify };
        let graph = shardc_passes::run(imported.graph.clone(), &cx, |pass, graph| observe(mode, pass.name(), graph))?;
        let program = planning::plan(&graph, &cx)?;
        Ok::<_, Diagnostics>((graph, program))
    };
    let trained = if options.train { Some(plan(spec, Mode::Train, options.observe)?) } else { None };
    let (eval_graph, eval) = plan(spec, Mode::Evaluate, options.observe)?;
    shardc_passes::check_axes(trained.as_ref().map_or(&eval_graph, |(graph, _)| graph), spec)?;
    let (training_graphs, training) = match trained {
        Some((graph, program)) => {
            let (reference_graph, reference) = plan(&spec.reference(), Mode::Train, &|_, _, _| {})?;
            (Some((graph, reference_graph)), Some(Training { program, reference }))
        }
        None => (None, None),
    };
    let (programs, graphs) = (Programs { training, eval }, Graphs { training: training_graphs, eval: eval_graph });
    proof::check_memory(&programs, spec)?;
    if let Err(proof::Disproof { name, violation }) = proof::prove(&programs, &graphs, spec) {
        return Err(Diagnostic::error(format!("a bug of shardc: the {name} plan is wrong: {violation}")).into());
    }
    let import::Job { weights, decisions, copies, model, warnings, .. } = imported;
    Ok(Compiled { programs, graphs, weights, decisions, copies, model, warnings })
}
