//! Views that are a part of their buffer, steps over half of their elements, views that begin an
//! element further.

use super::{Plan, at_the_end, element, fit, touched};
use crate::jobs::Job;
use crate::mutate::{is_call, places, step};
use shardc_ir::kernel::{Collective, CollectiveKind, Fill, Kernel, Map, Move};
use shardc_ir::plan::{BufferId, Step, View};
use shardc_testkit::random::Random;

/// A kernel does less, and its views are as large as that: the first part, or the last.
pub fn narrow(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let mesh = plan.program.mesh.clone();
    let step = step(&mut plan.program, random, |s| !s.kernel.clone().form_mut().sizes_mut().is_empty())?;
    let before = step.clone();
    let mut sizes = step.kernel.form_mut().sizes_mut();
    let i = random.below(sizes.len());
    let less = if random.below(2) == 0 { *sizes[i] / 2 } else { sizes[i].saturating_sub(1) };
    if less == 0 || less == *sizes[i] {
        return None;
    }
    *sizes[i] = less;
    fit(step, &mesh)?;
    let last = random.below(2) == 0;
    for (view, whole) in all_mut(step).into_iter().zip(all(&before)) {
        view.offset += if last { whole.bytes.saturating_sub(view.bytes) } else { 0 };
    }
    Some(format!("size {i} of `{}` is {less}, the {} part", before.text(), if last { "last" } else { "first" }))
}

fn all(step: &Step) -> Vec<View> {
    step.reads.iter().chain(&step.writes).copied().collect()
}

fn all_mut(step: &mut Step) -> Vec<&mut View> {
    step.reads.iter_mut().chain(&mut step.writes).collect()
}

/// A step over its elements `from..to` of `of`, along what it counts first.
fn part(step: &Step, from: u64, to: u64) -> Option<Step> {
    let mut part = step.clone();
    let count = to - from;
    // How far each operand moves, in bytes.
    let (mut reads, mut writes) = (vec![], vec![]);
    let along = |stride: Option<&i64>| u64::try_from(*stride.unwrap_or(&0)).ok();
    match &mut part.kernel {
        Kernel::Map(Map { shape, inputs, outputs, origins, .. }) if origins.is_empty() => {
            for input in inputs {
                reads.push(from * along(input.strides.first())? * input.dtype.bytes());
            }
            let row: u64 = shape.get(1..)?.iter().product();
            writes.extend(outputs.iter().map(|dtype| from * row * dtype.bytes()));
            shape[0] = count;
        }
        Kernel::Fill(Fill { dtype, count: all, .. }) => {
            writes.push(from * dtype.bytes());
            *all = count;
        }
        Kernel::Move(Move { dtype, shape, src_strides, dst_strides, .. }) => {
            reads.push(from * along(src_strides.first())? * dtype.bytes());
            writes.push(from * along(dst_strides.first())? * dtype.bytes());
            *shape.first_mut()? = count;
        }
        Kernel::Collective(Collective { kind: CollectiveKind::AllReduce, dtype, counts, .. }) if counts.len() == 1 => {
            reads.push(from * dtype.bytes());
            writes.push(from * dtype.bytes());
            counts[0] = count;
        }
        _ => return None,
    }
    part.reads.iter_mut().zip(reads).chain(part.writes.iter_mut().zip(writes)).for_each(|(view, by)| view.offset += by);
    Some(part)
}

/// What a step counts first.
fn length(step: &Step) -> Option<u64> {
    match &step.kernel {
        Kernel::Map(map) => map.shape.first().copied(),
        Kernel::Fill(fill) => Some(fill.count),
        Kernel::Move(copy) => copy.shape.first().copied(),
        Kernel::Collective(call) => call.counts.first().copied(),
        _ => None,
    }
}

/// A step in two parts: one is left out or done twice, or both reach too far or not far enough.
pub fn halves(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let mesh = plan.program.mesh.clone();
    let can = |s: &Step| length(s).is_some_and(|n| n > 1) && part(s, 0, 1).is_some();
    let (t, s) = random.pick(&places(&plan.program, can))?;
    let step = plan.program.tasks[t].steps[s].clone();
    let all = length(&step)?;
    let half = all / 2;
    let (first, second) = ((0, half), (half, all));
    let how = random.below(8);
    let parts = match how {
        0 => vec![first],
        1 => vec![second],
        2 => vec![first, first],
        3 => vec![second, second],
        4 => vec![first, second, first],
        5 if half > 1 => vec![(0, half - 1), second],
        6 if is_call(&step) => vec![(0, half + 1), second],
        _ => vec![first, (half + 1, all)],
    };
    let mut steps = vec![];
    for (from, to) in parts.into_iter().filter(|(from, to)| from < to) {
        let mut part = part(&step, from, to)?;
        fit(&mut part, &mesh)?;
        steps.push(part);
    }
    plan.program.tasks[t].steps.splice(s..=s, steps);
    Some(format!("`{}` {t}.{s} in parts, way {how}", step.text()))
}

/// Views of a buffer that has room begin an element or 64 bytes further.
pub fn shift(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let id = random.pick(&touched(program))?;
    let buffer = &mut program.buffers[id.index()];
    let used = buffer.local.iter().product::<u64>() * buffer.dtype.bytes();
    let by = if random.below(2) == 0 { element(buffer) } else { 64 };
    if buffer.slot_bytes < used + by {
        buffer.slot_bytes += 64;
        at_the_end(program, id);
    }
    let of = |step: &Step| all(step).iter().any(|view| view.buffer == id);
    let (t, s) = random.pick(&places(program, of))?;
    let how = random.below(7);
    let text = program.tasks[t].steps[s].text();
    let is_it = |view: &&mut View| view.buffer == id;
    let move_them = |views: &mut [View]| views.iter_mut().filter(is_it).for_each(|view| view.offset += by);
    match how {
        0..=2 => all_mut(&mut program.tasks[t].steps[s]).into_iter().filter(is_it).for_each(|view| view.offset += by),
        3 => program.tasks.iter_mut().flat_map(|task| &mut task.steps).for_each(|step| move_them(&mut step.reads)),
        4 => program.tasks.iter_mut().flat_map(|task| &mut task.steps).for_each(|step| move_them(&mut step.writes)),
        5 => program.tasks[t].steps[s..].iter_mut().for_each(|step| {
            move_them(&mut step.reads);
            move_them(&mut step.writes);
        }),
        _ => {
            let view = all_mut(&mut program.tasks[t].steps[s]).into_iter().find(is_it)?;
            (view.offset, view.bytes) = (view.offset + by, view.bytes.saturating_sub(by));
        }
    }
    Some(format!("views of buffer {} {by} bytes further from `{text}` on, way {how}", BufferId::index(id)))
}
