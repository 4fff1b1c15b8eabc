//! What the exporter's record says of each initializer: which are parameters, and which parameters the file has lost.
//!
//! A parameter is held by the initializer of its name, or by one that the exporter's optimizer made of it by moving elements
//! around: a transpose, a part, rows of a table, each once. A second one made of it is a view. What is computed of a parameter in
//! any other way is not the parameter, so that it is lost; so is one whose initializer the optimizer replaced (a convolution into which it
//! folded a batch normalisation), and one that a call takes and no initializer holds. A parameter that
//! no call takes is the second name of another one, or is not used: unless something that calls take is gone, and may have been of it.
//! Parts of a parameter are read by calls that take them: what is equal to a part is another part.

use super::judge::{Judge, Verdict};
use super::uses::{Use, invented};
use super::values::Values;
use super::{Candidate, Choice, Copy};
use crate::onnx::model_file::ModelFile;
use crate::onnx::record::{Call, Kind, Parameter, Record};
use shardc_ir::diagnostic::Diagnostic;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What one candidate is, as far as the record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// A tensor of the module, under its own name.
    Listed(Kind),
    /// These parameters, their elements moved around.
    Holds(Vec<String>),
    /// A copy of another candidate, or its transpose.
    View(usize, bool),
    /// Computed of no parameter.
    Constant,
    /// Not told: what is left of parameters that are lost, or of a record that does not say.
    Untold,
}

/// What the record says.
pub(super) struct Recorded {
    /// Of each candidate.
    pub origins: Vec<Origin>,
    /// The parameters that the file has lost, in the module's order.
    pub lost: Vec<String>,
}

/// Calls whose weights an exporter writes transposed or regrouped, and does not compute with.
const REGROUPING: [&str; 5] = ["aten.linear", "aten.addmm", "aten.prelu", "aten.group_norm", "aten.native_group_norm"];

/// Calls that take several parameters, of which an exporter joins those of one slot.
const RECURRENT: [&str; 4] = ["aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu"];

/// Results of calls that only move elements, or take a part of them.
const MOVES: [&str; 18] = [
    "t",
    "transpose",
    "permute",
    "numpy_t",
    "swapaxes",
    "view",
    "_unsafe_view",
    "reshape",
    "flatten",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "clone",
    "alias",
    "contiguous",
    "slice",
    "select",
    "narrow",
];

/// Those of them that take a part.
const PARTS: [&str; 3] = ["slice", "select", "narrow"];

/// Results of calls that compute positions for a table, beside those that move elements.
const POSITIONS: [&str; 8] = ["arange", "add", "sub", "cumsum", "expand", "full", "zeros", "ones"];

/// Results of calls that may disappear because they do nothing.
const IDLE: [&str; 8] = ["getitem", "expand", "dropout", "to", "_to_copy", "detach", "type_as", "lift_fresh_copy"];

