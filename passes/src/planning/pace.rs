//! At which pace each node runs, and in which part of the step.

use shardc_ir::graph::{Graph, NodeId, Part, ValueId};
use shardc_ir::lower::Lowered;
use shardc_ir::lower::graph::LoweredGraph;
use shardc_ir::ops::Op;

/// The class of a task, in the order of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// What every micro-batch reads.
    Prepare,
    /// A first loop, for what is needed of all micro-batches at once.
    Prologue,
    /// What follows from the first loop.
    Settle,
    /// The model.
    Forward,
    /// Gradients.
    Backward,
    /// The gradients of weights, where they are apart.
    Weight,
    /// What follows from all micro-batches.
    Update,
}

impl Class {
    /// The name of its tasks.
    pub fn name(self) -> &'static str {
        match self {
            Class::Prepare => "prepare",
            Class::Prologue => "prologue",
            Class::Settle => "settle",
            Class::Forward => "F",
            Class::Backward => "B",
            Class::Weight => "W",
            Class::Update => "update",
        }
    }

    /// Whether its tasks run once for each micro-batch, where there are several.
    pub fn is_loop(self) -> bool {
        matches!(self, Class::Prologue | Class::Forward | Class::Backward | Class::Weight)
    }

    /// Whether tasks of both are in the first loop, or none is: one reads what the other has
    /// computed itself.
    pub fn is_beside(self, other: Class) -> bool {
        (self == Class::Prologue) == (other == Class::Prologue)
    }

    /// Whether its tasks are in the order that a schedule makes.
    pub fn is_scheduled(self) -> bool {
        matches!(self, Class::Forward | Class::Backward | Class::Weight)
    }
}

/// For each node the classes that it runs in.
pub struct Relations {
    classes: Vec<Vec<Class>>,
}

impl Relations {
    /// Of all nodes; `splits_weights` keeps the gradients of weights apart.
    ///
    /// # Errors
    /// A value that the loop needs of all micro-batches while it depends on another such.
    pub fn of(lowered: &LoweredGraph<'_>, splits_weights: bool) -> Result<Relations, NodeId> {
        let graph = lowered.graph;
        if graph.mesh.microbatches() == 1 {
            let class = |part: Part| match part {
                Part::Forward => Class::Forward,
                Part::Backward => Class::Backward,
                Part::Update => Class::Update,
            };
            return Ok(Relations { classes: parts(lowered).into_iter().map(|part| vec![class(part)]).collect() });
        }
        let (pace, parts) = (Pace::of(graph), parts(lowered));
        let weight = if splits_weights { of_weights(lowered, &pace) } else { vec![false; graph.node_count()] };
        let class = |(id, _): (NodeId, &shardc_ir::graph::Node)| {
            let i = id.index();
            let mut classes = vec![];
            if pace.in_time[i] {
                if pace.early[i] && pace.late[i] {
                    return Err(id);
                }
                if pace.early[i] {
                    classes.push(Class::Prologue);
                }
                match (pace.main[i], parts[i]) {
                    (false, _) => {}
                    (true, Part::Forward) => classes.push(Class::Forward),
                    (true, _) if weight[i] => classes.push(Class::Weight),
                    (true, _) => classes.push(Class::Backward),
                }
            } else if !pace.late[i] {
                classes.push(Class::Prepare);
            } else if pace.feeds_loop[i] {
                classes.push(Class::Settle);
            } else {
                classes.push(Class::Update);
            }
            Ok(classes)
        };
        let mut classes: Vec<Vec<Class>> = graph.nodes().map(class).collect::<Result<_, _>>()?;
        with_readers(graph, &pace, &mut classes);
        Ok(Relations { classes })
    }

    /// The classes that a node runs in.
    pub fn classes(&self, id: NodeId) -> &[Class] {
        &self.classes[id.index()]
    }
}

/// The part of the step that each node runs in. The gradient of the loss by what the model gives is
/// made with the loss, as far as nothing but elementwise ops of forward values make it.
fn parts(lowered: &LoweredGraph<'_>) -> Vec<Part> {
    let graph = lowered.graph;
    let mut parts: Vec<Part> = graph.nodes().map(|(_, node)| node.origin.part).collect();
    let mut is_with_loss = vec![false; graph.node_count()];
    for (id, node) in graph.nodes().filter(|(_, node)| node.origin.part == Part::Backward) {
        let of = |v: &ValueId| graph.value(*v).node.index();
        let is_known = |v: &ValueId| matches!(graph.def(*v).op, Op::Constant(_)) || parts[of(v)] == Part::Forward;
        let begins = || node.operands.iter().all(|v| matches!(graph.def(*v).op, Op::Constant(_)));
        let goes_on = || node.operands.iter().any(|v| is_with_loss[of(v)]);
        let is_elementwise = matches!(lowered.node(id), Lowered::Map(_) | Lowered::Alias(_));
        if is_elementwise && node.operands.iter().all(is_known) && (begins() || goes_on()) {
            (is_with_loss[id.index()], parts[id.index()]) = (true, Part::Forward);
        }
    }
    parts
}

