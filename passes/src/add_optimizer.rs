//! Appends what happens once a step: the global norm of the gradients, clipping, and the update of
//! every parameter.
//!
//! Before: parameters have gradients. After: output `grad_norm`; moments are state variables; every
//! parameter has its `update`. The norm is the root of one f64 sum of squares a parameter, added in
//! the order in which the model first reads them, each in the stage of its parameter: a running sum
//! that goes from stage to stage. Needs and keeps phase `differentiated`.

mod scaling;

use crate::pass::{Context, Mode, Pass};
use scaling::Scaling;
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, NodeId, Output, Part, Phase, State, StateId, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::ops::leaf::Host;
use shardc_ir::ops::reduce::SquareSum;
use shardc_ir::ops::update::{Adam, Sgd};
use shardc_ir::plan::{HostScalar, StateRole};
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::spec::{Decayed, Located, Moments, Optimizer, OptimizerRule};
use shardc_ir::train::StateInit;

/// See the module.
pub struct AddOptimizer;

impl Pass for AddOptimizer {
    fn name(&self) -> &'static str {
        "add-optimizer"
    }

    fn needs(&self, _mode: Mode) -> Phase {
        Phase::Differentiated
    }

    fn gives(&self) -> Phase {
        Phase::Differentiated
    }

    fn modes(&self) -> &'static [Mode] {
        &[Mode::Train]
    }

    fn run(&self, graph: &mut Graph, cx: &Context<'_>) -> Result<(), Diagnostics> {
        let Some(optimizer) = &cx.spec.optimizer else { return Ok(()) };
        let gradients: Vec<(StateId, ValueId)> =
            graph.states.iter().enumerate().filter_map(|(i, s)| s.gradient.map(|g| (StateId(i as u32), g))).collect();
        if gradients.is_empty() {
            let place = cx.spec.loss.as_ref().map(|l| cx.spec.place_of(l.source));
            let error = Diagnostic::error("the loss depends on no trained parameter").at_opt(place);
            return Err(error.help("`shardc compile` prints what is trained; add a `train` line").into());
        }
        check_blocks(graph, cx, optimizer)?;
        let (reads, stages) = (graph.state_reads(), graph.stages_of_states());
        let first_read = first_reads(graph);
        let mut terms = gradients.clone();
        terms.sort_by_key(|(state, _)| first_read[state.index()]);
        let mut b = Builder::extend(graph.take());
        b.origin.part = Part::Update;
        let clipped = if cx.spec.clip.is_some() { " (clip)" } else { "" };
        b.origin.reason = Some(format!("for the norm of all gradients{clipped}").into());
        b.origin.spec_line = cx.spec.clip.as_ref().map(|c| c.source.line as u32);
        let mut scaling = Scaling::of(&mut b, cx.spec);
        let unscaled = scaling.unscaled(&mut b, &terms, &stages);
        terms.iter_mut().for_each(|(state, gradient)| *gradient = unscaled[state]);
        let norm = norm(&mut b, &terms, &stages);
        scaling.watch(&mut b, norm);
        let factor = cx.spec.clip.as_ref().map(|c| clip(&mut b, norm, c.value));
        b.origin.reason = Some("for the update of parameters".into());
        b.origin.spec_line = Some(optimizer.source.line as u32);
        let mut scalars = Scalars { steps: scaling.steps(), ..Scalars::default() };
        let mut begun = vec![];
        for state in gradients.into_iter().map(|(state, _)| state) {
            let gradient = unscaled[&state];
            // Numbers that all updates share are computed where they are read.
            b.origin.stage = None;
            let dtype = b.graph().states[state.index()].ty.dtype;
            let factor = factor.map(|factor| scalars.factor(&mut b, factor, dtype));
            scalars.prepare(&mut b, dtype, &optimizer.value);
            b.origin.stage = stages[state.index()];
            let gradient = factor.map_or(gradient, |factor| b.mul(gradient, factor));
            let weight = reads[state.index()].unwrap_or_else(|| b.state(state));
            begun.push(begin(&mut b, &mut scalars, state, weight, gradient, &optimizer.value, scaling.counts()));
        }
        // Norms of all updates are there before the first is read, so that one call sums them up.
        for update in begun {
            b.origin.stage = stages[update.states[0].index()];
            update.end(&mut b, scaling.counts());
        }
        scaling.end(&mut b, &stages);
        *graph = b.finish();
        Ok(())
    }
}

