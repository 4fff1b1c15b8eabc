//! Which nodes run when: once, or once for each micro-batch; and in which tasks.
//!
//! A task is all nodes of one stage that run at one pace and belong to one part of the step. With
//! one micro-batch the parts follow one another: `F B update`. With more, a node that touches a
//! value split or partial over time runs in the loop `F0.0 B0.0 F0.1 B0.1 …`. A value that the loop
//! needs of all micro-batches at once (the number of labels that count) is computed before it, by a
//! first loop over the nodes it depends on; those that the main loop needs too run again. Nodes
//! without a stage run in the task that reads them first.
//!
//! Stages follow one another, so their tasks do. What goes back and forth between stages, the norm
//! of all gradients or a branch that is placed elsewhere, would make tasks that wait for one
//! another in a circle: these come apart by how often the ways to a node, and those from it, change
//! tasks. So what a branch elsewhere needs, what runs beside it and what needs it are three tasks.

use super::pace::{Class, Relations};
use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use shardc_ir::graph::{Graph, Node, NodeId, ValueId};
use shardc_ir::lower::graph::LoweredGraph;
use shardc_ir::ops::Op;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A task: its nodes in the order in which they run. Leaves and transfers are in none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskNodes {
    /// The position of the pipeline's axis that runs it.
    pub position: usize,
    /// What it does, and at which pace.
    pub class: Class,
    /// The stage that it is of.
    pub stage: u32,
    /// Which of several of one class and stage it is, from 0.
    pub part: u32,
    /// The nodes that it runs.
    pub nodes: Vec<NodeId>,
    /// The tasks that it waits for, of any position.
    pub after: BTreeSet<usize>,
}

impl TaskNodes {
    /// `prepare`, `F`; of several of one class and stage the later ones have a number.
    pub fn name(&self) -> String {
        match self.part {
            0 => self.class.name().to_string(),
            part => format!("{}.{}", self.class.name(), part + 1),
        }
    }
}

/// The tasks of all positions, in an order in which they could run.
pub struct Tasks {
    /// The tasks.
    pub all: Vec<TaskNodes>,
    /// For each position, the tasks that run each node, by class.
    makers: Vec<HashMap<NodeId, Vec<(Class, usize)>>>,
    relations: Relations,
}

impl Tasks {
    /// The task, at that position, after which the results of a node are there for a reader of
    /// `class`; none of leaves.
    pub fn maker(&self, position: usize, id: NodeId, class: Class) -> Option<usize> {
        let makers = self.makers[position].get(&id)?;
        makers.iter().find(|(of, _)| of.is_beside(class)).or(makers.first()).map(|(_, task)| *task)
    }

    /// The classes that a node runs in, or, of a transfer, with which it is sent.
    pub fn classes(&self, id: NodeId) -> &[Class] {
        self.relations.classes(id)
    }

    /// The tasks of a position.
    pub fn at(&self, position: usize) -> impl Iterator<Item = (usize, &TaskNodes)> {
        self.all.iter().enumerate().filter(move |(_, task)| task.position == position)
    }
}

/// A task before circles are cut: position, class and stage.
type Key = (usize, Class, u32);

/// A node in a task.
type Place = (usize, NodeId, Class);

