//! The agreement of the statements of a spec with each other: divisible batches, axes with one job
//! each, one default for `data`.

use super::context::{Context, quote};
use shardc_ir::diagnostic::{Diagnostic, counted};
use shardc_ir::mesh::AxisId;
use shardc_ir::spec::{FloatType, PipelineSchedule, Recompute, Source, Spec, ZeroStage};
use shardc_ir::train::Decay;
use std::collections::BTreeMap;

/// Reports every disagreement.
pub fn check(spec: &Spec, context: &mut Context<'_>) {
    batch_divides(spec, context);
    axes_do_one_job(spec, context);
    zero_is_over_data(spec, context);
    one_default("data", spec.data.iter().map(|data| (data.source, data.value.on.is_none())), context);
    one_default("tensor", spec.tensor.iter().map(|tensor| (tensor.source, tensor.value.on.is_none())), context);
    one_default("zero", spec.zero.iter().map(|zero| (zero.source, zero.value.on.is_none())), context);
    scopes_have_a_rest(spec, context);
    places_are_stages(spec, context);
    schedule_fits(spec, context);
    rate_falls(spec, context);
    frozen_is_not_trained(spec, context);
    precisions_fit(spec, context);
    recompute_is_one_thing(spec, context);
}

fn batch_divides(spec: &Spec, context: &mut Context<'_>) {
    let Some(batch) = &spec.batch else { return };
    let (size, microbatches) = (batch.value.size, batch.value.microbatches);
    let mesh = spec.mesh();
    let mut widths = spec.data.iter().map(|data| data.value.axes.iter().map(|axis| mesh.size(*axis)).product()).chain([1]);
    let Some(ranks) = widths.find(|ranks: &u64| !size.is_multiple_of(ranks * microbatches)) else { return };
    let parts = ranks * microbatches;
    let by = match (ranks, microbatches) {
        (1, _) => format!("{microbatches} micro-batches"),
        (_, 1) => format!("{ranks} data ranks"),
        _ => format!("{ranks} data ranks times {microbatches} micro-batches"),
    };
    let error = Diagnostic::error(format!("a batch of {size} does not divide by {by}"));
    context.report(batch.source, error.help(format!("use a multiple of {parts}, such as {}", size.div_ceil(parts) * parts)));
}

/// An axis that splits the batch splits no tokens and no weights of the same ops, and the stages of
/// a pipeline share their axis with nothing.
fn axes_do_one_job(spec: &Spec, context: &mut Context<'_>) {
    let everywhere = spec.data.iter().filter(|data| data.value.on.is_none());
    let data: Vec<AxisId> = everywhere.flat_map(|data| data.value.axes.clone()).collect();
    for tensor in spec.tensor.iter().filter(|tensor| tensor.value.on.is_none() && data.contains(&tensor.value.axis)) {
        conflict(tensor.value.axis, "data", "tensor", tensor.source, context);
    }
    for sequence in spec.sequence.iter().filter(|sequence| data.contains(&sequence.value)) {
        conflict(sequence.value, "data", "sequence", sequence.source, context);
    }
    let Some(pipeline) = &spec.pipeline else { return };
    let stages = pipeline.value.axis;
    let data = spec.data.iter().map(|data| (data.source, "data", data.value.axes.clone()));
    let tensor = spec.tensor.iter().map(|tensor| (tensor.source, "tensor", vec![tensor.value.axis]));
    let sequence = spec.sequence.iter().map(|sequence| (sequence.source, "sequence", vec![sequence.value]));
    let zero = spec.zero.iter().map(|zero| (zero.source, "zero", zero.value.axes.clone()));
    let dims = spec.shard.iter().flat_map(|shard| &shard.value.dims);
    let shard = dims.map(|dim| (dim.source, "shard", dim.value.axes()));
    for (source, statement, axes) in data.chain(tensor).chain(sequence).chain(zero).chain(shard) {
        if axes.contains(&stages) {
            conflict(stages, "pipeline", statement, source, context);
        }
    }
}

/// Gradients and sums have the type that is computed in, or a wider one; a loss scale is for
/// numbers that underflow.
fn precisions_fit(spec: &Spec, context: &mut Context<'_>) {
    let Some(line) = &spec.precision else { return };
    let compute = line.value.compute.unwrap_or(FloatType::F32);
    for (name, float) in [("gradients", line.value.gradients), ("reduce", line.value.reduce)] {
        let Some(float) = float.filter(|float| float.dtype().is_half() && *float != compute) else { continue };
        let error = Diagnostic::error(format!("`{name}={float}` is narrower than what is computed, which is {compute}"));
        context.report(line.source, error.help(format!("use `{name}=f32`, or `compute={float}` too")));
    }
    if line.value.loss_scale.is_some() && compute != FloatType::F16 {
        let error = Diagnostic::error(format!("`loss_scale` is for `compute=f16`, and this computes in {compute}"));
        context.report(line.source, error.help(format!("leave it out: {compute} holds small gradients as they are")));
    }
}

/// Ranks that share what a parameter is trained with read different samples.
fn zero_is_over_data(spec: &Spec, context: &mut Context<'_>) {
    let data: Vec<AxisId> = spec.data.iter().flat_map(|data| data.value.axes.clone()).collect();
    let stages = spec.pipeline.as_ref().map(|pipeline| pipeline.value.axis);
    for zero in spec.zero.iter().filter(|zero| zero.value.stage != ZeroStage::Replicated) {
        let Some(axis) = zero.value.axes.iter().find(|axis| !data.contains(axis) && stages != Some(**axis)) else { continue };
        let name = context.mesh[axis.index()].name.clone();
        let error = Diagnostic::error(format!("`zero` is over {}, which does not split the batch", quote(&name)));
        let help = match &data[..] {
            [] => format!("add `data axis={name}`"),
            [first, ..] => format!("use an axis of a `data` line, such as `{}`", context.mesh[first.index()].name),
        };
        context.report(zero.source, error.help(help));
    }
}

