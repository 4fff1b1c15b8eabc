//! A model that is too large to be run, read op by op. Each update is the spec's op over its own
//! parameter and moments, the learning rate, and its gradient, clipped by the norm of all. The loss
//! is the graph of the spec's loss over one value, which in evaluation is the model's output.

use super::formulas::moments;
use super::updates::same_rate;
use super::whole::{Whole, words};
use super::{Found, Subject, is_scaling};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::counted;
use shardc_ir::graph::{Graph, Node, Output, Phase, ValueId};
use shardc_ir::mesh::Mesh;
use shardc_ir::ops::Op;
use shardc_ir::ops::leaf::Input;
use shardc_ir::ops::update::{Adam, Sgd};
use shardc_ir::plan::HostScalar;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::spec::{Decayed, LossScale, Moments, Optimizer, OptimizerRule};
use shardc_ir::train::{LOSS_SCALE, STEPS_TAKEN};
use shardc_passes::{Context, Mode, PIPELINE, run_pass};
use std::collections::HashMap;

/// Constants are rounded to f32.
const TOLERANCE: f64 = 1e-6;

/// Reads the updates of the step of training `graph`.
pub fn updates(graph: &Graph, subject: &Subject<'_>) -> Result<Found, Reason> {
    let Some(optimizer) = subject.spec.optimizer.as_ref().map(|optimizer| &optimizer.value) else {
        return Err("the spec has no optimizer".into());
    };
    same_rate(subject)?;
    let scaling = subject.spec.precision.as_ref().and_then(|line| line.value.scaling());
    let reader = Reader { graph, whole: Whole::new(graph), scaling };
    let gradients: Vec<ValueId> = graph.states.iter().filter_map(|state| state.gradient).collect();
    let norm = graph.outputs.iter().find(|output| output.name == "grad_norm").ok_or("the norm is no output")?.value;
    reader.is_norm(norm, &gradients)?;
    let limit = subject.spec.clip.as_ref().map(|clip| clip.value);
    let skips = matches!(reader.scaling, Some(LossScale::Dynamic { .. }));
    let mut updated = 0;
    for (at, state) in graph.states.iter().enumerate() {
        let Some(gradient) = state.gradient else { continue };
        let wrong = |what: &str| reason!("{what} of `{}` is not what the spec's optimizer makes", state.name);
        let update = state.update.ok_or_else(|| wrong("the update"))?;
        let node = reader.whole.def(update);
        let Some((expected, betas)) = op(optimizer, state.ty.rank(), skips) else {
            return Ok(Found::Unseen("the model is too large to be run, and lamb's updates are many ops".into()));
        };
        if node.op != expected || reader.number_of_result(update) != 0 {
            return Err(wrong("the update"));
        }
        let (own, rest) = node.operands.split_first().ok_or_else(|| wrong("the update"))?;
        let (given, rest) = rest.split_first().ok_or_else(|| wrong("the update"))?;
        let (rate, rest) = rest.split_first().ok_or_else(|| wrong("the update"))?;
        if reader.state(*own) != Some(at) {
            return Err(wrong("the parameter"));
        }
        if !reader.is_clipped(*given, gradient, norm, limit) {
            return Err(wrong("the gradient"));
        }
        let rest = match rest.split_last() {
            Some((counts, rest)) if skips && reader.is_finite(*counts, norm) => rest,
            _ if skips => return Err(wrong("what skips the update")),
            _ => rest,
        };
        if !reader.is_host(*rate, HostScalar::LearningRate) {
            return Err(wrong("the learning rate"));
        }
        let (given, of_moments) = rest.split_at_checked(betas.len()).ok_or_else(|| wrong("the update"))?;
        if !given.iter().zip(&betas).all(|(value, beta)| reader.is_correction(*value, *beta)) {
            return Err(wrong("a correction"));
        }
        for (number, (ending, value)) in moments(optimizer.rule).iter().zip(of_moments).enumerate() {
            let moment = reader.state(*value).map(|moment| &graph.states[moment]);
            let moment = moment.filter(|moment| moment.name == format!("{}.{ending}", state.name));
            let next = moment.and_then(|moment| moment.update).filter(|next| reader.whole.def(*next).results == node.results);
            if next.is_none_or(|next| reader.number_of_result(next) != number + 1) {
                return Err(wrong("a moment"));
            }
        }
        updated += 1;
    }
    Ok(Found::Holds(format!("{}, by reading their ops", counted(updated, "parameter"))))
}

/// The op of a parameter's update, and the decays of its moments that are corrected; none of an
/// update that is many ops.
fn op(optimizer: &Optimizer, rank: usize, skips: bool) -> Option<(Op, Vec<f64>)> {
    let decays = optimizer.decay == Decayed::All || rank >= 2;
    let weight_decay = if decays { optimizer.weight_decay } else { 0.0 };
    let adam = |Moments { beta1, beta2, eps }, decoupled| {
        (Adam { beta1, beta2, eps, weight_decay, decoupled, skips }.into(), vec![beta1, beta2])
    };
    match optimizer.rule {
        OptimizerRule::Sgd { momentum, nesterov } => Some((Sgd { momentum, nesterov, weight_decay, skips }.into(), vec![])),
        OptimizerRule::Adam(moments) => Some(adam(moments, false)),
        OptimizerRule::AdamW(moments) => Some(adam(moments, true)),
        OptimizerRule::Lamb(_) => None,
    }
}

