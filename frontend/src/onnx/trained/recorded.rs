//! The decisions of the exporter's record about initializers: which are parameters, and which
//! parameters the file has lost.
//!
//! A parameter is held by the initializer of its name, or by one that the exporter's optimizer made
//! of it by moving elements around: a transpose, a part, rows of a table, each once. A second one
//! made of it is a view. A tensor computed of a parameter in any other way is not the parameter, so
//! that it is lost; so is one whose initializer the optimizer replaced (a convolution into which it
//! folded a batch normalisation), and one that a call takes and no initializer holds. A parameter
//! that no call takes is the second name of another one, or is not used: unless something that
//! calls take is gone, and may have been of it. Where the record has no calls, it is the second
//! name of a parameter that a node of its module reads, if the file shows that no optimizer merged
//! what is equal or computed anything. Parts of a parameter are read by calls that take
//! them: what is equal to a part is another part.

use super::evidence::Evidence;
use super::judge::{Judge, Verdict};
use super::{Candidate, Choice};
use crate::initializers::StoredCopy;
use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::record::{Kind, Parameter, Record};
use shardc_ir::diagnostic::Diagnostic;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The origin of a candidate, as far as the record says.
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

/// The origins that the record tells.
pub(super) struct Recorded {
    /// Of each candidate.
    pub origins: Vec<Origin>,
    /// The parameters that the file has lost, in the module's order.
    pub lost: Vec<String>,
}

/// The origins of `candidates` by `record`.
pub(super) fn recorded(record: &Record, candidates: &[Candidate<'_>], evidence: &Evidence<'_, '_>) -> Recorded {
    let origins = candidates.iter().map(|c| evidence.by_name(c)).collect();
    let mut search = Search { record, candidates, evidence, origins, lost: BTreeSet::new(), unseen: vec![] };
    search.find_holders();
    search.suspect_the_unseen();
    search.find_misused();
    search.finish()
}

/// The search for what holds each parameter.
struct Search<'a, 'm> {
    record: &'a Record,
    candidates: &'a [Candidate<'m>],
    evidence: &'a Evidence<'a, 'm>,
    origins: Vec<Origin>,
    /// Parameters, by name.
    lost: BTreeSet<&'a str>,
    /// Parameters that neither a tensor nor a call names.
    unseen: Vec<&'a str>,
}

impl<'a> Search<'a, '_> {
    /// Finds what holds each parameter: its own initializer, or the first tensor that was made of
    /// it, and views of that.
    fn find_holders(&mut self) {
        let (evidence, candidates) = (self.evidence, self.candidates);
        let mut own: HashMap<&str, usize> = HashMap::new();
        let mut made: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (i, candidate) in candidates.iter().enumerate() {
            match self.record.kinds.contains_key(candidate.name) {
                true => drop(own.insert(candidate.name, i)),
                false => evidence.sources(candidate).into_iter().for_each(|source| made.entry(source).or_default().push(i)),
            }
        }
        for Parameter { name, placeholder } in &self.record.parameters {
            let of_it = made.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
            let (holder, others) = match (own.get(name.as_str()), of_it) {
                (Some(own), _) => {
                    if !evidence.is_as_exported(name) {
                        self.lost.insert(name);
                    }
                    (*own, of_it)
                }
                (None, [first, others @ ..]) if evidence.holds(*first) => {
                    let sources = evidence.sources(&candidates[*first]);
                    self.origins[*first] = Origin::Holds(sources.into_iter().map(String::from).collect());
                    (*first, others)
                }
                (None, []) if !evidence.is_taken(placeholder) => {
                    self.unseen.push(name);
                    continue;
                }
                (None, _) => {
                    self.lost.insert(name);
                    continue;
                }
            };
            for other in others {
                match evidence.view(holder, *other) {
                    Some(turned) if evidence.sources(&candidates[*other]).len() == 1 => {
                        self.origins[*other] = Origin::View(holder, turned);
                    }
                    _ => drop(self.lost.insert(name)),
                }
            }
        }
    }

    /// Parameters that are seen nowhere are lost, unless everything shows that they were not in
    /// use.
    fn suspect_the_unseen(&mut self) {
        if !self.evidence.has_tensor_from_nowhere(&self.origins) {
            self.unseen.retain(|name| !self.evidence.is_second_name(name));
        }
        if !self.unseen.is_empty() && self.evidence.may_hide_a_parameter(&self.origins) {
            self.lost.extend(&self.unseen);
        } else if self.evidence.has_unseen_tensor() {
            // It may have been a buffer that the parameters of equal calls were merged with.
            self.lost.extend(self.evidence.doubled());
        }
    }

    /// Parameters that calls read in place of others are lost, unless the others are.
    fn find_misused(&mut self) {
        let missing: HashSet<&str> = self.lost().map(|parameter| parameter.placeholder.as_str()).collect();
        for i in 0..self.origins.len() {
            let parameters = self.parameters_in(i);
            if !parameters.is_empty() && self.evidence.is_misused(i, &parameters, &missing) {
                self.lost.extend(parameters.iter().map(|parameter| parameter.name.as_str()));
            }
        }
    }

    /// The parameters that candidate `i` holds, as far as calls have names for them.
    fn parameters_in(&self, i: usize) -> Vec<&'a Parameter> {
        let names = match &self.origins[i] {
            Origin::Listed(Kind::Parameter) => vec![self.candidates[i].name],
            Origin::Holds(names) => names.iter().map(String::as_str).collect(),
            Origin::View(of, _) => return self.parameters_in(*of),
            _ => vec![],
        };
        names.into_iter().filter_map(|name| self.evidence.parameter(name)).collect()
    }

    fn lost(&self) -> impl Iterator<Item = &'a Parameter> {
        self.record.parameters.iter().filter(|parameter| self.lost.contains(parameter.name.as_str()))
    }

    fn finish(mut self) -> Recorded {
        // A tensor made of several parameters, one of them lost, holds none of them.
        for (i, candidate) in self.candidates.iter().enumerate() {
            let is_listed = self.record.kinds.contains_key(candidate.name);
            if !is_listed && self.evidence.sources(candidate).iter().any(|name| self.lost.contains(name)) {
                self.origins[i] = Origin::Untold;
            }
        }
        let lost = self.lost().map(|parameter| parameter.name.clone()).collect();
        Recorded { origins: self.origins, lost }
    }
}

