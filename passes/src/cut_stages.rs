//! Gives every node of the model a stage of the pipeline.
//!
//! Before: a model without stages. After: nodes that depend on a parameter have a stage, and those
//! of one stage follow one another in the program, but for what `place` lines name. What depends on
//! no parameter (positions, masks, labels) has none: it is computed where it is read.
//! Differentiation and the optimizer hand stages on, and `insert-reshards` makes places of them.
//! `cut=balance` makes the work of the stages' ranks as even as can be ([`balance`], [`on_rank`]),
//! `cut=after` ends stages where scopes end. Refuses: scopes that are not there or in another
//! order, more stages than nodes. Needs phase `raised`, keeps it.

mod balance;
mod cheapest;
mod on_rank;

use crate::pass::{Context, Mode, Pass};
use balance::{Item, Source};
use on_rank::OnRank;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, counted, names_help};
use shardc_ir::graph::{Graph, Node, NodeId, Phase, ValueId};
use shardc_ir::names::matches_scope;
use shardc_ir::ops::Op;
use shardc_ir::plan::StateRole;
use shardc_ir::spec::{Cut, Located, Pipeline};
use std::collections::{BTreeSet, HashMap};

/// See the module.
pub struct CutStages;

impl Pass for CutStages {
    fn name(&self) -> &'static str {
        "cut-stages"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Raised
    }

    fn gives(&self) -> Phase {
        Phase::Raised
    }

    fn modes(&self) -> &'static [Mode] {
        Mode::ALL
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let Some(pipeline) = &cx.spec.pipeline else {
            let Some(place) = cx.spec.place.first() else { return Ok(()) };
            let error = Diagnostic::error("`place` needs a `pipeline` line").at(cx.spec.place_of(place.source));
            return Err(error.help("add a line such as `pipeline axis=pp`, or remove it").into());
        };
        let stages = pipeline.value.stages(&graph.mesh);
        let anchored = anchored(graph);
        let mut stage_of = placed(graph, &anchored, cx)?;
        let rest: Vec<NodeId> = anchored.iter().copied().filter(|id| stage_of[id.index()].is_none()).collect();
        let ends = if rest.is_empty() { vec![] } else { ends(graph, &rest, pipeline, stages as usize, cx)? };
        for (i, id) in rest.iter().enumerate() {
            stage_of[id.index()] = Some(ends.partition_point(|end| *end <= i) as u32);
        }
        anchored.iter().for_each(|id| graph.set_stage(*id, stage_of[id.index()]));
        Ok(())
    }
}

/// The nodes that depend on a parameter, or, where nothing is trained, on any state variable; in
/// program order.
fn anchored(graph: &Graph) -> Vec<NodeId> {
    let reads = |roles: &[StateRole]| {
        let is_read = |v: ValueId| match &graph.def(v).op {
            Op::State(read) => roles.contains(&graph.states[read.state.index()].role),
            _ => false,
        };
        let reached = graph.reached_from(is_read);
        let computes = |(_, node): &(NodeId, &Node)| !node.operands.is_empty() && node.results.iter().any(|v| reached[v.index()]);
        graph.nodes().filter(computes).map(|(id, _)| id).collect::<Vec<_>>()
    };
    let trained = reads(&[StateRole::Parameter, StateRole::Statistic]);
    if trained.is_empty() { reads(&[StateRole::Frozen]) } else { trained }
}

/// For all stages but the last, by how many of the nodes they have begun when they end.
fn ends(
    graph: &Graph,
    anchored: &[NodeId],
    pipeline: &Located<Pipeline>,
    stages: usize,
    cx: &Context<'_>,
) -> Result<Vec<usize>, Diagnostics> {
    match &pipeline.value.cut {
        Cut::Balance => {
            let sharded = on_rank::sharded(graph, cx);
            let (items, sources) = items(graph, &OnRank::new(&sharded), anchored);
            balance::balance(&items, &sources, stages).ok_or_else(|| {
                let nodes =
                    counted(anchored.len(), "node that depends on parameters").replace("node that depends", "nodes that depend");
                let message = format!("the model cannot be cut into {stages} stages: it has {nodes}");
                let help = "use fewer ranks on the pipeline's axis, or fewer chunks";
                Diagnostic::error(message).at(cx.spec.place_of(pipeline.source)).help(help).into()
            })
        }
        Cut::After(scopes) => after(graph, anchored, scopes, pipeline, stages, cx),
    }
}