/// Ops of a graph, read through communication.
struct Reader<'g> {
    graph: &'g Graph,
    whole: Whole<'g>,
    /// How the spec scales the loss.
    scaling: Option<LossScale>,
}

impl<'g> Reader<'g> {
    fn number_of_result(&self, value: ValueId) -> usize {
        self.graph.value(self.whole.source(value)).result
    }

    /// The state variable that a value is the beginning of.
    fn state(&self, value: ValueId) -> Option<usize> {
        if let Op::State(read) = &self.whole.def(value).op { Some(read.state.index()) } else { None }
    }

    fn number(&self, value: ValueId) -> Option<f64> {
        if let Op::Constant(constant) = &self.whole.def(value).op { constant.value.splat() } else { None }
    }

    fn is_number(&self, value: ValueId, expected: f64) -> bool {
        self.number(value).is_some_and(|found| (found - expected).abs() <= TOLERANCE * expected.abs())
    }

    /// The value behind casts.
    fn uncast(&self, value: ValueId) -> ValueId {
        let node = self.whole.def(value);
        if let Op::Cast(_) = &node.op { self.uncast(node.operands[0]) } else { self.whole.source(value) }
    }

    /// The operands of the binary op `f`.
    fn binary(&self, value: ValueId, f: Binary) -> Option<[ValueId; 2]> {
        let node: &Node = self.whole.def(value);
        let is_it = matches!(&node.op, Op::Binary(op) if op.f == f);
        if is_it { node.operands.clone().try_into().ok() } else { None }
    }

    fn is_host(&self, value: ValueId, scalar: HostScalar) -> bool {
        matches!(&self.whole.def(self.uncast(value)).op, Op::Host(host) if host.scalar == scalar)
    }

    /// Whether it is `1 - beta^step`.
    fn is_correction(&self, value: ValueId, beta: f64) -> bool {
        let found = || {
            let [one, power] = self.binary(self.uncast(value), Binary::Sub)?;
            let [base, step] = self.binary(power, Binary::Pow)?;
            Some(self.is_number(one, 1.0) && self.is_number(base, beta) && self.is_step(step))
        };
        found().unwrap_or(false)
    }

    /// Whether it is the number of the step, of those that count.
    fn is_step(&self, value: ValueId) -> bool {
        let Some(LossScale::Dynamic { .. }) = self.scaling else { return self.is_host(value, HostScalar::StepCount) };
        let sum = self.binary(value, Binary::Add);
        sum.is_some_and(|[before, one]| self.is_number(one, 1.0) && self.is_scaling(before, STEPS_TAKEN))
    }

    /// Whether it is the number of that name which scaling remembers.
    fn is_scaling(&self, value: ValueId, name: &str) -> bool {
        self.state(self.uncast(value)).is_some_and(|state| is_scaling(&self.graph.states[state], name))
    }

    /// Whether it says that the norm is a finite number.
    fn is_finite(&self, value: ValueId, norm: ValueId) -> bool {
        let less = self.binary(value, Binary::Lt);
        less.is_some_and(|[of, most]| {
            self.whole.source(of) == self.whole.source(norm) && self.number(most) == Some(f64::INFINITY)
        })
    }

    /// The gradient that `value` is in another type, divided by what the loss is scaled by.
    fn unscaled(&self, value: ValueId) -> Option<ValueId> {
        let Some(scaling) = self.scaling else { return Some(self.uncast(value)) };
        let [own, inverse] = self.binary(value, Binary::Mul)?;
        let is_inverse = match scaling {
            LossScale::Constant(scale) => self.is_number(inverse, 1.0 / scale),
            LossScale::Dynamic { .. } => {
                let node = self.whole.def(inverse);
                let is_reciprocal = matches!(&node.op, Op::Unary(op) if op.f == Unary::Reciprocal.into());
                is_reciprocal && self.is_scaling(node.operands[0], LOSS_SCALE)
            }
        };
        is_inverse.then(|| self.uncast(own))
    }

    fn is_unscaled(&self, value: ValueId, gradient: ValueId) -> bool {
        self.unscaled(value) == Some(self.uncast(gradient))
    }

    /// Whether `given` is the gradient, times `min(1, limit / (norm + 1e-6))` where there is a
    /// limit.
    fn is_clipped(&self, given: ValueId, gradient: ValueId, norm: ValueId, limit: Option<f64>) -> bool {
        let is = |value, other| self.whole.source(value) == self.whole.source(other);
        let Some(limit) = limit else { return self.is_unscaled(given, gradient) };
        let found = || {
            let [own, factor] = self.binary(given, Binary::Mul)?;
            let [one, ratio] = self.binary(self.uncast(factor), Binary::Min)?;
            let [most, safe] = self.binary(ratio, Binary::Div)?;
            let [of, little] = self.binary(safe, Binary::Add)?;
            let numbers = self.is_number(one, 1.0) && self.is_number(most, limit) && self.is_number(little, 1e-6);
            Some(self.is_unscaled(own, gradient) && is(of, norm) && numbers)
        };
        found().unwrap_or(false)
    }

