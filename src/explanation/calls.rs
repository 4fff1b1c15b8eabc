//! The calls and messages that have to do with a tensor.

use super::Subject;
use serde::Serialize;
use shardc_ir::graph::{Graph, NodeId, ValueId};
use shardc_ir::kernel::{CommunicationKind, Kernel};
use shardc_ir::listing::bytes_sent;
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, Provenance, Row};
use std::collections::BTreeSet;

/// A call, or a message that is sent, with a tensor in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Call {
    /// The ranks that take part in calls of this kind, each in a group of its own axes; of a
    /// message those that send it.
    pub ranks: Vec<u64>,
    /// Its number in the listing of these ranks; none of a message.
    pub step: Option<usize>,
    /// The kind.
    pub kind: CommunicationKind,
    /// The axes of its group, in the order of members.
    pub axes: Vec<String>,
    /// How often in a step of training.
    pub times: u64,
    /// Bytes that a rank sends each time, with whatever else is in the call.
    pub bytes_sent: u64,
    /// How many other tensors are in the same call.
    pub others: usize,
    /// Why it is there.
    pub reason: Option<String>,
    /// The line of the spec that asked for it, from 1.
    pub spec_line: Option<u32>,
    /// The words of that line.
    pub spec: Option<String>,
    /// All lines that it goes with: where it adds up a sum over what is split, those of all
    /// operands that are.
    pub lines: Vec<u32>,
    /// What makes it go away.
    pub remedy: Option<String>,
}

/// The calls of a step that read or write the tensor; of a state variable also those of its
/// gradient, its copies and its update.
pub(super) fn of(graph: &Graph, set: &PlanSet, subject: &Subject, spec: &impl Fn(u32) -> Option<String>) -> Vec<Call> {
    let (ops, sent) = match subject {
        Subject::State(_) => of_state(graph, subject),
        Subject::Value(value) => of_value(graph, *value),
    };
    let names = |values: &BTreeSet<ValueId>| values.iter().map(|value| &*graph.value(*value).name).collect();
    let (ops, sent): (BTreeSet<&str>, BTreeSet<&str>) = (names(&ops), names(&sent));
    let mesh = set.mesh();
    let mut calls = vec![];
    for (at, program) in set.programs.iter().enumerate() {
        let ranks: Vec<u64> = (0..mesh.world_size()).filter(|rank| set.at(mesh, *rank) == at).collect();
        let found = steps(program, &ops, graph).chain(messages(program, &sent));
        calls.extend(found.map(|call| finished(Call { ranks: ranks.clone(), ..call }, spec)));
    }
    calls
}

/// The values that calls make of the tensor or make it, and those that messages may carry.
type Related = (BTreeSet<ValueId>, BTreeSet<ValueId>);

fn of_value(graph: &Graph, value: ValueId) -> Related {
    let mut calls = BTreeSet::new();
    let forms = forms(graph, BTreeSet::from([value]), &mut calls, |_| false);
    back(graph, value, &mut calls, |_| false);
    (calls, forms)
}

fn of_state(graph: &Graph, subject: &Subject) -> Related {
    let state = match subject {
        Subject::State(state) => &graph.states[state.index()],
        Subject::Value(_) => return Related::default(),
    };
    let mut calls = BTreeSet::new();
    // Parts that are put together, and whole arrays that are cut, are the same state.
    let copies = forms(graph, subject.value(graph).into_iter().collect(), &mut calls, Op::is_comm);
    for end in state.update.into_iter().chain(state.gradient) {
        back(graph, end, &mut calls, Op::is_comm);
    }
    let own = format!("gradient of \"{}\"", state.name);
    let is_own = |id: &NodeId| graph.node(*id).origin.reason.as_ref().is_some_and(|reason| reason.starts_with(&own));
    let nodes = graph.nodes().map(|(id, _)| id).filter(|id| graph.node(*id).op.is_comm());
    calls.extend(nodes.filter(is_own).map(|id| graph.node(id).results[0]));
    (calls, copies)
}

/// The values that have the same numbers as `values` in other forms, behind ops that are `also`
/// taken too; the calls that read them go to `calls`.
fn forms(
    graph: &Graph,
    values: BTreeSet<ValueId>,
    calls: &mut BTreeSet<ValueId>,
    also: impl Fn(&Op) -> bool,
) -> BTreeSet<ValueId> {
    let mut forms = values;
    for (_, node) in graph.nodes() {
        if node.op.is_comm() && node.operands.iter().any(|operand| forms.contains(operand)) {
            calls.insert(node.results[0]);
        }
        let is_of_it = !node.operands.is_empty() && node.operands.iter().all(|operand| forms.contains(operand));
        if is_of_it && (is_copy(&node.op) || also(&node.op)) {
            forms.extend(node.results.iter().copied());
        }
    }
    forms
}

/// Goes from a value back to what it is another form of, behind ops that are `also` taken too; the
/// calls on the way go to `calls`.
fn back(graph: &Graph, value: ValueId, calls: &mut BTreeSet<ValueId>, also: impl Fn(&Op) -> bool) {
    let mut at = value;
    loop {
        let node = graph.def(at);
        calls.extend(node.op.is_comm().then_some(at));
        match node.operands[..] {
            [operand] if is_copy(&node.op) || also(&node.op) => at = operand,
            _ => return,
        }
    }
}