/// What is gathered for the loop is gathered in it, with what is made of that alone: it is whole
/// only while a task reads it. What is cut for an update is cut beside it, and what updates make of
/// that alone is made there, too.
fn with_readers(graph: &Graph, pace: &Pace, classes: &mut [Vec<Class>]) {
    let mut is_gathered = vec![false; graph.node_count()];
    for (id, node) in graph.nodes() {
        let mut operands = node.operands.iter().map(|v| graph.value(*v).node.index());
        let i = id.index();
        let is_made_of_it = operands.any(|operand| is_gathered[operand]);
        let moves = match &node.op {
            Op::FlatSlice(_) => true,
            Op::FlatGather(gather) => pace.feeds_loop[i] && !gather.kept,
            // What is sent is sent once a step.
            Op::Transfer(_) => false,
            _ => is_made_of_it && (pace.feeds_loop[i] || node.origin.part == Part::Update),
        };
        is_gathered[i] = moves && classes[i] == [Class::Prepare];
    }
    for (id, _) in graph.nodes().rev().filter(|(id, _)| is_gathered[id.index()]) {
        let users = graph.users(id);
        let mut read: Vec<Class> = users.iter().flat_map(|user| classes[user.index()].iter().copied()).collect();
        read.sort();
        read.dedup();
        classes[id.index()] = read;
    }
}

/// The nodes of the backward pass that make the gradients of weights: those whose results are sums
/// over micro-batches, and what only they read and is computed element by element.
fn of_weights(lowered: &LoweredGraph<'_>, pace: &Pace) -> Vec<bool> {
    let graph = lowered.graph;
    let time = graph.mesh.microbatch_axis();
    let mut weight = vec![false; graph.node_count()];
    for (id, node) in graph.nodes().rev() {
        let i = id.index();
        if !pace.in_time[i] || node.origin.part == Part::Forward {
            continue;
        }
        let is_sum =
            matches!(node.op, Op::Accumulate(_)) || node.results.iter().all(|v| graph.sharding(*v).partial_over(time).is_some());
        let users = graph.users(id);
        let is_small = matches!(lowered.node(id), Lowered::Map(_) | Lowered::Alias(_));
        weight[i] = is_sum || (is_small && !users.is_empty() && users.iter().all(|user| weight[user.index()]));
    }
    weight
}

/// How each node relates to the loop over micro-batches.
struct Pace {
    /// It touches a value that depends on time.
    in_time: Vec<bool>,
    /// It depends on an accumulated value.
    late: Vec<bool>,
    /// Some node in time depends on it.
    feeds_loop: Vec<bool>,
    /// In time, and an accumulated value that the loop reads depends on it.
    early: Vec<bool>,
    /// In time, and needed by the main loop.
    main: Vec<bool>,
}

impl Pace {
    fn of(graph: &Graph) -> Pace {
        let n = graph.node_count();
        let time = graph.mesh.microbatch_axis();
        let is_accumulate = |id: NodeId| matches!(graph.node(id).op, Op::Accumulate(_));
        let def = |v: &ValueId| graph.value(*v).node;
        let mut r = Pace {
            in_time: vec![false; n],
            late: vec![false; n],
            feeds_loop: vec![false; n],
            early: vec![false; n],
            main: vec![false; n],
        };
        for (id, node) in graph.nodes() {
            let i = id.index();
            let mut values = node.operands.iter().chain(&node.results);
            r.in_time[i] = values.any(|v| graph.sharding(*v).depends_on(time));
            r.late[i] = node.operands.iter().any(|v| is_accumulate(def(v)) || r.late[def(v).index()]);
        }
        for (id, node) in graph.nodes().rev() {
            let i = id.index();
            for v in &node.operands {
                let d = def(v).index();
                r.feeds_loop[d] |= r.in_time[i] || r.feeds_loop[i];
            }
            if is_accumulate(id) && r.feeds_loop[i] {
                r.early[i] = true;
            }
            if r.early[i] {
                node.operands.iter().map(def).filter(|d| r.in_time[d.index()]).for_each(|d| r.early[d.index()] = true);
            }
        }
        for (id, node) in graph.nodes().rev() {
            let i = id.index();
            r.main[i] |= r.in_time[i] && !r.early[i];
            if r.main[i] {
                let needed = node.operands.iter().map(def).filter(|d| r.in_time[d.index()] && !is_accumulate(*d));
                needed.for_each(|d| r.main[d.index()] = true);
            }
        }
        r
    }
}