    /// Whether it is the root of the sum of the squares of all gradients, each once.
    fn is_norm(&self, norm: ValueId, gradients: &[ValueId]) -> Result<(), Reason> {
        let wrong = || Reason::from("the norm is not that of all gradients");
        let root = self.whole.def(norm);
        if !matches!(&root.op, Op::Unary(op) if op.f == Unary::Sqrt.into()) {
            return Err(wrong());
        }
        let mut squared = vec![];
        let mut left = vec![root.operands[0]];
        while let Some(value) = left.pop() {
            match self.binary(value, Binary::Add) {
                Some(terms) => left.extend(terms),
                None => match &self.whole.def(value).op {
                    Op::SquareSum(_) => squared.push(self.whole.source(self.whole.def(value).operands[0])),
                    _ => return Err(wrong()),
                },
            }
        }
        let mut expected: Vec<ValueId> = gradients.iter().map(|value| self.uncast(*value)).collect();
        let mut squared =
            squared.into_iter().map(|value| self.unscaled(value).ok_or_else(wrong)).collect::<Result<Vec<_>, _>>()?;
        squared.sort();
        expected.sort();
        if squared == expected { Ok(()) } else { Err(wrong()) }
    }
}

/// Reads the loss of training and of evaluation, of which `output` is what the spec's loss is of.
pub fn loss(subject: &Subject<'_>, output: &Output) -> Result<Found, Reason> {
    let eval = Whole::new(subject.eval);
    let [.., sum, labels] = &subject.eval.outputs[..] else { return Err("evaluation gives no loss".into()) };
    let alone = loss_alone(subject, output, Mode::Evaluate)?;
    let read = match_loss(&alone, &eval, &[sum.value, labels.value])?;
    if read.is_some_and(|read| read != eval.source(output.value)) {
        return Err("the loss of evaluation is not of the output that the spec names".into());
    }
    let Some(reference) = subject.reference else { return Ok(Found::Holds("evaluation's, by reading its ops".into())) };
    let trained = reference.outputs.iter().find(|output| output.name == "loss").ok_or("there is no loss")?.value;
    match_loss(&loss_alone(subject, output, Mode::Train)?, &Whole::new(reference), &[trained])?;
    Ok(Found::Holds("training's and evaluation's, by reading their ops".into()))
}

/// The spec's loss over an input in the place of `output`.
fn loss_alone(subject: &Subject<'_>, output: &Output, mode: Mode) -> Result<Graph, Reason> {
    let mut b = Builder::new(String::new(), Phase::Raised, Mesh::new([], 1));
    let ty = subject.eval.ty(output.value).clone();
    let read = b.op(Input { name: String::new(), ty, label: false }, &[]);
    let labels = subject.spec.labels().map(|labels| &labels.value);
    for (_, node) in subject.eval.nodes() {
        // Labels that the model reads too.
        if let Op::Input(input) = &node.op
            && !input.label
            && Some(&input.name) == labels
        {
            b.op(input.clone(), &[]);
        }
    }
    let mut graph = b.finish();
    graph.outputs = vec![Output { name: output.name.clone(), value: read }];
    let attach = PIPELINE.iter().find(|pass| pass.name() == "attach-loss").ok_or("there is no such pass")?;
    let cx = Context { spec: subject.spec, mode, verify: false };
    run_pass(*attach, &mut graph, &cx).map_err(|errors| Reason::from(words(&errors)))?;
    Ok(graph)
}

/// Whether the last outputs of `alone` are the values `found`, op by op; gives what stands in the
/// place of its input.
fn match_loss(alone: &Graph, whole: &Whole<'_>, found: &[ValueId]) -> Result<Option<ValueId>, Reason> {
    let last = &alone.outputs[alone.outputs.len() - found.len()..];
    let mut left: Vec<(ValueId, ValueId)> = last.iter().map(|output| output.value).zip(found.iter().copied()).collect();
    let mut seen: HashMap<ValueId, ValueId> = HashMap::new();
    let mut read = None;
    while let Some((expected, found)) = left.pop() {
        let found = whole.source(found);
        if let Some(before) = seen.insert(expected, found) {
            if before != found {
                return Err(reason!("the loss reads `{}` for another value", whole.graph.value(found).name));
            }
            continue;
        }
        let (node, own) = (alone.def(expected), whole.graph.def(found));
        if matches!(&node.op, Op::Input(input) if input.name.is_empty()) {
            read = Some(found);
            continue;
        }
        let same = node.op == own.op && node.operands.len() == own.operands.len();
        if !same || alone.value(expected).result != whole.graph.value(found).result {
            let (expected, found) = (node.op.name(), whole.graph.value(found));
            return Err(reason!("the loss is not the spec's: `{}` is no {expected}", found.name));
        }
        left.extend(node.operands.iter().copied().zip(own.operands.iter().copied()));
    }
    Ok(read)
}
