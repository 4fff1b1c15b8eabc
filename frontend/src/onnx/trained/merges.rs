//! Parameters that an exporter merged because they were equal, and matrices that were one and are
//! two now: what the spec says of them, and what it must say.

use super::uses::{Reader, Use, invented};
use super::values::{Equality, Fingerprint, Key, Values};
use super::{Candidate, Choice, Untie};
use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::scope;
use crate::onnx::options::ImportOptions;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, counted};
use shardc_ir::names::matches;
use std::collections::HashMap;

/// An initializer with the uses of several parameters.
pub(in crate::onnx) struct Merged {
    /// The candidate.
    pub candidate: usize,
    /// Its kind, as its users read it.
    pub kind: Kind,
    /// The parameters that it may have been, each with those that read it.
    pub parts: Vec<Part>,
}

/// The kind of a merged initializer, as its users read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::onnx) enum Kind {
    /// A scale or bias.
    Vector,
    /// A weight, the same everywhere.
    Constant,
    /// A weight that varies: a tie, unless the spec names it.
    Table,
}

/// One of the parameters that a merged initializer may have been.
pub(in crate::onnx) struct Part {
    /// Its name after the module that uses it.
    pub name: Option<String>,
    /// Its readers: node and input.
    pub readers: Vec<(usize, usize)>,
}

/// Every trained candidate that may have been several parameters. Uses in one module are one
/// parameter: a module that runs twice.
pub(in crate::onnx) fn merged(
    file: &ModelFile,
    candidates: &[Candidate<'_>],
    readers: &[Vec<Reader>],
    choices: &[Choice],
    values: &Values<'_, '_>,
) -> Vec<Merged> {
    let mut found = vec![];
    for i in (0..candidates.len()).filter(|i| choices[*i] == Choice::Parameter) {
        let ty = &candidates[i].weight.ty;
        let counts = |u: &Use| match u {
            Use::Operand(_) => ty.rank() == 1 && ty.elements() > 1,
            _ => u.slot().is_some(),
        };
        let parts = parts(file, &readers[i], counts, values.constant(i));
        if parts.len() < 2 {
            continue;
        }
        let is_weight = |u: &Use| matches!(u, Use::Weight(_) | Use::Table(_));
        let kind = match readers[i].iter().flat_map(|r| &r.uses).any(is_weight) {
            false => Kind::Vector,
            true if values.constant(i) == Some(true) => Kind::Constant,
            true => Kind::Table,
        };
        found.push(Merged { candidate: i, kind, parts });
    }
    found
}

fn parts(file: &ModelFile, readers: &[Reader], counts: impl Fn(&Use) -> bool, constant: Option<bool>) -> Vec<Part> {
    let mut parts: Vec<Part> = vec![];
    for reader in readers {
        // A tensor that one reader passes on to several modules stays one parameter.
        let Some(found) = reader.uses.iter().find(|u| counts(u)) else { continue };
        let name = original(file, reader).or_else(|| module_name(file, found));
        let same = |part: &&mut Part| match (&part.name, &name) {
            (Some(one), Some(other)) if constant == Some(false) => one_module(one, other),
            (Some(one), Some(other)) => one == other,
            _ => false,
        };
        match parts.iter_mut().find(same) {
            Some(part) => part.readers.push((reader.node, reader.input)),
            None => parts.push(Part { name, readers: vec![(reader.node, reader.input)] }),
        }
    }
    parts
}

/// Whether the names are of one module that is called again: TorchScript numbers the calls, which
/// looks as two modules `norm` and `norm_1` do. Equal vectors of numbers that vary were not merged,
/// so there it is calls that have the numbers.
fn one_module(one: &str, other: &str) -> bool {
    one.split('.').map(without_number).eq(other.split('.').map(without_number))
}

/// `norm` of `norm_1`.
fn without_number(part: &str) -> &str {
    match part.rsplit_once('_') {
        Some((name, number)) if !name.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => part,
    }
}

/// The name that a copy has kept: TorchScript writes `h.1.ln.weight = Identity(h.0.ln.weight)`.
fn original(file: &ModelFile, reader: &Reader) -> Option<String> {
    let node = &file.graph().node[reader.node];
    node.output.first().filter(|n| node.op_type == "Identity" && !n.is_empty() && !invented(n)).cloned()
}

/// `h.0.ln.weight` for the scale of the normalisation in the module `h.0.ln`.
pub(in crate::onnx) fn module_name(file: &ModelFile, found: &Use) -> Option<String> {
    let (what, node) = found.role()?;
    scope::written(file, node).map(|scope| format!("{scope}.{what}"))
}

/// A name without the numbers of layers: `layers..weight` of `layers.1.weight`.
fn without_numbers(name: &str) -> String {
    name.split('.').filter(|part| part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit())).collect::<Vec<_>>().join(".")
}

impl Merged {
    /// Whether the spec wants the parameters apart. A pattern does for vectors and constants; what
    /// varies needs its name.
    pub fn is_split(&self, candidate: &Candidate<'_>, options: &ImportOptions<'_>) -> bool {
        let named = |u: &Untie| candidate.names().any(|name| name == u.pattern);
        let matched = |u: &Untie| candidate.names().any(|name| matches(&u.pattern, name));
        let tied = options.tie.iter().any(|t| t.second.is_none() && candidate.names().any(|name| name == t.first.name));
        match self.kind {
            _ if options.untie.iter().any(named) => true,
            Kind::Table => false,
            _ => !tied && options.untie.iter().any(matched),
        }
    }
}

