//! Appends the backward pass: the gradient of `loss` in every trained parameter, built from
//! ordinary ops.
//!
//! Before: `%l` is the output `loss`. After: each parameter that reaches it has its `gradient`.
//! Gradients of slices that are neighbours become one concat instead of a sum of padded pieces,
//! and those of a recurrent weight one product over all steps (`stacked.rs`).
//! Needs phase `raised`, gives `differentiated`. Refuses a loss that depends on the statistics of a
//! norm; an op that nothing flows back through ends the path. Source: reverse accumulation,
//! Griewank and Walther, Evaluating Derivatives (2008).

mod stacked;

use crate::differentiate::stacked::stacked;
use crate::pass::{Context, Mode, Pass};
use crate::weights::weights;
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Node, NodeId, Part, Phase, State, StateId, ValueId};
use shardc_ir::ops::cast_policy::CastPolicy;
use shardc_ir::ops::elementwise::RoundTo;
use shardc_ir::ops::{Backward, Op, layout};
use shardc_ir::plan::StateRole;
use shardc_ir::spec::{FloatType, LossScale};
use shardc_ir::train::{LOSS_SCALE, StateInit};
use shardc_ir::types::Type;
use std::collections::BTreeSet;

/// See the module.
pub struct Differentiate;

impl Pass for Differentiate {
    fn name(&self) -> &'static str {
        "differentiate"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Raised
    }

    fn gives(&self) -> Phase {
        Phase::Differentiated
    }

    fn modes(&self) -> &'static [Mode] {
        &[Mode::Train]
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let Some(loss) = graph.outputs.iter().find(|o| o.name == "loss").map(|o| o.value) else {
            return Ok(());
        };
        let forward = graph.take();
        let parameters = parameter_reads(&forward);
        let kept = cx.spec.precision.as_ref().and_then(|line| line.value.gradients).map(FloatType::dtype);
        let scaling = cx.spec.precision.as_ref().and_then(|line| line.value.scaling());
        *graph = gradients(forward, loss, &parameters, kept.filter(|dtype| dtype.is_half()), scaling)?;
        Ok(())
    }
}

/// The reads of trained parameters.
fn parameter_reads(graph: &Graph) -> Vec<bool> {
    let mut reads = vec![false; graph.value_count()];
    for (_, node) in graph.nodes() {
        if let Op::State(read) = &node.op {
            reads[node.results[0].index()] = graph.states[read.state.index()].role == StateRole::Parameter;
        }
    }
    reads
}

/// The graph with its backward pass; the gradients of parameters are `kept` in a type of their own.
fn gradients(
    forward: Graph,
    loss: ValueId,
    parameters: &[bool],
    kept: Option<DType>,
    scaling: Option<LossScale>,
) -> Result<Graph, Diagnostics> {
    let needed = forward.reached_from(|v| parameters[v.index()]);
    let nodes = backwards(&forward);
    let mut contributions: Vec<Vec<ValueId>> = vec![vec![]; forward.value_count()];
    let mut b = Builder::extend(forward);
    b.origin.part = Part::Backward;
    let seed = loss_scale(&mut b, loss, scaling);
    contributions[loss.index()].push(seed);
    for id in nodes {
        let node = b.graph().node(id).clone();
        let flows = node.results.iter().any(|v| needed[v.index()] && !contributions[v.index()].is_empty());
        if !flows {
            continue;
        }
        (b.origin.scope, b.origin.reason) = (node.origin.scope.clone(), node.origin.reason.clone());
        b.origin.stage = node.origin.stage;
        let grads: Vec<Option<ValueId>> = node
            .results
            .iter()
            .map(|v| {
                let parts = std::mem::take(&mut contributions[v.index()]);
                (!parts.is_empty()).then(|| combine(&mut b, *v, &parts))
            })
            .collect();
        if let Op::State(read) = &node.op {
            let state = read.state.index();
            let gradient = grads[0].expect("it flows");
            let all = match b.graph().states[state].gradient {
                Some(other) => added(&mut b, other, gradient),
                None => gradient,
            };
            let all = kept.map_or(all, |dtype| b.cast(all, dtype));
            let name = format!("{}.grad", b.graph().states[state].name);
            b.rename(all, &name);
            b.graph_mut().states[state].gradient = Some(all);
            continue;
        }
        if grads[1..].iter().any(Option::is_some) {
            let names: Vec<String> = node.results[1..].iter().map(|v| format!("`{}`", b.graph().value(*v).name)).collect();
            let message = format!("the loss depends on the statistics {} of a `{}`", names.join(", "), node.op.name());
            return Err(Diagnostic::error(message).help("only its first result can be differentiated").into());
        }
        let needs: Vec<bool> = node.operands.iter().map(|v| needed[v.index()]).collect();
        let read = Read::of(&mut b, &node, grads);
        let Read { operands, results, grads } = &read;
        let mut cx = Backward { b: &mut b, operands, results, grads, needs: &needs, out: vec![] };
        if node.op.rules().gradient(&mut cx).is_ok() {
            for (i, gradient) in cx.out {
                if needs[i] {
                    contributions[node.operands[i].index()].push(gradient);
                }
            }
        }
    }
    Ok(b.finish())
}