/// Whether an op gives the same numbers in another form.
fn is_copy(op: &Op) -> bool {
    op.is_rearrangement() || matches!(op, Op::Cast(_) | Op::ShardSlice(_) | Op::FlatSlice(_) | Op::Accumulate(_))
}

/// The calls of a program that carry out any of these ops.
fn steps(program: &Program, ops: &BTreeSet<&str>, graph: &Graph) -> impl Iterator<Item = Call> {
    let times = program.times();
    let mut number = 0;
    let mut found = vec![];
    for (task, times) in program.tasks.iter().zip(times) {
        for (step, times) in task.steps.iter().zip(times) {
            if let Kernel::Collective(call) = &step.kernel
                && step.provenance.ops.iter().any(|op| ops.contains(op.as_str()))
            {
                let axes = call.axes.iter().map(|axis| program.mesh.name(*axis).to_string()).collect();
                let own = step.provenance.ops.iter().filter(|op| ops.contains(op.as_str()));
                let own = own.filter_map(|op| graph.named(op));
                let lines = own.flat_map(|value| call.axes.iter().flat_map(move |axis| behind(graph, value, *axis)));
                let lines: BTreeSet<u32> = lines.chain(step.provenance.spec_line).collect();
                found.push(Call {
                    lines: lines.into_iter().collect(),
                    step: Some(number),
                    axes,
                    times,
                    bytes_sent: bytes_sent(program, call),
                    others: step.provenance.ops.iter().filter(|op| !ops.contains(op.as_str())).count(),
                    ..Call::of(call.kind.into(), &step.provenance)
                });
            }
            number += 1;
        }
    }
    found.into_iter()
}

/// The messages of a program that send any of these values.
fn messages<'a>(program: &'a Program, values: &'a BTreeSet<&str>) -> impl Iterator<Item = Call> + 'a {
    let sends = |number: usize| {
        let exchanges =
            program.order.iter().filter_map(|row| if let Row::Exchange(messages) = row { Some(messages) } else { None });
        exchanges.flatten().filter(|(message, _)| *message as usize == number).count() as u64
    };
    let own = program.messages.iter().enumerate().filter(|(_, m)| m.sends && values.contains(m.value.as_str()));
    own.map(move |(number, message)| Call {
        axes: vec![program.mesh.name(message.axis).to_string()],
        times: sends(number),
        bytes_sent: message.view.bytes,
        ..Call::of(CommunicationKind::Send, &message.provenance)
    })
}

impl Call {
    fn of(kind: CommunicationKind, provenance: &Provenance) -> Call {
        Call {
            ranks: vec![],
            step: None,
            kind,
            axes: vec![],
            times: 0,
            bytes_sent: 0,
            others: 0,
            reason: provenance.reason.clone(),
            spec_line: provenance.spec_line,
            spec: None,
            lines: provenance.spec_line.into_iter().collect(),
            remedy: None,
        }
    }
}

/// With the words of its line, and what makes it go away.
fn finished(call: Call, spec: &impl Fn(u32) -> Option<String>) -> Call {
    let text = call.spec_line.and_then(spec);
    let remedy = text.as_deref().and_then(|text| remedy(text, &call));
    Call { spec: text, remedy, ..call }
}

/// The lines that have split what a call sums over: those of the operands of the op that made its
/// operand partial.
fn behind(graph: &Graph, value: ValueId, axis: AxisId) -> Vec<u32> {
    let is_partial = |value: &ValueId| graph.sharding(*value).partial_over(axis).is_some();
    let operands = |value: ValueId| graph.def(value).operands.iter().copied();
    let Some(mut at) = operands(value).find(is_partial) else { return vec![] };
    while let Some(next) = operands(at).find(is_partial) {
        at = next;
    }
    let split = operands(at).filter(|operand| graph.sharding(*operand).splits(axis));
    split.filter_map(|operand| graph.asked(operand, axis)).collect()
}

/// What becomes of a call, and of what else, without the lines that it goes with. An axis that
/// splits nothing has to be said to be meant so.
fn remedy(line: &str, call: &Call) -> Option<String> {
    let axes = call.axes.join(", ");
    let lines: Vec<String> = call.lines.iter().map(u32::to_string).collect();
    let lines = format!("{} {}", if lines.len() == 1 { "line" } else { "lines" }, lines.join(" and "));
    Some(match line.split_whitespace().next()? {
        "shard" | "tensor" => {
            format!("take {lines} out; ranks of {axes} then each hold and compute all of what is split there")
        }
        "data" => format!("write `replicate` for {lines}; ranks of {axes} then each compute all samples"),
        "sequence" => format!("take {lines} out; ranks of {axes} then each compute whole sequences"),
        "zero" => format!("take {lines} out; ranks of {axes} then each hold all of the state"),
        "pipeline" => format!("take {lines} out; all stages then run on every rank"),
        _ => return None,
    })
}
