//! Gives batch normalisations the statistics of the batch, and moves their running statistics once
//! a step.
//!
//! Before: `%y = batch_norm %x, %scale, %bias, %mean, %variance` with running statistics. After:
//! mean and biased variance are reductions of `%x` over the samples and the dimensions behind the
//! channels, so that splits give the statistics of one device; what normalises are ordinary ops;
//! each running statistic has its `update`. With `batchnorm statistics=` the samples go in groups,
//! the outermost digit of the batch, each with statistics of its own; the running ones move by the
//! mean over the groups. A normalisation that the spec freezes stays as it was: over the running
//! statistics. Needs and keeps phase `raised`; for training only. Refuses: several micro-batches
//! without a `batchnorm` line, groups of one value, dimensions that do not begin with the samples,
//! running statistics that are something else too.

use crate::pass::{Context, Mode, Pass};
use crate::rewrite::{ValueMap, mapped, rebuild};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::{Graph, Node, NodeId, Part, Phase, StateId, ValueId};
use shardc_ir::letters::Assignment;
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::ops::batch_norm::BatchNorm;
use shardc_ir::ops::elementwise::Detach;
use shardc_ir::ops::{Op, letters_of};
use shardc_ir::plan::StateRole;
use shardc_ir::scalar::Unary;
use shardc_ir::sharding::{Sharding, Split, Splits};

/// Nodes that a message names.
const NAMED: usize = 3;

/// See the module.
pub struct BatchStatistics;

impl Pass for BatchStatistics {
    fn name(&self) -> &'static str {
        "batch-statistics"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Raised
    }

    fn gives(&self) -> Phase {
        Phase::Raised
    }

    fn modes(&self) -> &'static [Mode] {
        &[Mode::Train]
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let norms = find(graph)?;
        if norms.is_empty() {
            return Ok(());
        }
        let groups = cx.spec.statistics_groups();
        check(graph, cx, &norms, groups)?;
        let mut updates = vec![];
        let old = graph.take();
        *graph = rebuild(&old, |b, id, node, map| {
            let norm = norms.iter().find(|norm| norm.node == id)?;
            let (y, moved) = normalise(b, &old, norm, node, map, groups);
            b.rename(y, &old.value(node.results[0]).name);
            updates.extend(moved);
            Some(vec![y])
        });
        for (state, value) in updates {
            graph.states[state.index()].update = Some(value);
        }
        Ok(())
    }
}

/// A batch normalisation that follows the batch.
struct Norm {
    node: NodeId,
    op: BatchNorm,
    /// The running mean and variance, and their reads.
    running: [(StateId, ValueId); 2],
}

/// The source of a value in the place of a statistic.
enum Source {
    /// A running statistic, by its read.
    Running(StateId, ValueId),
    /// A parameter.
    Trained(StateId),
    /// Something that stays.
    Fixed,
}

/// All batch normalisations whose statistics are not frozen.
fn find(graph: &Graph) -> Result<Vec<Norm>, Diagnostics> {
    let mut norms: Vec<Norm> = vec![];
    for (id, node) in graph.nodes() {
        let Op::BatchNorm(op) = &node.op else { continue };
        let merged = |state: StateId| {
            let name = &graph.states[state.index()].name;
            let message = format!("`{name}` is a running statistic of {} and something else too", name_of(graph, id));
            Diagnostics::from(Diagnostic::error(message).help("export with `dynamo=True, optimize=False`, which merges nothing"))
        };
        match [source(graph, node.operands[3]), source(graph, node.operands[4])] {
            [Source::Trained(state), _] | [_, Source::Trained(state)] => return Err(merged(state)),
            [Source::Running(mean, read), Source::Running(variance, other)] => {
                let taken = |state: StateId| norms.iter().any(|n| n.running.iter().any(|(s, _)| *s == state));
                if let Some(state) = [mean, variance].into_iter().find(|s| taken(*s) || mean == variance) {
                    return Err(merged(state));
                }
                norms.push(Norm { node: id, op: op.clone(), running: [(mean, read), (variance, other)] });
            }
            _ => {}
        }
    }
    Ok(norms)
}

