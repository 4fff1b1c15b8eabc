//! From the explicit graph to a program for each position of a pipeline: tasks, their order,
//! messages, fused kernels, buffers, joined calls and one static arena.

mod buckets;
mod buffers;
mod bundle;
mod emit;
mod fuse;
mod in_place;
pub mod inputs;
mod memory;
mod messages;
mod occupied;
mod order;
mod pace;
pub mod schedule;
mod tasks;
mod units;

use crate::pass::Context;
use fuse::Fusion;
use inputs::Allowed;
use messages::Messages;
use order::{Schedule, Turn};
use pace::Class;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::{Graph, NodeId};
use shardc_ir::lower::graph::LoweredGraph;
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::lives::slots;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferKind, Program, Row};
use shardc_ir::train::{Decay, LearningRate};
use std::collections::{BTreeMap, BTreeSet};
use tasks::{TaskNodes, Tasks};

/// The programs of all ranks of the graph's mesh: one for each position of the pipeline.
///
/// # Errors
/// If micro-batches cannot be taken one after another, or the schedule of a file cannot be run.
pub fn plan(graph: &Graph, cx: &Context<'_>) -> Result<PlanSet, Diagnostics> {
    let pipeline = cx.spec.pipeline.as_ref().map(|pipeline| &pipeline.value);
    let axis = pipeline.map(|pipeline| pipeline.axis).filter(|axis| graph.mesh.size(*axis) > 1);
    let here = positions(graph, axis);
    let schedule = Schedule::of(cx.spec)?;
    let tasks = tasks::assign(graph, &here, schedule.splits_weights()).map_err(|id| circular(graph, id, cx))?;
    let weigh = |task: &TaskNodes| task.nodes.iter().map(|id| here[task.position].work(*id).flops).fold(0, u64::saturating_add);
    let shape = (here.len(), graph.mesh.microbatches());
    let order = order::order(&tasks, pipeline, &schedule, shape, weigh)?;
    let messages = messages::messages(graph, &tasks, &order);
    let allowed = inputs::allowed(graph, cx.spec);
    let program = |(position, (here, messages)): (usize, (&LoweredGraph<'_>, &Messages))| {
        let mut program = program(here, &tasks, position, &order.rows[position], messages, cx);
        for input in &mut program.inputs {
            let Allowed { range, except } = allowed.get(&input.name).copied().unwrap_or_default();
            (input.range, input.except) = (range, except);
        }
        program
    };
    let programs: Vec<Program> = here.iter().zip(&messages).enumerate().map(program).collect();
    Ok(PlanSet { axes: axis.into_iter().collect(), of: (0..programs.len()).collect(), programs })
}

/// The graph as the ranks at each position have it.
fn positions<'g>(graph: &'g Graph, axis: Option<AxisId>) -> Vec<LoweredGraph<'g>> {
    let first = LoweredGraph::new(graph);
    let Some(axis) = axis else { return vec![first] };
    let at = |position: u64| {
        let mut coordinates = graph.mesh.coordinates(0);
        coordinates[axis.index()] = position;
        first.at(&coordinates)
    };
    (0..graph.mesh.size(axis)).map(at).collect()
}

