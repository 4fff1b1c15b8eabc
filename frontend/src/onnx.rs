//! ONNX models: from a file to the global graph, and trained weights back into the file.

mod activation;
mod attention;
mod call;
mod constants;
mod contract;
mod contrib;
mod conv;
mod einsum;
mod elementwise;
mod export;
mod extreme;
mod fourier;
mod grid_sample;
mod importer;
mod index;
mod integers;
mod kinds;
mod layout;
mod loss;
mod model_file;
mod norm;
mod order;
mod pad;
mod pool;
mod quantize;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod running;
mod scatter;
mod scope;
mod sequence;
mod shape;
mod shrink;
mod signature;
mod space;
mod table;
mod tensor;
mod trained;
mod trigonometry;
mod window;
mod wire;

pub use export::{Exported, export, strip_weights};
pub use tensor::Weight;
pub use trained::Decision;

use importer::{Importer, Value};
use model_file::{ModelFile, Owner};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Output, Phase, State};
use shardc_ir::mesh::Mesh;
use shardc_ir::ops::leaf::Input;
use shardc_ir::plan::StateRole;
use shardc_ir::sharding::Sharding;
use shardc_ir::train::StateInit;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tract_onnx::pb;
use trained::Choice;

/// The oldest and newest versions of the op set that are read.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=23;

/// What the spec says about the model.
pub struct ImportOptions<'a> {
    /// Sizes of symbolic dimensions.
    pub bindings: BTreeMap<String, u64>,
    /// The size of dimension 0 of every input.
    pub batch: Option<u64>,
    /// Initializers that are trained whatever the rule says; stronger than `freeze`.
    pub train: &'a dyn Fn(&str) -> bool,
    /// Initializers that are not trained.
    pub freeze: &'a dyn Fn(&str) -> bool,
    /// Initializers that are shared on purpose where the exporter may have merged several.
    pub tie: &'a dyn Fn(&str) -> bool,
    /// Initializers that are separate on purpose although another one equals them.
    pub untie: &'a dyn Fn(&str) -> bool,
    /// Initializers whose first values the spec makes: those of the file do not count.
    pub init: &'a dyn Fn(&str) -> bool,
    /// The element type of all floats, instead of the model's own.
    pub dtype: Option<DType>,
    /// Whether the values of trained initializers must be there.
    pub weights: Weights,
}

/// Whether the values of trained initializers must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// Files with external data must exist.
    Needed,
    /// A plan is made without them.
    NotNeeded,
}

impl Default for ImportOptions<'_> {
    fn default() -> Self {
        ImportOptions {
            bindings: BTreeMap::new(),
            batch: None,
            train: &|_| false,
            freeze: &|_| false,
            tie: &|_| false,
            untie: &|_| false,
            init: &|_| false,
            dtype: None,
            weights: Weights::Needed,
        }
    }
}

/// An imported model.
#[derive(Debug)]
pub struct Imported {
    /// Its graph, in phase `imported`: a state variable for each trained initializer, everything constant folded.
    pub graph: Graph,
    /// The elements of each state variable, by name.
    pub weights: BTreeMap<String, Weight>,
    /// For each float initializer, in the file's order, whether it is trained and why.
    pub decisions: Vec<Decision>,
    /// What the user should know.
    pub warnings: Diagnostics,
}

/// Imports the model at `path`.
///
/// # Errors
/// All that is wrong with the model at once, as far as it can be read.
pub fn import(path: &Path, options: &ImportOptions<'_>) -> Result<Imported, Diagnostics> {
    import_file(&ModelFile::read(path)?, options)
}

/// Imports `bytes`, the contents of the model file at `path`, whose folder may hold external data.
///
/// # Errors
/// As [`import`].
pub fn import_bytes(path: &Path, bytes: Vec<u8>, options: &ImportOptions<'_>) -> Result<Imported, Diagnostics> {
    import_file(&ModelFile::from_bytes(path, bytes)?, options)
}

fn import_file(file: &ModelFile, options: &ImportOptions<'_>) -> Result<Imported, Diagnostics> {
    check_opset(file)?;
    let order = order::needed(file)?;
    supported(file, &order)?;
    let inputs = signature::inputs(file, options)?;
    let candidates = trained::candidates(file, options)?;
    let choices = trained::decide(file, &order, candidates, options)?;

    let mut builder = Builder::new(name(file), Phase::Imported, Mesh::single());
    builder.graph_mut().states = states(&choices.roles);
    let mut importer = Importer::new(file, options.dtype, builder);
    for (name, ty) in inputs {
        let op = Input { name: name.to_string(), ty: ty.clone(), label: false };
        let id = importer.b.push(op.into(), &[], vec![ty], name)[0];
        importer.define(name, Value::Graph(id));
    }
    let mut weights = BTreeMap::new();
    for (name, weight, choice) in choices.roles {
        match choice {
            Choice::Constant => importer.define_constant(name, weight),
            Choice::Parameter | Choice::Frozen | Choice::Statistic => {
                let state = importer.b.graph().state(name).ok_or_else(|| Diagnostic::error(format!("`{name}` is lost")))?;
                let id = importer.b.state(state);
                importer.define(name, Value::Graph(id));
                weights.insert(name.to_string(), weight);
            }
        }
    }
    let scopes = scope::scopes(file, &order, &weights);
    let is_state = |position: &usize| file.graph().node[*position].output.iter().any(|name| weights.contains_key(name));
    for position in order.into_iter().filter(|position| !is_state(position)) {
        importer.b.origin.scope = scopes[position].clone();
        importer.node(position);
    }
    importer.b.origin.scope = None;
    outputs(&mut importer);
    if options.weights == Weights::Needed {
        let wanted = weights.values().filter(|w| !(options.init)(&w.name));
        importer.errors.extend(grouped(wanted.filter_map(|w| w.check().err())));
    }
    let mut warnings = choices.warnings;
    warnings.extend(idle(&importer));
    if importer.errors.is_empty() {
        Ok(Imported { graph: importer.b.finish(), weights, decisions: choices.decisions, warnings })
    } else {
        Err(importer.errors)
    }
}

