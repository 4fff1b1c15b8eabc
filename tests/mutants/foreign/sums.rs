//! Sums that are made twice, through the same bytes or through others, or over other axes.

use super::{Plan, at_the_end, replan, row_major_copy};
use crate::jobs::Job;
use crate::mutate::{is_call, places};
use crate::rewrite::repair;
use shardc_ir::graph::NodeId;
use shardc_ir::kernel::{Collective, CollectiveKind, Kernel};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use shardc_ir::plan::{BufferId, BufferKind, Program, Step, View};
use shardc_testkit::random::Random;

/// Whether a step adds to what is in the bytes that it writes.
fn adds(step: &Step) -> bool {
    step.writes.iter().any(|write| step.reads.contains(write))
}

/// A reduction or an accumulation is made twice: at once, or later in its task.
pub fn again(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(&plan.program, adds))?;
    let steps = &mut plan.program.tasks[t].steps;
    let step = steps[s].clone();
    let to = if random.below(2) == 0 { s + 1 } else { s + 1 + random.below(steps.len() - s) };
    steps.insert(to, step.clone());
    Some(format!("`{}` {t}.{s} again at {to}", step.text()))
}

/// A buffer like that of a view, at the end of the arena.
fn second(program: &mut Program, view: &View) -> BufferId {
    let mut buffer = program.buffers[view.buffer.index()].clone();
    buffer.kind = BufferKind::Activation;
    let id = BufferId(program.buffers.len() as u32);
    program.buffers.push(buffer);
    at_the_end(program, id);
    id
}

/// The step that copies the whole of one buffer to another, for the value that a step gives.
fn copy(program: &Program, step: &Step, from: BufferId, to: BufferId) -> Step {
    let buffer = &program.buffers[from.index()];
    let bytes = buffer.local.iter().product::<u64>() * buffer.dtype.bytes();
    let view = |buffer| View { buffer, offset: 0, bytes };
    let mut copy = step.clone();
    copy.kernel = row_major_copy(buffer.dtype, &buffer.local);
    copy.stream = shardc_ir::plan::Stream::Main;
    (copy.reads, copy.writes) = (vec![view(from)], vec![view(to)]);
    copy.op = format!("copy of `{}`", step.text());
    copy
}

/// What a reduction has made is copied, reduced once more there, and read from there or copied
/// back; or what it reads is copied to where it is read from then on.
pub fn through_a_copy(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let one = |step: &Step| adds(step) && step.writes.len() == 1 && step.writes[0].offset == 0;
    let (t, s) = random.pick(&places(program, one))?;
    let step = program.tasks[t].steps[s].clone();
    let from = step.writes[0].buffer;
    let to = second(program, &step.writes[0]);
    let there =
        |views: &[View]| views.iter().map(|v| View { buffer: if v.buffer == from { to } else { v.buffer }, ..*v }).collect();
    let once_more = Step { reads: there(&step.reads), writes: there(&step.writes), ..step.clone() };
    let (forth, back) = (copy(program, &step, from, to), copy(program, &step, to, from));
    let how = random.below(4);
    let new = match how {
        0 => vec![step.clone(), forth, once_more, back],
        1 | 2 => vec![step.clone(), forth, once_more],
        // Copied before it is reduced.
        _ => vec![forth, step.clone()],
    };
    let behind = s + new.len();
    program.tasks[t].steps.splice(s..=s, new);
    if how > 0 {
        let later = program.tasks.iter_mut().enumerate().flat_map(|(at, task)| {
            let first = if at == t { behind } else { 0 };
            task.steps.iter_mut().skip(if at < t { usize::MAX } else { first })
        });
        let readers: Vec<&mut Step> = later.filter(|s| s.reads.iter().any(|view| view.buffer == from) && !adds(s)).collect();
        let all = random.below(2) == 0;
        let only = random.below(readers.len().max(1));
        for (_, reader) in readers.into_iter().enumerate().filter(|(i, _)| all || *i == only) {
            reader.reads.iter_mut().filter(|view| view.buffer == from).for_each(|view| view.buffer = to);
        }
    }
    Some(format!("`{}` {t}.{s} through a copy, way {how}", step.text()))
}

/// The axes of a sum, with one more, one less, or another one.
fn other_axes(axes: &[AxisId], ranks: usize, random: &mut Random) -> Option<Vec<AxisId>> {
    let mut other = axes.to_vec();
    let axis = AxisId(random.below(ranks) as u8);
    match (axes.iter().position(|a| *a == axis), random.below(2)) {
        (Some(_), _) if axes.len() == 1 => return None,
        (Some(i), _) => drop(other.remove(i)),
        (None, 0) => other.push(axis),
        (None, _) => other[random.below(axes.len())] = axis,
    }
    Some(other)
}

/// A sum over ranks has an axis too many or too few, in the program alone or in the graph too.
pub fn other_group(plan: &mut Plan, job: &Job, random: &mut Random) -> Option<String> {
    let ranks = plan.program.mesh.rank_axes().len();
    let reduces = |step: &Step| matches!(&step.kernel, Kernel::Collective(c) if c.kind == CollectiveKind::AllReduce);
    let (t, s) = random.pick(&places(&plan.program, reduces))?;
    let step = &mut plan.program.tasks[t].steps[s];
    let Kernel::Collective(Collective { axes, .. }) = &mut step.kernel else { return None };
    let other = other_axes(axes, ranks, random)?;
    axes.clone_from(&other);
    let (ops, text) = (step.provenance.ops.clone(), step.text());
    let how = random.below(4);
    if how > 0 {
        let is_named = |v| ops.iter().any(|op| **op == *plan.graph.value(v).name);
        let named: Vec<NodeId> = plan.graph.nodes().filter(|(_, n)| is_named(n.results[0])).map(|(id, _)| id).collect();
        plan.graph = super::with_ops(&plan.graph, |id, op| match op {
            Op::AllReduce(a) if named.contains(&id) => {
                Op::AllReduce(shardc_ir::ops::comm::AllReduce { axes: other.clone(), ..a.clone() })
            }
            op => op.clone(),
        });
    }
    if how > 1 {
        repair(&mut plan.graph);
    }
    if how == 3 {
        plan.program = replan(job, &plan.graph)?;
    }
    Some(format!("`{text}` {t}.{s} over {other:?}, way {how}"))
}

/// Two calls of a task are made over one another's bytes, both twice.
pub fn crossed(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let all = places(&plan.program, is_call);
    let (a, b) = (random.pick(&all)?, random.pick(&all)?);
    let step = plan.program.tasks[a.0].steps[a.1].clone();
    if a.0 != b.0 || a == b || !adds(&step) {
        return None;
    }
    plan.program.tasks[b.0].steps.insert(b.1 + 1, step.clone());
    Some(format!("`{}` {a:?} again behind {b:?}", step.text()))
}
