//! Which initializers are trained. Exporters bake masks, tables and shapes as initializers too, so what decides is the use:
//! a weight, norm or bias slot decides whatever the values; elsewhere values count; what stays unclear is refused.

mod merges;
mod uses;
mod values;

use super::model_file::{ModelFile, Owner};
use super::tensor::Weight;
use super::{ImportOptions, initializers, scope};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use std::collections::BTreeSet;
use tract_onnx::pb;
use uses::{Flow, Operand, Use};
use values::Values;

/// What becomes of a float initializer, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The initializer's name.
    pub name: String,
    /// A name after its scope, for an initializer whose name the exporter invented.
    pub alias: Option<String>,
    /// Whether it is trained.
    pub trained: bool,
    /// The reason, as a phrase.
    pub why: String,
    /// Its shape as stored.
    pub shape: Vec<u64>,
}

/// What an initializer is in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// A state variable that is trained.
    Parameter,
    /// A state variable that the spec freezes, though its use is that of a parameter.
    Frozen,
    /// A running statistic of a batch normalisation.
    Statistic,
    /// A constant, which folds.
    Constant,
}

/// An initializer, or a constant node of floats.
pub(super) struct Candidate<'m> {
    /// The name that nodes read.
    pub name: &'m str,
    /// Its type and elements.
    pub weight: Weight,
    /// Whether it is a node.
    pub is_node: bool,
}

/// All that was decided.
pub(super) struct Choices<'m> {
    /// For each candidate.
    pub roles: Vec<(&'m str, Weight, Choice)>,
    /// For each float candidate that is more than a number in a node.
    pub decisions: Vec<Decision>,
    /// What the user should know.
    pub warnings: Diagnostics,
}

/// Every initializer, and every constant node that holds a float tensor, in the file's order.
pub(super) fn candidates<'m>(file: &'m ModelFile, options: &ImportOptions<'_>) -> Result<Vec<Candidate<'m>>, Diagnostics> {
    let mut found = vec![];
    let mut errors = vec![];
    for (owner, tensor) in initializers(file) {
        match Weight::of(file, owner, tensor, options.dtype) {
            Ok(weight) => found.push(Candidate { name: &tensor.name, weight, is_node: false }),
            Err(why) => {
                errors.push(Diagnostic::error(why).at(file.place(format!("initializer \"{}\"", tensor.name))));
            }
        }
    }
    for (position, node) in file.graph().node.iter().enumerate().filter(|(_, n)| n.op_type == "Constant") {
        let value =
            node.attribute.iter().enumerate().find_map(|(i, a)| a.t.as_ref().filter(|_| a.name == "value").map(|t| (i, t)));
        let (Some((attribute, tensor)), Some(name)) = (value, node.output.first()) else { continue };
        // What is wrong with the tensor of a node is said where the node is imported.
        if let Ok(weight) = Weight::of(file, Owner::Attribute(position, attribute), tensor, options.dtype)
            && weight.ty.dtype.is_float()
            && weight.ty.rank() > 0
        {
            found.push(Candidate { name, weight: weight.named(name), is_node: true });
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// Decides for each of `candidates`, by what the nodes in `order` do with it.
pub(super) fn decide<'m>(
    file: &'m ModelFile,
    order: &[usize],
    candidates: Vec<Candidate<'m>>,
    options: &ImportOptions<'_>,
) -> Result<Choices<'m>, Diagnostics> {
    let flow = Flow::of(file, order);
    let uses_of = |c: &Candidate<'m>| {
        let vector = c.weight.ty.shape.iter().filter(|n| **n > 1).count() < 2;
        if c.weight.ty.dtype.is_float() { flow.uses(c.name, vector) } else { vec![] }
    };
    let uses: Vec<Vec<Use>> = candidates.iter().map(uses_of).collect();
    let values = Values::new(&candidates, options);
    let circles = values.circles(&candidates, &uses);
    let beside_initializers = candidates.iter().any(|c| !c.is_node && c.weight.ty.dtype.is_float() && c.weight.ty.rank() > 0);
    let (mut choices, mut errors) = (vec![], vec![]);
    let mut decisions = vec![];
    for (i, candidate) in candidates.iter().enumerate() {
        if !candidate.weight.ty.dtype.is_float() {
            choices.push(Choice::Constant);
            continue;
        }
        let judge = Judge { file, candidate, uses: &uses[i], values: &values, circle: circles[i], index: i, beside_initializers };
        let verdict = judge.verdict();
        let (choice, why) = match verdict {
            Follow if (options.freeze)(candidate.name) => (Choice::Constant, "the spec freezes it".to_string()),
            Follow => (Choice::Statistic, "a running statistic".to_string()),
            _ if (options.train)(candidate.name) => (Choice::Parameter, "the spec trains it".to_string()),
            Freeze(why) => (Choice::Constant, why),
            Train(_) if (options.freeze)(candidate.name) => (Choice::Frozen, "the spec freezes it".to_string()),
            Unclear(_) if (options.freeze)(candidate.name) => (Choice::Constant, "the spec freezes it".to_string()),
            Train(why) => (Choice::Parameter, why),
            Unclear(why) => {
                errors.push(unclear(file, candidate, &why));
                (Choice::Constant, why)
            }
        };
        choices.push(choice);
        if !candidate.is_node || choice != Choice::Constant {
            let alias = if uses::invented(candidate.name) { alias(file, &uses[i]) } else { None };
            let (name, trained) = (candidate.name.to_string(), choice == Choice::Parameter);
            decisions.push(Decision { name, alias, trained, why, shape: candidate.weight.ty.shape.clone() });
        }
    }
    let in_parts: Vec<bool> = candidates.iter().map(|c| flow.in_parts(c.name)).collect();
    errors.extend(merges::merges(file, &candidates, &uses, &in_parts, &choices, &values, options));
    if !errors.is_empty() {
        return Err(errors);
    }
    let warnings = warnings(file, &decisions);
    let roles = candidates.into_iter().zip(choices).map(|(c, choice)| (c.name, c.weight, choice)).collect();
    Ok(Choices { roles, decisions, warnings })
}