/// A warning where the model's dropouts do nothing in training either.
fn idle(importer: &Importer<'_>) -> Option<Diagnostic> {
    let count = importer.idle_dropouts;
    let message = format!("{count} dropouts of the model do nothing, as it was exported for evaluation");
    let warning = Diagnostic::warning(message).at(importer.file.place("graph"));
    (count > 0).then(|| warning.help("export it in training form to train with dropout"))
}

fn check_opset(file: &ModelFile) -> Result<(), Diagnostic> {
    let at = || Place::File(file.path.clone());
    let Some(version) = file.opset() else {
        // A model of other domains alone needs none.
        let others = |o: &pb::OperatorSetIdProto| !o.domain.is_empty();
        let needs_none = file.model.opset_import.iter().any(others) && file.graph().node.iter().all(|n| !n.domain.is_empty());
        return if needs_none { Ok(()) } else { Err(Diagnostic::error("the model names no op set").at(at())) };
    };
    if OPSETS.contains(&version) {
        return Ok(());
    }
    let (first, last) = (OPSETS.start(), OPSETS.end());
    let message = format!("the model uses op set {version}; versions {first} to {last} are supported");
    Err(Diagnostic::error(message).at(at()).help("export it with `opset_version=20`"))
}

/// An error for each kind of op that cannot be imported.
fn supported(file: &ModelFile, order: &[usize]) -> Result<(), Diagnostics> {
    let mut unknown: BTreeMap<(&str, &str), Vec<&pb::NodeProto>> = BTreeMap::new();
    for node in order.iter().map(|i| &file.graph().node[*i]).filter(|n| table::rule(n).is_none()) {
        unknown.entry((&node.domain, &node.op_type)).or_default().push(node);
    }
    let error = |((domain, op), nodes): ((&str, &str), Vec<&pb::NodeProto>)| {
        let op = if domain.is_empty() { op.to_string() } else { format!("{domain}:{op}") };
        let also = if nodes.len() > 1 { format!(", used by {} nodes", nodes.len()) } else { String::new() };
        Diagnostic::error(format!("op `{op}` is not supported{also}")).at(file.place(node_text(nodes[0])))
    };
    let errors: Diagnostics = unknown.into_iter().map(error).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// The name of the model's graph, or of its file.
fn name(file: &ModelFile) -> String {
    let stem = file.path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let graph = &file.graph().name;
    if graph.is_empty() { stem } else { graph.clone() }
}

fn states(roles: &[(&str, Weight, Choice)]) -> Vec<State> {
    let state = |(name, weight, choice): &(&str, Weight, Choice)| {
        let role = match choice {
            Choice::Parameter => StateRole::Parameter,
            Choice::Frozen => StateRole::Frozen,
            Choice::Statistic => StateRole::Statistic,
            Choice::Constant => return None,
        };
        Some(State {
            name: name.to_string(),
            ty: weight.ty.clone(),
            sharding: Sharding::replicated(weight.ty.rank()),
            role,
            init: StateInit::Model,
            update: None,
            gradient: None,
        })
    };
    roles.iter().filter_map(state).collect()
}

/// Makes the model's outputs the graph's.
fn outputs(importer: &mut Importer<'_>) {
    let file = importer.file;
    let mut seen = BTreeSet::new();
    for output in &file.graph().output {
        let what = || format!("output \"{}\"", output.name);
        let fail = |why: String| Diagnostic::error(why).at(file.place(what()));
        if !seen.insert(&output.name) {
            importer.errors.push(fail("the model has two outputs of this name".into()));
            continue;
        }
        let Some(value) = importer.value(&output.name, what) else { continue };
        match importer.materialize(&value) {
            Ok(value) => importer.b.graph_mut().outputs.push(Output { name: output.name.clone(), value }),
            Err(why) => importer.errors.push(fail(why)),
        }
    }
}

/// One error for all of the same words.
fn grouped(errors: impl Iterator<Item = Diagnostic>) -> Diagnostics {
    let mut groups: Vec<(Diagnostic, usize)> = vec![];
    for error in errors {
        match groups.iter_mut().find(|(first, _)| first.message == error.message) {
            Some((_, count)) => *count += 1,
            None => groups.push((error, 1)),
        }
    }
    let more = |(mut error, count): (Diagnostic, usize)| {
        if count > 1 {
            error.message.push_str(&format!("; so for {} other initializers", count - 1));
        }
        error
    };
    groups.into_iter().map(more).collect()
}

/// A node for people: `node "h.0.mlp/MatMul" (MatMul)`.
fn node_text(node: &pb::NodeProto) -> String {
    let name = if node.name.is_empty() { node.output.first().map_or("", String::as_str) } else { &node.name };
    format!("node \"{name}\" ({})", node.op_type)
}

/// Every initializer with its place, in the file's order.
fn initializers(file: &ModelFile) -> impl Iterator<Item = (Owner, &pb::TensorProto)> {
    file.graph().initializer.iter().enumerate().map(|(i, t)| (Owner::Initializer(i), t))
}
