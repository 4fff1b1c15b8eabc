//! Cuts what each parameter is trained with over the ranks that split the batch.
//!
//! Before: `%w2 = adam %w, %g, …` on every rank. After stage 1: `%w2, %m2, %v2 : f32[64, 10]
//! flat(dp)`, and the states that `%m2` and `%v2` update alike; the reshards come later. At stage 2
//! the gradient of each micro-batch is cut as it is reduced, at stage 3 the parameter is, too, and
//! what nothing trains. Which `zero` line is a parameter's follows from the modules that read it.
//! The flat values are those that an update makes of the gradient element by element. Parameters
//! that are a single number stay whole. Refuses: a pattern without a match, two lines for one
//! parameter, axes that split it already, and updates that divide zero by zero where a line is
//! filled up. Needs and keeps phase `annotated`. Source: Rajbhandari et al., ZeRO: Memory
//! Optimizations Toward Training Trillion Parameter Models (2020).

use crate::pass::{Context, Mode, Pass};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, names_help};
use shardc_ir::graph::{Graph, NodeId, Part, Phase, ValueId};
use shardc_ir::mesh::AxisId;
use shardc_ir::names::matches_scope;
use shardc_ir::ops::Op;
use shardc_ir::plan::StateRole;
use shardc_ir::sharding::Sharding;
use shardc_ir::spec::{Located, OptimizerRule, Source, Spec, Zero, ZeroStage};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// See the module.
pub struct CutStates;

impl Pass for CutStates {
    fn name(&self) -> &'static str {
        "zero"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Annotated
    }

    fn gives(&self) -> Phase {
        Phase::Annotated
    }

    fn modes(&self) -> &'static [Mode] {
        Mode::ALL
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let mut errors: Diagnostics = vec![];
        let lines = lines(graph, cx.spec, &mut errors);
        let uses = Uses::of(graph);
        let mut refused: Vec<(&Located<Zero>, Refusal, Vec<String>)> = vec![];
        for (state, line) in lines.into_iter().enumerate() {
            let Some(line) = line else { continue };
            let Err(refusal) = cut(graph, &uses, state, line, cx.spec) else { continue };
            let name = graph.states[state].name.clone();
            match refused.iter_mut().find(|(of, why, _)| of.source == line.source && *why == refusal) {
                Some((.., names)) => names.push(name),
                None => refused.push((line, refusal, vec![name])),
            }
        }
        let error = |(line, refusal, names): (&Located<Zero>, Refusal, Vec<String>)| {
            refusal.diagnostic(graph, &names).at(cx.spec.place_of(line.source))
        };
        errors.extend(refused.into_iter().map(error));
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

/// Why a parameter cannot be cut.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Refusal {
    /// The axis splits it.
    Split(AxisId),
    /// Zeros that fill it up are divided by this number, which is 0 in single precision.
    SmallEps(f64),
}

impl Refusal {
    /// In words, for these parameters.
    fn diagnostic(self, graph: &Graph, names: &[String]) -> Diagnostic {
        let of = listed(names);
        match self {
            Refusal::Split(axis) => Diagnostic::error(format!("`{}` splits {of} already", graph.mesh.name(axis)))
                .help("cut over other axes, or leave the module out with an `on=` line of stage 0"),
            Refusal::SmallEps(eps) => {
                let message = format!(
                    "{of} cannot be cut into equal ranges, and the update divides the zeros that fill them up by eps={eps:e}"
                );
                Diagnostic::error(message).help("use a larger `eps`")
            }
        }
    }
}

