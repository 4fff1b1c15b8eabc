//! The verdict of the uses of one initializer: a weight, norm or bias slot decides whatever the
//! values; elsewhere values count.

use super::Candidate;
use super::uses::{self, Operand, ReadAs, Use};
use super::values::Values;
use crate::onnx::file::model_file::ModelFile;
use crate::onnx::file::node::node_text;
use crate::onnx::import::signature;

/// The verdict of the uses of one candidate.
pub(super) enum Verdict {
    /// A parameter, and why.
    Train(String),
    /// A constant, and why.
    Freeze(String),
    /// A running statistic, which training moves but does not train.
    Follow,
    /// Neither can be told, and why.
    Unclear(String),
}
use Verdict::{Follow, Freeze, Train, Unclear};

/// Judges one candidate.
pub(super) struct Judge<'a, 'm> {
    /// The model.
    pub file: &'m ModelFile,
    /// The candidate.
    pub candidate: &'a Candidate<'m>,
    /// The uses that nodes make of it.
    pub uses: &'a [Use],
    /// The values of all candidates.
    pub values: &'a Values<'a, 'm>,
    /// The other table of a rotary pair.
    pub circle: Option<&'m str>,
    /// Its position among the candidates.
    pub index: usize,
    /// Whether the model has initializers to hold its parameters, so that a constant of one value
    /// in a slot stands for a scale or bias that the module does not have.
    pub beside_initializers: bool,
}

impl Judge<'_, '_> {
    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        let name = self.candidate.name;
        if let Some(other) = self.circle {
            return Freeze(format!("a rotary table: its squares and those of `{other}` add to 1"));
        }
        if self.stands_in() {
            return Freeze("it stands, with one value, for a scale or bias that the module does not have".into());
        }
        if let Some(slot) = self.uses.iter().find_map(Use::slot) {
            return Train(format!("{} of {}", slot.0, self.node(slot.1)));
        }
        let live: Vec<&Use> = self.uses.iter().filter(|u| !matches!(u, Use::Dead)).collect();
        if self.is_dead() {
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

    /// Whether no output depends on its values smoothly.
    pub fn is_dead(&self) -> bool {
        self.uses.iter().all(|u| matches!(u, Use::Dead))
    }

    /// Whether an exporter wrote it where an op wants a scale or bias and the module has none: a
    /// constant node beside initializers, or what it named itself in the instance normalisation
    /// that a group normalisation became.
    fn stands_in(&self) -> bool {
        let nodes = &self.file.graph().node;
        let of_instances = |u: &Use| u.node().is_some_and(|node| nodes[node].op_type == "InstanceNormalization");
        let written = uses::invented(self.candidate.name) && !self.uses.is_empty() && self.uses.iter().all(of_instances);
        let node = self.candidate.is_node && self.beside_initializers;
        (written || node) && self.values.constant(self.index) == Some(true)
    }

    /// Whether its first dimension is the batch that the exporter fixed, as no parameter's is.
    fn is_once_a_sample(&self) -> bool {
        let shape = &self.candidate.weight.ty.shape;
        let batch = signature::baked_batch(&self.file.graph().input);
        shape.len() > 1 && batch.is_some_and(|batch| batch > 1 && shape[0] == batch)
    }

    /// The verdict on a tensor that is only an operand of elementwise ops and the like.
    fn operand(&self, live: &[&Use]) -> Verdict {
        let operands: Vec<&Operand> = live.iter().filter_map(|u| if let Use::Operand(o) = u { Some(o) } else { None }).collect();
        if self.is_once_a_sample() && operands.len() == live.len() && self.values.constant(self.index) == Some(true) {
            return Freeze("one value for every sample".into());
        }
        let invented = uses::invented(self.candidate.name);
        let nothing_hidden = |o: &&&Operand| invented && o.scores && o.read_as == ReadAs::AddedTo;
        if let Some(masked) = operands.iter().find(nothing_hidden)
            && self.values.zero(self.index) == Some(true)
        {
            return Freeze(format!("a mask of the scores that hides nothing, at {}", self.node(masked.node)));
        }
        // A temperature has its own name; what hides scores by factors of 0 and 1 is computed.
        let masks = |o: &&&Operand| o.scores && (invented || o.read_as != ReadAs::MultipliedWith);
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
            let clear = operand.read_as.is_of_parameters() || (!invented && !operand.of_input);
            if clear && invented && elements == 1 {
                return Freeze(format!("a single number that an exporter named, at {}", self.node(operand.node)));
            }
            if clear {
                return Train(format!("{kind} {} activations, at {}", operand.read_as, self.node(operand.node)));
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
        node_text(&self.file.graph().node[position])
    }
}
