//! Reads the statements about where values and ops live: mesh, data, tensor, sequence, shard,
//! replicate, zero, pipeline, place.

use super::context::{Context, quote};
use super::reader::Reader;
use super::syntax::{Dim, DimForm, Form, Text, Value};
use super::values::{axes, axis, choice, distinct_axes, expected, head, pattern, positive, positive_text, scope, whole};
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::limits::{MAX_AXES, MAX_RANKS};
use shardc_ir::mesh::{AxisId, MeshAxis, TIME};
use shardc_ir::spec::{Blocks, Cut, Data, DimSharding, Located, Pipeline, PipelineSchedule, Placement, Shard, Spec};
use shardc_ir::spec::{Tensor, Zero, ZeroStage};

/// The most blocks of different sizes of a dimension, and the longest name of an axis.
const MOST_BLOCKS: usize = 512;
const LONGEST_NAME: usize = 64;

pub fn mesh(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let options = r.take_options();
    if options.is_empty() {
        r.lacks("axes");
    }
    if let Some((key, _)) = options.get(MAX_AXES) {
        let error = Diagnostic::error(format!("a mesh of {} axes is too large", options.len()));
        r.context.report(key.source, error.help(format!("a mesh has at most {MAX_AXES} axes")));
    }
    let mut ranks: u64 = 1;
    for (key, value) in options.into_iter().take(MAX_AXES) {
        axis_name(key, r.context);
        let mut size = positive(value, &quote(key.text), r.context).unwrap_or(1);
        let product = ranks.saturating_mul(size);
        if product <= MAX_RANKS {
            ranks = product;
        } else {
            size = 1;
            let error = Diagnostic::error(format!("a mesh of {product} ranks is too large"));
            let help = format!("a mesh has at most {MAX_RANKS} ranks, the product of its axes");
            r.context.report(value.text.source, error.help(help));
        }
        r.context.mesh.push(MeshAxis { name: key.text.to_string(), size });
    }
    spec.mesh = Some(r.located(r.context.mesh.clone()));
    Some(())
}

fn axis_name(key: Text<'_>, context: &mut Context<'_>) {
    let is_name = key.text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && key.text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if key.text.len() > LONGEST_NAME {
        let error = Diagnostic::error(format!("the name of an axis has {} characters", key.text.len()));
        context.report(key.source, error.help(format!("it has at most {LONGEST_NAME}")));
    } else if !is_name {
        let error = Diagnostic::error(format!("{} cannot name an axis", quote(key.text)));
        context.report(key.source, error.help("a name has letters, digits and `_`, and does not begin with a digit"));
    } else if key.text == TIME {
        let error = Diagnostic::error(format!("`{TIME}` cannot name an axis")).label("the axis of micro-batches has this name");
        context.report(key.source, error.help("choose another name, such as `dp`"));
    }
}

pub fn data(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let axes = r.required("axis", axes);
    let on = r.optional("on", scope);
    spec.data.push(r.located(Data { axes: axes?, on: on? }));
    Some(())
}

pub fn tensor(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let axis = r.required("axis", axis);
    let on = r.optional("on", scope);
    spec.tensor.push(r.located(Tensor { axis: axis?, on: on? }));
    Some(())
}

pub fn sequence(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let axis = r.required("axis", axis)?;
    spec.sequence = Some(r.located(axis));
    Some(())
}

pub fn replicate(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let axis = r.required("axis", axis)?;
    spec.replicate.push(r.located(axis));
    Some(())
}

pub fn zero(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let stages =
        [("0", ZeroStage::Replicated), ("1", ZeroStage::Optimizer), ("2", ZeroStage::Gradients), ("3", ZeroStage::Parameters)];
    let stage = r.required("stage", choice(&stages));
    let axes = r.required("axis", axes);
    let on = r.optional("on", scope);
    spec.zero.push(r.located(Zero { stage: stage?, axes: axes?, on: on? }));
    Some(())
}

pub fn pipeline(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let axis = r.required("axis", axis);
    let schedule = r.option("schedule", PipelineSchedule::OneForwardOneBackward, pipeline_schedule);
    let custom = r.optional("custom", pattern);
    let cut = r.option("cut", Cut::Balance, cut);
    spec.pipeline = Some(r.located(Pipeline { axis: axis?, schedule: schedule?, custom: custom?, cut: cut? }));
    Some(())
}