/// The tasks of a graph, whose positions are `here`; `splits_weights` keeps the gradients of
/// weights apart. `Err` names a value that the loop needs of all micro-batches while it depends on
/// another such.
pub fn assign(graph: &Graph, here: &[LoweredGraph<'_>], splits_weights: bool) -> Result<Tasks, NodeId> {
    let relations = Relations::of(&here[0], splits_weights)?;
    let stages: Vec<Vec<u32>> = here.iter().enumerate().map(|(at, here)| stages(graph, here, at as u32)).collect();
    let key = |(position, id, class): Place| -> Key { (position, class, stages[position][id.index()]) };
    // In the order of the graph, so that what is read comes first.
    let mut places: Vec<(Place, Vec<Place>)> = vec![];
    for (id, node) in graph.nodes().filter(|(_, node)| computes(node)) {
        for (position, _) in here.iter().enumerate().filter(|(_, here)| here.is_here(id)) {
            for class in relations.classes(id) {
                let reads = node.operands.iter().filter_map(|v| source(graph, here, &relations, position, *v, *class));
                places.push(((position, id, *class), reads.collect()));
            }
        }
    }
    let depths = depths(&places, key);
    let mut numbers: BTreeMap<(Key, Depth), usize> = BTreeMap::new();
    for (place, _) in &places {
        let next = numbers.len();
        numbers.entry((key(*place), depths[place])).or_insert(next);
    }
    let number = |place: &Place| numbers[&(key(*place), depths[place])];
    let mut all: Vec<TaskNodes> = vec![];
    let mut sorted: Vec<(&(Key, Depth), &usize)> = numbers.iter().collect();
    sorted.sort_by_key(|(_, number)| **number);
    for (((position, class, stage), _), _) in sorted {
        all.push(TaskNodes { position: *position, class: *class, stage: *stage, part: 0, nodes: vec![], after: BTreeSet::new() });
    }
    for (place, reads) in &places {
        let own = number(place);
        all[own].nodes.push(place.1);
        let after = reads.iter().map(number).filter(|other| *other != own);
        all[own].after.extend(after);
    }
    all.iter_mut().filter(|task| task.class == Class::Backward).for_each(|task| send_first(graph, task));
    Ok(ordered(all, here.len(), relations))
}

/// Puts products that no message of a micro-batch needs behind all else that a task does: gradients
/// of weights are computed while the position before works already. What costs less stays where
/// less memory is held. Source: Qi et al., Zero Bubble Pipeline Parallelism (2024).
fn send_first(graph: &Graph, task: &mut TaskNodes) {
    let time = graph.mesh.microbatch_axis();
    let is_sent = |id: NodeId| {
        let sends = |user: &NodeId| match &graph.node(*user).op {
            Op::Transfer(op) => {
                op.from as usize == task.position && graph.sharding(graph.node(*user).operands[0]).depends_on(time)
            }
            _ => false,
        };
        graph.users(id).iter().any(sends)
    };
    let made_by = |id: NodeId| graph.node(id).operands.iter().map(|v| graph.value(*v).node);
    let mut needed: BTreeSet<NodeId> = BTreeSet::new();
    for id in task.nodes.iter().rev() {
        if needed.contains(id) || is_sent(*id) {
            needed.insert(*id);
            needed.extend(made_by(*id));
        }
    }
    if needed.is_empty() {
        return;
    }
    let mut late: BTreeSet<NodeId> = BTreeSet::new();
    for id in task.nodes.iter().filter(|id| !needed.contains(id)) {
        if graph.node(*id).op.is_product() || made_by(*id).any(|of| late.contains(&of)) {
            late.insert(*id);
        }
    }
    // What only they read comes with them.
    for id in task.nodes.iter().rev().filter(|id| !needed.contains(id)) {
        let users = graph.users(*id);
        if !users.is_empty() && users.iter().all(|user| late.contains(user)) {
            late.insert(*id);
        }
    }
    task.nodes.sort_by_key(|id| late.contains(id));
}

/// Whether a node runs in a task.
pub fn computes(node: &Node) -> bool {
    !matches!(node.op, Op::Input(_) | Op::State(_) | Op::Constant(_) | Op::Host(_) | Op::Transfer(_))
}

/// The stage of each node at a position. One without a stage is of the stage that reads it first;
/// `own` is that of what nobody reads.
fn stages(graph: &Graph, here: &LoweredGraph<'_>, own: u32) -> Vec<u32> {
    let mut stages = vec![own; graph.node_count()];
    for (id, node) in here.nodes_here().collect::<Vec<_>>().into_iter().rev() {
        let read_by = || graph.users(id).into_iter().filter(|user| here.is_here(*user)).map(|user| stages[user.index()]);
        let first = match node.origin.part {
            shardc_ir::graph::Part::Backward => read_by().max(),
            _ => read_by().min(),
        };
        stages[id.index()] = node.origin.stage.or(first).unwrap_or(own);
    }
    stages
}

/// Where an operand of a node of `class` at a position was computed; none of leaves.
fn source(
    graph: &Graph,
    here: &[LoweredGraph<'_>],
    relations: &Relations,
    mut position: usize,
    mut value: ValueId,
    class: Class,
) -> Option<Place> {
    while let Op::Transfer(op) = &graph.def(value).op {
        (position, value) = (op.from as usize, graph.def(value).operands[0]);
    }
    let id = graph.value(value).node;
    let there = computes(graph.node(id)) && here.get(position).is_some_and(|here| here.is_here(id));
    let classes = relations.classes(id);
    // A first loop reads what it has computed itself.
    let same = classes.iter().copied().find(|of| of.is_beside(class));
    there.then(|| Some((position, id, same.or(classes.first().copied())?))).flatten()
}

/// How often the way to a node changes tasks at most, and the way from it.
type Depth = (u32, u32);

/// For each node in its task its depth, where tasks go round in a circle; else nothing. Along every
/// way the first number does not fall and the second does not rise, and where the task changes the
/// first rises: so tasks by depth go round no more.
fn depths(places: &[(Place, Vec<Place>)], key: impl Fn(Place) -> Key) -> HashMap<Place, Depth> {
    let mut tasks: DiGraph<(), ()> = DiGraph::new();
    let mut number: HashMap<Key, NodeIndex> = HashMap::new();
    for (place, reads) in places {
        for place in reads.iter().chain([place]) {
            number.entry(key(*place)).or_insert_with(|| tasks.add_node(()));
        }
        for read in reads {
            tasks.update_edge(number[&key(*read)], number[&key(*place)], ());
        }
    }
    let mut circle: Vec<usize> = vec![usize::MAX; tasks.node_count()];
    for (i, component) in tarjan_scc(&tasks).into_iter().enumerate().filter(|(_, component)| component.len() > 1) {
        component.into_iter().for_each(|task| circle[task.index()] = i);
    }
    let of = |place: &Place| circle[number[&key(*place)].index()];
    // By how much a way that goes round changes from one node to a reader.
    let change = |read: &Place, place: &Place| {
        let round = of(read) != usize::MAX && of(read) == of(place);
        round.then(|| u32::from(key(*read) != key(*place)))
    };
    let mut depths: HashMap<Place, Depth> = HashMap::new();
    for (place, reads) in places {
        let before = |read: &Place| Some(depths.get(read).map_or(0, |(to, _)| *to) + change(read, place)?);
        let to = reads.iter().filter_map(before).max().unwrap_or(0);
        depths.insert(*place, (to, 0));
    }
    for (place, reads) in places.iter().rev() {
        let from = depths[place].1;
        for read in reads {
            let Some(change) = change(read, place) else { continue };
            depths.entry(*read).and_modify(|(_, own)| *own = (*own).max(from + change));
        }
    }
    depths
}

/// The tasks in an order in which they could run, of those that could run next the first by class
/// and stage.
fn ordered(all: Vec<TaskNodes>, positions: usize, relations: Relations) -> Tasks {
    let rank = |task: usize| {
        let TaskNodes { class, stage, position, .. } = &all[task];
        let along = if *class == Class::Backward || *class == Class::Weight { u32::MAX - stage } else { *stage };
        (*class, along, *position, task)
    };
    let mut left: Vec<usize> = all.iter().map(|task| task.after.len()).collect();
    let mut readers: Vec<Vec<usize>> = vec![vec![]; all.len()];
    for (number, task) in all.iter().enumerate() {
        task.after.iter().for_each(|before| readers[*before].push(number));
    }
    let mut ready: BTreeSet<_> = (0..all.len()).filter(|task| left[*task] == 0).map(rank).collect();
    let mut order: Vec<usize> = vec![];
    while let Some((.., task)) = ready.pop_first() {
        order.push(task);
        for reader in &readers[task] {
            left[*reader] -= 1;
            if left[*reader] == 0 {
                ready.insert(rank(*reader));
            }
        }
    }
    let mut new: Vec<usize> = vec![0; all.len()];
    order.iter().enumerate().for_each(|(at, task)| new[*task] = at);
    let mut sorted: Vec<(usize, TaskNodes)> = new.iter().copied().zip(all).collect();
    sorted.sort_by_key(|(at, _)| *at);
    let mut parts: HashMap<Key, u32> = HashMap::new();
    let mut tasks = Tasks { all: vec![], makers: vec![HashMap::new(); positions], relations };
    for (at, task) in sorted {
        let part = parts.entry((task.position, task.class, task.stage)).or_insert(0);
        for id in &task.nodes {
            tasks.makers[task.position].entry(*id).or_default().push((task.class, at));
        }
        let after = task.after.iter().map(|before| new[*before]).collect();
        tasks.all.push(TaskNodes { part: *part, after, ..task });
        *part += 1;
    }
    tasks
}
