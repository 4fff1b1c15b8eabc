//! The model as one rank would hold it if all stages were its own: what a node costs a rank depends
//! on how the spec splits it, and one stage may be split where another is whole.

use crate::insert_reshards::InsertReshards;
use crate::pass::{Context, Mode, run_pass};
use crate::propagate::Propagate;
use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::lower::graph::LoweredGraph;
use shardc_ir::spec::Spec;
use std::collections::HashMap;

/// The model sharded as the spec says, but for its stages and micro-batches. What the spec asks in
/// vain is refused when the whole program is sharded; until then the model counts as one rank's.
pub fn sharded(model: &Graph, cx: &Context<'_>) -> Graph {
    let mut spec = Spec { pipeline: None, place: vec![], ..cx.spec.clone() };
    spec.batch.iter_mut().for_each(|batch| batch.value.microbatches = 1);
    let cx = Context { spec: &spec, mode: Mode::Evaluate, verify: false };
    let mut graph = model.clone();
    graph.mesh = spec.mesh();
    let passed = run_pass(&Propagate, &mut graph, &cx).and_then(|()| run_pass(&InsertReshards, &mut graph, &cx));
    if passed.is_ok() { graph } else { model.clone() }
}

/// What a rank pays for the values of the model, by their names.
pub struct OnRank<'g> {
    lowered: LoweredGraph<'g>,
    values: HashMap<&'g str, ValueId>,
}

impl<'g> OnRank<'g> {
    /// Of a model as [`sharded`] gives it.
    pub fn new(sharded: &'g Graph) -> OnRank<'g> {
        let values = sharded.values().map(|(id, value)| (&*value.name, id)).collect();
        OnRank { lowered: LoweredGraph::new(sharded), values }
    }

    /// The floating point operations of the node that makes the value.
    pub fn flops(&self, name: &str) -> u64 {
        let sharded = self.lowered.graph;
        self.values.get(name).map_or(0, |value| self.lowered.work(sharded.value(*value).node).flops)
    }

    /// The bytes of the value.
    pub fn bytes(&self, name: &str) -> u64 {
        let bytes = |value: &ValueId| {
            let extent = &self.lowered.extents[value.index()];
            extent.elements() * extent.ty.dtype.bytes()
        };
        self.values.get(name).map_or(0, bytes)
    }
}
