//! Why a value is resharded, in the words of who wrote the model and the spec, and the line of the
//! spec that asks for it.

use crate::weights::parameter;
use shardc_ir::graph::{Graph, Node, ValueId};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use shardc_ir::sharding::Sharding;
use std::collections::{HashSet, VecDeque};

/// How many values are looked at for one line.
const NEAR: usize = 1000;

/// What is known of a graph before its reshards.
pub struct Reasons<'g> {
    /// The graph.
    pub graph: &'g Graph,
    /// For each value, whether it is made of parameters alone.
    pub weights: &'g [bool],
    /// The parameter whose gradient the value is.
    pub gradient: Option<&'g String>,
    /// The parameter of whose gradient the reader makes rows, into which it is not split itself.
    pub rows: Option<&'g String>,
}

impl Reasons<'_> {
    /// Why `value`, which is `current`, is made `wanted` for `reader`, or for the host.
    pub fn of(
        &self,
        current: &Sharding,
        wanted: &Sharding,
        value: ValueId,
        reader: Option<&Node>,
    ) -> (Option<String>, Option<u32>) {
        let Some(axis) = self.axis(current, wanted) else { return (None, None) };
        if let Some(name) = self.gradient {
            return (Some(format!("gradient of \"{name}\"")), self.line(value, axis, reader));
        }
        if current.flat != wanted.flat {
            return (Some(self.range_text(value, wanted, reader)), self.line(value, axis, reader));
        }
        if let Some(name) = self.rows {
            return (Some(format!("for rows of the gradient of \"{name}\"")), self.line(value, axis, reader));
        }
        let definer = self.graph.def(value);
        // A split that gives way to another has two reasons: who needs it otherwise, and the line
        // that asked for it.
        let against = self.graph.asked(value, axis).filter(|_| current.splits(axis));
        if let (Some(line), Some(reader)) = (against, reader)
            && let Some(winner) = self.split_weight(reader, axis)
        {
            let reason = format!("{}, against line {line}", self.weight_text(winner));
            return (Some(reason), self.graph.asked(winner, axis));
        }
        if current.partial_over(axis).is_some() {
            let behind = self.behind(definer, axis);
            if let Some(first) = behind.first() {
                let mut reason = self.weight_text(*first);
                if behind.len() > 1 {
                    reason.push_str(&format!(" and {} more", behind.len() - 1));
                }
                if let Some(line) = self.graph.asked(value, axis).filter(|_| wanted.splits(axis)) {
                    reason.push_str(&format!(", split by line {line}"));
                }
                return (Some(reason), self.graph.asked(*first, axis).or_else(|| self.line(value, axis, Some(definer))));
            }
        }
        let line = self.line(value, axis, reader);
        match reader {
            None => {
                let output = self.graph.outputs.iter().find(|output| output.value == value);
                (output.map(|output| output_text(&output.name)), line)
            }
            Some(reader) => match reader.origin.reason.as_ref().or(definer.origin.reason.as_ref()) {
                Some(reason) => (Some(reason.to_string()), reader.origin.spec_line.or(definer.origin.spec_line).or(line)),
                None => (Some(self.reader_text(reader)), line),
            },
        }
    }

    /// The axis over which the two differ: first one that is given up, then one that changes.
    fn axis(&self, current: &Sharding, wanted: &Sharding) -> Option<AxisId> {
        let axes = || (0..self.graph.mesh.axes().len() as u8).map(AxisId);
        let given_up = |a: &AxisId| current.depends_on(*a) && !wanted.depends_on(*a);
        let place = |sharding: &Sharding, axis| {
            let split = |dim: &Vec<shardc_ir::sharding::Split>| dim.iter().find(|split| split.axis == axis).copied();
            (sharding.partial_over(axis), sharding.flat.contains(&axis), sharding.dims.iter().map(split).collect::<Vec<_>>())
        };
        axes().find(given_up).or_else(|| axes().find(|a| place(current, *a) != place(wanted, *a)))
    }

    /// A weight that a node reads, split over `axis`.
    fn split_weight(&self, node: &Node, axis: AxisId) -> Option<ValueId> {
        node.operands.iter().copied().find(|v| self.weights[v.index()] && self.graph.sharding(*v).splits(axis))
    }

    /// The split weights whose products were summed up to what `node` gives.
    fn behind(&self, node: &Node, axis: AxisId) -> Vec<ValueId> {
        let (mut found, mut next) = (vec![], VecDeque::from([node]));
        for _ in 0..NEAR {
            let Some(node) = next.pop_front() else { break };
            match self.split_weight(node, axis) {
                Some(weight) if !found.contains(&weight) => found.push(weight),
                Some(_) => {}
                None if node.op.is_sum() || node.op.is_rearrangement() => {
                    next.extend(node.operands.iter().map(|v| self.graph.def(*v)));
                }
                None => {}
            }
        }
        found
    }

    /// `for "fc2.weight" {tp, -}`
    fn weight_text(&self, weight: ValueId) -> String {
        let parameter = parameter(self.graph, weight);
        match &self.graph.def(parameter).op {
            Op::State(read) => {
                let state = &self.graph.states[read.state.index()];
                format!("for \"{}\" {}", state.name, state.sharding.text(&state.ty.shape, &self.graph.mesh))
            }
            _ => format!("for `{}`", self.graph.value(weight).name),
        }
        .trim_end()
        .to_string()
    }

    /// Why a line is cut, or made whole.
    fn range_text(&self, value: ValueId, wanted: &Sharding, reader: Option<&Node>) -> String {
        let state = self.graph.states.iter().find(|state| state.update == Some(value));
        match (state, reader) {
            (Some(state), None) => format!("new \"{}\" for every rank", state.name),
            (_, Some(reader)) if wanted.flat.is_empty() => match &reader.origin.scope {
                Some(scope) => format!("for {} in \"{scope}\"", reader.op.name()),
                None => format!("for {}", reader.op.name()),
            },
            _ => "the rank's range for the update".to_string(),
        }
    }

    /// By the parameter that a node reads, or by its place in the model.
    fn reader_text(&self, reader: &Node) -> String {
        let weight = reader.operands.iter().find(|v| self.weights[v.index()]);
        match (weight, &reader.origin.scope) {
            (Some(weight), _) => self.weight_text(*weight),
            (None, Some(scope)) => format!("for {} in \"{scope}\"", reader.op.name()),
            (None, None) => format!("for {}", reader.op.name()),
        }
    }

    /// The line of the spec that splits, over `axis`, the nearest value on which `value` depends,
    /// or what the reader makes of it.
    fn line(&self, value: ValueId, axis: AxisId, reader: Option<&Node>) -> Option<u32> {
        let made = || reader.into_iter().flat_map(|node| node.results.iter().chain(&node.operands).copied());
        let asked = |v: ValueId| self.graph.asked(v, axis);
        self.nearest_line(value, axis).or_else(|| made().find_map(asked))
    }

    fn nearest_line(&self, value: ValueId, axis: AxisId) -> Option<u32> {
        let (mut near, mut seen) = (VecDeque::from([value]), HashSet::from([value]));
        for _ in 0..NEAR {
            let at = near.pop_front()?;
            if let Some(line) = self.graph.asked(at, axis) {
                return Some(line);
            }
            near.extend(self.graph.def(at).operands.iter().copied().filter(|operand| seen.insert(*operand)));
        }
        None
    }
}

/// An output in the words of people.
fn output_text(name: &str) -> String {
    match name {
        "loss" => "for the mean loss".to_string(),
        "loss_sum" => "for the sum of the loss".to_string(),
        "labels" => "for the number of labels".to_string(),
        "grad_norm" => "for the norm of all gradients".to_string(),
        name => format!("for output \"{name}\""),
    }
}