/// What the uses of one candidate say.
enum Verdict {
    Train(String),
    Freeze(String),
    /// A running statistic, which training moves but does not train.
    Follow,
    Unclear(String),
}
use Verdict::{Follow, Freeze, Train, Unclear};

struct Judge<'a, 'm> {
    file: &'m ModelFile,
    candidate: &'a Candidate<'m>,
    uses: &'a [Use],
    values: &'a Values<'a, 'm>,
    /// The other table of a rotary pair.
    circle: Option<&'m str>,
    index: usize,
    /// Whether the model has initializers to hold its parameters, so that a constant of one value in a slot stands for a
    /// scale or bias that the module does not have.
    beside_initializers: bool,
}

impl Judge<'_, '_> {
    fn verdict(&self) -> Verdict {
        let name = self.candidate.name;
        if let Some(other) = self.circle {
            return Freeze(format!("a rotary table: its squares and those of `{other}` add to 1"));
        }
        if self.candidate.is_node && self.beside_initializers && self.values.constant(self.index) == Some(true) {
            return Freeze("a constant of the graph, with one value".into());
        }
        if let Some(slot) = self.uses.iter().find_map(Use::slot) {
            return Train(format!("{} of {}", slot.0, self.node(slot.1)));
        }
        let live: Vec<&Use> = self.uses.iter().filter(|u| !matches!(u, Use::Dead)).collect();
        if live.is_empty() {
            return Freeze("no output depends on its values smoothly".into());
        }
        if live.iter().all(|u| matches!(u, Use::Periodic)) {
            return Freeze("every path passes sin or cos".into());
        }
        if live.iter().all(|u| matches!(u, Use::Statistic(_))) {
            return Follow;
        }
        if name.ends_with("running_mean") || name.ends_with("running_var") {
            return Freeze("a running statistic".into());
        }
        if self.candidate.weight.ty.rank() == 0 {
            return Freeze("a scalar".into());
        }
        if name.ends_with("inv_freq") {
            return Freeze("rotary frequencies".into());
        }
        if self.candidate.is_node {
            return Freeze("a constant of the graph".into());
        }
        self.operand(&live)
    }

