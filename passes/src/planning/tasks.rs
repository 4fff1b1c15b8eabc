//! Which nodes run when: once, or once for each micro-batch; and the order that follows.
//!
//! With one micro-batch the parts of the step follow one another: `F B update`. With more, a node
//! that touches a value split or partial over time runs in the loop `F0.0 B0.0 F0.1 B0.1 …`. A
//! value that the loop needs of all micro-batches at once (the number of labels that count) is
//! computed before it, by a first loop over the nodes it depends on; those that the main loop needs
//! too run again.

use shardc_ir::graph::{Graph, NodeId, Part};
use shardc_ir::ops::Op;
use shardc_ir::plan::Row;

/// When a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Once a step.
    Once,
    /// Once for each micro-batch; neighbours that do so run together as one loop.
    EachMicrobatch,
}

/// The order of tasks that repeat so.
pub fn order(repeats: &[Repeat], microbatches: u64) -> Vec<Row> {
    let mut rows = vec![];
    let mut first = 0;
    for tasks in repeats.chunk_by(|a, b| a == b) {
        let times = if tasks[0] == Repeat::EachMicrobatch { microbatches } else { 1 };
        let tasks = first..first + tasks.len() as u32;
        rows.extend((0..times).flat_map(|time| tasks.clone().map(move |task| Row::Run { task, time })));
        first = tasks.end;
    }
    rows
}

/// A task: its nodes in program order. Leaves are in none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskNodes {
    /// `prepare`, `prologue`, `settle`, `F`, `B`, `update`.
    pub name: &'static str,
    /// When it runs.
    pub repeat: Repeat,
    /// The nodes that it runs.
    pub nodes: Vec<NodeId>,
}

/// The tasks of a graph in order; `Err` names a value that the loop needs of all micro-batches
/// while it depends on another such.
pub fn assign(graph: &Graph) -> Result<Vec<TaskNodes>, NodeId> {
    if graph.mesh.microbatches() == 1 {
        return Ok(by_part(graph));
    }
    let relations = Relations::of(graph);
    let mut tasks = vec![
        TaskNodes { name: "prepare", repeat: Repeat::Once, nodes: vec![] },
        TaskNodes { name: "prologue", repeat: Repeat::EachMicrobatch, nodes: vec![] },
        TaskNodes { name: "settle", repeat: Repeat::Once, nodes: vec![] },
        TaskNodes { name: "F", repeat: Repeat::EachMicrobatch, nodes: vec![] },
        TaskNodes { name: "B", repeat: Repeat::EachMicrobatch, nodes: vec![] },
        TaskNodes { name: "update", repeat: Repeat::Once, nodes: vec![] },
    ];
    for (id, node) in compute_nodes(graph) {
        let i = id.index();
        if relations.in_time[i] {
            if relations.early[i] {
                if relations.late[i] {
                    return Err(id);
                }
                tasks[1].nodes.push(id);
            }
            if relations.main[i] {
                tasks[if node.origin.part == Part::Forward { 3 } else { 4 }].nodes.push(id);
            }
        } else if !relations.late[i] {
            tasks[0].nodes.push(id);
        } else if relations.feeds_loop[i] {
            tasks[2].nodes.push(id);
        } else {
            tasks[5].nodes.push(id);
        }
    }
    // Two loops with nothing between them would be one: after a prologue `settle` stays, empty or
    // not.
    let has_prologue = !tasks[1].nodes.is_empty();
    tasks.retain(|t| !t.nodes.is_empty() || (has_prologue && t.name == "settle"));
    Ok(tasks)
}

fn by_part(graph: &Graph) -> Vec<TaskNodes> {
    let task = |name, part| TaskNodes {
        name,
        repeat: Repeat::Once,
        nodes: compute_nodes(graph).filter(|(_, n)| n.origin.part == part).map(|(id, _)| id).collect(),
    };
    let mut tasks = vec![task("F", Part::Forward), task("B", Part::Backward), task("update", Part::Update)];
    tasks.retain(|t| !t.nodes.is_empty());
    tasks
}

fn compute_nodes(graph: &Graph) -> impl Iterator<Item = (NodeId, &shardc_ir::graph::Node)> {
    graph.nodes().filter(|(_, n)| !matches!(n.op, Op::Input(_) | Op::State(_) | Op::Constant(_) | Op::Host(_)))
}

/// How each node relates to the loop over micro-batches.
struct Relations {
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

impl Relations {
    fn of(graph: &Graph) -> Relations {
        let n = graph.node_count();
        let time = graph.mesh.microbatch_axis();
        let is_accumulate = |id: NodeId| matches!(graph.node(id).op, Op::Accumulate(_));
        let def = |v: &shardc_ir::graph::ValueId| graph.value(*v).node;
        let mut r = Relations {
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
