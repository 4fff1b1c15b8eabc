//! One parameter that an exporter wrote twice: the spec says which two initializers it is, and the
//! second becomes a view.

use super::values::Values;
use super::{Candidate, Choice};
use crate::initializers::StoredCopy;
use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::order;
use crate::onnx::options::ImportOptions;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place, names_help};
use shardc_ir::names::matches;
use shardc_ir::spec::NameRef;

/// A `tie` line of the spec: one parameter, or two that are one.
#[derive(Debug, Clone)]
pub struct Tie {
    /// The first name.
    pub first: NameRef,
    /// The other; without it `first` is one parameter in several places.
    pub second: Option<NameRef>,
    /// The place of the line in the spec.
    pub place: Option<Place>,
}

/// An `untie` line of the spec: initializers that are several parameters.
#[derive(Debug, Clone)]
pub struct Untie {
    /// A pattern of their names.
    pub pattern: String,
    /// The place of the line in the spec.
    pub place: Option<Place>,
}

/// Makes the second initializer of each tie of two a view of the first.
pub(super) fn ties(
    file: &ModelFile,
    candidates: &[Candidate<'_>],
    choices: &mut [Choice],
    values: &Values<'_, '_>,
    options: &ImportOptions<'_>,
) -> Result<Vec<StoredCopy>, Diagnostics> {
    let mut errors = vec![];
    let mut copies = vec![];
    for tie in options.tie {
        match one(candidates, choices, values, tie) {
            Ok(copy) => copies.extend(copy),
            Err(error) => errors.push(if error.place.is_none() {
                error.at(tie.place.clone().unwrap_or_else(|| file.place("initializers")))
            } else {
                error
            }),
        }
    }
    if errors.is_empty() { Ok(copies) } else { Err(errors) }
}

fn one(
    candidates: &[Candidate<'_>],
    choices: &mut [Choice],
    values: &Values<'_, '_>,
    tie: &Tie,
) -> Result<Option<StoredCopy>, Diagnostic> {
    let a = find(candidates, &tie.first.name)?;
    let Some(second) = &tie.second else {
        return match choices[a] {
            Choice::Constant => Err(not_trained(&candidates[a])),
            _ => Ok(None),
        };
    };
    let b = find(candidates, &second.name)?;
    let turned = tie.first.transposed != second.transposed;
    let (root, turned) = match choices[a] {
        Choice::View(root, first) => (root, first != turned),
        Choice::Constant => return Err(not_trained(&candidates[a])),
        _ => (a, turned),
    };
    let (of, copy) = (&candidates[root], &candidates[b]);
    if matches!(choices[b], Choice::View(..)) || root == b || choices.iter().any(|c| matches!(c, Choice::View(of, _) if *of == b))
    {
        return Err(Diagnostic::error(format!("`{}` is tied already", copy.name))
            .help("name the parameter first in every `tie` line, and each of its copies once"));
    }
    let (x, y) = (&of.weight.ty, &copy.weight.ty);
    let shape: Vec<u64> = if turned { x.shape.iter().rev().copied().collect() } else { x.shape.clone() };
    if shape != y.shape || x.dtype != y.dtype || (turned && x.rank() != 2) {
        let other: Vec<u64> = x.shape.iter().rev().copied().collect();
        let error = Diagnostic::error(format!("`{}` is {x} and `{}` is {y}: they are not one parameter", of.name, copy.name));
        return Err(match x.rank() == 2 && other == y.shape {
            true => error.help(format!("one is the other's transpose: write `tie \"{}\" \"{}\"^T`", of.name, copy.name)),
            false => error,
        });
    }
    if values.tied(root, b, turned) == Some(false) {
        let how = if turned { "each other's transpose" } else { "equal" };
        return Err(Diagnostic::error(format!("`{}` and `{}` are not {how}", of.name, copy.name))
            .help("remove the `tie` line: training them as one would change the model"));
    }
    // A parameter that is frozen in one place is frozen in both.
    if choices[b] == Choice::Frozen {
        choices[root] = Choice::Frozen;
    }
    choices[b] = Choice::View(root, turned);
    Ok(Some(StoredCopy { name: copy.name.to_string(), of: of.name.to_string(), transposed: turned }))
}

/// An error for each pattern of `untie` that matches no initializer.
pub(in crate::onnx) fn all_match(file: &ModelFile, options: &ImportOptions<'_>) -> Result<(), Diagnostics> {
    if options.untie.is_empty() {
        return Ok(());
    }
    let (order, candidates) = (order::needed(file)?, super::candidates(file, options)?);
    let candidates = super::survey(file, &order, candidates, options).candidates;
    let names = || candidates.iter().flat_map(Candidate::names);
    let unmatched = options.untie.iter().filter(|u| !names().any(|name| matches(&u.pattern, name)));
    let errors: Diagnostics = unmatched.map(|u| unknown(&u.pattern, &candidates).at_opt(u.place.clone())).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn unknown(name: &str, candidates: &[Candidate<'_>]) -> Diagnostic {
    let floats = candidates.iter().filter(|c| c.weight.ty.dtype.is_float() && !c.is_node);
    let names: Vec<&str> = floats.flat_map(Candidate::names).collect();
    Diagnostic::error(format!("the model has no initializer `{name}`")).help(names_help(name, names.iter().copied()))
}

fn not_trained(candidate: &Candidate<'_>) -> Diagnostic {
    Diagnostic::error(format!("`{}` is a constant of the model, which is tied to nothing", candidate.name))
}

/// The candidate of that name, or the only one of that alias.
fn find(candidates: &[Candidate<'_>], name: &str) -> Result<usize, Diagnostic> {
    if let Some(i) = candidates.iter().position(|c| c.name == name) {
        return Ok(i);
    }
    let called: Vec<usize> = (0..candidates.len()).filter(|i| candidates[*i].alias.as_deref() == Some(name)).collect();
    match called[..] {
        [i] => Ok(i),
        [] => Err(unknown(name, candidates)),
        _ => {
            let names: Vec<&str> = called.iter().map(|i| candidates[*i].name).collect();
            Err(Diagnostic::error(format!("`{name}` is several initializers"))
                .help(format!("name one of `{}`", names.join("`, `"))))
        }
    }
}