/// The blocks of a parameter are updated as the whole would be: all of them, none by a norm of its
/// own.
fn check_blocks(graph: &Graph, cx: &Context<'_>, optimizer: &Located<Optimizer>) -> Result<(), Diagnostics> {
    let blocks = |trained: bool| {
        let with = graph.states.iter().filter(move |s| s.role == StateRole::Parameter && s.gradient.is_some() == trained);
        with.filter_map(|s| s.block.as_ref().map(|block| (s, block)))
    };
    if let (Some((_, block)), OptimizerRule::Lamb(_)) = (blocks(true).next(), optimizer.value.rule) {
        let message =
            format!("lamb scales each step by the norm of a parameter, and `{}` is in blocks of different sizes", block.of);
        let error = Diagnostic::error(message).at(cx.spec.place_of(optimizer.source));
        return Err(error.help("use `adamw`, or split it without blocks").into());
    }
    let still = blocks(false).find(|(_, block)| blocks(true).any(|(_, other)| other.of == block.of));
    if let Some((state, block)) = still {
        let error = Diagnostic::error(format!("the loss depends on `{}` but not on its block `{}`", block.of, state.name));
        return Err(error.help("join it with a block beside it").into());
    }
    Ok(())
}

/// For each state variable the first node that reads it.
fn first_reads(graph: &Graph) -> Vec<Option<NodeId>> {
    let mut first = vec![None; graph.states.len()];
    for (id, node) in graph.nodes() {
        for value in &node.operands {
            if let Op::State(read) = &graph.def(*value).op {
                first[read.state.index()].get_or_insert(id);
            }
        }
    }
    first
}

/// Makes the global norm an output, in f64.
fn norm(b: &mut Builder, gradients: &[(StateId, ValueId)], stages: &[Option<u32>]) -> ValueId {
    let mut total: Option<ValueId> = None;
    for (state, gradient) in gradients {
        b.origin.stage = stages[state.index()];
        let square = b.op(SquareSum {}, &[*gradient]);
        total = Some(total.map_or(square, |sum| b.add(sum, square)));
    }
    let norm = b.unary(Unary::Sqrt.into(), total.expect("there are gradients"));
    b.origin.stage = None;
    b.rename(norm, "grad_norm");
    b.graph_mut().outputs.push(Output { name: "grad_norm".into(), value: norm });
    norm
}

/// The factor `min(1, limit / (norm + 1e-6))`, in f64.
fn clip(b: &mut Builder, norm: ValueId, limit: f64) -> ValueId {
    let safe = b.offset(norm, 1e-6);
    let limit = b.number(DType::F64, limit);
    let ratio = b.div(limit, safe);
    let one = b.number(DType::F64, 1.0);
    b.binary(Binary::Min, one, ratio)
}

/// Numbers that all updates of one element type share.
#[derive(Default)]
struct Scalars {
    factor: Vec<(DType, ValueId)>,
    lr: Vec<(DType, ValueId)>,
    corrections: Vec<(DType, [ValueId; 2])>,
    /// The number of steps that counted before this one, where not all do.
    steps: Option<ValueId>,
}

impl Scalars {
    /// The factor of clipping in that type.
    fn factor(&mut self, b: &mut Builder, factor: ValueId, dtype: DType) -> ValueId {
        let known = self.factor.iter().find(|(d, _)| *d == dtype).map(|(_, v)| *v);
        known.unwrap_or_else(|| {
            let cast = b.cast(factor, dtype);
            b.rename(cast, "clip");
            self.factor.push((dtype, cast));
            cast
        })
    }

