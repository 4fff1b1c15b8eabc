//! Which initializers are trained. Exporters bake masks, tables and shapes as initializers too, so
//! what decides is the use: a weight, norm or bias slot decides whatever the values; elsewhere
//! values count; what stays unclear is refused.

mod evidence;
mod judge;
mod merges;
mod recorded;
mod ties;
mod untie;
mod uses;
mod values;

pub(in crate::onnx) use merges::Part;
pub(in crate::onnx) use ties::all_match;
pub use ties::{Tie, Untie};

use crate::initializers::{Decision, StoredCopy};
use crate::onnx::file::model_file::initializers;
use crate::onnx::file::model_file::{ModelFile, Owner};
use crate::onnx::file::tensor::Weight;
use crate::onnx::options::ImportOptions;
use Verdict::{Follow, Freeze, Train, Unclear};
use evidence::Evidence;
use judge::{Judge, Verdict};
use merges::{Kind, Merged};
use recorded::{Origin, Recorded, recorded};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use std::collections::BTreeSet;
use tract_onnx::pb;
use untie::Split;
use uses::{Flow, Reader, Use};
use values::Values;

/// The role of an initializer in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::onnx) enum Choice {
    /// A state variable that is trained.
    Parameter,
    /// A state variable that the spec freezes, though its use is that of a parameter.
    Frozen,
    /// A running statistic of a batch normalisation.
    Statistic,
    /// A constant, which folds.
    Constant,
    /// A view of the state variable of that position among the candidates: that one, or its
    /// transpose.
    View(usize, bool),
}

/// An initializer, or a constant node of floats.
pub(in crate::onnx) struct Candidate<'m> {
    /// The name that nodes read.
    pub name: &'m str,
    /// Its type and elements.
    pub weight: Weight,
    /// Whether it is a node.
    pub is_node: bool,
    /// A name after its module, for one that the exporter made up.
    pub alias: Option<String>,
    /// Whether an export can replace it: it is not inside a function or a branch.
    pub is_outside: bool,
}

impl Candidate<'_> {
    /// Every name that the spec may use for it.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [self.name].into_iter().chain(self.alias.as_deref())
    }

    /// Whether the spec's patterns take it, by any of its names.
    fn is(&self, taken: &dyn Fn(&str) -> bool) -> bool {
        self.names().any(taken)
    }
}

/// An initializer, and what it is in the graph.
pub(in crate::onnx) struct Role<'m> {
    /// The initializer.
    pub candidate: Candidate<'m>,
    /// Its role.
    pub choice: Choice,
}

/// All that was decided.
pub(in crate::onnx) struct Choices<'m> {
    /// For each candidate.
    pub roles: Vec<Role<'m>>,
    /// The initializers that are views of others.
    pub copies: Vec<StoredCopy>,
    /// For each float candidate that is more than a number in a node.
    pub decisions: Vec<Decision>,
    /// The warnings for the user.
    pub warnings: Diagnostics,
}

