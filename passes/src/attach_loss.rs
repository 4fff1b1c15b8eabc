//! Appends the loss of the spec to the model's outputs.
//!
//! Before: the outputs are the model's. After, for training: the one output `loss`, the mean over
//! the global batch; for evaluation: the model's outputs, `loss_sum` and `labels` (how many terms
//! the sum has), under names that the model has not used. Cross entropy is row maximum, sum of
//! exponentials and a picked logit, so that a split class letter needs no gathered logits. A model
//! that computes its own loss gives one number, or one a sample, of which the mean is taken. Labels
//! that are an input of the model too, as of an autoencoder, are that input's value. Refuses: an
//! output or label that does not fit, by name and shape. Needs phase `imported` or later, keeps it.
//! Source: Shoeybi et al., Megatron-LM (2019), for the vocabulary-parallel form.

use crate::pass::{Context, Mode, Pass};
use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, counted, near_names};
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Output, Phase, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::ops::elementwise::{Detach, UnaryFn};
use shardc_ir::ops::index::OneHot;
use shardc_ir::ops::leaf::Input;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::spec::{Located, Loss};
use shardc_ir::types::{Tensor, Type};

/// The label of samples that only fill up a batch in evaluation.
pub const PADDING_LABEL: i64 = i64::MIN;

/// The names of two outputs of evaluation, each with as many `_` behind it as tell it from the
/// model's outputs.
const LOSS_SUM: &str = "loss_sum";
const LABELS: &str = "labels";

/// The names of the loss's outputs of programs of evaluation that have a loss: the sum of the
/// terms, and their number.
pub fn loss_outputs(programs: &PlanSet) -> Option<(&str, &str)> {
    let outputs = programs.outputs();
    let called = |what: &str| {
        let names = outputs.iter().map(|(_, output)| output.name.as_str());
        names.filter(|name| name.trim_end_matches('_') == what).max_by_key(|name| name.len())
    };
    Some((called(LOSS_SUM)?, called(LABELS)?))
}

/// See the module.
pub struct AttachLoss;

impl Pass for AttachLoss {
    fn name(&self) -> &'static str {
        "attach-loss"
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
        let Some(loss) = &cx.spec.loss else { return Ok(()) };
        let place = Some(cx.spec.place_of(loss.source));
        let terms = terms(graph, cx, &loss.value).map_err(|d| match d.place {
            None => vec![d.at_opt(place)],
            Some(_) => vec![d],
        })?;
        match cx.mode {
            Mode::Train => {
                let mut b = extend(graph);
                let loss = terms.mean(&mut b);
                b.rename(loss, "loss");
                *graph = b.finish();
                graph.outputs = vec![Output { name: "loss".into(), value: loss }];
            }
            Mode::Evaluate => {
                let mut b = extend(graph);
                let count = terms.count(&mut b);
                *graph = b.finish();
                for (name, value) in [(LOSS_SUM, terms.sum), (LABELS, count)] {
                    let name = free(name, &graph.outputs);
                    graph.outputs.push(Output { name, value });
                }
            }
        }
        Ok(())
    }
}

/// The reason of the nodes that the loss is made of.
pub(crate) const REASON: &str = "for the loss";

/// A builder of what the loss is made of.
fn extend(graph: &mut Graph) -> Builder {
    let mut b = Builder::extend(graph.take());
    b.origin.reason = Some(REASON.into());
    b
}

/// `name`, told from those of `outputs`.
fn free(name: &str, outputs: &[Output]) -> String {
    let mut name = name.to_string();
    while outputs.iter().any(|output| output.name == name) {
        name.push('_');
    }
    name
}

/// The terms of a loss: their sum, and how many there are.
struct Terms {
    sum: ValueId,
    count: Count,
}

enum Count {
    /// Every one counts.
    All(u64),
    /// Those where this is true.
    Where(ValueId),
}

impl Terms {
    fn mean(&self, b: &mut Builder) -> ValueId {
        match self.count {
            Count::All(1) => self.sum,
            Count::All(n) => b.scale(self.sum, 1.0 / n as f64),
            Count::Where(_) => {
                let count = self.count(b);
                b.div(self.sum, count)
            }
        }
    }

    fn count(&self, b: &mut Builder) -> ValueId {
        let dtype = b.ty(self.sum).dtype;
        match self.count {
            Count::All(n) => b.number(dtype, n as f64),
            Count::Where(valid) => {
                let ones = b.cast(valid, dtype);
                let axes: Vec<usize> = (0..b.ty(ones).rank()).collect();
                b.sum(ones, &axes)
            }
        }
    }
}

