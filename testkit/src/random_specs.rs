//! Random specs for a model: meshes of up to four axes, micro-batches, and splits of every form of
//! parameters, inputs and inner values.

use crate::random_graphs::{Choices, Model};
use crate::step;
use shardc_ir::graph::{Graph, Node, NodeId, ValueId};
use shardc_ir::letters::Role;
use shardc_ir::names::matches_scope;
use shardc_ir::ops::{Op, letters_of};
use shardc_passes::{Context, Mode};

/// The most ranks of a mesh.
const MAX_RANKS: u64 = 32;

/// An axis of the mesh: name and size.
type Axis = (&'static str, u64);

/// A spec without its loss line.
pub fn draw(choices: &mut Choices, model: &Model) -> String {
    let graph = &model.graph;
    let mut axes: Vec<Axis> = vec![];
    let count = choices.pick(&[1, 2, 2, 3, 3, 3, 4, 4]);
    for name in ["dp", "tp", "up", "vp"].into_iter().take(count) {
        let ranks: u64 = axes.iter().map(|(_, size)| size).product();
        axes.extend([(name, choices.pick(&[2, 2, 2, 2, 3, 4]))].into_iter().filter(|(_, size)| ranks * size <= MAX_RANKS));
    }
    let mesh: Vec<String> = axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
    let mut data: Vec<Axis> = vec![];
    let wanted = choices.pick(&[1, 1, 2, 2, 2, 0]);
    for _ in 0..wanted {
        let axis = choices.pick(&axes);
        let ranks: u64 = data.iter().map(|(_, size)| size).product();
        if !data.contains(&axis) && model.batch.is_multiple_of(ranks * axis.1) {
            data.push(axis);
        }
    }
    let ranks: u64 = data.iter().map(|(_, size)| size).product();
    let normalises = graph.nodes().any(|(_, n)| matches!(n.op, Op::BatchNorm(_)));
    // A group of one sample has no variance.
    let least = if normalises { 2 } else { 1 };
    let fits = |parts: &u64| model.batch.is_multiple_of(ranks * parts) && model.batch / (ranks * parts) >= least;
    let possible: Vec<u64> = [1, 2, 2, 2, 4].into_iter().filter(fits).collect();
    let microbatches = if possible.is_empty() { 1 } else { choices.pick(&possible) };
    let pipeline = pipeline(choices, axes.iter().map(|(_, size)| size).product(), microbatches);
    let stages = pipeline.as_ref().map_or(String::new(), |(stages, _)| format!(" pp={stages}"));
    let mut text = format!("mesh {}{stages}\nbatch {} microbatches={microbatches}\n", mesh.join(" "), model.batch);
    text.extend(pipeline.map(|(_, lines)| lines));
    // Random lines and models may leave an axis nothing to split.
    text.extend(axes.iter().map(|(axis, _)| format!("replicate axis={axis}\n")));
    if !data.is_empty() {
        let names: Vec<&str> = data.iter().map(|(name, _)| *name).collect();
        text += &format!("data axis=({})\n", names.join(","));
    }
    let scope = choices.pick(&["", "", "", "h.0", "h.1", "*.1", "h.*"]);
    let mut parts = microbatches;
    let mut chosen = vec![];
    for (name, size) in &axes {
        if model.batch.is_multiple_of(parts * size) && choices.one_in(2) {
            parts *= size;
            chosen.push(*name);
        }
    }
    if !scope.is_empty() && !chosen.is_empty() && !data.is_empty() {
        text += &format!("data axis=({}) on=\"{scope}\"\n", chosen.join(","));
    }
    // Sizes of random models divide by 2 more often than by 3 or 4; a `sequence` line needs layers
    // that are split.
    let free = axes.iter().copied().find(|axis| !data.contains(axis) && (axis.1 == 2 || choices.one_in(6)));
    let mut sequence = None;
    if let Some((axis, _)) = free.filter(|_| choices.below(3) > 0 || data.len() > 1) {
        text += &format!("tensor axis={axis}\n");
        sequence = Some(format!("sequence axis={axis}\n")).filter(|_| choices.below(4) > 0);
    }
    let (shared, zero) = zero(choices, &data, graph);
    let others: Vec<Axis> = axes.iter().copied().filter(|(axis, _)| !shared.contains(axis)).collect();
    let lines = choices.pick(&[0, 1, 2, 2, 3, 4, 6]);
    for _ in 0..lines {
        text += &shard_line(choices, model, &others, &data);
    }
    // LAMB takes no parameters in blocks of different sizes.
    let optimizers = if text.contains('|') { 3 } else { 4 };
    let all = ["sgd lr=0.1", "adamw lr=0.01", "sgd lr=0.1 momentum=0.9", "lamb lr=0.01"];
    text += &format!("optimizer {}\n", choices.pick(&all[..optimizers]));
    if choices.one_in(2) {
        text += "clip norm=0.5\n";
    }
    text += &zero;
    if normalises && (microbatches > 1 || choices.one_in(3)) {
        let by_rank = model.batch / (ranks * microbatches) >= least && choices.one_in(2);
        text += &format!("batchnorm statistics={}\n", if by_rank { "rank" } else { "microbatch" });
    }
    // Few models have layers that are split, and tokens between them.
    let text = match sequence.map(|line| format!("{text}{line}")) {
        Some(longer) if is_taken(model, &longer) => longer,
        _ => text,
    };
    recompute(choices, graph) + &text
}

/// Now and then what is computed again: modules, or all that is cheap.
fn recompute(choices: &mut Choices, graph: &Graph) -> String {
    let (drawn, scope) = (choices.below(5) < 2, choices.pick(&["", "*", "*", "h.0", "h.*", "*.1"]));
    let live = live(graph);
    let is_of =
        |id: NodeId, node: &Node| live[id.index()] && node.origin.scope.as_deref().is_some_and(|own| matches_scope(scope, own));
    match scope {
        _ if !drawn => String::new(),
        "" => "recompute selective\n".to_string(),
        _ if graph.nodes().any(|(id, node)| is_of(id, node)) => format!("recompute \"{scope}\"\n"),
        _ => String::new(),
    }
}

/// Whether the passes take the model under a spec without its loss line.
fn is_taken(model: &Model, text: &str) -> bool {
    let spec = step::spec(&format!("{text}loss {}\n", model.loss));
    spec.is_ok_and(|spec| {
        shardc_passes::run(model.graph.clone(), &Context { spec: &spec, mode: Mode::Train, verify: false }).is_ok()
    })
}

/// Now and then shares of what parameters are trained with, over all or some of the axes of data:
/// these axes, and the lines.
fn zero(choices: &mut Choices, data: &[Axis], graph: &Graph) -> (Vec<&'static str>, String) {
    let (drawn, stage, all) = (choices.below(3) > 0, choices.pick(&[1, 2, 3]), choices.one_in(4));
    let (scope, other) = (choices.pick(&["", "", "h.0", "h.*"]), choices.pick(&[0, 1, 1, 2, 2, 3, 3]));
    let axes: Vec<&str> = data.iter().map(|(name, _)| *name).take(if all { data.len() } else { 1 }).collect();
    if !drawn || axes.is_empty() {
        return (vec![], String::new());
    }
    let list = axes.join(",");
    let mut lines = format!("zero stage={stage} axis=({list})\n");
    if reads_parameters(graph, scope) {
        lines += &format!("zero stage={other} axis=({list}) on=\"{scope}\"\n");
    }
    (axes, lines)
}

/// Whether a module of this pattern reads a parameter.
fn reads_parameters(graph: &Graph, scope: &str) -> bool {
    let is_state = |value: &ValueId| matches!(graph.def(*value).op, Op::State(_)) && graph.ty(*value).rank() > 0;
    let mut readers = graph.nodes().filter(|(_, node)| node.operands.iter().any(is_state));
    readers.any(|(_, node)| node.origin.scope.as_deref().is_some_and(|own| matches_scope(scope, own)))
}

/// Now and then a pipeline beside so many ranks: how many positions it has, and its lines.
fn pipeline(choices: &mut Choices, ranks: u64, microbatches: u64) -> Option<(u64, String)> {
    let (drawn, stages) = (choices.below(5) < 2, choices.pick(&[2, 2, 2, 3, 4]));
    let drawn_schedule = choices.below(6);
    let placed = choices.pick(&["", "", "", "h.0", "h.1", "*.1"]);
    let at = choices.below(stages as usize);
    if !drawn || ranks * stages > MAX_RANKS {
        return None;
    }
    let schedule = match drawn_schedule {
        0..=2 if microbatches.is_multiple_of(stages) => "interleaved(chunks=2)",
        0 | 1 | 3 | 4 if microbatches > 1 => "zb-h1",
        1..=4 => "gpipe",
        _ => "1f1b",
    };
    let mut lines = format!("pipeline axis=pp schedule={schedule}\n");
    if !placed.is_empty() {
        lines += &format!("place \"{placed}\" stage={at}\n");
    }
    Some((stages, lines))
}

/// The kind of value that a line names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Parameter,
    Input,
    Inner,
}