    /// Makes the numbers that an update of that type reads.
    fn prepare(&mut self, b: &mut Builder, dtype: DType, optimizer: &Optimizer) {
        self.lr(b, dtype);
        if let OptimizerRule::Adam(m) | OptimizerRule::AdamW(m) | OptimizerRule::Lamb(m) = optimizer.rule {
            self.corrections(b, dtype, m);
        }
    }

    fn lr(&mut self, b: &mut Builder, dtype: DType) -> ValueId {
        let known = self.lr.iter().find(|(d, _)| *d == dtype).map(|(_, v)| *v);
        known.unwrap_or_else(|| {
            let host = b.op(Host { scalar: HostScalar::LearningRate }, &[]);
            let lr = b.cast(host, dtype);
            b.rename(lr, "lr");
            self.lr.push((dtype, lr));
            lr
        })
    }

    /// `1 - beta^step` for both moments.
    fn corrections(&mut self, b: &mut Builder, dtype: DType, m: Moments) -> [ValueId; 2] {
        let known = self.corrections.iter().find(|(d, _)| *d == dtype).map(|(_, v)| *v);
        known.unwrap_or_else(|| {
            let step = match self.steps {
                Some(before) => b.offset(before, 1.0),
                None => b.op(Host { scalar: HostScalar::StepCount }, &[]),
            };
            let one = b.number(DType::F64, 1.0);
            let pair = [m.beta1, m.beta2].map(|beta| {
                let beta = b.number(DType::F64, beta);
                let power = b.binary(Binary::Pow, beta, step);
                let correction = b.sub(one, power);
                b.cast(correction, dtype)
            });
            self.corrections.push((dtype, pair));
            pair
        })
    }
}

/// The update of a parameter and its moments.
struct Update {
    states: Vec<StateId>,
    values: Values,
}

/// The new values of an update's states.
enum Values {
    /// All of them.
    Made(Vec<ValueId>),
    /// Those of LAMB, whose parameter waits for norms.
    Lamb(Lamb),
}

/// `counts` is a truth value that says whether the step changes anything, if it may not.
fn begin(
    b: &mut Builder,
    scalars: &mut Scalars,
    id: StateId,
    w: ValueId,
    g: ValueId,
    o: &Optimizer,
    counts: Option<ValueId>,
) -> Update {
    let ty = b.graph().states[id.index()].ty.clone();
    let weight_decay = if o.decay == Decayed::All || ty.rank() >= 2 { o.weight_decay } else { 0.0 };
    let lr = scalars.lr(b, ty.dtype);
    let mut states = vec![id];
    let values = match o.rule {
        OptimizerRule::Sgd { momentum, nesterov } => {
            let mut operands = vec![w, g, lr];
            if momentum != 0.0 {
                states.push(moment(b, id, "m"));
                operands.push(b.state(states[1]));
            }
            operands.extend(counts);
            Values::Made(b.ops(Sgd { momentum, nesterov, weight_decay, skips: counts.is_some() }, &operands))
        }
        OptimizerRule::Adam(m) | OptimizerRule::AdamW(m) | OptimizerRule::Lamb(m) => {
            let [c1, c2] = scalars.corrections(b, ty.dtype, m);
            states.extend([moment(b, id, "m"), moment(b, id, "v")]);
            let (first, second) = (b.state(states[1]), b.state(states[2]));
            let operands = [w, g, lr, c1, c2, first, second];
            if let OptimizerRule::Lamb(_) = o.rule {
                Values::Lamb(Lamb::begin(b, m, weight_decay, operands))
            } else {
                let decoupled = o.rule.decay_is_decoupled();
                let skips = counts.is_some();
                let adam = Adam { beta1: m.beta1, beta2: m.beta2, eps: m.eps, weight_decay, decoupled, skips };
                let operands: Vec<ValueId> = operands.into_iter().chain(counts).collect();
                Values::Made(b.ops(adam, &operands))
            }
        }
    };
    Update { states, values }
}