/// The refusals of all that may have been several parameters, or one: each with the lines to write.
pub(in crate::onnx) fn refusals(
    file: &ModelFile,
    candidates: &[Candidate<'_>],
    merged: &[Merged],
    options: &ImportOptions<'_>,
) -> Diagnostics {
    let tied = |m: &Merged| {
        let names = || candidates[m.candidate].names();
        options.tie.iter().any(|t| t.second.is_none() && names().any(|name| name == t.first.name))
    };
    let open: Vec<&Merged> = merged.iter().filter(|m| m.kind != Kind::Table && !tied(m)).collect();
    let Some(first) = open.first() else { return vec![] };
    let name = candidates[first.candidate].name;
    let count: usize = first.parts.iter().map(|p| p.readers.len()).sum();
    let why = match first.kind {
        Kind::Vector => format!("is the scale or bias of {count} nodes"),
        _ => format!("has one value everywhere and is the weight of {count} nodes"),
    };
    let also = if open.len() > 1 { format!("; so for {}", counted(open.len() - 1, "other initializer")) } else { String::new() };
    let message = format!("`{name}` {why}: one parameter, or several that the exporter merged?{also}");
    let help = "if they are several, write in the spec\n    untie \"*\"\nif one is meant, `tie` and its name";
    vec![Diagnostic::error(message).at(file.place(format!("initializer \"{name}\""))).help(help)]
}

/// Lines that a refusal tells to write.
const LISTED: usize = 8;

/// The refusal of matrices that are equal, or each other's transpose: with the lines that make them
/// one again.
pub(in crate::onnx) fn lost_ties(
    file: &ModelFile,
    candidates: &[Candidate<'_>],
    uses: &[Vec<Use>],
    choices: &[Choice],
    values: &Values<'_, '_>,
    options: &ImportOptions<'_>,
) -> Diagnostics {
    let is_weight = |u: &Use| matches!(u, Use::Weight(_) | Use::Table(_));
    let is_matrix =
        |i: &usize| choices[*i] == Choice::Parameter && candidates[*i].weight.ty.rank() == 2 && uses[*i].iter().any(is_weight);
    // A pattern of everything is meant for what is merged; of matrices it separates copies of one
    // layer only.
    let named = |u: &Untie, i: usize| candidates[i].names().any(|name| matches(&u.pattern, name));
    let separate = |i: usize, j: usize| {
        let copies = without_numbers(candidates[i].name) == without_numbers(candidates[j].name);
        options.untie.iter().any(|u| (named(u, i) || named(u, j)) && (copies || u.pattern != "*"))
    };
    let matrices: Vec<(usize, Fingerprint)> =
        (0..candidates.len()).filter(is_matrix).filter_map(|i| values.fingerprint(i).map(|f| (i, f))).collect();
    let mut pairs = vec![];
    let mut before: HashMap<Key, Vec<usize>> = HashMap::new();
    for (n, (j, print)) in matrices.iter().enumerate() {
        let keys = print.keys();
        let mut like: Vec<usize> = keys.iter().flat_map(|key| before.get(key).into_iter().flatten().copied()).collect();
        like.sort();
        like.dedup();
        let equal = |n: &usize| {
            let (i, other) = &matrices[*n];
            values.equal((*i, other), (*j, print)).filter(|e| *e != Equality::No).map(|e| (*i, e))
        };
        let found = like.iter().find_map(equal);
        let [straight, _] = keys;
        // A matrix that is equal to an earlier one is found with that one.
        if found.is_none() {
            before.entry(straight).or_default().push(n);
        }
        let Some((i, equality)) = found else { continue };
        let split = [i, *j].iter().all(|i| file.apart.contains(candidates[*i].name));
        if split || separate(i, *j) || values.constant(i) == Some(true) {
            continue;
        }
        // The name that people know comes first.
        let turn = invented(candidates[i].name) && !invented(candidates[*j].name);
        let (a, b) = if turn { (*j, i) } else { (i, *j) };
        pairs.push((candidates[a].name, candidates[b].name, equality));
    }
    let Some((a, b, equality)) = pairs.first() else { return vec![] };
    let how = if *equality == Equality::Same { "equal" } else { "each other's transpose" };
    let also = if pairs.len() > 1 { format!("; so are {}", counted(pairs.len() - 1, "other pair")) } else { String::new() };
    let message = format!("`{a}` and `{b}` are {how}: one parameter that the exporter wrote twice?{also}");
    let turned = |e: &Equality| if *e == Equality::Same { "" } else { "^T" };
    let line = |(a, b, e): &(&str, &str, Equality)| format!("\n    tie \"{a}\" \"{b}\"{}", turned(e));
    let ties: String = pairs.iter().take(LISTED).map(line).collect();
    let rest = if pairs.len() > LISTED { format!("\n    … and {} more", pairs.len() - LISTED) } else { String::new() };
    let help =
        format!("if they are one, write in the spec{ties}{rest}\nif two are meant, `untie` and a pattern of the second names");
    vec![Diagnostic::error(message).at(file.place(format!("initializer \"{b}\""))).help(help)]
}
