//! The evidence of the record about single tensors and calls: which tensors are parameters in
//! another form, and what shows that something is gone.

use super::Candidate;
use super::recorded::Origin;
use super::uses::{Use, invented};
use super::values::Values;
use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::record::{Call, Kind, Parameter, Record};
use crate::onnx::file::scope::parent;
use std::collections::{HashMap, HashSet};

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

/// Tensors of more elements are not merged with equal ones.
const SMALL: u64 = 1024;

/// Results of calls that may disappear because they do nothing.
const IDLE: [&str; 8] = ["getitem", "expand", "dropout", "to", "_to_copy", "detach", "type_as", "lift_fresh_copy"];

/// A model and its record, to ask questions of.
pub(super) struct Evidence<'a, 'm> {
    file: &'a ModelFile,
    record: &'a Record,
    order: &'a [usize],
    candidates: &'a [Candidate<'m>],
    uses: &'a [Vec<Use>],
    values: &'a Values<'a, 'm>,
    /// The position of each candidate, by name.
    places: HashMap<&'a str, usize>,
    /// The position of each parameter in the module, by name.
    parameters: HashMap<&'a str, usize>,
    /// Every name that a call takes.
    taken: HashSet<&'a str>,
    /// Every name that a call may take and that the file still has.
    known: HashSet<&'a str>,
    /// The calls of the nodes that read each value, by name.
    readers: HashMap<&'a str, Vec<&'a Call>>,
}

