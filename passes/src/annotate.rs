//! The shardings that the spec asks for: the seeds of propagation.
//!
//! `data axis=dp` splits dimension 0 of every input and label, after the axis of micro-batches, so
//! that micro-batch `j` holds the same samples under every mesh. `shard "w" [-, tp]` fixes the
//! dimensions it does not leave open. Refuses: a pattern without a match, a wrong number of
//! dimensions, sizes that do not divide; all of a spec together.

use crate::blocks::{is_block, is_joined, slices, with_whole};
use crate::pass::Context;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, counted, first_of, names_help};
use shardc_ir::graph::{Graph, Part, ValueId};
use shardc_ir::mesh::AxisId;
use shardc_ir::names::Names;
use shardc_ir::ops::Op;
use shardc_ir::reason::Reason;
use shardc_ir::sharding::{Splits, outermost};
use shardc_ir::spec::{DimSharding, Located, Shard, Source};
use std::collections::{BTreeMap, HashMap};

/// The statement of the spec about one dimension of one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// The value.
    pub value: ValueId,
    /// Its dimension.
    pub dim: usize,
    /// Who splits it.
    pub splits: Splits,
    /// Whether nothing may be added.
    pub closed: bool,
    /// The line that says so.
    pub line: u32,
}

/// Everything that the spec says of the values of `graph`. Later lines come later.
pub fn annotations(graph: &Graph, cx: &Context<'_>) -> Result<Vec<Annotation>, Diagnostics> {
    of_lines(graph, cx, batch_splits(graph, cx)?, |_| true)
}

/// Whether the lines that cut something into blocks of different sizes can be followed.
pub fn check_blocks(graph: &Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
    of_lines(graph, cx, vec![], |shard| shard.dims.iter().any(|dim| dim.value.unequal_blocks().is_some())).map(drop)
}

/// Annotations in order, found by their values.
struct Said<'g> {
    graph: &'g Graph,
    all: Vec<Option<Annotation>>,
    /// For each value, where annotations of it or of its slices are.
    about: HashMap<ValueId, Vec<usize>>,
}

