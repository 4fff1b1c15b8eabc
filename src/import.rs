//! The model as the spec wants it: sizes bound, parameters chosen, first values set.
//!
//! Of the lines of a spec these are about the model itself: `bind`, `freeze`, `train`, `tie`,
//! `untie`, `init`. What they name and is not there is told with the names that are.

use shardc_frontend::initializers::Decision;
use shardc_frontend::onnx::{self, ImportOptions, Imported, Tie, Untie, Weights};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place, names_help};
use shardc_ir::graph::{Graph, State, ValueId};
use shardc_ir::names::{Names, Patterns};
use shardc_ir::plan::StateRole;
use shardc_ir::spec::{self, InitRule, Located, Spec};
use shardc_ir::train::StateInit;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// The deviation of matrices under `init … auto`: Radford et al., GPT-2 (2019).
const AUTO_STD: f64 = 0.02;

/// Imports the model at `path`, for `training` or not; with `weights`, the elements of what is
/// trained must be there.
///
/// # Errors
/// All that is wrong with the model, and all patterns of the spec that match nothing in it.
pub fn import(path: &Path, spec: &Spec, training: bool, weights: bool) -> Result<Imported, Diagnostics> {
    imported(path, None, spec, training, weights)
}

/// Imports what will be the model of a plan directory at `path`, beside which no other file is.
///
/// # Errors
/// As [`import`].
pub fn import_of_plan(path: &Path, bytes: Vec<u8>, spec: &Spec, training: bool) -> Result<Imported, Diagnostics> {
    imported(path, Some(bytes), &spec.of_plan(), training, false)
}

/// Imports `bytes`, or else the file at `path`.
fn imported(path: &Path, bytes: Option<Vec<u8>>, spec: &Spec, training: bool, weights: bool) -> Result<Imported, Diagnostics> {
    let (train, freeze, init) = (lines(&spec.train), lines(&spec.freeze), init_lines(spec));
    let tie = |tie: &Located<spec::Tie>| Tie {
        first: tie.value.first.value.clone(),
        second: tie.value.second.as_ref().map(|second| second.value.clone()),
        place: Some(spec.place_of(tie.source)),
    };
    let untie = |untie: &Located<String>| Untie { pattern: untie.value.clone(), place: Some(spec.place_of(untie.source)) };
    let (ties, unties): (Vec<_>, Vec<_>) = (spec.tie.iter().map(tie).collect(), spec.untie.iter().map(untie).collect());
    let (is_trained, is_frozen, is_made) =
        (|name: &str| train.any(name), |name: &str| freeze.any(name), |name: &str| init.any(name));
    let options = ImportOptions {
        bindings: spec.bind.iter().map(|(name, size)| (name.clone(), size.value)).collect(),
        batch: spec.batch.as_ref().map(|batch| batch.value.size),
        train: &is_trained,
        freeze: &is_frozen,
        tie: &ties,
        untie: &unties,
        init: &is_made,
        weights: if weights { Weights::Needed } else { Weights::NotNeeded },
        training,
        accept_lost: spec.accept_lost.is_some(),
        ..ImportOptions::default()
    };
    let mut imported = match bytes {
        Some(bytes) => onnx::import_bytes(path, bytes, &options)?,
        None => onnx::import(path, &options)?,
    };
    imported.warnings.extend(half_floats(path, &imported, training));
    let errors = without_match(spec, &imported);
    if !errors.is_empty() {
        return Err(errors);
    }
    apply_init(&mut imported, spec);
    Ok(imported)
}

/// The names that lines of one pattern each match.
fn lines(patterns: &[Located<String>]) -> Patterns<'_> {
    Patterns::new(patterns.iter().map(|pattern| pattern.value.as_str()))
}

/// The names that `init` lines match.
fn init_lines(spec: &Spec) -> Patterns<'_> {
    Patterns::new(spec.init.iter().map(|init| init.value.pattern.value.as_str()))
}