/// For each state variable that its readers' `zero` line is about, that line.
pub fn lines<'s>(graph: &Graph, spec: &'s Spec, errors: &mut Diagnostics) -> Vec<Option<&'s Located<Zero>>> {
    let parts: Vec<&Located<Zero>> = spec.zero.iter().filter(|line| line.value.on.is_some()).collect();
    let mut reached: Vec<Vec<&Located<Zero>>> = vec![vec![]; graph.states.len()];
    let mut is_read = vec![false; graph.states.len()];
    let (mut found, mut scopes) = (BTreeSet::new(), BTreeSet::new());
    for (id, node) in graph.nodes() {
        let Op::State(read) = &node.op else { continue };
        let state = &graph.states[read.state.index()];
        let is_cut = matches!(state.role, StateRole::Parameter | StateRole::Frozen) && state.ty.rank() > 0;
        let readers = graph.users(id).into_iter().map(|user| graph.node(user)).filter(|user| user.origin.part == Part::Forward);
        for reader in readers.filter(|_| is_cut) {
            let scope = reader.origin.scope.as_deref().unwrap_or("");
            let is_of = |line: &&&Located<Zero>| line.value.on.as_ref().is_some_and(|on| matches_scope(&on.value, scope));
            let own: Vec<&Located<Zero>> = parts.iter().filter(is_of).copied().collect();
            found.extend(own.iter().map(|line| line.source));
            scopes.insert(scope);
            is_read[read.state.index()] = true;
            reached[read.state.index()].extend(own);
        }
    }
    errors.extend(contradictions(graph, spec, &reached));
    for line in parts.into_iter().filter(|line| !found.contains(&line.source)) {
        let Some(on) = &line.value.on else { continue };
        let error = Diagnostic::error(format!("no module that reads a parameter matches `{}`", on.value));
        let error = error.at(spec.place_of(on.source));
        errors.push(error.help_early(errors.len(), || names_help(&on.value, scopes.iter().copied())));
    }
    // A line for a part of the model goes before the one for all of it.
    let of = |(lines, is_read): (Vec<&'s Located<Zero>>, bool)| {
        lines.last().copied().or_else(|| spec.zero_everywhere().filter(|_| is_read))
    };
    reached.into_iter().zip(is_read).map(of).collect()
}

/// An error for each two lines that say different things about the same state variables.
fn contradictions(graph: &Graph, spec: &Spec, reached: &[Vec<&Located<Zero>>]) -> Diagnostics {
    let mut pairs: BTreeMap<(Source, Source), Vec<&str>> = BTreeMap::new();
    for (state, lines) in graph.states.iter().zip(reached) {
        let Some((last, others)) = lines.split_last() else { continue };
        let said = |line: &Located<Zero>| (line.value.stage, line.value.axes.clone());
        if let Some(other) = others.iter().find(|other| said(other) != said(last)) {
            let pair = (other.source.min(last.source), other.source.max(last.source));
            pairs.entry(pair).or_default().push(&state.name);
        }
    }
    let error = |((first, second), names): ((Source, Source), Vec<&str>)| {
        let error = Diagnostic::error(format!("`zero` says two things about {}", listed(&names)));
        let error = error.at(spec.place_of(second)).label(format!("the other is on line {}", first.line));
        error.help("give all modules that read a parameter one stage and the same axes")
    };
    pairs.into_iter().map(error).collect()
}

/// `"a" and 2 more`
fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let first = format!("\"{}\"", names[0].as_ref());
    if names.len() == 1 { first } else { format!("{first} and {} more", names.len() - 1) }
}

/// Whether a line cuts the gradients of micro-batches one by one.
pub fn cuts_gradients(line: Option<&Located<Zero>>) -> bool {
    line.is_some_and(|line| line.value.stage >= ZeroStage::Gradients)
}

/// Where state variables are read, and what they become.
struct Uses {
    /// For each, its reads.
    reads: Vec<Vec<ValueId>>,
    /// For each value that is an update, whose.
    updated: HashMap<ValueId, Vec<usize>>,
}

impl Uses {
    fn of(graph: &Graph) -> Uses {
        let mut uses = Uses { reads: vec![vec![]; graph.states.len()], updated: HashMap::new() };
        for (_, node) in graph.nodes() {
            if let Op::State(read) = &node.op {
                uses.reads[read.state.index()].push(node.results[0]);
            }
        }
        for (i, update) in graph.states.iter().enumerate().filter_map(|(i, state)| Some((i, state.update?))) {
            uses.updated.entry(update).or_default().push(i);
        }
        uses
    }

    /// The reads of these.
    fn reads_of<'u>(&'u self, states: &'u [usize]) -> impl Iterator<Item = ValueId> + 'u {
        states.iter().flat_map(|state| self.reads[*state].iter().copied())
    }
}