/// Every initializer, and every constant node that holds a float tensor, in the file's order.
pub(in crate::onnx) fn candidates<'m>(
    file: &'m ModelFile,
    options: &ImportOptions<'_>,
) -> Result<Vec<Candidate<'m>>, Diagnostics> {
    let mut found = vec![];
    let mut errors = vec![];
    for (owner, tensor) in initializers(file) {
        match Weight::of(file, owner, tensor, options.dtype) {
            Ok(weight) => found.push(Candidate {
                name: &tensor.name,
                weight,
                is_node: false,
                alias: None,
                is_outside: file.is_outside(owner),
            }),
            Err(why) => {
                errors.push(Diagnostic::error(why).at(file.place(format!("initializer \"{}\"", tensor.name))));
            }
        }
    }
    for (position, node) in file.graph().node.iter().enumerate().filter(|(_, n)| n.op_type == "Constant") {
        let value =
            node.attribute.iter().enumerate().find_map(|(i, a)| a.t.as_ref().filter(|_| a.name == "value").map(|t| (i, t)));
        let (Some((attribute, tensor)), Some(name)) = (value, node.output.first()) else { continue };
        // Faults in the tensor of a node are reported where the node is imported.
        let owner = Owner::Attribute(position, attribute);
        if let Ok(weight) = Weight::of(file, owner, tensor, options.dtype)
            && weight.ty.dtype.is_float()
            && weight.ty.rank() > 0
        {
            found.push(Candidate {
                name,
                weight: weight.named(name),
                is_node: true,
                alias: None,
                is_outside: file.is_outside(owner),
            });
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// The facts about all candidates before the spec is asked about merges and ties.
struct Survey<'m> {
    candidates: Vec<Candidate<'m>>,
    readers: Vec<Vec<Reader>>,
    /// Whether parts of each are read, so that every slot has elements of its own.
    in_parts: Vec<bool>,
    uses: Vec<Vec<Use>>,
    choices: Vec<Choice>,
    /// Why, for each.
    reasons: Vec<String>,
    /// The unclear cases.
    errors: Diagnostics,
    /// The decisions of the exporter's record, if there is one.
    recorded: Option<Recorded>,
}

/// Looks at each of `candidates`: what the nodes in `order` do with it, and what follows from that.
fn survey<'m>(
    file: &'m ModelFile,
    order: &[usize],
    mut candidates: Vec<Candidate<'m>>,
    options: &ImportOptions<'_>,
) -> Survey<'m> {
    let flow = Flow::of(file, order);
    let (mut readers, mut uses) = (vec![], vec![]);
    let in_parts = candidates.iter().map(|c| flow.in_parts(c.name)).collect();
    for candidate in &mut candidates {
        let ty = &candidate.weight.ty;
        let vector = ty.rank() > 0 && ty.shape.iter().filter(|n| **n > 1).count() < 2;
        let found = if candidate.weight.ty.dtype.is_float() { flow.readers(candidate.name, vector) } else { vec![] };
        let output = flow.is_output(candidate.name).then_some(Use::Output);
        let all: Vec<Use> = output.into_iter().chain(found.iter().flat_map(|r| r.uses.clone())).collect();
        let is_parameter = |u: &&Use| u.slot().is_some() || (vector && candidate.weight.ty.elements() > 1);
        if uses::invented(candidate.name) {
            candidate.alias = all.iter().filter(is_parameter).find_map(|u| merges::module_name(file, u));
        }
        readers.push(found);
        uses.push(all);
    }
    let recorded = file.record.as_ref().map(|record| {
        let values = Values::stored(&candidates, options);
        let evidence = Evidence::of(file, record, order, &candidates, &uses, &values);
        recorded(record, &candidates, &evidence)
    });
    for (candidate, origin) in candidates.iter_mut().zip(recorded.iter().flat_map(|r| &r.origins)) {
        match origin {
            Origin::Holds(names) => candidate.alias = names.first().cloned(),
            Origin::Constant => candidate.alias = None,
            _ => {}
        }
    }
    let values = Values::new(&candidates, options);
    let circles = values.circles(&candidates, &uses);
    let beside_initializers = candidates.iter().any(|c| !c.is_node && c.weight.ty.dtype.is_float() && c.weight.ty.rank() > 0);
    let (mut choices, mut reasons, mut errors) = (vec![], vec![], vec![]);
    for (i, candidate) in candidates.iter().enumerate() {
        if !candidate.weight.ty.dtype.is_float() {
            choices.push(Choice::Constant);
            reasons.push(String::new());
            continue;
        }
        let judge = Judge { file, candidate, uses: &uses[i], values: &values, circle: circles[i], index: i, beside_initializers };
        let verdict = match &recorded {
            Some(recorded) => recorded::verdict(&recorded.origins[i], &judge),
            None => judge.verdict(),
        };
        let (choice, why) = match verdict {
            Follow if candidate.is(options.freeze) => (Choice::Constant, "the spec freezes it".to_string()),
            Follow => (Choice::Statistic, "a running statistic".to_string()),
            _ if candidate.is(options.train) => (Choice::Parameter, "the spec trains it".to_string()),
            Freeze(why) => (Choice::Constant, why),
            Train(_) if candidate.is(options.freeze) && candidate.is_outside => {
                (Choice::Frozen, "the spec freezes it".to_string())
            }
            Train(_) | Unclear(_) if candidate.is(options.freeze) => (Choice::Constant, "the spec freezes it".to_string()),
            // Without training both are read as they are.
            Unclear(why) if !options.training => (Choice::Constant, why),
            Train(why) if !options.training && !candidate.is_outside => (Choice::Constant, why),
            Train(_) if !candidate.is_outside => {
                errors.push(unclear(file, candidate, "it is inside a function or a branch, where no export can write it"));
                (Choice::Constant, String::new())
            }
            Train(why) => (Choice::Parameter, why),
            Unclear(why) => {
                errors.push(unclear(file, candidate, &why));
                (Choice::Constant, why)
            }
        };
        choices.push(choice);
        reasons.push(why);
    }
    drop(values);
    Survey { candidates, readers, in_parts, uses, choices, reasons, errors, recorded }
}

impl Survey<'_> {
    fn merged(&self, file: &ModelFile, options: &ImportOptions<'_>) -> Vec<Merged> {
        let values = Values::new(&self.candidates, options);
        let mut merged = merges::merged(file, &self.candidates, &self.readers, &self.choices, &values);
        merged.retain(|m| m.kind != Kind::Vector || !self.in_parts[m.candidate]);
        merged
    }
}

