//! Random specs for a graph: meshes of up to three axes, micro-batches, splits of parameters, inputs and inner values.

use super::graphs::{BATCH, Choices};
use shardc_ir::graph::Graph;
use shardc_ir::ops::Op;

/// A spec without its loss line.
pub fn draw(choices: &mut Choices, graph: &Graph) -> String {
    let (mesh, data): (&[(&str, u64)], &str) = choices.pick(&[
        (&[("dp", 2)], "dp"),
        (&[("dp", 4)], "dp"),
        (&[("tp", 2)], ""),
        (&[("dp", 2), ("tp", 2)], "dp"),
        (&[("tp", 2), ("dp", 2)], "dp"),
        (&[("dp", 2), ("fsdp", 2)], "(dp,fsdp)"),
        (&[("dp", 2), ("tp", 2), ("up", 2)], "dp"),
    ]);
    let microbatches = choices.pick(&[1, 2, 1, 2]);
    let names: Vec<String> = mesh.iter().map(|(n, k)| format!("{n}={k}")).collect();
    let mut text = format!("mesh {}\nbatch {BATCH} microbatches={microbatches}\n", names.join(" "));
    if !data.is_empty() {
        text += &format!("data axis={data}\n");
    }
    let free: Vec<(&str, u64)> = mesh.iter().copied().filter(|(n, _)| !data.contains(n)).collect();
    let lines = if free.is_empty() { choices.below(2) } else { 1 + choices.below(4) };
    let axes = if free.is_empty() { mesh.to_vec() } else { free };
    for _ in 0..lines {
        text += &shard_line(choices, graph, &axes);
    }
    // LAMB takes no parameters in blocks of different sizes.
    let optimizers = if text.contains('|') { 3 } else { 4 };
    text += choices.pick(
        &[
            "optimizer sgd lr=0.1\n",
            "optimizer adamw lr=0.01\n",
            "optimizer sgd lr=0.1 momentum=0.9\n",
            "optimizer lamb lr=0.01\n",
        ][..optimizers],
    );
    if choices.one_in(2) {
        text += "clip norm=0.5\n";
    }
    if graph.nodes().any(|(_, n)| matches!(n.op, Op::BatchNorm(_))) && (microbatches > 1 || choices.one_in(3)) {
        text += choices.pick(&["batchnorm statistics=microbatch\n", "batchnorm statistics=rank\n"]);
    }
    text
}

/// A split of one dimension of a parameter, or now and then of an inner value.
fn shard_line(choices: &mut Choices, graph: &Graph, axes: &[(&str, u64)]) -> String {
    let inner = choices.one_in(5);
    let live = live(graph);
    let candidates: Vec<(String, Vec<u64>)> = graph
        .nodes()
        .filter(|(id, _)| live[id.index()])
        .filter_map(|(_, node)| match &node.op {
            Op::State(read) if !inner => {
                Some((graph.states[read.state.index()].name.clone(), graph.ty(node.results[0]).shape.clone()))
            }
            Op::State(_) | Op::Input(_) | Op::Constant(_) => None,
            _ if inner => Some((graph.value(node.results[0]).name.clone(), graph.ty(node.results[0]).shape.clone())),
            _ => None,
        })
        .collect();
    let Some((name, shape)) = candidates.get(choices.below(candidates.len())) else { return String::new() };
    let (axis, size) = choices.pick(axes);
    let first = usize::from(inner);
    let splittable: Vec<usize> = (first..shape.len()).filter(|d| shape[*d].is_multiple_of(size)).collect();
    if splittable.is_empty() {
        return String::new();
    }
    let dim = splittable[choices.below(splittable.len())];
    let blocks = if shape[dim].is_multiple_of(size * 2) && choices.one_in(4) { "2*" } else { "" };
    let parts = shape[dim] / size;
    let first = 1 + choices.below(parts as usize) as u64;
    let blocks = if !inner && first < parts && 2 * first != parts && choices.one_in(3) {
        format!("({}|{})*", first * size, (parts - first) * size)
    } else {
        blocks.to_string()
    };
    let entries: Vec<String> = (0..shape.len())
        .map(|d| match d {
            _ if d == dim => format!("{blocks}{axis}"),
            _ if inner || choices.one_in(3) => "?".to_string(),
            _ => "-".to_string(),
        })
        .collect();
    format!("shard \"{name}\" [{}]\n", entries.join(", "))
}

/// For each node, whether the output needs it.
fn live(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.node_count()];
    graph.roots().for_each(|v| live[graph.value(v).node.index()] = true);
    for (id, node) in graph.nodes().rev() {
        if live[id.index()] {
            node.operands.iter().for_each(|v| live[graph.value(*v).node.index()] = true);
        }
    }
    live
}
