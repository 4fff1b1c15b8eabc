//! From the explicit graph to a program: tasks, fused kernels, buffers, joined calls and one
//! static arena.

mod buckets;
mod buffers;
mod emit;
mod fuse;
pub mod inputs;
mod memory;
mod occupied;
mod tasks;

use crate::pass::Context;
use fuse::Fusion;
use inputs::Allowed;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::{Graph, NodeId};
use shardc_ir::lower::graph::LoweredGraph;
use shardc_ir::plan::Program;
use shardc_ir::train::{Decay, LearningRate};
use tasks::Repeat;

/// The program of every rank of the graph's mesh.
///
/// # Errors
/// If micro-batches cannot be taken one after another.
pub fn plan(graph: &Graph, cx: &Context<'_>) -> Result<Program, Diagnostics> {
    let tasks = tasks::assign(graph).map_err(|id| circular(graph, id, cx))?;
    let lowered = LoweredGraph::new(graph);
    let fusion = Fusion::new(&lowered, &tasks_of_nodes(graph, &tasks));
    let emitted = emit::emit(&lowered, &fusion, &tasks);
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
        order: tasks::order(&emitted.repeats, graph.mesh.microbatches()),
        tasks: emitted.tasks,
        learning_rate: cx.spec.learning_rate().unwrap_or(LearningRate { lr: 0.0, warmup: 0, decay: Decay::Constant }),
        seed: cx.spec.seed.as_ref().map_or(0, |s| s.value),
    };
    let allowed = inputs::allowed(graph, cx.spec);
    for input in &mut program.inputs {
        let Allowed { range, except } = allowed.get(&input.name).copied().unwrap_or_default();
        (input.range, input.except) = (range, except);
    }
    buckets::join(&mut program, &emitted.repeats);
    memory::place(&mut program);
    Ok(program)
}

/// For each node, the tasks it runs in.
fn tasks_of_nodes(graph: &Graph, tasks: &[tasks::TaskNodes]) -> Vec<Vec<(usize, Repeat)>> {
    let mut out = vec![vec![]; graph.node_count()];
    for (t, task) in tasks.iter().enumerate() {
        for id in &task.nodes {
            out[id.index()].push((t, task.repeat));
        }
    }
    out
}

fn circular(graph: &Graph, id: NodeId, cx: &Context<'_>) -> Diagnostics {
    let name = &graph.value(graph.node(id).results[0]).name;
    Diagnostic::error(format!("`{name}` needs all micro-batches at once, and others need it so too"))
        .at_opt(cx.spec.batch.as_ref().map(|b| cx.spec.place_of(b.source)))
        .help("use `microbatches=1`")
        .into()
}