/// The model with the parameters apart that the exporter merged and the spec unties; none if there
/// are none.
pub(in crate::onnx) fn untied(
    file: &ModelFile,
    order: &[usize],
    options: &ImportOptions<'_>,
) -> Result<Option<ModelFile>, Diagnostics> {
    if options.untie.is_empty() {
        return Ok(None);
    }
    let survey = survey(file, order, candidates(file, options)?, options);
    let merged = survey.merged(file, options);
    let split = |m: &&Merged| m.is_split(&survey.candidates[m.candidate], options);
    let splits: Vec<Split<'_>> = merged
        .iter()
        .filter(split)
        .map(|m| {
            let taken: usize = m.parts.iter().map(|p| p.readers.len()).sum();
            let stays =
                taken < survey.readers[m.candidate].len() || survey.uses[m.candidate].iter().any(|u| matches!(u, Use::Output));
            Split { candidate: &survey.candidates[m.candidate], parts: &m.parts, stays }
        })
        .collect();
    if splits.is_empty() { Ok(None) } else { Ok(Some(untie::split(file, &splits)?)) }
}

/// Decides for each of `candidates`, by what the nodes in `order` do with it.
pub(in crate::onnx) fn decide<'m>(
    file: &'m ModelFile,
    order: &[usize],
    candidates: Vec<Candidate<'m>>,
    options: &ImportOptions<'_>,
) -> Result<Choices<'m>, Diagnostics> {
    let mut survey = survey(file, order, candidates, options);
    let mut errors = std::mem::take(&mut survey.errors);
    let values = Values::new(&survey.candidates, options);
    let mut copies = match ties::ties(file, &survey.candidates, &mut survey.choices, &values, options) {
        Ok(copies) => copies,
        Err(found) => {
            errors.extend(found);
            vec![]
        }
    };
    match (&survey.recorded, &file.record) {
        (Some(recorded), Some(record)) => {
            copies.extend(recorded::views(recorded, &survey.candidates, &mut survey.choices));
            let is_asked = options.training && !options.accept_lost;
            if let Some(refusal) = recorded::refusal(file, record, &recorded.lost).filter(|_| is_asked) {
                // Doubts about the remains of a parameter are gone when it is there.
                errors = refusal.into();
            }
        }
        _ if options.training => {
            errors.extend(merges::refusals(file, &survey.candidates, &survey.merged(file, options), options));
            errors.extend(merges::lost_ties(file, &survey.candidates, &survey.uses, &survey.choices, &values, options));
        }
        _ => {}
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let Survey { candidates, choices, reasons, .. } = survey;
    let mut decisions = vec![];
    for ((candidate, choice), why) in candidates.iter().zip(&choices).zip(reasons) {
        if !candidate.weight.ty.dtype.is_float() || (candidate.is_node && *choice == Choice::Constant) {
            continue;
        }
        let why = match choice {
            Choice::View(of, false) => format!("tied to `{}`", candidates[*of].name),
            Choice::View(of, true) => format!("tied to `{}`, transposed", candidates[*of].name),
            _ => why,
        };
        let (name, trained) = (candidate.name.to_string(), *choice == Choice::Parameter);
        decisions.push(Decision { name, alias: candidate.alias.clone(), trained, why, shape: candidate.weight.ty.shape.clone() });
    }
    let warnings = match &file.record {
        Some(record) => recorded::warnings(file, record),
        None => warnings(file, &decisions),
    };
    let roles = candidates.into_iter().zip(choices).map(|(candidate, choice)| Role { candidate, choice }).collect();
    Ok(Choices { roles, copies, decisions, warnings })
}

fn unclear(file: &ModelFile, candidate: &Candidate<'_>, why: &str) -> Diagnostic {
    let name = candidate.name;
    Diagnostic::error(format!("whether `{name}` is trained is unclear: {why}"))
        .at(file.place(format!("initializer \"{name}\"")))
        .help(format!("say `train \"{name}\"` or `freeze \"{name}\"` in the spec"))
}

/// Signs of an export that lost something on the way.
fn warnings(file: &ModelFile, decisions: &[Decision]) -> Diagnostics {
    let invented: Vec<&Decision> = decisions.iter().filter(|d| d.trained && uses::invented(&d.name)).collect();
    let ops: BTreeSet<&str> = file.graph().node.iter().map(|n: &pb::NodeProto| n.op_type.as_str()).collect();
    let mut warnings = vec![];
    if let Some(first) = invented.first() {
        let count = invented.len();
        let example = first.alias.as_ref().map_or(String::new(), |a| format!("; it is also called `{a}`"));
        let message = format!("the exporter renamed {count} of the parameters, such as `{}`{example}", first.name);
        let help = "export again with `dynamo=True, optimize=False`, which keeps all parameters under their names";
        warnings.push(Diagnostic::warning(message).at(file.place("initializers")).help(help));
    }
    // The kernels of folded convolutions are named after the op, not after a module.
    let folded = invented.iter().any(|d| d.name.starts_with("onnx::Conv_"));
    if folded && !ops.contains("BatchNormalization") {
        let message = "the exporter folded batch normalizations into the convolutions";
        warnings
            .push(Diagnostic::warning(message).at(file.place("graph")).help("export it with `training=TrainingMode.TRAINING`"));
    }
    warnings
}