/// The nodes, from the last to the first, but for those that make weights: each comes as soon as
/// all that reads it has come. So the gradient of a parameter is whole where its products are.
fn backwards(forward: &Graph) -> Vec<NodeId> {
    let weights = weights(forward);
    let mut left: Vec<usize> = forward.nodes().map(|(id, _)| forward.users(id).len()).collect();
    let mut has_come = vec![false; left.len()];
    let mut order = vec![];
    for (id, _) in forward.nodes().rev() {
        let mut next = vec![id];
        while let Some(id) = next.pop() {
            if std::mem::replace(&mut has_come[id.index()], true) {
                continue;
            }
            order.push(id);
            let made_by: BTreeSet<NodeId> = forward.node(id).operands.iter().map(|v| forward.value(*v).node).collect();
            for of in made_by {
                left[of.index()] -= 1;
                if left[of.index()] == 0 && forward.node(of).results.iter().all(|v| weights[v.index()]) {
                    next.push(of);
                }
            }
        }
    }
    order
}

/// The gradient of the loss: 1, or what it is scaled by.
fn loss_scale(b: &mut Builder, loss: ValueId, scaling: Option<LossScale>) -> ValueId {
    match scaling {
        None => b.number_like(loss, 1.0),
        Some(LossScale::Constant(scale)) => b.number_like(loss, scale),
        Some(LossScale::Dynamic { initial, .. }) => {
            let (_, scale) = scaling_state(b, LOSS_SCALE, DType::F32, StateInit::Value(initial));
            let dtype = b.ty(loss).dtype;
            b.cast(scale, dtype)
        }
    }
}

/// Appends a number that loss scaling remembers, and its reading. Names of the model go before.
pub fn scaling_state(b: &mut Builder, name: &str, dtype: DType, init: StateInit) -> (StateId, ValueId) {
    let states = &mut b.graph_mut().states;
    let mut name = name.to_string();
    while states.iter().any(|state| state.name == name) {
        name.push('_');
    }
    states.push(State::new(name, Type::scalar(dtype), StateRole::Scaling, init));
    let id = StateId(states.len() as u32 - 1);
    (id, b.state(id))
}

/// What the gradient rule of a node reads, in the types in which it is computed. What flows back is
/// wide until a product reads it: gradients of narrow values are rounded as late as can be.
struct Read {
    operands: Vec<ValueId>,
    results: Vec<ValueId>,
    grads: Vec<Option<ValueId>>,
}

impl Read {
    fn of(b: &mut Builder, node: &Node, grads: Vec<Option<ValueId>>) -> Read {
        let as_it_is = |grads| Read { operands: node.operands.clone(), results: node.results.clone(), grads };
        match node.op.cast_policy() {
            CastPolicy::Product | CastPolicy::Selects => {
                let rounded = |g: Option<ValueId>| g.map(|g| as_operands(b, node, g));
                as_it_is(grads.into_iter().map(rounded).collect())
            }
            CastPolicy::Moves | CastPolicy::Table | CastPolicy::Own => as_it_is(grads),
            _ => {
                let mut wide = |v: ValueId| {
                    let dtype = b.ty(v).dtype;
                    b.cast(v, dtype.computed())
                };
                Read {
                    operands: node.operands.iter().map(|v| wide(*v)).collect(),
                    results: node.results.iter().map(|v| wide(*v)).collect(),
                    grads: grads.into_iter().map(|g| g.map(&mut wide)).collect(),
                }
            }
        }
    }
}

