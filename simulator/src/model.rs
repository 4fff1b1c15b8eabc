//! What a model's step computes by itself, whatever a plan makes of it.

use crate::kernels::Form;
use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::kernel::Kernel;
use shardc_ir::lower::Lowered;
use shardc_ir::lower::graph::LoweredGraph;

/// Operations of the products of a step of training on one rank, whose graph that is: what shares
/// of a peak are counted by, since nothing is computed twice there and what is no product is not
/// counted.
pub fn flops(reference: &Graph) -> f64 {
    let lowered = LoweredGraph::new(reference);
    let time = reference.mesh.microbatch_axis();
    let products = |kernel: &Kernel| Form::of(kernel).filter(|form| form.is_product()).map_or(0.0, |_| kernel.flops() as f64);
    let nodes = reference.nodes().map(|(id, node)| {
        let Lowered::Launches { launches, .. } = lowered.node(id) else { return 0.0 };
        let is_timed = |value: &ValueId| reference.sharding(*value).depends_on(time);
        let times = if node.operands.iter().chain(&node.results).any(is_timed) { reference.mesh.microbatches() } else { 1 };
        launches.iter().map(|launch| products(&launch.kernel)).sum::<f64>() * times as f64
    });
    nodes.sum()
}