    /// The verdict on a tensor that is only an operand of elementwise ops and the like.
    fn operand(&self, live: &[&Use]) -> Verdict {
        let operands: Vec<&Operand> = live.iter().filter_map(|u| if let Use::Operand(o) = u { Some(o) } else { None }).collect();
        let invented = uses::invented(self.candidate.name);
        let nothing_hidden = |o: &&&Operand| invented && o.scores && o.how == "added to";
        if let Some(masked) = operands.iter().find(nothing_hidden)
            && self.values.zero(self.index) == Some(true)
        {
            return Freeze(format!("a mask of the scores that hides nothing, at {}", self.node(masked.node)));
        }
        // A temperature has its own name; what hides scores by factors of 0 and 1 is computed.
        let masks = |o: &&&Operand| o.scores && (invented || o.how != "multiplied with");
        if let Some(masked) = operands.iter().find(masks) {
            match self.values.mask(self.index, masked.derived) {
                Some(true) => return Freeze(format!("a mask of the scores, at {}", self.node(masked.node))),
                Some(false) if masked.derived => {
                    return Unclear(format!("it reaches a softmax through arithmetic, at {}", self.node(masked.node)));
                }
                Some(false) => {}
                None => {
                    let why = "whether it is a mask depends on its values, which are not there";
                    return Unclear(format!("{why} ({})", self.node(masked.node)));
                }
            }
        }
        let elements = self.candidate.weight.ty.elements();
        let kind = if self.candidate.weight.ty.rank() == 1 { "a vector" } else { "a table" };
        for operand in &operands {
            let clear = operand.symmetric || (!invented && !operand.of_input);
            if clear && invented && elements == 1 {
                return Freeze(format!("a single number that an exporter named, at {}", self.node(operand.node)));
            }
            if clear {
                return Train(format!("{kind} {} activations, at {}", operand.how, self.node(operand.node)));
            }
        }
        if let Some(node) = live.iter().find_map(|u| if let Use::Joined(node) = u { Some(*node) } else { None }) {
            return Train(format!("{kind} joined to activations, at {}", self.node(node)));
        }
        let node = live.iter().find_map(|u| u.node());
        Unclear(match node {
            Some(node) => format!("{} says nothing about it", self.node(node)),
            None => "it is an output of the model".into(),
        })
    }

    fn node(&self, position: usize) -> String {
        super::node_text(&self.file.graph().node[position])
    }
}

fn unclear(file: &ModelFile, candidate: &Candidate<'_>, why: &str) -> Diagnostic {
    let name = candidate.name;
    Diagnostic::error(format!("whether `{name}` is trained is unclear: {why}"))
        .at(file.place(format!("initializer \"{name}\"")))
        .help(format!("say `train \"{name}\"` or `freeze \"{name}\"` in the spec"))
}

/// `h.0.attn.query.weight` for `onnx::MatMul_322`: the scope of its slot and what it is there.
fn alias(file: &ModelFile, uses: &[Use]) -> Option<String> {
    let (what, node) = uses.iter().find_map(Use::slot)?;
    let scope = scope::written(file, node)?;
    Some(format!("{scope}.{}", if what == "the bias" { "bias" } else { "weight" }))
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
        let help = "export with `dynamo=True, optimize=False` to keep their names";
        warnings.push(Diagnostic::warning(message).at(file.place("initializers")).help(help));
    }
    let folded =
        ops.contains("Conv") && !ops.contains("BatchNormalization") && file.graph().name.to_lowercase().contains("resnet");
    if folded {
        let message = "a ResNet without batch normalization: the exporter folded it into the convolutions";
        warnings
            .push(Diagnostic::warning(message).at(file.place("graph")).help("export it with `training=TrainingMode.TRAINING`"));
    }
    warnings
}