impl Update {
    /// Makes what is not made yet, and says which states it updates.
    fn end(self, b: &mut Builder, counts: Option<ValueId>) {
        let values = match self.values {
            Values::Made(values) => values,
            Values::Lamb(lamb) => {
                let old = [lamb.w, lamb.old_m, lamb.old_v];
                let new = lamb.end(b);
                counts.map_or(new.clone(), |counts| new.iter().zip(old).map(|(new, old)| b.select(counts, *new, old)).collect())
            }
        };
        for (state, value) in self.states.into_iter().zip(values) {
            let name = format!("{}.new", b.graph().states[state.index()].name);
            b.rename(value, &name);
            b.graph_mut().states[state.index()].update = Some(value);
        }
    }
}

/// The update of LAMB: Adam's direction with decay in it, as long as `|w| / |direction|` times the
/// learning rate says (1 where either norm is 0). You et al., Large Batch Optimization for Deep
/// Learning (2019), algorithm 2.
struct Lamb {
    w: ValueId,
    lr: ValueId,
    m: ValueId,
    v: ValueId,
    old_m: ValueId,
    old_v: ValueId,
    direction: ValueId,
    /// The squares of w and of the direction, summed up.
    squares: [ValueId; 2],
}

impl Lamb {
    /// Operands as [`Adam`]'s.
    fn begin(b: &mut Builder, moments: Moments, weight_decay: f64, operands: [ValueId; 7]) -> Lamb {
        let Moments { beta1, beta2, eps } = moments;
        let [w, g, lr, c1, c2, old_m, old_v] = operands;
        let m = blend(b, beta1, old_m, g);
        let square = b.mul(g, g);
        let v = blend(b, beta2, old_v, square);
        let mean = b.div(m, c1);
        let variance = b.div(v, c2);
        let deviation = b.unary(Unary::Sqrt.into(), variance);
        let deviation = b.offset(deviation, eps);
        let mut direction = b.div(mean, deviation);
        if weight_decay != 0.0 {
            let decay = b.scale(w, weight_decay);
            direction = b.add(direction, decay);
        }
        let squares = [w, direction].map(|x| b.op(SquareSum {}, &[x]));
        Lamb { w, lr, m, v, old_m, old_v, direction, squares }
    }

    /// The new w, m, v.
    fn end(self, b: &mut Builder) -> Vec<ValueId> {
        let Lamb { w, lr, m, v, direction, squares, .. } = self;
        let [of_weight, of_direction] = squares.map(|square| b.unary(Unary::Sqrt.into(), square));
        let ratio = b.div(of_weight, of_direction);
        let (zero, one) = (b.number(DType::F64, 0.0), b.number(DType::F64, 1.0));
        let smaller = b.binary(Binary::Min, of_weight, of_direction);
        let both = b.binary(Binary::Lt, zero, smaller);
        let trust = b.select(both, ratio, one);
        let dtype = b.ty(w).dtype;
        let trust = b.cast(trust, dtype);
        let rate = b.mul(lr, trust);
        let step = b.mul(direction, rate);
        vec![b.sub(w, step), m, v]
    }
}

/// `share * old + (1 - share) * new`
fn blend(b: &mut Builder, share: f64, old: ValueId, new: ValueId) -> ValueId {
    let (old, new) = (b.scale(old, share), b.scale(new, 1.0 - share));
    b.add(old, new)
}

fn moment(b: &mut Builder, of: StateId, suffix: &str) -> StateId {
    let states = &mut b.graph_mut().states;
    let parameter = &states[of.index()];
    let name = format!("{}.{suffix}", parameter.name);
    states.push(State::new(name, parameter.ty.clone(), StateRole::Moment, StateInit::Zeros));
    StateId(states.len() as u32 - 1)
}