fn terms(graph: &mut Graph, cx: &Context<'_>, loss: &Loss) -> Result<Terms, Diagnostic> {
    match loss {
        Loss::CrossEntropy { logits, labels, ignore_index, label_smoothing, class_axis } => {
            let x = output(graph, cx, logits.as_ref(), "logits")?;
            let rank = graph.ty(x).rank() as i64;
            let axis = if *class_axis < 0 { rank + class_axis } else { *class_axis };
            if axis < 1 || axis >= rank {
                return Err(Diagnostic::error(format!(
                    "`class_axis={class_axis}` of `{}`, which is {}",
                    graph.value(x).name,
                    graph.ty(x)
                ))
                .help("cross entropy needs logits with a class dimension behind dimension 0, which is the batch"));
            }
            let mut b = extend(graph);
            let x = last(&mut b, x, axis as usize);
            let mut shape = b.ty(x).shape.clone();
            shape.pop();
            let y = label(&mut b, cx, labels, Type::new(DType::I64, shape))?;
            let mut ignored: Vec<i64> = ignore_index.iter().copied().collect();
            if cx.mode == Mode::Evaluate {
                ignored.push(PADDING_LABEL);
            }
            let terms = cross_entropy(&mut b, x, y, &ignored, *label_smoothing);
            *graph = b.finish();
            Ok(terms)
        }
        Loss::Mse { prediction, labels } => {
            let x = output(graph, cx, prediction.as_ref(), "prediction")?;
            let mut b = extend(graph);
            let ty = b.ty(x).clone();
            let y = label(&mut b, cx, labels, ty)?;
            let difference = b.sub(x, y);
            let square = b.mul(difference, difference);
            let terms = each_element(&mut b, square, y, cx.mode);
            *graph = b.finish();
            Ok(terms)
        }
        Loss::BceWithLogits { logits, labels } => {
            let x = output(graph, cx, logits.as_ref(), "logits")?;
            let mut b = extend(graph);
            let ty = b.ty(x).clone();
            let y = label(&mut b, cx, labels, ty)?;
            let entropy = binary_cross_entropy(&mut b, x, y);
            let terms = each_element(&mut b, entropy, y, cx.mode);
            *graph = b.finish();
            Ok(terms)
        }
        Loss::Output { name } => {
            let x = output(graph, cx, Some(name), "output")?;
            let samples = samples(graph).unwrap_or(1);
            let ty = graph.ty(x);
            if ty.elements() != 1 && (ty.shape.first() != Some(&samples) || ty.elements() != samples) {
                let message = format!("output `{}` is {ty}, which is no loss of {}", name.value, counted(samples, "sample"));
                return Err(Diagnostic::error(message)
                    .at(cx.spec.place_of(name.source))
                    .help("a loss is one number, or one number for each sample"));
            }
            let mut b = extend(graph);
            let terms = own_loss(&mut b, x, samples, cx.mode);
            *graph = b.finish();
            Ok(terms)
        }
    }
}

/// Dimension 0 of the model's inputs.
fn samples(graph: &Graph) -> Option<u64> {
    let first = |ty: &Type| ty.shape.first().copied();
    let mut inputs = graph.nodes().filter(|(_, node)| matches!(node.op, Op::Input(_)));
    inputs.find_map(|(_, node)| first(graph.ty(node.results[0])))
}

/// The model's output of that name, or its only one.
fn output(graph: &Graph, cx: &Context<'_>, name: Option<&Located<String>>, option: &str) -> Result<ValueId, Diagnostic> {
    let names: Vec<&str> = graph.outputs.iter().map(|o| o.name.as_str()).collect();
    let value = match (name, &graph.outputs[..]) {
        (Some(name), outputs) => outputs.iter().find(|o| o.name == name.value).map(|o| o.value).ok_or_else(|| {
            let near = near_names(&name.value, names.iter().copied());
            let listed = if near.is_empty() { &names } else { &near };
            Diagnostic::error(format!("the model has no output `{}`", name.value))
                .at(cx.spec.place_of(name.source))
                .help(format!("its outputs are {}", quoted(listed)))
        })?,
        (None, [only]) => only.value,
        (None, _) => {
            return Err(Diagnostic::error("the model has several outputs")
                .help(format!("add `{option}=` with one of {}", quoted(&names))));
        }
    };
    let ty = graph.ty(value);
    if ty.dtype.is_float() {
        Ok(value)
    } else {
        Err(Diagnostic::error(format!("output `{}` is {ty}, the loss needs floats", graph.value(value).name)))
    }
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
}

/// The labels of that name and type: an array of the data, or an input of the model that has the
/// same elements in the same order.
fn label(b: &mut Builder, cx: &Context<'_>, name: &Located<String>, ty: Type) -> Result<ValueId, Diagnostic> {
    let of_model = |op: &Op| matches!(op, Op::Input(input) if input.name == name.value);
    let Some(input) = b.graph().nodes().find(|(_, node)| of_model(&node.op)).map(|(_, node)| node.results[0]) else {
        let samples = samples(b.graph());
        if samples.is_some_and(|samples| ty.shape.first() != Some(&samples)) {
            let message =
                format!("the loss needs labels of {ty}, but the model takes {}", counted(samples.unwrap_or(0), "sample"));
            return Err(Diagnostic::error(message).help("dimension 0 of the output must be the batch"));
        }
        let value = b.op(Input { name: name.value.clone(), ty, label: true }, &[]);
        b.rename(value, &name.value);
        return Ok(value);
    };
    let own = b.ty(input).clone();
    if own.dtype == ty.dtype && own.elements() == ty.elements() && own.shape.first() == ty.shape.first() {
        return Ok(if own == ty { input } else { b.reshape(input, &ty.shape) });
    }
    Err(Diagnostic::error(format!("`{}` is an input of the model, {own}, but the loss needs labels of {ty}", name.value))
        .at(cx.spec.place_of(name.source))
        .help("name another array of the data"))
}