impl<'g> Said<'g> {
    fn new(graph: &'g Graph, all: Vec<Annotation>) -> Said<'g> {
        let mut said = Said { graph, all: vec![], about: HashMap::new() };
        all.into_iter().for_each(|annotation| said.push(annotation));
        said
    }

    fn push(&mut self, annotation: Annotation) {
        for value in with_whole(self.graph, annotation.value) {
            self.about.entry(value).or_default().push(self.all.len());
        }
        self.all.push(Some(annotation));
    }

    /// Takes back what was said of `value`, if `also` says so, and all that was said of its slices.
    fn take_back(&mut self, value: ValueId, also: impl Fn(&Annotation) -> bool) {
        let Some(about) = self.about.get_mut(&value) else { return };
        about.retain(|at| {
            let stays = self.all[*at].as_ref().is_some_and(|a| a.value == value && !also(a));
            if !stays {
                self.all[*at] = None;
            }
            stays
        });
    }

    fn finish(self) -> Vec<Annotation> {
        self.all.into_iter().flatten().collect()
    }
}

/// The annotations of `said` and of the chosen `shard` lines.
fn of_lines(
    graph: &Graph,
    cx: &Context<'_>,
    said: Vec<Annotation>,
    chosen: impl Fn(&Shard) -> bool,
) -> Result<Vec<Annotation>, Diagnostics> {
    let mut said = Said::new(graph, said);
    let mut errors = vec![];
    let lines: Vec<&Located<Shard>> = cx.spec.shard.iter().filter(|shard| chosen(&shard.value)).collect();
    if lines.is_empty() {
        return Ok(said.finish());
    }
    let values = nameable(graph);
    let names = Names::new(values.iter().map(|(name, _)| *name));
    let last = last_of(&values, &names, cx);
    for shard in lines {
        let pattern = &shard.value.pattern;
        let mut found: Vec<(&str, ValueId)> = names.matching(&pattern.value).into_iter().map(|at| values[at]).collect();
        found.dedup_by_key(|(_, value)| *value);
        if found.is_empty() {
            let error = Diagnostic::error(format!("no parameter, input or value matches `{}`", pattern.value));
            // If no name is near, parameters say the most.
            let is_parameter = |value: ValueId| matches!(graph.def(value).op, Op::State(_));
            let (first, others): (Vec<_>, Vec<_>) = values.iter().copied().partition(|(_, value)| is_parameter(*value));
            let names = first.iter().chain(&others).map(|(name, _)| *name);
            let error = error.at(cx.spec.place_of(pattern.source));
            errors.push(error.help_early(errors.len(), || names_help(&pattern.value, names)));
        }
        let mut misfits = vec![];
        // A parameter is in blocks because of the last line that names it.
        found.retain(|(_, value)| !is_block(graph, *value) || last.get(value) == Some(&&shard.value));
        for (name, value) in found {
            // The line takes the place of earlier ones; `data` keeps the dimensions that it leaves
            // open.
            let says = |a: &Annotation| a.closed || shard.value.dims.get(a.dim).is_some_and(|e| e.value != DimSharding::Open);
            said.take_back(value, says);
            let ty = graph.ty(value);
            if ty.rank() != shard.value.dims.len() {
                let message = format!("\"{name}\" has {}, {ty}, not {}", counted(ty.rank(), "dimension"), shard.value.dims.len());
                misfits.push(Diagnostic::error(message).at(place(cx, shard.source)).help("write one entry for each dimension"));
                continue;
            }
            for (dim, entry) in shard.value.dims.iter().enumerate() {
                match splits(graph, value, dim, shard) {
                    Ok(found) => found.into_iter().for_each(|(value, splits)| {
                        let splits = without_single(graph, splits);
                        said.push(Annotation { value, dim, splits, closed: true, line: shard.source.line as u32 });
                    }),
                    Err(why) => {
                        let message = format!("dimension {dim} of \"{name}\", {ty}, cannot be split like this: {why}");
                        let error = Diagnostic::error(message).at(place(cx, entry.source));
                        misfits.push(match entry.value.unequal_blocks() {
                            Some(_) => error
                                .help("give all blocks of one dimension of a parameter or input, each a multiple of the ranks"),
                            None => error.help("use axes whose ranks divide it, or `-` to leave it whole"),
                        });
                    }
                }
            }
        }
        errors.extend(first_of(misfits, "that match"));
    }
    if errors.is_empty() { Ok(said.finish()) } else { Err(errors) }
}

/// The splits that a line gives dimension `dim` of a value that it names, or where its blocks
/// differ in size, of the slices of it.
fn splits(graph: &Graph, value: ValueId, dim: usize, shard: &Located<Shard>) -> Result<Vec<(ValueId, Splits)>, Reason> {
    let (entry, size, mesh) = (&shard.value.dims[dim].value, graph.ty(value).shape[dim], &graph.mesh);
    let only = |splits: Option<Splits>| splits.into_iter().map(|splits| (value, splits)).collect();
    let node = graph.def(value);
    let Some(blocks) = entry.unequal_blocks() else { return entry.splits(size, mesh).map(only) };
    if shard.value.dims[..dim].iter().any(|other| other.value.unequal_blocks().is_some()) {
        return Err("another dimension has blocks of different sizes too".into());
    }
    match &node.op {
        Op::State(_) if is_block(graph, value) => entry.of_block().splits(size, mesh).map(only),
        Op::State(_) => entry.splits(size, mesh).map(only),
        Op::Input(_) if dim == 0 => Err("the samples of a batch have no blocks of different sizes".into()),
        Op::Input(_) => {
            let mut found: Vec<(ValueId, Splits)> = only(entry.splits(size, mesh)?);
            for (block, size) in slices(graph, value, dim, blocks) {
                found.extend(entry.of_block().splits(size, mesh)?.map(|splits| (block, splits)));
            }
            Ok(found)
        }
        _ => Err("only parameters and inputs have blocks of different sizes".into()),
    }
}

/// For each value that `shard` lines name, the last of them.
pub fn last_lines<'s>(graph: &Graph, cx: &Context<'s>) -> BTreeMap<ValueId, &'s Shard> {
    if cx.spec.shard.is_empty() {
        return BTreeMap::new();
    }
    let values = nameable(graph);
    last_of(&values, &Names::new(values.iter().map(|(name, _)| *name)), cx)
}