/// What `record` says of `candidates`, with the nodes of `file` in `order`.
pub(super) fn recorded(
    file: &ModelFile,
    record: &Record,
    order: &[usize],
    candidates: &[Candidate<'_>],
    uses: &[Vec<Use>],
    values: &Values<'_, '_>,
) -> Recorded {
    let names: HashMap<&str, usize> = candidates.iter().enumerate().map(|(i, c)| (c.name, i)).collect();
    let parameters = record.parameters.iter().map(|p| p.name.as_str()).collect();
    let known = known(file, record, order, candidates);
    let reader = Reader { file, record, order, candidates, uses, values, parameters, known };
    let mut origins: Vec<Origin> = candidates.iter().map(|c| reader.by_name(c)).collect();
    let mut made: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (i, candidate) in candidates.iter().enumerate().filter(|(_, c)| !record.kinds.contains_key(c.name)) {
        for source in reader.sources(candidate) {
            made.entry(source).or_default().push(i);
        }
    }
    let mut lost: BTreeSet<&str> = BTreeSet::new();
    let mut unseen: Vec<&str> = vec![];
    for Parameter { name, placeholder } in &record.parameters {
        if names.contains_key(name.as_str()) && !reader.is_as_exported(name) {
            lost.insert(name);
        }
        let of_it = made.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        let (first, others) = match (names.get(name.as_str()), of_it) {
            (Some(own), _) => (*own, of_it),
            (None, [first, others @ ..]) if reader.holds(*first) => (*first, others),
            (None, []) if !reader.is_taken(placeholder) => {
                unseen.push(name);
                continue;
            }
            (None, _) => {
                lost.insert(name);
                continue;
            }
        };
        if first != names.get(name.as_str()).copied().unwrap_or(usize::MAX) {
            origins[first] = Origin::Holds(reader.sources(&candidates[first]).into_iter().map(String::from).collect());
        }
        for other in others {
            match reader.view(first, *other) {
                Some(turned) if reader.sources(&candidates[*other]).len() == 1 => origins[*other] = Origin::View(first, turned),
                _ => {
                    lost.insert(name);
                }
            }
        }
    }
    let hides = !unseen.is_empty() && reader.may_hide_a_parameter(&origins);
    if hides {
        lost.extend(unseen);
    }
    // Equal calls are explained by a parameter that is seen nowhere; else by another tensor.
    if !hides && reader.has_unseen_tensor(&names) {
        lost.extend(reader.doubled());
    }
    let missing: HashSet<&str> =
        record.parameters.iter().filter(|p| lost.contains(p.name.as_str())).map(|p| p.placeholder.as_str()).collect();
    for (i, origin) in origins.iter().enumerate() {
        let parameters: Vec<String> = match origin {
            Origin::Listed(Kind::Parameter) => vec![candidates[i].name.to_string()],
            Origin::Holds(names) => names.clone(),
            Origin::View(of, _) => vec![candidates[*of].name.to_string()],
            _ => continue,
        };
        if parameters.iter().all(|p| record.placeholders.contains_key(p)) && reader.is_misused(i, &parameters, &missing) {
            lost.extend(record.parameters.iter().map(|p| p.name.as_str()).filter(|name| parameters.iter().any(|p| p == name)));
        }
    }
    // What holds a parameter beside a lost one does not hold it.
    for (i, candidate) in candidates.iter().enumerate() {
        if !record.kinds.contains_key(candidate.name) && reader.sources(candidate).iter().any(|name| lost.contains(name)) {
            origins[i] = Origin::Untold;
        }
    }
    let lost = record.parameters.iter().filter(|p| lost.contains(p.name.as_str())).map(|p| p.name.clone()).collect();
    Recorded { origins, lost }
}

/// What follows for a candidate of that origin; `judge` knows its use.
pub(super) fn verdict(origin: &Origin, judge: &Judge<'_, '_>) -> Verdict {
    let by_record = |what: &str| format!("{what} by the exporter's record");
    match (origin, judge.verdict()) {
        (Origin::Listed(Kind::Buffer) | Origin::Constant, Verdict::Follow) => Verdict::Follow,
        (Origin::Listed(Kind::Parameter), _) if judge.is_dead() => judge.verdict(),
        (Origin::Listed(Kind::Parameter), _) => Verdict::Train(by_record("a parameter")),
        (Origin::Listed(Kind::Buffer), _) => Verdict::Freeze(by_record("a buffer")),
        (Origin::Listed(Kind::Constant), _) => Verdict::Freeze(by_record("a constant")),
        (Origin::Holds(names), _) => {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            Verdict::Train(by_record(&format!("it holds {}", names.join(", "))))
        }
        (Origin::View(..), _) => Verdict::Train(String::new()),
        (Origin::Constant, _) => Verdict::Freeze(by_record("made of no parameter")),
        (Origin::Untold, verdict) => verdict,
    }
}

/// Makes a view of each candidate that is one of a trained one.
pub(super) fn views(recorded: &Recorded, candidates: &[Candidate<'_>], choices: &mut [Choice]) -> Vec<Copy> {
    let mut copies = vec![];
    for (i, origin) in recorded.origins.iter().enumerate() {
        let Origin::View(of, transposed) = *origin else { continue };
        let is_free =
            choices[i] == Choice::Parameter && !choices.iter().any(|c| matches!(c, Choice::View(root, _) if *root == i));
        if is_free && matches!(choices[of], Choice::Parameter | Choice::Frozen) {
            choices[i] = Choice::View(of, transposed);
            let (name, of) = (candidates[i].name.to_string(), candidates[of].name.to_string());
            copies.push(Copy { name, of, transposed });
        }
    }
    copies
}

/// What the module does and the model does not say: rows of tables that PyTorch leaves as they are.
pub(super) fn warnings(file: &ModelFile, record: &Record) -> Vec<Diagnostic> {
    let padded = |parameter: &Parameter| {
        let lookups = record.calls.iter().flatten().filter(|call| call.takes.contains(&parameter.placeholder));
        let row = lookups.filter_map(|call| call.padding).next()?;
        let message = format!("`{}` has `padding_idx={row}`: PyTorch never trains that row, and this does", parameter.name);
        let help = format!("it makes no difference to data without {row}; else build the module without `padding_idx`");
        Some(Diagnostic::warning(message).at(file.place("graph")).help(help))
    };
    record.parameters.iter().filter_map(padded).collect()
}

/// The refusal of a model that has lost parameters.
pub(super) fn refusal(file: &ModelFile, record: &Record, lost: &[String]) -> Option<Diagnostic> {
    if lost.is_empty() {
        return None;
    }
    let (count, all) = (lost.len(), record.parameters.len());
    let message = format!("the export has lost {count} of the {all} parameters that its own record lists");
    let label = format!("dropped, merged with equal ones, or folded into others:\n{}", lines(lost));
    let help = "export again with `optimize=False`, as in `torch.onnx.export(model, args, \"m.onnx\", optimize=False)`;\n\
                to train without them, write in the spec\n    accept lost=parameters";
    Some(Diagnostic::error(message).at(file.place("graph")).label(label).help(help))
}

/// Names in lines of a readable length.
fn lines(names: &[String]) -> String {
    const WIDTH: usize = 100;
    let mut lines = vec![String::new()];
    for (i, name) in names.iter().enumerate() {
        let name = format!("`{name}`{}", if i + 1 < names.len() { "," } else { "" });
        match lines.last_mut() {
            Some(line) if line.is_empty() => *line = name,
            Some(line) if line.len() + 1 + name.len() <= WIDTH => *line += &format!(" {name}"),
            _ => lines.push(name),
        }
    }
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

struct Reader<'a, 'm> {
    file: &'a ModelFile,
    record: &'a Record,
    order: &'a [usize],
    candidates: &'a [Candidate<'m>],
    uses: &'a [Vec<Use>],
    values: &'a Values<'a, 'm>,
    parameters: HashSet<&'a str>,
    /// Every name that a call may take and that the file still has.
    known: HashSet<&'a str>,
}

fn known<'a>(file: &'a ModelFile, record: &'a Record, order: &[usize], candidates: &'a [Candidate<'_>]) -> HashSet<&'a str> {
    let graph = file.graph();
    let mut known: HashSet<&str> = candidates.iter().map(|c| c.name).collect();
    known.extend(graph.initializer.iter().map(|t| t.name.as_str()).chain(graph.input.iter().map(|i| i.name.as_str())));
    known.extend(record.placeholders.values().chain(&record.inputs).map(String::as_str));
    known.extend(order.iter().flat_map(|p| &graph.node[*p].output).map(String::as_str));
    known.extend(record.calls.iter().flatten().map(|call| call.result.as_str()));
    known
}

impl<'a> Reader<'a, '_> {
    fn by_name(&self, candidate: &Candidate<'_>) -> Origin {
        match self.record.kinds.get(candidate.name) {
            Some(kind) => Origin::Listed(*kind),
            None if self.record.is_complete() => Origin::Constant,
            None => Origin::Untold,
        }
    }

    /// What the optimizer computed the candidate of.
    fn went_in(&self, candidate: &Candidate<'_>) -> &'a [String] {
        self.record.folded.get(candidate.name).map(Vec::as_slice).unwrap_or_default()
    }

    /// The parameters among that, in the module's order.
    fn sources(&self, candidate: &Candidate<'_>) -> Vec<&'a str> {
        let went_in: HashSet<&str> = self.went_in(candidate).iter().map(String::as_str).collect();
        if went_in.is_disjoint(&self.parameters) {
            return vec![];
        }
        self.record.parameters.iter().map(|p| p.name.as_str()).filter(|name| went_in.contains(name)).collect()
    }

    /// Whether candidate `i` is the parameters that it was made of, with their elements moved around.
    fn holds(&self, i: usize) -> bool {
        let candidate = &self.candidates[i];
        let sources = self.sources(candidate);
        let others: Vec<&str> = self.went_in(candidate).iter().map(String::as_str).filter(|n| !sources.contains(n)).collect();
        let is_kind = |name: &&&str| self.record.kinds.contains_key(**name);
        let only = |allowed: &dyn Fn(&str) -> bool| others.iter().all(|name| invented(name) || allowed(name));
        let alone = sources.len() == 1 && !others.iter().any(|name| is_kind(&name));
        let moves = |name: &str| MOVES.contains(&operation(name));
        if operation(candidate.name) == "embedding" {
            let positions =
                |name: &str| moves(name) || POSITIONS.contains(&operation(name)) || self.record.kinds.contains_key(name);
            return sources.len() == 1 && only(&positions) && self.values.rows_differ(i) == Some(true);
        }
        let calls = self.calls_that_read(candidate.name);
        // A call that takes a part under another name takes another part, which was equal.
        let names_it = |call: &&Call| call.takes.iter().any(|t| t == candidate.name || self.went_in(candidate).contains(t));
        if self.is_part(i) && !calls.iter().all(names_it) {
            return false;
        }
        if !invented(candidate.name) {
            return alone && moves(candidate.name) && only(&moves);
        }
        let all = |functions: &[&str]| !calls.is_empty() && calls.iter().all(|call| functions.contains(&call.function.as_str()));
        let is_joined = self.uses[i].iter().all(|u| matches!(u, Use::Weight(_)));
        // What a recurrent call takes itself stands in its slots as it is; beside it only sizes are computed there.
        let placeholders = self.record.parameters.iter().filter(|p| sources.contains(&p.name.as_str())).map(|p| &p.placeholder);
        let are_taken = placeholders.into_iter().all(|p| calls.iter().all(|call| call.takes.contains(p)));
        (alone && all(&REGROUPING) && only(&moves)) || (all(&RECURRENT) && is_joined && are_taken)
    }

    /// Whether candidate `of` is a copy of candidate `i`, or, true, its transpose.
    fn view(&self, i: usize, of: usize) -> Option<bool> {
        let (a, b) = (&self.candidates[i].weight.ty, &self.candidates[of].weight.ty);
        let turned = a.rank() == 2 && b.rank() == 2 && a.shape[0] == b.shape[1] && a.shape[1] == b.shape[0];
        [(turned, true), (a.shape == b.shape, false)]
            .into_iter()
            .filter(|(fits, _)| *fits && a.dtype == b.dtype && !self.is_part(i) && (!self.is_part(of) || self.is_listed(i)))
            .map(|(_, turned)| turned)
            .find(|turned| self.values.tied(i, of, *turned) == Some(true))
    }

    fn is_listed(&self, i: usize) -> bool {
        self.record.kinds.contains_key(self.candidates[i].name)
    }

    /// Whether candidate `i` is a part of what it was made of: two of them may be equal, and are not one for that.
    fn is_part(&self, i: usize) -> bool {
        let candidate = &self.candidates[i];
        let mut names = self.went_in(candidate).iter().map(String::as_str).chain([candidate.name]);
        !self.is_listed(i) && names.any(|name| PARTS.contains(&operation(name)))
    }

    /// Whether the optimizer has left the initializer of that name alone: its value still says what it is in the module.
    fn is_as_exported(&self, name: &str) -> bool {
        let vouched = &self.record.vouched;
        vouched.is_empty() || vouched.contains(name) || self.file.apart.contains(name)
    }

    /// The names that the call takes and the file no longer has.
    fn gone<'c>(&self, call: &'c Call) -> impl Iterator<Item = &'c str> {
        call.takes.iter().map(String::as_str).filter(|name| !self.known.contains(name))
    }

    /// Whether a node reads the candidate whose call does not take it, nor the parameters that it holds: then the optimizer has merged
    /// them with an equal constant; where the call takes a `missing` parameter, with that.
    fn is_misused(&self, i: usize, parameters: &[String], missing: &HashSet<&str>) -> bool {
        let name = self.candidates[i].name;
        let means = |taken: &str| {
            taken == name || missing.contains(taken) || parameters.iter().any(|p| self.record.placeholders[p] == *taken)
        };
        self.calls_that_read(name).iter().any(|call| !call.takes.iter().any(|t| means(t)) && !self.gone(call).any(is_idle))
    }

    fn is_taken(&self, placeholder: &String) -> bool {
        self.record.calls.iter().flatten().any(|call| call.takes.contains(placeholder))
    }

    fn call(&self, position: usize) -> Option<&'a Call> {
        self.record.calls.get(self.file.sources[position].position?)?.as_ref()
    }

    fn calls_that_read(&self, name: &str) -> Vec<&'a Call> {
        let reads = |position: &&usize| self.file.graph().node[**position].input.iter().any(|input| input == name);
        self.order.iter().filter(reads).filter_map(|position| self.call(*position)).collect()
    }

    /// Whether a parameter that is seen nowhere may have been in use: the record has no calls, something came from nowhere, or the
    /// result of a call is gone that did something.
    fn may_hide_a_parameter(&self, origins: &[Origin]) -> bool {
        let from_nowhere = |(i, candidate): (usize, &Candidate<'_>)| {
            origins[i] == Origin::Constant
                && candidate.weight.ty.dtype.is_float()
                && (candidate.weight.ty.elements() > 1 || !invented(candidate.name))
                && !candidate.is_node
                && !self.record.folded.contains_key(candidate.name)
        };
        self.record.calls.iter().all(Option::is_none)
            || self.candidates.iter().enumerate().any(from_nowhere)
            || self.calls().any(|(_, call)| self.gone(call).any(|name| !is_idle(name)))
            || self.record.outputs.iter().any(|name| !self.known.contains(name.as_str()) && !is_idle(name))
            || self.replaced(origins)
    }

    /// Whether a node is given, for a result that is gone, a tensor that was equal to it and may have been equal to a parameter: a
    /// parameter, or zeros or ones. Another call takes that tensor by its name, or this one is given nothing else for the result.
    fn replaced(&self, origins: &[Origin]) -> bool {
        let graph = self.file.graph();
        let named = |call: &Call, name: &str| {
            let sources = self.record.folded.get(name).into_iter().flatten().map(String::as_str);
            let placeholder = |name: &str| self.record.placeholders.get(name).map(String::as_str);
            call.takes.iter().any(|taken| taken == name)
                || sources.chain([name]).filter_map(placeholder).any(|p| call.takes.iter().any(|taken| taken == p))
        };
        let tensors: HashMap<&str, usize> = self.candidates.iter().enumerate().map(|(i, c)| (c.name, i)).collect();
        let reads = |(position, call): (usize, &'a Call)| {
            let inputs = graph.node[position].input.iter().filter_map(|name| tensors.get(name.as_str()));
            inputs.filter(move |i| named(call, self.candidates[**i].name)).copied().collect::<Vec<usize>>()
        };
        let read_by_name: HashSet<usize> = self.calls().flat_map(reads).collect();
        let mut nodes: HashMap<&str, usize> = HashMap::new();
        self.calls().for_each(|(_, call)| *nodes.entry(&call.result).or_default() += 1);
        self.calls().filter(|(_, call)| self.gone(call).next().is_some()).any(|(position, call)| {
            let inputs = &graph.node[position].input;
            let is_made = |name: &str| !name.is_empty() && !tensors.contains_key(name) && !call.takes.iter().any(|t| t == name);
            let alone = nodes[call.result.as_str()] == 1 && !inputs.iter().any(|name| is_made(name));
            inputs.iter().filter_map(|name| tensors.get(name.as_str())).any(|i| {
                let candidate = &self.candidates[*i];
                let is_learned = matches!(origins[*i], Origin::Listed(Kind::Parameter) | Origin::Holds(_) | Origin::View(..));
                candidate.weight.ty.dtype.is_float()
                    && !named(call, candidate.name)
                    && if invented(candidate.name) { alone } else { read_by_name.contains(i) }
                    && (is_learned || self.values.fresh(*i) == Some(true))
            })
        })
    }

    /// Whether a tensor of the module is seen nowhere in the file: then equal calls may have been made one that were not the same.
    fn has_unseen_tensor(&self, names: &HashMap<&str, usize>) -> bool {
        let folded: HashSet<&str> = self.record.folded.values().flatten().map(String::as_str).collect();
        let is_seen = |name: &str| names.contains_key(name) || folded.contains(name);
        self.record.placeholders.iter().any(|(name, placeholder)| !is_seen(name) && !self.is_taken(placeholder))
    }

    /// The parameters of calls that stand for an equal call as well: a reader takes the result of a call that is gone, and is given
    /// that of one of the same function in its place.
    fn doubled(&self) -> Vec<&'a str> {
        let graph = self.file.graph();
        let made =
            |(position, call): (usize, &'a Call)| graph.node[position].output.iter().map(move |name| (name.as_str(), call));
        let makers: HashMap<&str, &Call> = self.calls().flat_map(made).collect();
        let mut found = HashSet::new();
        for (position, call) in self.calls() {
            let gone: HashSet<&str> = self.gone(call).filter(|name| !is_idle(name)).map(operation).collect();
            let given = graph.node[position].input.iter().filter_map(|input| makers.get(input.as_str()));
            for equal in given.filter(|maker| gone.contains(operation(&maker.result)) && !call.takes.contains(&maker.result)) {
                found.extend(equal.takes.iter().map(String::as_str));
            }
        }
        let taken = self.record.parameters.iter().filter(|p| found.contains(p.placeholder.as_str()));
        taken.map(|p| p.name.as_str()).collect()
    }

    /// Every node that came from a call, and the call.
    fn calls(&self) -> impl Iterator<Item = (usize, &'a Call)> {
        self.order.iter().filter_map(|position| Some((*position, self.call(*position)?)))
    }
}

/// Whether the result of that name may be another value as it is.
fn is_idle(result: &str) -> bool {
    MOVES.contains(&operation(result)) || IDLE.contains(&operation(result))
}

/// The operation whose result has that name: `layer_norm` of `layer_norm_1`.
fn operation(result: &str) -> &str {
    match result.rsplit_once('_') {
        Some((name, number)) if !name.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => result,
    }
}