fn source(graph: &Graph, mut value: ValueId) -> Source {
    loop {
        let node = graph.def(value);
        match &node.op {
            Op::Reshape(_) => value = node.operands[0],
            Op::State(read) => {
                return match graph.states[read.state.index()].role {
                    StateRole::Statistic => Source::Running(read.state, value),
                    StateRole::Parameter => Source::Trained(read.state),
                    StateRole::Frozen | StateRole::Moment | StateRole::Scaling => Source::Fixed,
                };
            }
            _ => return Source::Fixed,
        }
    }
}

/// A node for people: its scope in the model, or its result.
fn name_of(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    format!("`{}`", node.origin.scope.as_ref().unwrap_or(&graph.value(node.results[0]).name))
}

fn check(graph: &Graph, cx: &Context<'_>, norms: &[Norm], groups: u64) -> Result<(), Diagnostics> {
    let spec = cx.spec;
    if let (None, Some(batch)) = (&spec.batchnorm, &spec.batch)
        && batch.value.microbatches > 1
    {
        let mut names: Vec<String> = norms.iter().take(NAMED).map(|norm| name_of(graph, norm.node)).collect();
        if norms.len() > NAMED {
            names.push(format!("{} more", norms.len() - NAMED));
        }
        let parts = batch.value.microbatches;
        let message = format!("batch normalisation in {} needs the whole batch, not {parts} micro-batches", names.join(", "));
        let error = Diagnostic::error(message).at(spec.place_of(batch.source));
        return Err(error.help("compute them for each micro-batch: `batchnorm statistics=microbatch`").into());
    }
    let place = spec.batchnorm.as_ref().map(|groups| spec.place_of(groups.source));
    let begins = begins_with_samples(graph, groups);
    for norm in norms {
        let (name, x) = (name_of(graph, norm.node), graph.node(norm.node).operands[0]);
        let ty = graph.ty(x);
        let shape = Shape::new(&ty.shape, groups);
        if groups > 1 && !begins[x.index()] {
            let message = format!("{name} normalises {ty}, which does not begin with the samples, in {groups} groups of samples");
            return Err(Diagnostic::error(message).at_opt(place).help("leave out the `batchnorm` line").into());
        }
        if shape.values == 1 {
            let message = format!("{name} has one value for each statistic: {ty} in {groups} groups");
            return Err(Diagnostic::error(message).at_opt(place).help("use a larger `batch`").into());
        }
    }
    Ok(())
}

/// For each value, whether the outermost digit of its first dimension is the group of samples, for
/// that many groups.
fn begins_with_samples(graph: &Graph, groups: u64) -> Vec<bool> {
    let (mesh, axis) = (Mesh::new([("group".to_string(), groups)], 1), AxisId(0));
    let outermost = |size: u64| -> Splits { vec![Split { axis, stride: size / groups }] };
    let mut shardings: Vec<Sharding> = graph.values().map(|(_, v)| Sharding::replicated(v.ty.rank())).collect();
    for (id, node) in graph.nodes() {
        if let Op::Input(input) = &node.op {
            if let Some(size) = input.ty.shape.first().filter(|n| n.is_multiple_of(groups)) {
                shardings[node.results[0].index()].dims[0] = outermost(*size);
            }
            continue;
        }
        let letters = letters_of(graph, id);
        let mut assignment: Assignment = vec![vec![]; letters.sizes.len()];
        for (value, dims) in node.operands.iter().zip(&letters.operands) {
            for (letter, split) in letters.to_letters(dims, &shardings[value.index()]).into_iter().flatten().flatten() {
                if let Some(splits) = letters.extend(&assignment, letter, split, &mesh) {
                    assignment[letter] = splits;
                }
            }
        }
        for (value, dims) in node.results.iter().zip(&letters.results) {
            shardings[value.index()].dims = letters.project(dims, &assignment);
        }
    }
    let begins = |(id, value): (ValueId, &shardc_ir::graph::Value)| {
        value.ty.shape.first().is_some_and(|size| shardings[id.index()].dims[0] == outermost(*size))
    };
    graph.values().map(begins).collect()
}