/// Cuts one parameter, or what is trained with it.
fn cut(graph: &mut Graph, uses: &Uses, state: usize, line: &Located<Zero>, spec: &Spec) -> Result<(), Refusal> {
    let Zero { stage, axes, .. } = &line.value;
    let flat: Vec<AxisId> = axes.iter().copied().filter(|axis| graph.mesh.size(*axis) > 1).collect();
    if *stage == ZeroStage::Replicated || flat.is_empty() {
        return Ok(());
    }
    let own = &graph.states[state];
    if let Some(axis) = flat.iter().find(|axis| own.sharding.splits(**axis)) {
        return Err(Refusal::Split(*axis));
    }
    let gradient: Vec<ValueId> = own.gradient.into_iter().collect();
    let made = flat_values(graph, &own.ty.shape, &gradient);
    let updated = made.iter().filter_map(|value| uses.updated.get(value)).flatten().copied();
    let mut states: Vec<usize> = updated.filter(|i| *i != state).collect();
    let copies = copies(graph, uses, state);
    // Without moments there is nothing to cut but the update, at the same price.
    if *stage == ZeroStage::Optimizer && states.is_empty() && copies.is_empty() {
        return Ok(());
    }
    // What is made of a moment or of the parameter alone is cut with what it meets.
    let mut met = gradient.clone();
    if !made.is_empty() {
        met.extend(uses.reads_of(&[state]).chain(uses.reads_of(&states)));
    }
    let values = flat_values(graph, &own.ty.shape, &met);
    let cut = |sharding: &Sharding| Sharding { flat: flat.clone(), ..sharding.clone() };
    let pads = cut(&own.sharding).is_padded(&own.ty.shape, &graph.mesh);
    if let (true, Some(eps)) = (pads && !values.is_empty(), small_eps(spec)) {
        return Err(Refusal::SmallEps(eps));
    }
    // The model reads rounded copies of a master, which is for its update alone.
    if *stage == ZeroStage::Parameters || !copies.is_empty() {
        states.push(state);
    }
    let cut_reads = uses.reads_of(&states);
    for i in states.iter().copied() {
        graph.states[i].sharding = cut(&graph.states[i].sharding);
    }
    for value in values.into_iter().chain(cut_reads).chain(copies).chain(gradient) {
        let sharding = cut(graph.sharding(value));
        graph.set_sharding(value, sharding);
        flat.iter().for_each(|axis| graph.set_asked(value, *axis, line.source.line as u32));
    }
    Ok(())
}

/// The rounded copies of a parameter, if the model reads nothing else of it.
fn copies(graph: &Graph, uses: &Uses, state: usize) -> Vec<ValueId> {
    let mut copies = vec![];
    for read in uses.reads[state].iter().copied() {
        for user in graph.users(graph.value(read).node).into_iter().map(|user| graph.node(user)) {
            match (user.op.converts_to(), user.origin.part) {
                (_, Part::Update) => {}
                (Some(to), _) if to.is_half() => copies.extend(&user.results),
                _ => return vec![],
            }
        }
    }
    copies
}

/// For each value, whether it is a rounded copy that its line leaves whole for the step.
pub fn kept_copies(graph: &Graph, lines: &[Option<&Located<Zero>>]) -> Vec<bool> {
    let (mut kept, uses) = (vec![false; graph.value_count()], Uses::of(graph));
    for (state, line) in lines.iter().enumerate() {
        if line.is_some_and(|line| line.value.stage < ZeroStage::Parameters) {
            copies(graph, &uses, state).into_iter().for_each(|copy| kept[copy.index()] = true);
        }
    }
    kept
}

/// What updates make of values of this shape, element by element.
fn flat_values(graph: &Graph, shape: &[u64], of: &[ValueId]) -> Vec<ValueId> {
    let mut known: HashSet<ValueId> = of.iter().copied().collect();
    let mut values = vec![];
    let mut next: BTreeSet<NodeId> = of.iter().flat_map(|value| graph.users(graph.value(*value).node)).collect();
    while let Some(id) = next.pop_first() {
        let node = graph.node(id);
        if node.origin.part != Part::Update || !node.operands.iter().any(|v| known.contains(v)) {
            continue;
        }
        for result in node.results.iter().filter(|v| graph.ty(**v).shape == *shape) {
            if known.insert(*result) {
                values.push(*result);
                next.extend(graph.users(id));
            }
        }
    }
    values
}

/// The optimizer's eps, if it is 0 in single precision.
fn small_eps(spec: &Spec) -> Option<f64> {
    let (OptimizerRule::Adam(m) | OptimizerRule::AdamW(m) | OptimizerRule::Lamb(m)) = &spec.optimizer.as_ref()?.value.rule else {
        return None;
    };
    (m.eps as f32 == 0.0).then_some(m.eps)
}
