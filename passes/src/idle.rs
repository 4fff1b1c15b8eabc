//! Axes of the mesh that split nothing: their ranks would all do the same work.

use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::Graph;
use shardc_ir::mesh::AxisId;
use shardc_ir::spec::Spec;

/// Refuses each axis of several ranks over which no value of the explicit `graph` is split, unless
/// a `replicate` line names it.
///
/// # Errors
/// One for each axis.
pub fn check_axes(graph: &Graph, spec: &Spec) -> Result<(), Diagnostics> {
    let Some(mesh) = &spec.mesh else { return Ok(()) };
    let staged = |axis: AxisId| spec.pipeline.as_ref().is_some_and(|pipeline| pipeline.value.axis == axis);
    let is_used = |axis: AxisId| {
        staged(axis) || graph.nodes().flat_map(|(_, node)| &node.results).any(|v| graph.sharding(*v).depends_on(axis))
    };
    let mut errors: Diagnostics = vec![];
    for (i, axis) in mesh.value.iter().enumerate() {
        let id = AxisId(i as u8);
        if axis.size > 1 && !spec.may_be_idle(id) && !is_used(id) {
            let (name, ranks) = (&axis.name, axis.size);
            let message = format!("nothing is split over `{name}`: its {ranks} ranks would all do the same");
            let help = format!(
                "split the samples with `data axis={name}`, weights with `tensor axis={name}` or `shard` lines, or the model with \
                 `pipeline axis={name}`;\n\
                 if it is meant, write `replicate axis={name}`"
            );
            errors.push(Diagnostic::error(message).at(spec.place_of(mesh.source)).help(help));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