/// The shapes of an operand in groups, and of its statistics.
struct Shape {
    /// `[groups, samples, channels, …]`, without the first where there is one group.
    grouped: Vec<u64>,
    /// The dimensions that statistics are over.
    axes: Vec<usize>,
    /// The same with size 1 in those dimensions.
    column: Vec<u64>,
    /// Values for each statistic.
    values: u64,
}

impl Shape {
    fn new(x: &[u64], groups: u64) -> Shape {
        let mut grouped = x.to_vec();
        if groups > 1 {
            grouped[0] /= groups;
            grouped.insert(0, groups);
        }
        let samples = grouped.len() - x.len();
        let axes: Vec<usize> = (samples..grouped.len()).filter(|d| *d != samples + 1).collect();
        let column = (0..grouped.len()).map(|d| if axes.contains(&d) { 1 } else { grouped[d] }).collect();
        let values = axes.iter().map(|d| grouped[*d]).product();
        Shape { grouped, axes, column, values }
    }
}

/// The normalised value, and what the running statistics become.
fn normalise(
    b: &mut Builder,
    old: &Graph,
    norm: &Norm,
    node: &Node,
    map: &ValueMap,
    groups: u64,
) -> (ValueId, [(StateId, ValueId); 2]) {
    let [x, scale, bias] = [0, 1, 2].map(|i| mapped(map, node.operands[i]));
    b.base = Some(old.value(node.results[0]).name.clone());
    b.origin.reason = Some("for the statistics of the batch".into());
    let whole = b.ty(x).shape.clone();
    let shape = Shape::new(&whole, groups);
    let x = b.reshape(x, &shape.grouped);
    let share = 1.0 / shape.values as f64;
    let sum = b.sum(x, &shape.axes);
    let mean = b.scale(sum, share);
    // Nothing flows back through the mean inside the square: its gradient there is the sum of what
    // is centered, which is 0. So that the backward pass needs the sums over `g` and `g * centered`
    // only, what flows to the mean does so through `shift`, which is 0.
    let still = b.op(Detach {}, &[mean]);
    let still_column = b.reshape(still, &shape.column);
    let centered = b.sub(x, still_column);
    let square = b.mul(centered, centered);
    let sum = b.sum(square, &shape.axes);
    let variance = b.scale(sum, share);
    let safe = b.offset(variance, norm.op.eps);
    let root = b.unary(Unary::Sqrt.into(), safe);
    let root = b.reshape(root, &shape.column);
    let slope = b.div(scale, root);
    let shift = b.sub(mean, still);
    let shift = b.reshape(shift, &shape.column);
    let shift = b.mul(shift, slope);
    let level = b.sub(bias, shift);
    let scaled = b.mul(centered, slope);
    let y = b.add(scaled, level);
    let y = b.reshape(y, &whole);
    b.origin.part = Part::Update;
    let moved = [mean, variance].into_iter().zip(norm.running).map(|(statistic, (state, read))| {
        let statistic = if groups > 1 {
            let sum = b.sum(statistic, &[0]);
            b.scale(sum, 1.0 / groups as f64)
        } else {
            statistic
        };
        let running = mapped(map, read);
        let kept = b.scale(running, norm.op.momentum);
        let new = b.scale(statistic, 1.0 - norm.op.momentum);
        let new = b.add(kept, new);
        b.rename(new, &format!("{}.new", old.states[state.index()].name));
        (state, new)
    });
    let moved: Vec<(StateId, ValueId)> = moved.collect();
    (y, [moved[0], moved[1]])
}
