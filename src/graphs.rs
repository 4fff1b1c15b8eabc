//! What is read off the graphs of a job, whoever has made them.

use shardc_ir::graph::Graph;
use shardc_ir::ops::Op;
use shardc_ir::spec::Spec;
use shardc_passes::outputs_without_samples;
use std::collections::BTreeSet;

/// What the graph of evaluation says of its inputs and outputs.
#[derive(Debug, Clone, Default)]
pub struct EvaluationFacts {
    /// Whether the labels of the loss are an input of the model too, as those of an autoencoder.
    pub labels_are_inputs: bool,
    /// The outputs whose dimension 0 is not the samples, even where it has as many elements.
    pub without_samples: BTreeSet<String>,
}

impl EvaluationFacts {
    /// Those of `eval`, a job's graph of evaluation.
    pub fn of(eval: &Graph, spec: &Spec) -> EvaluationFacts {
        let labels = spec.labels().map(|labels| &labels.value);
        let is_labels = |op: &Op| matches!(op, Op::Input(input) if !input.label && Some(&input.name) == labels);
        EvaluationFacts {
            labels_are_inputs: eval.nodes().any(|(_, node)| is_labels(&node.op)),
            without_samples: outputs_without_samples(eval),
        }
    }
}
