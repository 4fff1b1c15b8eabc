//! Why a tensor of a plan lies as it does, and what is sent for it: from a line of the spec through
//! the ops that carry a split on, to the calls.
//!
//! ```no_run
//! use shardc::explanation::Explanation;
//! use shardc::plan_dir::{Trust, read};
//! use shardc_ir::programs::ProgramKind;
//!
//! let plan = read("plan".as_ref(), Trust::Graphs)?;
//! let explained = Explanation::of(&plan, ProgramKind::Train, "fc2.weight")?;
//! for axis in &explained.axes {
//!     println!("{}: {:?}, by line {:?} of the spec", axis.axis, axis.lies, axis.spec_line);
//! }
//! # Ok::<_, shardc::Error>(())
//! ```

mod calls;
mod chains;

pub use calls::Call;

use crate::error::Error;
use crate::plan_dir::PlanDir;
use serde::Serialize;
use shardc_ir::diagnostic::{Diagnostic, Place, near_names};
use shardc_ir::graph::{Graph, StateId, ValueId};
use shardc_ir::mesh::AxisId;
use shardc_ir::programs::ProgramKind;
use shardc_ir::sharding::Sharding;
use shardc_ir::text::op_text;
use shardc_ir::types::Type;

/// A tensor of a plan: how it lies, why, and what is sent for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The name of the state variable, or of the value of the graph.
    pub name: String,
    /// `parameter`, `moment` and so on, or the op that makes it.
    pub what: String,
    /// The module of the model.
    pub scope: Option<String>,
    /// Element type and shape, and how they are split: `f32[128, 64]{tp, -}`.
    pub tensor: String,
    /// Bytes of the whole tensor.
    pub bytes: u64,
    /// Bytes that a rank has of it at most.
    pub local_bytes: u64,
    /// How it lies on each axis of ranks.
    pub axes: Vec<OnAxis>,
    /// The calls and messages that have it to do, of a step.
    pub calls: Vec<Call>,
}

/// How a tensor lies on an axis of ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OnAxis {
    /// The axis.
    pub axis: String,
    /// How it lies.
    pub lies: Lies,
    /// The line of the spec that asked for that, from 1.
    pub spec_line: Option<u32>,
    /// The words of that line.
    pub spec: Option<String>,
    /// The way from the tensor back to the one that the line is about, each with the op that made
    /// it. The tensor itself comes first.
    pub chain: Vec<Link>,
}

/// How a tensor lies on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum Lies {
    /// Each rank has the whole of it.
    Whole,
    /// Each rank has a part.
    Split {
        /// Of this dimension; `None` where ranks share a flat range of elements.
        dimension: Option<usize>,
    },
    /// Each rank has a number for every element, which are still to be combined.
    Partial,
    /// Some ranks have it, and others have nothing of it.
    Placed,
}

/// A tensor on the way from a line of the spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Link {
    /// The name of its value.
    pub value: String,
    /// The op that made it.
    pub op: String,
    /// Its type, and how it is split.
    pub tensor: String,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
enum Subject {
    State(StateId),
    Value(ValueId),
}

impl Explanation {
    /// The tensor of that name in the programs of that kind: a state variable, a value as listings
    /// name it, or an output.
    ///
    /// # Errors
    /// If the plan has no such programs or no such name; a graph that cannot be read.
    pub fn of(plan: &PlanDir, kind: ProgramKind, name: &str) -> Result<Explanation, Error> {
        let programs = match kind {
            ProgramKind::Train => plan.programs.training.as_ref(),
            ProgramKind::Eval => Some(&plan.programs.eval),
            ProgramKind::Reference => None,
        };
        let programs = programs.ok_or_else(|| {
            let error = Diagnostic::error(format!("this plan has no {kind} programs over ranks"));
            Error::from(error.at(Place::File(plan.path.clone())))
        })?;
        let graph = plan.graph(kind)?;
        let text = plan.spec_text()?;
        let lines: Vec<&str> = text.lines().collect();
        let spec = |line: u32| lines.get((line as usize).checked_sub(1)?).map(|line| statement(line));
        let subject = find(&graph, name).map_err(|error| error.at(Place::File(plan.path.clone())))?;
        let value = subject.value(&graph);
        let (ty, sharding) = subject.tensor(&graph);
        let axes = (0..graph.mesh.rank_axes().len() as u8).map(AxisId).filter(|axis| graph.mesh.size(*axis) > 1);
        let stages = plan.spec.pipeline.as_ref().map(|pipeline| pipeline.source.line as u32);
        let on_axis = |axis| on_axis(&graph, value, sharding, axis, stages, &spec);
        Ok(Explanation {
            name: subject.name(&graph).to_string(),
            what: subject.what(&graph),
            scope: value.and_then(|value| graph.def(value).origin.scope.as_deref().map(str::to_string)),
            tensor: tensor_text(&graph, ty, sharding),
            bytes: ty.elements() * ty.dtype.bytes(),
            local_bytes: sharding.local(&ty.shape, &graph.mesh).iter().product::<u64>() * ty.dtype.bytes(),
            axes: axes.map(on_axis).collect(),
            calls: calls::of(&graph, programs, &subject, &spec),
        })
    }
}