fn last_of<'s>(values: &[(&str, ValueId)], names: &Names<'_>, cx: &Context<'s>) -> BTreeMap<ValueId, &'s Shard> {
    let named = |shard: &'s Located<Shard>| {
        let found = names.matching(&shard.value.pattern.value).into_iter();
        found.map(|at| (values[at].1, &shard.value)).collect::<Vec<_>>()
    };
    cx.spec.shard.iter().flat_map(named).collect()
}

fn place(cx: &Context<'_>, source: Source) -> shardc_ir::diagnostic::Place {
    cx.spec.place_of(source)
}

/// Splits over axes of one rank are none.
fn without_single(graph: &Graph, mut splits: Splits) -> Splits {
    splits.retain(|s| graph.mesh.size(s.axis) > 1);
    splits
}

/// Parameters by their names in the model, inputs, and the values of the forward pass by theirs.
fn nameable(graph: &Graph) -> Vec<(&str, ValueId)> {
    let mut out = vec![];
    for (_, node) in graph.nodes() {
        match &node.op {
            // The value is called after the module where the exporter made the initializer's name
            // up.
            Op::State(read) => {
                let (state, value) = (&graph.states[read.state.index()], node.results[0]);
                let names = match &state.block {
                    Some(block) => [Some(block.of.as_str()), block.alias.as_deref()],
                    None => [Some(state.name.as_str()), Some(&*graph.value(value).name)],
                };
                out.extend(names.into_iter().flatten().map(|name| (name, value)));
            }
            Op::Input(input) => out.push((input.name.as_str(), node.results[0])),
            _ if node.origin.part != Part::Forward => {}
            _ if is_joined(graph, node) => {}
            _ => out.extend(node.results.iter().map(|v| (&*graph.value(*v).name, *v))),
        }
    }
    out
}

/// Dimension 0 of inputs and labels: micro-batches, then the data axes.
fn batch_splits(graph: &Graph, cx: &Context<'_>) -> Result<Vec<Annotation>, Diagnostics> {
    let mesh = &graph.mesh;
    let data = cx.spec.data_everywhere();
    let mut axes: Vec<AxisId> = vec![mesh.microbatch_axis()];
    axes.extend(data.iter().flat_map(|d| d.value.axes.iter().copied()));
    axes.retain(|a| mesh.size(*a) > 1);
    let source = data.map(|d| d.source).or(cx.spec.batch.as_ref().map(|b| b.source));
    let line = source.map_or(0, |s| s.line as u32);
    let mut out = vec![];
    for (_, node) in graph.nodes() {
        let Op::Input(input) = &node.op else { continue };
        let value = node.results[0];
        let Some(size) = graph.ty(value).shape.first().copied() else { continue };
        let Ok(splits) = outermost(size, 1, &axes, mesh) else {
            let parts: u64 = axes.iter().map(|a| mesh.size(*a)).product();
            let message = format!(
                "`{}` holds {}, which {parts} micro-batches and data ranks do not divide",
                input.name,
                counted(size, "sample")
            );
            let place = cx.spec.batch.as_ref().map(|b| place(cx, b.source));
            return Err(Diagnostic::error(message).at_opt(place).help(format!("use a multiple of {parts}")).into());
        };
        out.push(Annotation { value, dim: 0, splits, closed: false, line });
    }
    Ok(out)
}