impl<'a, 'm> Evidence<'a, 'm> {
    /// The evidence of `record` about `candidates`, with the nodes of `file` in `order`.
    pub fn of(
        file: &'a ModelFile,
        record: &'a Record,
        order: &'a [usize],
        candidates: &'a [Candidate<'m>],
        uses: &'a [Vec<Use>],
        values: &'a Values<'a, 'm>,
    ) -> Self {
        let graph = file.graph();
        let places: HashMap<&str, usize> = candidates.iter().enumerate().map(|(i, c)| (c.name, i)).collect();
        let parameters = record.parameters.iter().enumerate().map(|(i, p)| (p.name.as_str(), i)).collect();
        let taken = record.calls.iter().flatten().flat_map(|call| &call.takes).map(String::as_str).collect();
        let mut known: HashSet<&str> = places.keys().copied().collect();
        known.extend(graph.initializer.iter().map(|t| t.name.as_str()).chain(graph.input.iter().map(|i| i.name.as_str())));
        known.extend(record.placeholders.values().chain(&record.inputs).map(String::as_str));
        known.extend(order.iter().flat_map(|p| &graph.node[*p].output).map(String::as_str));
        known.extend(record.calls.iter().flatten().map(|call| call.result.as_str()));
        let readers = HashMap::new();
        let mut evidence = Evidence { file, record, order, candidates, uses, values, places, parameters, taken, known, readers };
        let mut readers: HashMap<&str, Vec<&Call>> = HashMap::new();
        for (position, call) in evidence.calls() {
            let inputs: HashSet<&str> = graph.node[position].input.iter().map(String::as_str).collect();
            inputs.into_iter().for_each(|input| readers.entry(input).or_default().push(call));
        }
        evidence.readers = readers;
        evidence
    }

    /// The origin of a candidate by its own name.
    pub fn by_name(&self, candidate: &Candidate<'_>) -> Origin {
        match self.record.kinds.get(candidate.name) {
            Some(kind) => Origin::Listed(*kind),
            None if self.record.is_complete() => Origin::Constant,
            None => Origin::Untold,
        }
    }

    /// The parameter of that name.
    pub fn parameter(&self, name: &str) -> Option<&'a Parameter> {
        self.parameters.get(name).map(|i| &self.record.parameters[*i])
    }

    /// The names of all that the optimizer computed the candidate of.
    fn went_in(&self, candidate: &Candidate<'_>) -> &'a [String] {
        self.record.folded.get(candidate.name).map(Vec::as_slice).unwrap_or_default()
    }

    /// The parameters among that, in the module's order.
    pub fn sources(&self, candidate: &Candidate<'_>) -> Vec<&'a str> {
        let mut places: Vec<usize> =
            self.went_in(candidate).iter().filter_map(|n| self.parameters.get(n.as_str()).copied()).collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|i| self.record.parameters[i].name.as_str()).collect()
    }

    /// Whether candidate `i` is the parameters that it was made of, with their elements moved
    /// around.
    pub fn holds(&self, i: usize) -> bool {
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
        let calls = self.readers_of(candidate.name);
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
        // A parameter that a recurrent call takes itself stands in its slots as it is; beside it
        // only sizes are computed there.
        let placeholders = sources.iter().filter_map(|name| Some(&self.parameter(name)?.placeholder));
        let are_taken = placeholders.into_iter().all(|p| calls.iter().all(|call| call.takes.contains(p)));
        (alone && all(&REGROUPING) && only(&moves)) || (all(&RECURRENT) && is_joined && are_taken)
    }

    /// Whether candidate `of` is a copy of candidate `i`, or, true, its transpose.
    pub fn view(&self, i: usize, of: usize) -> Option<bool> {
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

    /// Whether candidate `i` is a part of what it was made of: two of them may be equal, and are
    /// not one for that.
    fn is_part(&self, i: usize) -> bool {
        let candidate = &self.candidates[i];
        let mut names = self.went_in(candidate).iter().map(String::as_str).chain([candidate.name]);
        !self.is_listed(i) && names.any(|name| PARTS.contains(&operation(name)))
    }

    /// Whether the optimizer has left the initializer of that name alone: its value still says what
    /// it is in the module.
    pub fn is_as_exported(&self, name: &str) -> bool {
        let vouched = &self.record.vouched;
        vouched.is_empty() || vouched.contains(name) || self.file.apart.contains(name)
    }

    /// The names that the call takes and the file no longer has.
    fn gone<'c>(&self, call: &'c Call) -> impl Iterator<Item = &'c str> {
        call.takes.iter().map(String::as_str).filter(|name| !self.known.contains(name))
    }

    /// Whether a node reads the candidate whose call does not take it, nor the parameters that it
    /// holds: then the optimizer has merged them with an equal tensor; where the call takes a
    /// `missing` parameter, with that. The tensor that the call takes may be the candidate under
    /// the name of an idle result that is gone: one of the candidate's own kind, `t_1` for `t`,
    /// unless nothing is missing and it can be of an equal tensor.
    pub fn is_misused(&self, i: usize, parameters: &[&Parameter], missing: &HashSet<&str>) -> bool {
        let name = self.candidates[i].name;
        let means = |taken: &str| taken == name || missing.contains(taken) || parameters.iter().any(|p| p.placeholder == taken);
        let is_own_kind = |gone: &str| !self.is_listed(i) && operation(gone) == operation(name);
        let may_mean = |gone: &str| is_idle(gone) && !(missing.is_empty() && is_own_kind(gone) && self.has_twin(i, parameters));
        self.readers_of(name).iter().any(|call| !call.takes.iter().any(|t| means(t)) && !self.gone(call).any(may_mean))
    }

    /// Whether a candidate of other parameters has the elements of candidate `i`, in whatever
    /// order.
    fn has_twin(&self, i: usize, parameters: &[&Parameter]) -> bool {
        let is_other = |c: &Candidate<'_>| {
            let sources = self.sources(c);
            !parameters.iter().any(|p| p.name == c.name || sources.contains(&p.name.as_str()))
        };
        (0..self.candidates.len()).any(|j| j != i && is_other(&self.candidates[j]) && self.values.alike(i, j) == Some(true))
    }

    /// Whether a call takes what is called so.
    pub fn is_taken(&self, placeholder: &str) -> bool {
        self.taken.contains(placeholder)
    }

    fn call(&self, position: usize) -> Option<&'a Call> {
        self.file.traced(position)
    }

    fn readers_of(&self, name: &str) -> &[&'a Call] {
        self.readers.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a parameter that is seen nowhere is the second name of another one, where the record
    /// has no calls: a node of its module reads the other one, and equal tensors are not merged.
    pub fn is_second_name(&self, name: &str) -> bool {
        let Some(module) = parent(name).filter(|_| self.record.calls.iter().all(Option::is_none)) else { return false };
        let is_another = |read: &String| self.parameter(read).is_some() && parent(read).as_ref() != Some(&module);
        let graph = self.file.graph();
        let mut of_module = self.order.iter().filter(|p| self.file.sources[**p].scope.as_ref() == Some(&module));
        of_module.any(|position| graph.node[*position].input.iter().any(is_another)) && self.keeps_equal_tensors()
    }

    /// Whether two parameters have the same type and are both zeros, or both ones: an exporter's
    /// optimizer would have made one of them.
    fn keeps_equal_tensors(&self) -> bool {
        let mut found = HashSet::new();
        let small = |c: &Candidate<'_>| (2..=SMALL).contains(&c.weight.ty.elements()) && self.parameter(c.name).is_some();
        let fresh = (0..self.candidates.len()).filter(|i| small(&self.candidates[*i]) && self.values.fresh(*i) == Some(true));
        fresh.into_iter().any(|i| !found.insert((&self.candidates[i].weight.ty, self.values.zero(i))))
    }

    /// Whether a parameter that is seen nowhere may have been in use: the record has no calls,
    /// something came from nowhere, or the result of a call is gone that did something.
    pub fn may_hide_a_parameter(&self, origins: &[Origin]) -> bool {
        self.record.calls.iter().all(Option::is_none)
            || self.has_tensor_from_nowhere(origins)
            || self.calls().any(|(_, call)| self.gone(call).any(|name| !is_idle(name)))
            || self.record.outputs.iter().any(|name| !self.known.contains(name.as_str()) && !is_idle(name))
            || self.replaced(origins)
    }

    /// Whether there is a tensor of floats that neither the module nor its code has.
    pub fn has_tensor_from_nowhere(&self, origins: &[Origin]) -> bool {
        let from_nowhere = |(i, candidate): (usize, &Candidate<'_>)| {
            origins[i] == Origin::Constant
                && candidate.weight.ty.dtype.is_float()
                && (candidate.weight.ty.elements() > 1 || !invented(candidate.name))
                && !candidate.is_node
                && !self.record.folded.contains_key(candidate.name)
        };
        self.candidates.iter().enumerate().any(from_nowhere)
    }

    /// Whether a node is given, for a result that is gone, a tensor that was equal to it and may
    /// have been equal to a parameter: a parameter, or zeros or ones. Another call takes that
    /// tensor by its name, or this one is given nothing else for the result.
    fn replaced(&self, origins: &[Origin]) -> bool {
        let graph = self.file.graph();
        let named = |call: &Call, name: &str| {
            let sources = self.record.folded.get(name).into_iter().flatten().map(String::as_str);
            let placeholder = |name: &str| self.record.placeholders.get(name).map(String::as_str);
            call.takes.iter().any(|taken| taken == name)
                || sources.chain([name]).filter_map(placeholder).any(|p| call.takes.iter().any(|taken| taken == p))
        };
        let reads = |(position, call): (usize, &'a Call)| {
            let inputs = graph.node[position].input.iter().filter_map(|name| self.places.get(name.as_str()));
            inputs.filter(move |i| named(call, self.candidates[**i].name)).copied().collect::<Vec<usize>>()
        };
        let read_by_name: HashSet<usize> = self.calls().flat_map(reads).collect();
        let mut nodes: HashMap<&str, usize> = HashMap::new();
        self.calls().for_each(|(_, call)| *nodes.entry(&call.result).or_default() += 1);
        self.calls().filter(|(_, call)| self.gone(call).next().is_some()).any(|(position, call)| {
            let inputs = &graph.node[position].input;
            let is_made =
                |name: &str| !name.is_empty() && !self.places.contains_key(name) && !call.takes.iter().any(|t| t == name);
            let alone = nodes[call.result.as_str()] == 1 && !inputs.iter().any(|name| is_made(name));
            inputs.iter().filter_map(|name| self.places.get(name.as_str())).any(|i| {
                let candidate = &self.candidates[*i];
                let is_learned = matches!(origins[*i], Origin::Listed(Kind::Parameter) | Origin::Holds(_) | Origin::View(..));
                candidate.weight.ty.dtype.is_float()
                    && !named(call, candidate.name)
                    && if invented(candidate.name) { alone } else { read_by_name.contains(i) }
                    && (is_learned || self.values.fresh(*i) == Some(true))
            })
        })
    }

    /// Whether a tensor of the module is seen nowhere in the file: then equal calls may have been
    /// made one that were not the same.
    pub fn has_unseen_tensor(&self) -> bool {
        let folded: HashSet<&str> = self.record.folded.values().flatten().map(String::as_str).collect();
        let is_seen = |name: &str| self.places.contains_key(name) || folded.contains(name);
        self.record.placeholders.iter().any(|(name, placeholder)| !is_seen(name) && !self.is_taken(placeholder))
    }

    /// The parameters of calls that stand for an equal call as well: a reader takes the result of a
    /// call that is gone, and is given that of one of the same function in its place.
    pub fn doubled(&self) -> Vec<&'a str> {
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