/// The nodes as the balance weighs them, and the values between them.
fn items(graph: &Graph, on_rank: &OnRank<'_>, anchored: &[NodeId]) -> (Vec<Item>, Vec<Source>) {
    let mut sources: Vec<Source> = vec![];
    let mut number: HashMap<ValueId, usize> = HashMap::new();
    let mut items: Vec<Item> = vec![];
    for (at, id) in anchored.iter().enumerate() {
        let node = graph.node(*id);
        let mut item = Item { flops: on_rank.flops(&graph.value(node.results[0]).name), held: 0, reads: vec![] };
        for value in node.operands.iter().chain(&node.results) {
            if let Some(source) = number.get(value) {
                item.reads.push(*source);
                continue;
            }
            let is_state = matches!(graph.def(*value).op, Op::State(_));
            // What depends on no parameter is computed where it is read.
            if is_state || graph.value(*value).node == *id {
                let bytes = on_rank.bytes(&graph.value(*value).name);
                item.held += if is_state { bytes } else { 0 };
                number.insert(*value, sources.len());
                sources.push(Source { item: at, bytes });
            }
        }
        items.push(item);
    }
    (items, sources)
}

/// The cut behind the last node of each of `scopes`.
fn after(
    graph: &Graph,
    anchored: &[NodeId],
    scopes: &[Located<String>],
    pipeline: &Located<Pipeline>,
    stages: usize,
    cx: &Context<'_>,
) -> Result<Vec<usize>, Diagnostics> {
    if scopes.len() + 1 != stages {
        let message = format!("{} cut the model into {}, not {stages}", counted(scopes.len(), "scope"), scopes.len() + 1);
        let help = format!("the pipeline has {}: name {}", counted(stages, "stage"), counted(stages - 1, "scope"));
        return Err(Diagnostic::error(message).at(cx.spec.place_of(pipeline.source)).help(help).into());
    }
    let mut errors: Diagnostics = vec![];
    let mut ends: Vec<usize> = vec![];
    for scope in scopes {
        let place = cx.spec.place_of(scope.source);
        let is_of = |id: &NodeId| scope_of(graph, *id).is_some_and(|path| matches_scope(&scope.value, path));
        let Some(last) = anchored.iter().rposition(is_of) else {
            errors.push(unknown_scope(graph, anchored, scope, errors.len()).at(place));
            continue;
        };
        let end = last + 1;
        if ends.last().is_some_and(|before| *before >= end) {
            let error = Diagnostic::error(format!("`{}` does not end after the scope before it", scope.value)).at(place);
            errors.push(error.help("name the scopes in the order in which the model runs them"));
        } else if end == anchored.len() {
            let error = Diagnostic::error(format!("nothing comes after `{}`", scope.value)).at(place);
            errors.push(error.help("the last stage is what comes after the last scope"));
        } else {
            ends.push(end);
        }
    }
    if errors.is_empty() { Ok(ends) } else { Err(errors) }
}

fn scope_of(graph: &Graph, id: NodeId) -> Option<&str> {
    graph.node(id).origin.scope.as_deref()
}

/// The error for a scope that is not there, after `earlier` ones.
fn unknown_scope(graph: &Graph, anchored: &[NodeId], scope: &Located<String>, earlier: usize) -> Diagnostic {
    let message = format!("no module that computes with parameters matches `{}`", scope.value);
    let paths = anchored.iter().filter_map(|id| scope_of(graph, *id));
    Diagnostic::error(message).help_early(earlier, || scopes_help(&scope.value, paths))
}

/// Help for whoever named a scope that is not there: those of `paths` with names like it.
pub(crate) fn scopes_help<'g>(pattern: &str, paths: impl Iterator<Item = &'g str>) -> String {
    let names: BTreeSet<&str> =
        paths.flat_map(|path| path.match_indices('.').map(|(dot, _)| &path[..dot]).chain([path])).collect();
    let what = "a module inside a form that is computed as a whole, such as attention, has no place of its own";
    format!("{}; {what}", names_help(pattern, names.iter().copied()))
}

/// The stages of what `place` lines name. Of several lines for a node the last counts.
fn placed(graph: &Graph, anchored: &[NodeId], cx: &Context<'_>) -> Result<Vec<Option<u32>>, Diagnostics> {
    let mut stage_of: Vec<Option<u32>> = vec![None; graph.node_count()];
    let mut errors: Diagnostics = vec![];
    for line in &cx.spec.place {
        let pattern = &line.value.pattern;
        let is_of = |id: &&NodeId| matches_scope(&pattern.value, scope_of(graph, **id).unwrap_or_default());
        let mut found = anchored.iter().filter(is_of).peekable();
        if found.peek().is_none() {
            errors.push(unknown_scope(graph, anchored, pattern, errors.len()).at(cx.spec.place_of(pattern.source)));
        }
        found.for_each(|id| stage_of[id.index()] = Some(line.value.stage as u32));
    }
    if errors.is_empty() { Ok(stage_of) } else { Err(errors) }
}