/// Splits of a parameter, or now and then of an input or an inner value.
fn shard_line(choices: &mut Choices, model: &Model, axes: &[Axis], data: &[Axis]) -> String {
    let kind = choices.pick(&[Kind::Parameter, Kind::Parameter, Kind::Parameter, Kind::Inner, Kind::Inner, Kind::Input]);
    let candidates = candidates(&model.graph, kind);
    let Some((name, shape, whole)) = candidates.get(choices.below(candidates.len())) else { return String::new() };
    let mut free = axes.to_vec();
    // Splits that are refused are drawn now and then.
    if kind == Kind::Input && !choices.one_in(20) {
        free.retain(|axis| !data.contains(axis));
    }
    let first = usize::from(kind != Kind::Parameter);
    let mut entries = vec!["?".to_string(); first.min(shape.len())];
    let mut unequal = kind == Kind::Inner;
    for (dim, size) in shape.iter().enumerate().skip(first) {
        let known = model.fused.iter().find(|(of, d, _)| of == name && *d == dim).map(|(_, _, sizes)| sizes.as_slice());
        let size = if whole[dim] && !choices.one_in(20) { 1 } else { *size };
        let entry = entry(choices, size, &mut free, if unequal { None } else { Some(known.unwrap_or(&[])) });
        unequal |= entry.contains('|');
        entries.push(entry);
    }
    format!("shard \"{name}\" [{}]\n", entries.join(", "))
}