/// Dimension `axis` moved to the end.
fn last(b: &mut Builder, x: ValueId, axis: usize) -> ValueId {
    let rank = b.ty(x).rank();
    let perm: Vec<usize> = (0..rank).filter(|d| *d != axis).chain([axis]).collect();
    b.transpose(x, &perm)
}

/// `sum of log(sum exp x) - x[y]` over the rows of `x[…, classes]`, for labels `y[…]` that are not
/// in `ignored`.
fn cross_entropy(b: &mut Builder, x: ValueId, y: ValueId, ignored: &[i64], smoothing: f64) -> Terms {
    let (shape, dtype) = (b.ty(x).shape.clone(), b.ty(x).dtype);
    let classes = shape.len() - 1;
    let column: Vec<u64> = shape[..classes].iter().copied().chain([1]).collect();
    let high = b.reduce(ReduceKind::Max, x, &[classes]);
    let high = b.op(Detach {}, &[high]);
    let high_column = b.reshape(high, &column);
    let centered = b.sub(x, high_column);
    let exp = b.unary(Unary::Exp.into(), centered);
    let sum = b.sum(exp, &[classes]);
    let log = b.unary(Unary::Log.into(), sum);
    let lse = b.add(log, high);
    let y_column = b.reshape(y, &column);
    let hot = b.op(OneHot { size: shape[classes] }, &[y_column]);
    let zero = b.number(dtype, 0.0);
    let chosen = b.select(hot, x, zero);
    let picked = b.sum(chosen, &[classes]);
    let mut rows = b.sub(lse, picked);
    if smoothing > 0.0 {
        // (1 - s)(lse - x[y]) + s (lse - mean x)
        let total = b.sum(x, &[classes]);
        let mean = b.scale(total, 1.0 / shape[classes] as f64);
        let spread = b.sub(lse, mean);
        let sharp = b.scale(rows, 1.0 - smoothing);
        let soft = b.scale(spread, smoothing);
        rows = b.add(sharp, soft);
    }
    let mut count = Count::All(b.ty(rows).elements());
    let valid: Vec<ValueId> = ignored.iter().map(|label| not_equal(b, y, *label)).collect();
    if let Some(valid) = valid.into_iter().reduce(|one, other| b.binary(Binary::And, one, other)) {
        rows = b.select(valid, rows, zero);
        count = Count::Where(valid);
    }
    let axes: Vec<usize> = (0..classes).collect();
    Terms { sum: b.sum(rows, &axes), count }
}

fn not_equal(b: &mut Builder, y: ValueId, label: i64) -> ValueId {
    let label = b.constant(Tensor::from_i64([], &[label]));
    let equal = b.binary(Binary::Eq, y, label);
    b.unary(Unary::Not.into(), equal)
}

/// `-y log(sigmoid x) - (1 - y) log(1 - sigmoid x)` as `(1 - y) x + softplus(-x)`, which overflows
/// nowhere.
fn binary_cross_entropy(b: &mut Builder, x: ValueId, y: ValueId) -> ValueId {
    let one = b.number_like(x, 1.0);
    let absent = b.sub(one, y);
    let pull = b.mul(absent, x);
    let negative = b.unary(Unary::Neg.into(), x);
    let rest = b.unary(UnaryFn::Softplus, negative);
    b.add(pull, rest)
}

/// The sum of all elements of `x`; in evaluation those with a label that is not a number do not
/// count.
fn each_element(b: &mut Builder, mut x: ValueId, y: ValueId, mode: Mode) -> Terms {
    let mut count = Count::All(b.ty(x).elements());
    if mode == Mode::Evaluate {
        let missing = b.unary(Unary::IsNan.into(), y);
        let valid = b.unary(Unary::Not.into(), missing);
        let zero = b.number_like(x, 0.0);
        x = b.select(valid, x, zero);
        count = Count::Where(valid);
    }
    let axes: Vec<usize> = (0..b.ty(x).rank()).collect();
    Terms { sum: b.sum(x, &axes), count }
}

/// A loss that the model computes. One number is the mean over the samples of its batch.
fn own_loss(b: &mut Builder, x: ValueId, samples: u64, mode: Mode) -> Terms {
    let axes: Vec<usize> = (0..b.ty(x).rank()).collect();
    let sum = b.sum(x, &axes);
    match (b.ty(x).elements(), mode) {
        (1, Mode::Evaluate) => Terms { sum: b.scale(sum, samples as f64), count: Count::All(samples) },
        (terms, _) => Terms { sum, count: Count::All(terms) },
    }
}