/// Every name of an initializer.
fn names(decision: &Decision) -> impl Iterator<Item = &str> {
    [decision.name.as_str()].into_iter().chain(decision.alias.as_deref())
}

/// An error for each pattern of `train`, `freeze` and `init` that matches no initializer.
fn without_match(spec: &Spec, imported: &Imported) -> Diagnostics {
    let all: Vec<&str> = imported.decisions.iter().flat_map(names).collect();
    let known = Names::new(all.iter().copied());
    let init = spec.init.iter().map(|init| &init.value.pattern);
    let patterns = spec.train.iter().chain(&spec.freeze).chain(init);
    let unmatched = patterns.filter(|pattern| known.matching(&pattern.value).is_empty());
    let error = |(i, pattern): (usize, &Located<String>)| {
        let error = Diagnostic::error(format!("no initializer of the model matches `{}`", pattern.value));
        let error = error.at(spec.place_of(pattern.source));
        error.help_early(i, || names_help(&pattern.value, all.iter().copied()))
    };
    unmatched.enumerate().map(error).collect()
}

/// A warning where the model's weights are of a type that is not computed in.
fn half_floats(path: &Path, imported: &Imported, train: bool) -> Option<Diagnostic> {
    let halves: Vec<(&String, &str)> = imported.weights.iter().filter_map(|(name, w)| Some((name, w.stored_half()?))).collect();
    let (first, half) = halves.first()?;
    let others = if halves.len() > 1 { format!(" and {} more", halves.len() - 1) } else { String::new() };
    let done = if train { "trained" } else { "computed with" };
    let warning = Diagnostic::warning(format!("weights of type {half} are {done} in f32: `{first}`{others}"));
    let help = format!("expect twice the memory that the file takes; an export rounds the weights to {half} again");
    Some(warning.at(Place::File(path.to_path_buf())).help(help))
}

/// Sets the first values of what an `init` line names; of several the last wins. Running statistics
/// begin with mean 0 and variance 1 whatever the rule.
fn apply_init(imported: &mut Imported, spec: &Spec) {
    let lines = init_lines(spec);
    let decisions: HashMap<&str, &Decision> = imported.decisions.iter().map(|d| (d.name.as_str(), d)).collect();
    let rule = |state: &State| {
        let last = names(decisions.get(state.name.as_str())?).filter_map(|name| lines.last(name)).max()?;
        match state.role {
            StateRole::Parameter | StateRole::Frozen => Some(spec.init[last].value.rule),
            StateRole::Statistic => Some(InitRule::Auto),
            StateRole::Moment | StateRole::Scaling => None,
        }
    };
    let rules: Vec<Option<InitRule>> = imported.graph.states.iter().map(rule).collect();
    let reads = imported.graph.state_reads();
    for (i, rule) in rules.into_iter().enumerate() {
        let Some(rule) = rule else { continue };
        let init = match rule {
            InitRule::Zeros => StateInit::Zeros,
            InitRule::Ones => StateInit::Ones,
            InitRule::Normal { std } => StateInit::Normal { std },
            InitRule::Auto if imported.graph.states[i].ty.rank() >= 2 => StateInit::Normal { std: AUTO_STD },
            InitRule::Auto if reads[i].is_some_and(|read| multiplied(&imported.graph, read)) => StateInit::Ones,
            InitRule::Auto => StateInit::Zeros,
        };
        imported.weights.remove(&imported.graph.states[i].name);
        imported.graph.states[i].init = init;
    }
}

/// Whether a vector multiplies what it meets, as a norm's scale does, instead of being added to it.
fn multiplied(graph: &Graph, vector: ValueId) -> bool {
    let (mut left, mut seen) = (vec![vector], HashSet::from([vector]));
    while let Some(value) = left.pop() {
        for user in graph.users(graph.value(value).node) {
            let node = graph.node(user);
            if node.op.factors().iter().any(|at| node.operands.get(*at) == Some(&value)) {
                return true;
            }
            if node.op.moves() && seen.insert(node.results[0]) {
                left.push(node.results[0]);
            }
        }
    }
    false
}