/// How one dimension is split, by axes that are free. `blocks` are the sizes of its blocks, none if
/// any will do; without them it has no blocks of different sizes.
fn entry(choices: &mut Choices, size: u64, free: &mut Vec<Axis>, blocks: Option<&[u64]>) -> String {
    let form = choices.below(10);
    let fitting: Vec<Axis> = free.iter().copied().filter(|(_, ranks)| size.is_multiple_of(*ranks)).collect();
    let closed = |choices: &mut Choices| choices.pick(&["-", "?"]).to_string();
    if form < 2 || fitting.is_empty() {
        return closed(choices);
    }
    let (axis, ranks) = choices.pick(&fitting);
    let part = size / ranks;
    let second = free.iter().copied().find(|(other, n)| *other != axis && part.is_multiple_of(*n));
    let text = match (form, second, blocks) {
        (2 | 3, _, Some([])) if part >= 3 => {
            let first = 1 + choices.below(part as usize - 1) as u64;
            if 2 * first == part { axis.to_string() } else { format!("({}|{})*{axis}", first * ranks, (part - first) * ranks) }
        }
        (2..=5, _, Some(sizes)) if !sizes.is_empty() && sizes.iter().all(|n| n.is_multiple_of(ranks)) => {
            format!("({})*{axis}", sizes.iter().map(u64::to_string).collect::<Vec<_>>().join("|"))
        }
        (4, _, _) if part.is_multiple_of(2) => format!("2*{axis}"),
        (5, _, _) if part.is_multiple_of(3) => format!("3*{axis}"),
        (6, Some((other, n)), _) if part.is_multiple_of(n) => {
            free.retain(|(name, _)| *name != other);
            format!("({axis},{other})")
        }
        (7, Some((other, n)), _) => {
            free.retain(|(name, _)| *name != other);
            format!("[{ranks}:{axis} {n}:{other} {}]", part / n)
        }
        (8, _, _) if part > 1 => format!("[{part} {ranks}:{axis}]"),
        _ => axis.to_string(),
    };
    free.retain(|(name, _)| *name != axis);
    text
}

/// The names and shapes of what lives in the graph, and for each dimension whether all that read it
/// need it whole.
fn candidates(graph: &Graph, kind: Kind) -> Vec<(String, Vec<u64>, Vec<bool>)> {
    let live = live(graph);
    let found = graph.nodes().filter(|(id, _)| live[id.index()]).filter_map(|(_, node)| {
        let value = graph.value(node.results[0]);
        let (name, of) = match &node.op {
            Op::State(read) => (graph.states[read.state.index()].name.as_str(), Kind::Parameter),
            Op::Input(input) => (input.name.as_str(), Kind::Input),
            Op::Constant(_) => return None,
            _ => (&*value.name, Kind::Inner),
        };
        let whole = |dim: usize| is_needed_whole(graph, node.results[0], dim);
        let rank = value.ty.rank();
        (of == kind && rank > 0).then(|| (name.to_string(), value.ty.shape.clone(), (0..rank).map(whole).collect()))
    });
    found.collect()
}

fn is_needed_whole(graph: &Graph, value: ValueId, dim: usize) -> bool {
    let mut readers = vec![];
    for (id, node) in graph.nodes() {
        let letters = letters_of(graph, id);
        for (i, _) in node.operands.iter().enumerate().filter(|(_, v)| **v == value) {
            readers.push(letters.operands[i][dim].iter().all(|l| letters.roles[*l] == Role::Whole));
        }
    }
    !readers.is_empty() && readers.into_iter().all(|whole| whole)
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
