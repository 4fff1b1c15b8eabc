//! The dimensions of every value that hold the samples of a batch.

use super::facts::{Facts, LetterTable, primes};
use crate::annotate::Annotation;
use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::sharding::Split;

/// Which dimensions hold the samples: those that a split of the inputs' first dimension over time
/// reaches.
pub fn samples(graph: &Graph, rules: &LetterTable) -> Facts {
    let inputs = graph.nodes().filter(|(_, node)| matches!(node.op, Op::Input(_))).map(|(_, node)| node.results[0]);
    let inputs: Vec<ValueId> = inputs.filter(|v| graph.ty(*v).rank() > 0).collect();
    let batch = inputs.first().map_or(1, |v| graph.ty(*v).shape[0]);
    let parts = primes(batch).first().copied().unwrap_or(1);
    let splits = vec![Split { axis: graph.mesh.microbatch_axis(), stride: batch / parts }];
    let annotate = |value: &ValueId| Annotation { value: *value, dim: 0, splits: splits.clone(), closed: false, line: 0 };
    let same = inputs.iter().filter(|v| parts > 1 && graph.ty(**v).shape[0] == batch);
    let mut facts = Facts::new(graph, &same.map(annotate).collect::<Vec<_>>());
    facts.mesh = graph.mesh.resized(graph.mesh.microbatch_axis(), parts);
    facts.settle(rules);
    facts
}
