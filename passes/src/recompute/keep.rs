//! Which values of the forward pass are kept for the backward pass.

use crate::attach_loss;
use crate::cut_stages::scopes_help;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::{Graph, Node, NodeId, Part, ValueId};
use shardc_ir::letters::Role;
use shardc_ir::lower::Lowered;
use shardc_ir::lower::graph::LoweredGraph;
use shardc_ir::names::outermost_scope;
use shardc_ir::ops::{Linear, Op, letters_of, linear_of};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::spec::{Recompute, Spec};
use std::collections::HashMap;

/// The forward pass, as far as the backward pass may repeat it.
pub struct Forward<'g> {
    /// All of the step.
    pub graph: &'g Graph,
    /// The nodes on a rank.
    pub lowered: LoweredGraph<'g>,
    /// For each node, whether it may be computed again: it depends on the samples, is no leaf and
    /// is not of the loss, and neither moves between stages nor sums up micro-batches.
    pub repeats: Vec<bool>,
    /// For each node, whether it gathers what is trained for its readers, or is made of that alone:
    /// each pass gathers for itself.
    gathers: Vec<bool>,
    /// For each value the value whose memory it is.
    storage: Vec<ValueId>,
}

impl<'g> Forward<'g> {
    /// What there is to repeat in an explicit graph.
    pub fn of(graph: &'g Graph) -> Forward<'g> {
        let lowered = LoweredGraph::new(graph);
        let of_samples = of_samples(graph);
        let of_labels = graph.reached_from(|v| matches!(&graph.def(v).op, Op::Input(input) if input.label));
        let mut gathers = vec![false; graph.node_count()];
        let mut storage: Vec<ValueId> = graph.values().map(|(id, _)| id).collect();
        for (id, node) in graph.nodes() {
            let mut operands = node.operands.iter().map(|v| graph.value(*v).node);
            let is_made = !of_samples[id.index()] && operands.any(|operand| gathers[operand.index()]);
            gathers[id.index()] = node.origin.part == Part::Forward && (is_made || matches!(node.op, Op::FlatGather(_)));
            if let Lowered::Alias(operand) = lowered.node(id) {
                storage[node.results[0].index()] = storage[node.operands[*operand].index()];
            }
        }
        let repeats = |(id, node): (NodeId, &Node)| {
            let is_of_loss =
                node.origin.reason.as_deref() == Some(attach_loss::REASON) || node.results.iter().any(|v| of_labels[v.index()]);
            let is_fixed =
                node.operands.is_empty() && !node.op.is_drawn() || matches!(node.op, Op::Transfer(_) | Op::Accumulate(_));
            node.origin.part == Part::Forward && of_samples[id.index()] && !is_of_loss && !is_fixed
        };
        let repeats = graph.nodes().map(repeats).collect();
        Forward { graph, lowered, repeats, gathers, storage }
    }

    /// For each value whether it is kept, where the results of the nodes that `keeps` are; values
    /// in one memory are kept together.
    pub fn kept(&self, keeps: impl Fn(NodeId) -> bool) -> Vec<bool> {
        let stays = |id: NodeId| !self.gathers[id.index()] && (!self.repeats[id.index()] || keeps(id));
        let mut held = vec![false; self.graph.value_count()];
        for (value, of) in self.graph.values() {
            held[self.storage[value.index()].index()] |= stays(of.node);
        }
        self.graph.values().map(|(value, _)| held[self.storage[value.index()].index()]).collect()
    }

    /// Whether the results of a node are all that leaves its unit: it is of none, or others of the
    /// forward pass read them.
    pub fn leaves(&self, id: NodeId, units: &[Option<u32>]) -> bool {
        let own = units[id.index()];
        let reads = |user: &NodeId| self.graph.node(*user).origin.part == Part::Forward && units[user.index()] != own;
        own.is_none() || self.graph.users(id).iter().any(|user| reads(user) && !self.is_sent(*user))
    }

    /// Whether a node sends its operand away, which is then kept where it arrives.
    fn is_sent(&self, id: NodeId) -> bool {
        matches!(self.graph.node(id).op, Op::Transfer(_))
    }

    /// Whether a node costs much to compute again: it multiplies matrices, convolves or sends, or
    /// it adds up two values of the samples, as a residual connection does, which would be computed
    /// again from its beginning.
    pub fn is_dear(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let of_samples = |v: &ValueId| self.repeats[self.graph.value(*v).node.index()];
        let sums = |role: &Role| matches!(role, Role::Reduced(ReduceKind::Sum));
        let multiplies = || linear_of(self.graph, node) == Linear::Each && letters_of(self.graph, id).roles.iter().any(sums);
        match &node.op {
            op if op.is_sum() => node.operands.iter().all(of_samples),
            op => op.is_collective() || multiplies(),
        }
    }
}

/// For each node whether it depends on the samples of the step, or is drawn for each; where there
/// are micro-batches, on those of one.
fn of_samples(graph: &Graph) -> Vec<bool> {
    let time = graph.mesh.microbatch_axis();
    let reached = graph.reached_from(|v| matches!(graph.def(v).op, Op::Input(_)) || graph.def(v).op.is_drawn());
    let in_time = |node: &Node| {
        graph.mesh.microbatches() == 1 || node.operands.iter().chain(&node.results).any(|v| graph.sharding(*v).depends_on(time))
    };
    graph.nodes().map(|(_, node)| node.results.iter().any(|v| reached[v.index()]) && in_time(node)).collect()
}

/// The nodes of the forward pass in units: those in one scope are one.
pub struct Units {
    /// For each node its unit.
    pub of: Vec<Option<u32>>,
    /// For each unit the line of the spec that names it.
    pub lines: Vec<u32>,
}

/// The units that lines of the spec name; of nested scopes the outermost is one.
///
/// # Errors
/// For each pattern without a match.
pub fn units(graph: &Graph, spec: &Spec) -> Result<Units, Diagnostics> {
    let lines = spec.recompute.iter().filter_map(|line| match &line.value {
        Recompute::Scope(pattern) => Some((pattern.as_str(), line.source)),
        _ => None,
    });
    let lines: Vec<_> = lines.collect();
    let mut is_found = vec![false; lines.len()];
    let mut known: HashMap<&str, Option<(&str, u32)>> = HashMap::new();
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    let mut units = Units { of: vec![None; graph.node_count()], lines: vec![] };
    let forward = || graph.nodes().filter(|(_, node)| node.origin.part == Part::Forward);
    for (id, node) in forward() {
        let Some(path) = node.origin.scope.as_deref() else { continue };
        let outermost = *known.entry(path).or_insert_with(|| {
            let found = lines.iter().zip(&mut is_found).filter_map(|((pattern, source), is_found)| {
                let scope = outermost_scope(pattern, path)?;
                *is_found = true;
                Some((scope, source.line as u32))
            });
            found.min_by_key(|(scope, _)| scope.len())
        });
        if let Some((scope, line)) = outermost {
            let number = *numbers.entry(scope).or_insert_with(|| {
                units.lines.push(line);
                units.lines.len() as u32 - 1
            });
            units.of[id.index()] = Some(number);
        }
    }
    let error = |(i, (pattern, source)): (usize, &(&str, _))| {
        let paths = forward().filter_map(|(_, node)| node.origin.scope.as_deref());
        let error = Diagnostic::error(format!("no module of the model matches `{pattern}`"));
        error.at(spec.place_of(*source)).help_early(i, || scopes_help(pattern, paths))
    };
    let missing = lines.iter().zip(is_found).filter(|(_, is_found)| !is_found).map(|(line, _)| line);
    let errors: Diagnostics = missing.enumerate().map(error).collect();
    if errors.is_empty() { Ok(units) } else { Err(errors) }
}
