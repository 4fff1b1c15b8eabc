//! From a model file to the graph: inputs, parameters, nodes in order, outputs.

pub(in crate::onnx) mod budget;
pub(in crate::onnx) mod call;
pub(in crate::onnx) mod context;
pub(in crate::onnx) mod importer;
pub(in crate::onnx) mod kinds;
pub(in crate::onnx) mod shrink;
pub(in crate::onnx) mod signature;
pub(in crate::onnx) mod value;

use crate::initializers::{Decision, StoredCopy};
use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::node::node_text;
use crate::onnx::file::tensor::Weight;
use crate::onnx::file::{inline, intact, order, scope};
use crate::onnx::ops::{control, table};
use crate::onnx::options::{ImportOptions, Weights};
use crate::onnx::trained::{self, Choice, Role};
use importer::Importer;
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place, counted};
use shardc_ir::graph::{Graph, Output, Phase, State, StateId, ValueId};
use shardc_ir::mesh::Mesh;
use shardc_ir::ops::leaf::Input;
use shardc_ir::plan::StateRole;
use shardc_ir::train::StateInit;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use tract_onnx::pb;
use value::Value;

/// The oldest and newest versions of the op set that are read.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=23;

/// An imported model.
#[derive(Debug)]
pub struct Imported {
    /// Its graph, in phase `imported`: a state variable for each trained initializer, everything
    /// constant folded.
    pub graph: Graph,
    /// The elements of each state variable, by name.
    pub weights: BTreeMap<String, Weight>,
    /// For each float initializer, in the file's order, whether it is trained and why.
    pub decisions: Vec<Decision>,
    /// Initializers that are views of trained ones, to be written with them.
    pub copies: Vec<StoredCopy>,
    /// The file as it was imported, merged parameters apart: what exports begin with.
    pub model: Arc<Vec<u8>>,
    /// About how many numbers were read, multiplied or written to fold constants.
    pub folded: u64,
    /// The warnings for the user.
    pub warnings: Diagnostics,
}

/// Imports the model at `path`.
///
/// # Errors
/// All that is wrong with the model at once, as far as it can be read.
pub fn import(path: &Path, options: &ImportOptions<'_>) -> Result<Imported, Diagnostics> {
    import_file(inline::inlined(ModelFile::read(path)?)?, options)
}

/// Imports `bytes`, the contents of the model file at `path`, whose folder may hold external data.
///
/// # Errors
/// As [`import`].
pub fn import_bytes(path: &Path, bytes: Vec<u8>, options: &ImportOptions<'_>) -> Result<Imported, Diagnostics> {
    import_file(inline::inlined(ModelFile::from_bytes(path, bytes)?)?, options)
}