/// A gradient rounded as the operands of a product are.
fn as_operands(b: &mut Builder, node: &Node, gradient: ValueId) -> ValueId {
    let format = node.operands.iter().find_map(|v| match &b.graph().def(*v).op {
        Op::RoundTo(op) => Some(op.format),
        _ => None,
    });
    let dtype = b.ty(node.operands[0]).dtype;
    let gradient = b.cast(gradient, dtype);
    format.map_or(gradient, |format| b.op(RoundTo { format }, &[gradient]))
}

/// The sum of what flows back to `value`.
fn combine(b: &mut Builder, value: ValueId, parts: &[ValueId]) -> ValueId {
    let dtype = b.ty(parts[0]).dtype;
    let parts = &match parts.iter().all(|part| b.ty(*part).dtype == dtype) {
        true => parts.to_vec(),
        false => parts.iter().map(|part| b.cast(*part, dtype.computed())).collect(),
    }[..];
    let joined = joined_pieces(b, value, parts);
    let parts = joined.as_deref().unwrap_or(parts);
    if let Some(whole) = stacked(b, parts) {
        return whole;
    }
    let mut sum = parts[0];
    for part in &parts[1..] {
        sum = added(b, sum, *part);
    }
    sum
}

/// A sum with one more term, in the stage that has made the term: from each stage that reads a
/// value one gradient comes back.
fn added(b: &mut Builder, sum: ValueId, term: ValueId) -> ValueId {
    let own = b.origin.stage;
    let dtype = b.ty(sum).dtype;
    let (sum, term) =
        if b.ty(term).dtype == dtype { (sum, term) } else { (b.cast(sum, dtype.computed()), b.cast(term, dtype.computed())) };
    b.origin.stage = b.graph().def(term).origin.stage.or(own);
    let sum = b.add(sum, term);
    b.origin.stage = own;
    sum
}

/// So many padded pieces that are not all of a value are joined nevertheless. Fewer stay as they
/// are: a dimension that is cut at other places than its blocks cannot be split.
const MANY: usize = 8;

/// The terms with neighbours among them joined, if they are padded pieces along one dimension, of
/// which no two overlap, and that are all of the value, or many.
fn joined_pieces(b: &mut Builder, value: ValueId, parts: &[ValueId]) -> Option<Vec<ValueId>> {
    let piece = |part: &ValueId| match b.graph().def(*part) {
        Node { op: Op::Pad(pad), operands, .. } if pad.step == 1 => Some((pad.start, pad.axis, operands[0])),
        _ => None,
    };
    let mut pieces = parts.iter().map(piece).collect::<Option<Vec<_>>>().filter(|pieces| pieces.len() > 1)?;
    pieces.sort_by_key(|(start, ..)| *start);
    let axis = pieces[0].1;
    // Each with where it begins and ends.
    let mut runs: Vec<(u64, u64, Vec<ValueId>)> = vec![];
    for (start, own, piece) in pieces {
        let end = start + b.ty(piece).shape[axis];
        match runs.last_mut() {
            _ if own != axis => return None,
            Some((_, last, _)) if *last > start => return None,
            Some((_, last, run)) if *last == start => {
                *last = end;
                run.push(piece);
            }
            _ => runs.push((start, end, vec![piece])),
        }
    }
    let size = b.ty(value).shape[axis];
    let is_whole = runs.len() == 1 && (runs[0].0, runs[0].1) == (0, size);
    if !is_whole && parts.len() < MANY {
        return None;
    }
    let term = |(start, end, run): (u64, u64, Vec<ValueId>)| {
        let whole = if run.len() > 1 { b.op(layout::Concat { axis }, &run) } else { run[0] };
        if end - start < size { b.op(layout::Pad { axis, start, step: 1, size }, &[whole]) } else { whole }
    };
    Some(runs.into_iter().map(term).collect())
}
