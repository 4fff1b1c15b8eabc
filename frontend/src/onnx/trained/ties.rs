//! One parameter that an exporter wrote twice: the spec says which two initializers it is, and the
//! second becomes a view.

use super::values::Values;
use super::{Candidate, Choice};
use crate::initializers::StoredCopy;
use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::order;
use crate::onnx::options::ImportOptions;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place, names_help};
use shardc_ir::names::Names;
use shardc_ir::spec::NameRef;
use std::collections::{HashMap, HashSet};

/// So many initializers are named in an error.
const SHOWN: usize = 20;

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
    if options.tie.is_empty() {
        return Ok(vec![]);
    }
    let roots = choices.iter().filter_map(|choice| if let Choice::View(of, _) = choice { Some(*of) } else { None }).collect();
    let mut by_name: HashMap<&str, Vec<usize>> = HashMap::new();
    let mut by_alias = by_name.clone();
    for (i, candidate) in candidates.iter().enumerate() {
        by_name.entry(candidate.name).or_default().push(i);
        candidate.alias.iter().for_each(|alias| by_alias.entry(alias).or_default().push(i));
    }
    let mut ties = Ties { candidates, choices, values, by_name, by_alias, roots };
    let mut errors = vec![];
    let mut copies = vec![];
    for tie in options.tie {
        match ties.one(tie, errors.len()) {
            Ok(copy) => copies.extend(copy),
            Err(error) if error.place.is_some() => errors.push(error),
            Err(error) => errors.push(error.at(tie.place.clone().unwrap_or_else(|| file.place("initializers")))),
        }
    }
    if errors.is_empty() { Ok(copies) } else { Err(errors) }
}

/// The candidates, and what has been made of them.
struct Ties<'c, 'm, 'v> {
    candidates: &'c [Candidate<'m>],
    choices: &'c mut [Choice],
    values: &'c Values<'v, 'm>,
    /// The candidates of each name and of each alias.
    by_name: HashMap<&'c str, Vec<usize>>,
    by_alias: HashMap<&'c str, Vec<usize>>,
    /// Those that others are views of.
    roots: HashSet<usize>,
}

impl Ties<'_, '_, '_> {
    /// Carries out one line, after `earlier` errors.
    fn one(&mut self, tie: &Tie, earlier: usize) -> Result<Option<StoredCopy>, Diagnostic> {
        let (candidates, a) = (self.candidates, self.find(&tie.first.name, earlier)?);
        let Some(second) = &tie.second else {
            return match self.choices[a] {
                Choice::Constant => Err(not_trained(&candidates[a])),
                _ => Ok(None),
            };
        };
        let b = self.find(&second.name, earlier)?;
        let turned = tie.first.transposed != second.transposed;
        let (root, turned) = match self.choices[a] {
            Choice::View(root, first) => (root, first != turned),
            Choice::Constant => return Err(not_trained(&candidates[a])),
            _ => (a, turned),
        };
        let (of, copy) = (&candidates[root], &candidates[b]);
        if matches!(self.choices[b], Choice::View(..)) || root == b || self.roots.contains(&b) {
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
        if self.values.tied(root, b, turned) == Some(false) {
            let how = if turned { "each other's transpose" } else { "equal" };
            return Err(Diagnostic::error(format!("`{}` and `{}` are not {how}", of.name, copy.name))
                .help("remove the `tie` line: training them as one would change the model"));
        }
        // A parameter that is frozen in one place is frozen in both.
        if self.choices[b] == Choice::Frozen {
            self.choices[root] = Choice::Frozen;
        }
        self.choices[b] = Choice::View(root, turned);
        self.roots.insert(root);
        Ok(Some(StoredCopy { name: copy.name.to_string(), of: of.name.to_string(), transposed: turned }))
    }

    /// The candidate of that name, or the only one of that alias.
    fn find(&self, name: &str, earlier: usize) -> Result<usize, Diagnostic> {
        if let Some(named) = self.by_name.get(name) {
            return Ok(named[0]);
        }
        match self.by_alias.get(name).map(Vec::as_slice) {
            Some([i]) => Ok(*i),
            Some(called) => {
                let names: Vec<&str> = called.iter().take(SHOWN).map(|i| self.candidates[*i].name).collect();
                let error = Diagnostic::error(format!("`{name}` is several initializers"));
                Err(error.help_early(earlier, || format!("name one of `{}`", names.join("`, `"))))
            }
            None => Err(unknown(name, self.candidates, earlier)),
        }
    }
}

/// An error for each pattern of `untie` that matches no initializer.
pub(in crate::onnx) fn all_match(file: &ModelFile, options: &ImportOptions<'_>) -> Result<(), Diagnostics> {
    if options.untie.is_empty() {
        return Ok(());
    }
    let (order, candidates) = (order::needed(file)?, super::candidates(file, options)?);
    let candidates = super::survey(file, &order, candidates, options).candidates;
    let names = Names::new(candidates.iter().flat_map(Candidate::names));
    let unmatched = options.untie.iter().filter(|u| names.matching(&u.pattern).is_empty());
    let error = |(i, u): (usize, &Untie)| unknown(&u.pattern, &candidates, i).at_opt(u.place.clone());
    let errors: Diagnostics = unmatched.enumerate().map(error).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// The error for a name that is not there, after `earlier` ones.
fn unknown(name: &str, candidates: &[Candidate<'_>], earlier: usize) -> Diagnostic {
    let floats = candidates.iter().filter(|c| c.weight.ty.dtype.is_float() && !c.is_node);
    let names = || floats.flat_map(Candidate::names).collect::<Vec<_>>();
    let error = Diagnostic::error(format!("the model has no initializer `{name}`"));
    error.help_early(earlier, || names_help(name, names().iter().copied()))
}

fn not_trained(candidate: &Candidate<'_>) -> Diagnostic {
    Diagnostic::error(format!("`{}` is a constant of the model, which is tied to nothing", candidate.name))
}
