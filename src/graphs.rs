//! What is read off the graphs of a job, whoever has made them.

use shardc_ir::graph::Graph;
use shardc_ir::ops::Op;
use shardc_ir::spec::Spec;

/// Whether the labels of the loss are an input of the model too, as those of an autoencoder; `eval`
/// is the graph of evaluation.
pub fn labels_are_inputs(eval: &Graph, spec: &Spec) -> bool {
    let labels = spec.labels().map(|labels| &labels.value);
    eval.nodes().any(|(_, node)| matches!(&node.op, Op::Input(input) if !input.label && Some(&input.name) == labels))
}