fn conflict(axis: AxisId, first: &str, second: &str, source: Source, context: &mut Context<'_>) {
    let name = quote(&context.mesh[axis.index()].name);
    let error = Diagnostic::error(format!("axis {name} serves both `{first}` and `{second}`"));
    context.report(source, error.help("give each its own axis of the mesh"));
}

/// Of the lines that take `on=`, one may be without it.
fn one_default(name: &str, lines: impl Iterator<Item = (Source, bool)>, context: &mut Context<'_>) {
    let mut defaults = lines.filter(|(_, is_default)| *is_default).map(|(source, _)| source);
    let Some(first) = defaults.next() else { return };
    for source in defaults {
        let error = Diagnostic::error(format!("`{name}` is given twice")).label(format!("the first is on line {}", first.line));
        context.report(source, error.help("keep one of the two, or add `on=\"SCOPE\"` for a part of the model"));
    }
}

/// A `data` line for a part of the model stands beside one for the rest.
fn scopes_have_a_rest(spec: &Spec, context: &mut Context<'_>) {
    if spec.data.iter().any(|data| data.value.on.is_none()) {
        return;
    }
    let Some(data) = spec.data.first() else { return };
    let axis = data.value.axes.first().map_or("dp", |axis| &context.mesh[axis.index()].name);
    let help = format!("add a line without `on=`, such as `data axis={axis}`");
    let error =
        Diagnostic::error("`data` names a part of the model, and no line says how the data itself and the rest are split");
    context.report(data.source, error.help(help));
}

fn places_are_stages(spec: &Spec, context: &mut Context<'_>) {
    let Some(pipeline) = &spec.pipeline else { return };
    let stages = pipeline.value.stages(&spec.mesh());
    for place in spec.place.iter().filter(|place| place.value.stage >= stages) {
        let error = Diagnostic::error(format!("there is no stage {}", place.value.stage));
        context.report(place.source, error.help(format!("the pipeline has {}, counted from 0", counted(stages, "stage"))));
    }
}

/// A schedule takes only some numbers of micro-batches.
fn schedule_fits(spec: &Spec, context: &mut Context<'_>) {
    let Some(pipeline) = spec.pipeline.as_ref().filter(|pipeline| pipeline.value.custom.is_none()) else { return };
    let (positions, microbatches) = (spec.mesh().size(pipeline.value.axis), spec.microbatches());
    let source = spec.batch.as_ref().map_or(pipeline.source, |batch| batch.source);
    match pipeline.value.schedule {
        PipelineSchedule::Interleaved { .. } if spec.trains() && !microbatches.is_multiple_of(positions) => {
            let error = Diagnostic::error(format!(
                "`interleaved` takes micro-batches in groups of {positions}, the ranks of the pipeline, not {microbatches}"
            ));
            let (below, above) = (microbatches / positions * positions, microbatches.div_ceil(positions) * positions);
            let near = if below > 0 { format!("{below} or {above}") } else { above.to_string() };
            context.report(source, error.help(format!("use `microbatches={near}`")));
        }
        PipelineSchedule::ZeroBubbleH1 if microbatches == 1 && spec.trains() => {
            let error = Diagnostic::error("`zb-h1` needs several micro-batches: with one, no gradient of a weight is apart");
            context.report(source, error.help("use more `microbatches`, or another schedule"));
        }
        _ => {}
    }
}

/// Several scopes are recomputed; the other forms stand alone.
fn recompute_is_one_thing(spec: &Spec, context: &mut Context<'_>) {
    let is_scope = |line: &Recompute| matches!(line, Recompute::Scope(_));
    let Some(first) = spec.recompute.first() else { return };
    for line in spec.recompute.iter().skip(1).filter(|line| !is_scope(&first.value) || !is_scope(&line.value)) {
        let error = Diagnostic::error("`recompute` says two things").label(format!("the first is on line {}", first.source.line));
        context.report(line.source, error.help("write lines with scopes, or one line with `selective` or `budget=`"));
    }
}

fn rate_falls(spec: &Spec, context: &mut Context<'_>) {
    let (Some(optimizer), Some(schedule)) = (&spec.optimizer, &spec.schedule) else { return };
    let lr = optimizer.value.lr;
    if let Decay::Cosine { min_lr, .. } | Decay::Linear { min_lr, .. } = schedule.value.decay
        && min_lr > lr
    {
        let error = Diagnostic::error(format!("`min_lr` of {min_lr} is above `lr` of {lr}"));
        context.report(schedule.source, error.help("the rate falls from `lr` to `min_lr`"));
    }
}

fn frozen_is_not_trained(spec: &Spec, context: &mut Context<'_>) {
    let frozen: BTreeMap<&str, Source> = spec.freeze.iter().map(|freeze| (freeze.value.as_str(), freeze.source)).collect();
    for train in &spec.train {
        if let Some(freeze) = frozen.get(train.value.as_str()) {
            let (first, second) = (train.source.min(*freeze), train.source.max(*freeze));
            let error = Diagnostic::error(format!("{} is both frozen and trained", quote(&format!("\"{}\"", train.value))));
            context.report(second, error.label(format!("the other is on line {}", first.line)).help("keep one of the two lines"));
        }
    }
}