pub(in crate::onnx) fn import_file(mut file: ModelFile, options: &ImportOptions<'_>) -> Result<Imported, Diagnostics> {
    check_opset(&file)?;
    let mut errors = intact::contradictions(&file);
    if options.weights == Weights::Needed {
        errors.extend(intact::damaged(&file));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    dense(&file)?;
    let mut order = order::needed(&file)?;
    supported(&file, &order)?;
    trained::all_match(&file, options)?;
    while let Some(split) = trained::untied(&file, &order, options)? {
        file = inline::inlined(split)?;
        order = order::needed(&file)?;
    }
    build(&file, order, options)
}

fn build(file: &ModelFile, order: Vec<usize>, options: &ImportOptions<'_>) -> Result<Imported, Diagnostics> {
    let inputs = signature::inputs(file, options)?;
    let candidates = trained::candidates(file, options)?;
    let choices = trained::decide(file, &order, candidates, options)?;

    let mut builder = Builder::new(name(file), Phase::Imported, Mesh::single());
    builder.graph_mut().states = states(&choices.roles);
    let mut importer = Importer::new(file, options.dtype, builder);
    for (name, ty) in inputs {
        let op = Input { name: name.to_string(), ty: ty.clone(), label: false };
        let id = importer.context.b.push(op.into(), &[], vec![ty], name)[0];
        importer.define(name, Value::Graph(id));
    }
    let held = parameters(&mut importer, &choices.roles)?;
    let scopes = scope::scopes(file, &order, &held);
    let is_state = |position: &usize| file.graph().node[*position].output.iter().any(|name| held.contains(name.as_str()));
    let order: Vec<usize> = order.into_iter().filter(|position| !is_state(position)).collect();
    importer.expect(&order);
    for position in order {
        importer.context.b.origin.scope = scopes[position].as_deref().map(Arc::from);
        importer.node(position);
    }
    importer.context.b.origin.scope = None;
    let reshaped = outputs(&mut importer);
    let is_state = |r: &&Role<'_>| matches!(r.choice, Choice::Parameter | Choice::Frozen | Choice::Statistic);
    if options.weights == Weights::Needed {
        let wanted = choices.roles.iter().filter(is_state).filter(|r| !r.candidate.names().any(options.init));
        importer.errors.extend(grouped(wanted.filter_map(|r| r.candidate.weight.check().err())));
    }
    if !importer.errors.is_empty() {
        return Err(importer.errors);
    }
    let mut warnings = choices.warnings;
    warnings.extend(idle(&importer));
    warnings.extend(reshaped);
    let weights = choices.roles.iter().filter(is_state).map(|r| (r.candidate.name.to_string(), r.candidate.weight.clone()));
    Ok(Imported {
        weights: weights.collect(),
        folded: importer.context.budget.spent,
        graph: importer.context.b.finish(),
        decisions: choices.decisions,
        copies: choices.copies,
        model: file.bytes.clone(),
        warnings,
    })
}

/// Defines every initializer: as a state variable, a view of one, or a constant. Gives the names of
/// the first two.
fn parameters<'m>(importer: &mut Importer<'m>, roles: &[Role<'m>]) -> Result<HashSet<&'m str>, Diagnostic> {
    let mut values: Vec<Option<ValueId>> = vec![None; roles.len()];
    let states: HashMap<String, StateId> =
        (0..).map(StateId).zip(&importer.context.b.graph().states).map(|(id, s)| (s.name.clone(), id)).collect();
    for (i, role) in roles.iter().enumerate() {
        let name = role.candidate.name;
        match role.choice {
            Choice::Constant => importer.define_constant(name, role.candidate.weight.clone()),
            Choice::Parameter | Choice::Frozen | Choice::Statistic => {
                let state = states.get(name).ok_or_else(|| Diagnostic::error(format!("`{name}` is lost")))?;
                let id = importer.context.b.state(*state);
                // In the graph it has the name that people know.
                if let Some(alias) = &role.candidate.alias {
                    importer.context.b.rename(id, alias);
                }
                values[i] = Some(id);
            }
            Choice::View(..) => {}
        }
    }
    for (i, role) in roles.iter().enumerate() {
        if let Choice::View(of, turned) = role.choice
            && let Some(id) = values[of]
        {
            values[i] = Some(if turned { importer.context.b.transpose(id, &[1, 0]) } else { id });
        }
    }
    let held = roles.iter().zip(values).filter_map(|(role, value)| value.map(|v| (role.candidate.name, v)));
    Ok(held
        .map(|(name, id)| {
            importer.define(name, Value::Graph(id));
            name
        })
        .collect())
}

/// A warning where the model's dropouts do nothing in training either.
fn idle(importer: &Importer<'_>) -> Option<Diagnostic> {
    let [first, others @ ..] = &importer.context.idle_dropouts[..] else { return None };
    let (also, these) = if others.is_empty() { (String::new(), "it") } else { (format!(", and {} more", others.len()), "them") };
    let message = format!("the model drops nothing at {first}{also}: the exporter wrote {these} for evaluation");
    let help = "export the model in training form; what PyTorch's exporters write of `scaled_dot_product_attention` never is, so \
                build transformers with `attn_implementation=\"eager\"`";
    Some(Diagnostic::warning(message).at(importer.context.file.place("graph")).help(help))
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

fn dense(file: &ModelFile) -> Result<(), Diagnostics> {
    let sparse = &file.graph().sparse_initializer;
    let name = |t: &pb::SparseTensorProto| t.values.as_ref().map_or(String::new(), |v| v.name.clone());
    let error =
        |t| Diagnostic::error("sparse initializers are not supported").at(file.place(format!("initializer \"{}\"", name(t))));
    let errors: Diagnostics = sparse.iter().map(error).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// An error for each kind of op that cannot be imported.
fn supported(file: &ModelFile, order: &[usize]) -> Result<(), Diagnostics> {
    let mut unknown: BTreeMap<(&str, &str), Vec<&pb::NodeProto>> = BTreeMap::new();
    // Of branches, only what is taken need be supported.
    let always = order.iter().filter(|i| file.sources[**i].branch.is_none());
    for node in always.map(|i| &file.graph().node[*i]).filter(|n| table::rule(n).is_none()) {
        unknown.entry((&node.domain, &node.op_type)).or_default().push(node);
    }
    let error = |((domain, op), nodes): ((&str, &str), Vec<&pb::NodeProto>)| {
        let full = if domain.is_empty() { op.to_string() } else { format!("{domain}:{op}") };
        let also = match &nodes[1..] {
            [] => String::new(),
            [other] => format!(", also used by {}", node_text(other)),
            [other, rest @ ..] => format!(", also used by {} and {} more", node_text(other), rest.len()),
        };
        let error = Diagnostic::error(format!("op `{full}` is not supported{also}")).at(file.place(node_text(nodes[0])));
        match control::help(op) {
            Some(help) => error.help(help),
            None => error,
        }
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

fn states(roles: &[Role<'_>]) -> Vec<State> {
    let state = |Role { candidate, choice }: &Role<'_>| {
        let role = match choice {
            Choice::Parameter => StateRole::Parameter,
            Choice::Frozen => StateRole::Frozen,
            Choice::Statistic => StateRole::Statistic,
            Choice::Constant | Choice::View(..) => return None,
        };
        Some(State::new(candidate.name, candidate.weight.ty.clone(), role, StateInit::Model))
    };
    roles.iter().filter_map(state).collect()
}

/// Makes the model's outputs the graph's.
/// Defines every output. Gives a warning for those of another shape than the model declares.
fn outputs(importer: &mut Importer<'_>) -> Diagnostics {
    let file = importer.context.file;
    let mut reshaped = vec![];
    let mut seen = BTreeSet::new();
    for output in &file.graph().output {
        let what = || format!("output \"{}\"", output.name);
        let fail = |why: String| Diagnostic::error(why).at(file.place(what()));
        if !seen.insert(&output.name) {
            importer.errors.push(fail("the model has two outputs of this name".into()));
            continue;
        }
        let Some(value) = importer.value(&output.name, what) else { continue };
        match importer.context.materialize(&value) {
            Ok(value) => {
                let ty = importer.context.b.ty(value);
                if let Some(declared) = signature::declared(output).filter(|declared| !fits(declared, &ty.shape)) {
                    let message = format!("the output is {ty}, and the model declares {}", signature::shape_text(&declared));
                    reshaped.push(Diagnostic::warning(message).at(file.place(what())));
                }
                importer.context.b.graph_mut().outputs.push(Output { name: output.name.clone(), value });
            }
            Err(why) => importer.errors.push(fail(why.into())),
        }
    }
    reshaped
}

/// Whether a shape is as declared, where a size is.
fn fits(declared: &[Option<u64>], shape: &[u64]) -> bool {
    declared.len() == shape.len() && declared.iter().zip(shape).all(|(d, n)| d.is_none_or(|d| d == *n))
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
            error.message.push_str(&format!("; so for {}", counted(count - 1, "other initializer")));
        }
        error
    };
    groups.into_iter().map(more).collect()
}