impl Subject {
    fn value(self, graph: &Graph) -> Option<ValueId> {
        match self {
            Subject::State(state) => graph.state_reads()[state.index()],
            Subject::Value(value) => Some(value),
        }
    }

    fn tensor(self, graph: &Graph) -> (&Type, &Sharding) {
        match self {
            Subject::State(state) => (&graph.states[state.index()].ty, &graph.states[state.index()].sharding),
            Subject::Value(value) => (graph.ty(value), graph.sharding(value)),
        }
    }

    fn name(self, graph: &Graph) -> &str {
        match self {
            Subject::State(state) => &graph.states[state.index()].name,
            Subject::Value(value) => &graph.value(value).name,
        }
    }

    fn what(self, graph: &Graph) -> String {
        match self {
            Subject::State(state) => graph.states[state.index()].role.name().to_string(),
            Subject::Value(value) => op_text(graph, graph.def(value)),
        }
    }
}

/// The tensor that a user means by `name`.
fn find(graph: &Graph, name: &str) -> Result<Subject, Diagnostic> {
    let name = name.strip_prefix('%').unwrap_or(name);
    // Graphs write the names of models so.
    let written = |name: &str| name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_");
    let state = |name: &str| graph.states.iter().position(|state| state.name == name).map(|at| StateId(at as u32));
    let output = || graph.outputs.iter().find(|output| output.name == name).map(|output| output.value);
    let value = graph.named(name).or_else(output).or_else(|| graph.named(&written(name)));
    state(name).map(Subject::State).or(value.map(Subject::Value)).ok_or_else(|| {
        let states = graph.states.iter().map(|state| state.name.as_str());
        let all: Vec<&str> = states.chain(graph.values().map(|(_, value)| &*value.name)).collect();
        let near: Vec<String> = near_names(name, all.into_iter()).into_iter().map(|near| format!("`{near}`")).collect();
        let near = if near.is_empty() { String::new() } else { format!("near names are {}; ", near.join(", ")) };
        let error = Diagnostic::error(format!("the plan has no tensor `{name}`"));
        error.help(format!("{near}`shardc inspect PLAN --all` prints all names"))
    })
}

/// A line of a spec without its comment, words one space apart.
fn statement(line: &str) -> String {
    let mut quoted = false;
    let end = line.find(|c| {
        quoted ^= c == '"';
        c == '#' && !quoted
    });
    line[..end.unwrap_or(line.len())].split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How a tensor lies on an axis; `stages` is the line of the spec that places stages.
fn on_axis(
    graph: &Graph,
    value: Option<ValueId>,
    sharding: &Sharding,
    axis: AxisId,
    stages: Option<u32>,
    spec: &impl Fn(u32) -> Option<String>,
) -> OnAxis {
    let lies = if sharding.partial_over(axis).is_some() {
        Lies::Partial
    } else if sharding.splits(axis) {
        Lies::Split { dimension: sharding.split_over(axis).map(|(dimension, _)| dimension) }
    } else if sharding.at.as_ref().is_some_and(|at| at.axis == axis) {
        Lies::Placed
    } else {
        Lies::Whole
    };
    let chain = match (lies, value) {
        (Lies::Split { .. } | Lies::Partial, Some(value)) => chains::chain(graph, value, axis),
        _ => vec![],
    };
    // What a line has asked for is known where a split begins, or of the call that made it.
    let made = |value: &ValueId| graph.asked(*value, axis).or(graph.def(*value).origin.spec_line);
    let spec_line = chain.iter().rev().find_map(made).or(stages.filter(|_| lies == Lies::Placed));
    let link = |value: &ValueId| Link {
        value: graph.value(*value).name.to_string(),
        op: op_text(graph, graph.def(*value)),
        tensor: tensor_text(graph, graph.ty(*value), graph.sharding(*value)),
    };
    OnAxis {
        axis: graph.mesh.name(axis).to_string(),
        lies,
        spec_line,
        spec: spec_line.and_then(spec),
        chain: chain.iter().map(link).collect(),
    }
}

fn tensor_text(graph: &Graph, ty: &Type, sharding: &Sharding) -> String {
    format!("{ty}{}", sharding.text(&ty.shape, &graph.mesh))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_a_line_without_its_comment() {
        assert_eq!(statement("shard   \"a#b\" [tp, -]  # half"), "shard \"a#b\" [tp, -]");
        assert_eq!(statement("  # nothing"), "");
    }
}