/// The program of the ranks at a position.
fn program(
    here: &LoweredGraph<'_>,
    tasks: &Tasks,
    position: usize,
    rows: &[Turn],
    messages: &Messages,
    cx: &Context<'_>,
) -> Program {
    let graph = here.graph;
    let first =
        TaskNodes { position, class: Class::Prepare, stage: position as u32, part: 0, nodes: vec![], after: BTreeSet::new() };
    let mut own: Vec<&TaskNodes> = vec![];
    let mut number: BTreeMap<usize, usize> = BTreeMap::new();
    let begins = tasks.at(position).next().is_some_and(|(_, task)| task.class == Class::Prepare);
    if graph.mesh.microbatches() > 1 && !begins {
        own.push(&first);
    }
    let added = own.len();
    for (of_all, task) in tasks.at(position) {
        number.insert(of_all, own.len());
        own.push(task);
    }
    let mut loops = vec![false; graph.node_count()];
    for task in own.iter().filter(|task| emit::is_loop(here, task)) {
        task.nodes.iter().for_each(|id| loops[id.index()] = true);
    }
    let fusion = Fusion::new(here, &loops);
    let emitted = emit::emit(here, &fusion, &own, &messages.ends, &runs(graph, tasks, rows));
    let mut order: Vec<Row> = (0..added).map(|task| Row::Run { task: task as u32, time: 0 }).collect();
    for at in 0..=rows.len() {
        order.extend(messages.gaps.get(&at).map(|there| Row::Exchange(there.clone())));
        order.extend(rows.get(at).map(|(task, time)| Row::Run { task: number[task] as u32, time: *time }));
    }
    for more in own.len()..emitted.tasks.len() {
        let times = if emitted.loops[more] { graph.mesh.microbatches() } else { 1 };
        order.extend((0..times).map(|time| Row::Run { task: more as u32, time }));
    }
    let mut program = Program {
        name: graph.name.clone(),
        mesh: graph.mesh.clone(),
        batch: cx.spec.batch.as_ref().map_or(0, |b| b.value.size),
        buffers: emitted.buffers,
        arena_bytes: 0,
        states: emitted.states,
        inputs: emitted.inputs,
        constants: emitted.constants,
        outputs: emitted.outputs,
        order,
        tasks: emitted.tasks,
        messages: emitted.messages,
        learning_rate: cx.spec.learning_rate().unwrap_or(LearningRate { lr: 0.0, warmup: 0, decay: Decay::Constant }),
        seed: cx.spec.seed.as_ref().map_or(0, |s| s.value),
    };
    buckets::join(&mut program, &emitted.loops);
    units::gather(&mut program);
    without_empty_tasks(&mut program);
    set_slots(&mut program);
    in_place::join(&mut program);
    set_slots(&mut program);
    memory::place(&mut program);
    program
}

/// For each node the first and the last row that runs it; none of leaves and transfers.
fn runs(graph: &Graph, tasks: &Tasks, rows: &[Turn]) -> Vec<Option<(usize, usize)>> {
    let mut runs: Vec<Option<(usize, usize)>> = vec![None; graph.node_count()];
    for (row, (task, _)) in rows.iter().enumerate() {
        for id in &tasks.all[*task].nodes {
            runs[id.index()].get_or_insert((row, row)).1 = row;
        }
    }
    runs
}

/// Gives what passes as many slots as its micro-batches need.
fn set_slots(program: &mut Program) {
    let slots = slots(program);
    for (buffer, slots) in program.buffers.iter_mut().zip(slots) {
        if matches!(buffer.kind, BufferKind::Activation | BufferKind::Communication) {
            buffer.slots = slots;
        }
    }
}

/// Drops tasks that do nothing, and their rows.
fn without_empty_tasks(program: &mut Program) {
    let mut new: Vec<Option<u32>> = vec![];
    let mut kept = 0;
    for task in &program.tasks {
        new.push((!task.steps.is_empty()).then_some(kept));
        kept += u32::from(!task.steps.is_empty());
    }
    program.tasks.retain(|task| !task.steps.is_empty());
    let row = |row: Row| match row {
        Row::Run { task, time } => new[task as usize].map(|task| Row::Run { task, time }),
        row => Some(row),
    };
    program.order = std::mem::take(&mut program.order).into_iter().filter_map(row).collect();
}

fn circular(graph: &Graph, id: NodeId, cx: &Context<'_>) -> Diagnostics {
    let name = &graph.value(graph.node(id).results[0]).name;
    Diagnostic::error(format!("`{name}` needs all micro-batches at once, and others need it so too"))
        .at_opt(cx.spec.batch.as_ref().map(|b| cx.spec.place_of(b.source)))
        .help("use `microbatches=1`")
        .into()
}
