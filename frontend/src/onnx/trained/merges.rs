//! Parameters that an exporter merged because they were equal, and matrices that were one and are two now.

use super::uses::Use;
use super::values::{Equality, Fingerprint, Values};
use super::{Candidate, Choice};
use crate::onnx::ImportOptions;
use crate::onnx::model_file::ModelFile;
use crate::onnx::scope;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use std::collections::BTreeSet;

/// An error for each parameter of which it is not clear whether it is one. Of an initializer that is read `in_parts`, each slot has
/// elements of its own.
pub(super) fn merges(
    file: &ModelFile,
    candidates: &[Candidate<'_>],
    uses: &[Vec<Use>],
    in_parts: &[bool],
    choices: &[Choice],
    values: &Values<'_, '_>,
    options: &ImportOptions<'_>,
) -> Diagnostics {
    let trained: Vec<usize> = (0..candidates.len()).filter(|i| choices[*i] == Choice::Parameter).collect();
    let mut errors = vec![];
    for i in &trained {
        let name = candidates[*i].name;
        let vector = candidates[*i].weight.ty.rank() == 1 && candidates[*i].weight.ty.elements() > 1;
        let small = slots(&uses[*i], |u| matches!(u, Use::Norm(_) | Use::Bias(_)) || (vector && matches!(u, Use::Operand(_))));
        let large = slots(&uses[*i], is_weight);
        let why = if small.len() > 1 && !in_parts[*i] {
            format!("is the scale or bias of {} nodes", small.len())
        } else if large.len() > 1 && values.constant(*i) == Some(true) {
            format!("has one value everywhere and is the weight of {} nodes", large.len())
        } else {
            continue;
        };
        if (options.tie)(name) || called_again(file, if small.len() > 1 { &small } else { &large }, values.constant(*i)) {
            continue;
        }
        let place = file.place(format!("initializer \"{name}\""));
        let message = format!("`{name}` {why}: one parameter, or several that the exporter merged?");
        let help = if (options.untie)(name) {
            "`untie` is not supported yet; export with `dynamo=True, optimize=False`, which merges nothing".to_string()
        } else {
            format!("if it is one, say `tie \"{name}\"`; else export with `dynamo=True, optimize=False`, which merges nothing")
        };
        errors.push(Diagnostic::error(message).at(place).help(help));
    }
    let is_matrix = |i: &usize| candidates[*i].weight.ty.rank() == 2 && !slots(&uses[*i], is_weight).is_empty();
    let matrices: Vec<(usize, Fingerprint)> =
        trained.iter().copied().filter(is_matrix).filter_map(|i| values.fingerprint(i).map(|f| (i, f))).collect();
    for (n, (j, print)) in matrices.iter().enumerate() {
        let equal = |(i, other): &(usize, Fingerprint)| {
            values.equal((*i, other), (*j, print)).filter(|e| *e != Equality::No).map(|e| (*i, e))
        };
        let Some((i, equality)) = matrices[..n].iter().find_map(equal) else { continue };
        let (a, b) = (candidates[i].name, candidates[*j].name);
        if (options.untie)(a) || (options.untie)(b) || values.constant(i) == Some(true) {
            continue;
        }
        let how = if equality == Equality::Same { "equal" } else { "each other's transpose" };
        let message = format!("`{a}` and `{b}` are {how}: one parameter that the exporter wrote twice?");
        let help =
            format!("if they are two, say `untie \"{b}\"`; else export with `dynamo=True, optimize=False`, which keeps ties");
        errors.push(Diagnostic::error(message).at(file.place(format!("initializer \"{b}\""))).help(help));
    }
    errors
}

/// Whether all `nodes` are of one module, which the model calls several times. TorchScript numbers the calls, which looks as two
/// modules `norm` and `norm_1` do: where values are `constant`, and so could have been merged, the numbers count.
fn called_again(file: &ModelFile, nodes: &BTreeSet<usize>, constant: Option<bool>) -> bool {
    let scopes: Option<BTreeSet<String>> = nodes.iter().map(|node| scope::written(file, *node)).collect();
    let Some(mut scopes) = scopes else { return false };
    if constant == Some(false) {
        scopes = scopes.iter().map(|scope| scope.split('.').map(without_number).collect::<Vec<_>>().join(".")).collect();
    }
    scopes.len() == 1
}

/// `norm` of `norm_1`.
fn without_number(part: &str) -> &str {
    match part.rsplit_once('_') {
        Some((name, number)) if !name.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => part,
    }
}

fn is_weight(u: &Use) -> bool {
    matches!(u, Use::Weight(_) | Use::Table(_))
}

fn slots(uses: &[Use], wanted: impl Fn(&Use) -> bool) -> BTreeSet<usize> {
    uses.iter().filter(|u| wanted(u)).filter_map(Use::node).collect()
}
