//! Where each node runs: at the position of its stage, or, if it has none, wherever it is read.

use shardc_ir::graph::{Graph, Node, NodeId, ValueId};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use shardc_ir::sharding::At;
use std::collections::BTreeSet;

/// The pipeline's axis, if its stages are at several positions.
#[derive(Debug, Clone, Copy)]
pub struct Stages {
    /// The axis.
    pub axis: AxisId,
    /// The line of the spec.
    pub line: u32,
}

/// The places of the nodes of a graph.
pub struct Places {
    stages: Option<Stages>,
    /// For each node, where it runs.
    nodes: Vec<Option<At>>,
    /// For each state variable, its one home.
    states: Vec<Option<At>>,
    /// For each value, where it must be moved to: the places of readers that are not among its own.
    wanted: Vec<BTreeSet<u64>>,
}

impl Places {
    /// Of a graph whose nodes have stages.
    pub fn of(graph: &Graph, stages: Option<Stages>) -> Places {
        let count = graph.node_count();
        let (nodes, states) = (vec![None; count], vec![None; graph.states.len()]);
        let mut places = Places { stages, nodes, states, wanted: vec![BTreeSet::new(); graph.value_count()] };
        let Some(Stages { axis, .. }) = stages else { return places };
        let mesh = &graph.mesh;
        let position = |stage: u32| u64::from(stage) % mesh.size(axis);
        // Nodes without a stage run wherever they are read; an output that nobody reads with the
        // last stage, where the loss is.
        let last = mesh.size(axis) - 1;
        let mut read: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); count];
        for output in &graph.outputs {
            let id = graph.value(output.value).node;
            if graph.users(id).is_empty() {
                read[id.index()].insert(last);
            }
        }
        let mut homes: Vec<Option<u64>> = vec![None; graph.states.len()];
        for (id, node) in graph.nodes().rev() {
            if let (Some(stage), false) = (node.origin.stage, node.operands.is_empty()) {
                read[id.index()] = BTreeSet::from([position(stage)]);
            }
            let own = read[id.index()].clone();
            node.operands.iter().for_each(|v| read[graph.value(*v).node.index()].extend(&own));
            for value in &node.operands {
                if let Op::State(state) = &graph.def(*value).op {
                    homes[state.state.index()] = own.first().copied().or(homes[state.state.index()]);
                }
            }
        }
        // A state variable lives with the first that has a stage, if any of its readers has.
        for (state, stage) in graph.stages_of_states().into_iter().enumerate() {
            homes[state] = stage.map(position).or(homes[state]);
        }
        places.states = homes.iter().map(|home| At::of(axis, BTreeSet::from([home.unwrap_or(0)]), mesh)).collect();
        for (id, node) in graph.nodes() {
            places.nodes[id.index()] = match &node.op {
                Op::State(read) => places.states[read.state.index()].clone(),
                // The host fills them wherever they are read.
                Op::Constant(_) | Op::Host(_) => None,
                _ if read[id.index()].is_empty() => At::of(axis, BTreeSet::from([0]), mesh),
                _ => At::of(axis, read[id.index()].clone(), mesh),
            };
        }
        let positions = |at: &Option<At>| at.as_ref().map_or((0..mesh.size(axis)).collect(), |at| at.positions.clone());
        for (id, node) in graph.nodes() {
            let own = places.nodes[id.index()].clone();
            for value in &node.operands {
                if !At::covered(&own, &places.nodes[graph.value(*value).node.index()]) {
                    places.wanted[value.index()].extend(positions(&own));
                }
            }
        }
        for output in graph.outputs.iter().filter(|output| is_for_all(&output.name)) {
            places.wanted[output.value.index()].extend(0..mesh.size(axis));
        }
        places
    }

    /// Where a node runs, which may have been given another stage.
    pub fn node(&self, graph: &Graph, id: NodeId, node: &Node) -> Option<At> {
        match (self.stages, node.origin.stage) {
            (Some(Stages { axis, .. }), Some(stage)) if !node.operands.is_empty() => {
                At::of(axis, BTreeSet::from([u64::from(stage) % graph.mesh.size(axis)]), &graph.mesh)
            }
            _ => self.nodes[id.index()].clone(),
        }
    }

    /// Where a state variable is held.
    pub fn state(&self, state: usize) -> &Option<At> {
        &self.states[state]
    }

    /// Where a value is moved to, for a reader at `place` and for all others that lack it.
    pub fn targets(&self, graph: &Graph, value: ValueId, place: &Option<At>) -> Option<At> {
        let Stages { axis, .. } = self.stages?;
        let own = place.as_ref().map_or((0..graph.mesh.size(axis)).collect(), |at| at.positions.clone());
        At::of(axis, self.wanted[value.index()].iter().copied().chain(own).collect(), &graph.mesh)
    }

    /// The pipeline, if there is one.
    pub fn stages(&self) -> Option<Stages> {
        self.stages
    }
}

/// Whether every rank must know an output, whoever computes it: by the norm of all gradients a step
/// is given up.
pub fn is_for_all(output: &str) -> bool {
    output == "grad_norm"
}