/// The verdict on a candidate of that origin; `judge` knows its use.
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

/// Makes a view of each candidate that is one of a state variable. A tensor that the spec freezes
/// in one place is frozen in both.
pub(super) fn views(recorded: &Recorded, candidates: &[Candidate<'_>], choices: &mut [Choice]) -> Vec<StoredCopy> {
    let is_state = |choice: Choice| matches!(choice, Choice::Parameter | Choice::Frozen);
    let mut copies = vec![];
    for (i, origin) in recorded.origins.iter().enumerate() {
        let Origin::View(of, transposed) = *origin else { continue };
        let has_views = choices.iter().any(|c| matches!(c, Choice::View(root, _) if *root == i));
        if is_state(choices[i]) && is_state(choices[of]) && !has_views {
            if choices[i] == Choice::Frozen {
                choices[of] = Choice::Frozen;
            }
            choices[i] = Choice::View(of, transposed);
            let (name, of) = (candidates[i].name.to_string(), candidates[of].name.to_string());
            copies.push(StoredCopy { name, of, transposed });
        }
    }
    copies
}

/// Warnings about what the module does and is not done here: tables whose gradients PyTorch scales.
pub(super) fn warnings(file: &ModelFile, record: &Record) -> Vec<Diagnostic> {
    let lookups = record.calls.iter().flatten().filter(|call| call.by_frequency);
    let scaled: HashSet<&str> = lookups.filter_map(|call| Some(call.takes.first()?.as_str())).collect();
    let warn = |parameter: &Parameter| {
        let message = format!(
            "`{}` has `scale_grad_by_freq`: PyTorch divides each row's gradient by how often the row occurs, and this does not",
            parameter.name
        );
        let help = "to train as PyTorch does, build the module without it";
        Diagnostic::warning(message).at(file.place("graph")).help(help)
    };
    record.parameters.iter().filter(|p| scaled.contains(p.placeholder.as_str())).map(warn).collect()
}

/// The refusal of a model that has lost parameters.
pub(super) fn refusal(file: &ModelFile, record: &Record, lost: &[String]) -> Option<Diagnostic> {
    if lost.is_empty() {
        return None;
    }
    let (count, all) = (lost.len(), record.parameters.len());
    let message = format!("the export has lost {count} of the {all} parameters that its own record lists");
    let label = format!("dropped, merged with equal ones, or folded into others:\n{}", listed(lost));
    let help = "export again with `optimize=False`, as in `torch.onnx.export(model, args, \"m.onnx\", optimize=False)`;\n\
                to train without them, write in the spec\n    accept lost=parameters";
    Some(Diagnostic::error(message).at(file.place("graph")).label(label).help(help))
}

/// The first names in lines, and how many more there are.
fn listed(names: &[String]) -> String {
    const LISTED: usize = 20;
    match names.len() {
        0..=LISTED => lines(names),
        all => format!("{}\n  … and {} more", lines(&names[..LISTED]), all - LISTED),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_names_the_first_are_told() {
        let names: Vec<String> = (0..103).map(|i| format!("layer{i}.weight")).collect();
        let text = listed(&names);
        assert!(text.contains("`layer19.weight`") && !text.contains("layer20") && text.ends_with("\n  … and 83 more"), "{text}");
        assert!(listed(&names[..20]).ends_with("`layer19.weight`"));
    }
}