fn pipeline_schedule(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<PipelineSchedule> {
    let (name, arguments) = head(value, subject, &["gpipe", "1f1b", "interleaved", "zb-h1"], context)?;
    let example = if name == "interleaved" { "interleaved(chunks=2)" } else { name };
    let mut r = Reader::new(name, example, value.text.source, arguments, context);
    let schedule = match name {
        "gpipe" => Some(PipelineSchedule::Gpipe),
        "interleaved" => r.required("chunks", positive).map(|chunks| PipelineSchedule::Interleaved { chunks }),
        "zb-h1" => Some(PipelineSchedule::ZeroBubbleH1),
        _ => Some(PipelineSchedule::OneForwardOneBackward),
    };
    r.finish();
    schedule
}

fn cut(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<Cut> {
    let (name, arguments) = head(value, subject, &["balance", "after"], context)?;
    let example = if name == "after" { "after(\"*.h.1\", \"*.h.3\")" } else { name };
    let mut r = Reader::new(name, example, value.text.source, arguments, context);
    let cut = match name {
        "after" => {
            let mut scopes = vec![];
            scopes.extend(r.value("a scope", scope));
            while let Some(value) = r.next_value() {
                scopes.extend(scope(value, "`after`", r.context));
            }
            Cut::After(scopes)
        }
        _ => Cut::Balance,
    };
    r.finish();
    Some(cut)
}

pub fn place(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let pattern = r.value("a scope", scope);
    let stage = r.required("stage", whole);
    spec.place.push(r.located(Placement { pattern: pattern?, stage: stage? }));
    Some(())
}

pub fn shard(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let pattern = r.value("a pattern", pattern);
    let dims = r.value("dimensions such as `[-, tp]`", |value, subject, context| match &value.form {
        Form::Dims(dims) => dim_shardings(dims, context),
        _ => expected(value.text, subject, "followed by dimensions such as `[-, tp]`", context),
    });
    spec.shard.push(r.located(Shard { pattern: pattern?, dims: dims? }));
    Some(())
}

fn dim_shardings(dims: &[Dim<'_>], context: &mut Context<'_>) -> Option<Vec<Located<DimSharding>>> {
    let mut seen = vec![];
    let read: Vec<_> = dims.iter().map(|dim| dim_sharding(dim, &mut seen, context)).collect();
    let located = dims.iter().zip(read).map(|(dim, read)| Some(Located { value: read?, source: dim.text.source }));
    located.collect()
}

/// `seen` are the axes of the dimensions before it.
fn dim_sharding(dim: &Dim<'_>, seen: &mut Vec<AxisId>, context: &mut Context<'_>) -> Option<DimSharding> {
    match &dim.form {
        DimForm::Split { axes, .. } if dim.text.text == "-" && axes.len() == 1 => Some(DimSharding::Closed),
        DimForm::Split { axes, .. } if dim.text.text == "?" && axes.len() == 1 => Some(DimSharding::Open),
        DimForm::Split { blocks, axes } => {
            let blocks = match blocks[..] {
                [] => Some(Blocks::Equal(1)),
                [count] => positive_text(count, "the number of blocks", context).map(Blocks::Equal),
                _ if blocks.len() > MOST_BLOCKS => {
                    let error = Diagnostic::error(format!("{} blocks of different sizes", blocks.len()));
                    context.report(dim.text.source, error.help(format!("a dimension has at most {MOST_BLOCKS} of them")));
                    None
                }
                _ => all(blocks.iter().map(|size| positive_text(*size, "the size of a block", context))).map(Blocks::Unequal),
            };
            let axes = distinct_axes(axes, seen, context);
            Some(DimSharding::Split { blocks: blocks?, axes: axes? })
        }
        DimForm::Letters(letters) => {
            let letters = letters.iter().map(|(size, axes)| {
                let size = positive_text(*size, "the size of a letter", context);
                let axes = distinct_axes(axes, seen, context);
                Some((size?, axes?))
            });
            all(letters).map(DimSharding::Letters)
        }
    }
}

/// All values, after every one was read and has reported its errors.
fn all<T>(values: impl Iterator<Item = Option<T>>) -> Option<Vec<T>> {
    values.collect::<Vec<_>>().into_iter().collect()
}
