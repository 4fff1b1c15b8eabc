//! Bytes that ranges and gathered lines share with what is still needed, and the general classes at
//! steps and buffers of lines.

use super::{flat, gathers, is_flat, is_scratch, touches};
use crate::mutate::{CLASSES, places};
use crate::pipelines::other_kinds;
use crate::sets::{self, fit};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferId, Program, Step};
use shardc_testkit::random::Random;
use std::collections::BTreeSet;

/// How often a general class is tried until it changes a line.
const ATTEMPTS: usize = 20;

/// What a gather fills comes to lie where something lies that is live in its task.
pub fn prefetched(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, |step| gathers(program, step)))?;
    let own = random.pick(&program.tasks[t].steps[s].writes)?.buffer;
    let live = |id: &BufferId| {
        let touched = |step: &Step| step.reads.iter().chain(&step.writes).any(|view| view.buffer == *id);
        let steps = &program.tasks[t].steps;
        *id != own && steps[..s].iter().any(touched) && steps[s..].iter().any(touched)
    };
    let others: Vec<BufferId> = (0..program.buffers.len() as u32).map(BufferId).filter(live).collect();
    let other = random.pick(&others)?;
    put_over(program, own, other, random)
}

/// One buffer comes to lie where another does, or so that only their ends meet.
fn put_over(program: &mut Program, own: BufferId, other: BufferId, random: &mut Random) -> Option<String> {
    let shift = 64 * random.below(2) as u64;
    let to = &program.buffers[other.index()];
    let offset = if random.below(2) == 0 { to.offset.checked_sub(shift)? } else { to.offset };
    let own = &mut program.buffers[own.index()];
    let before = std::mem::replace(&mut own.offset, offset);
    let text = format!("`{}` at {offset}, not {before}", own.name);
    let changed = own.offset != before;
    fit(program);
    changed.then_some(text)
}

/// The bytes of a range, a gathered line or scratch are given to something that is written before
/// the last step that reads them.
pub fn given_away(program: &mut Program, random: &mut Random) -> Option<String> {
    let t = random.below(program.tasks.len());
    let steps = &program.tasks[t].steps;
    let own = random.pick(&(0..steps.len()).filter(|s| touches(program, &steps[*s])).collect::<Vec<_>>())?;
    let view = random.pick(&steps[own].writes.iter().chain(&steps[own].reads).copied().collect::<Vec<_>>())?;
    let last = (own + 1..steps.len()).rev().find(|s| steps[*s].reads.iter().any(|read| read.buffer == view.buffer))?;
    let between = steps[own + 1..last].iter().flat_map(|step| &step.writes).map(|view| view.buffer);
    let other = random.pick(&between.filter(|id| *id != view.buffer).collect::<Vec<_>>())?;
    match random.below(2) {
        0 => put_over(program, other, view.buffer, random),
        _ => put_over(program, view.buffer, other, random),
    }
}

/// Whether a change is of a line: of a step that touches one, or of such a buffer.
fn changes_lines(before: &Program, after: &Program) -> bool {
    let lines: BTreeSet<BufferId> = flat(before).into_iter().collect();
    let same_tables = before.states == after.states && before.order == after.order && before.outputs == after.outputs;
    let buffers = || before.buffers.iter().zip(&after.buffers).zip((0..).map(BufferId));
    if before.buffers.len() == after.buffers.len() && buffers().any(|((a, b), id)| a != b && lines.contains(&id)) {
        return true;
    }
    same_tables
        && before
            .tasks
            .iter()
            .zip(&after.tasks)
            .any(|(a, b)| changed_steps(&a.steps, &b.steps).iter().any(|s| touches(before, s)))
}

/// The steps at both ends of what differs.
fn changed_steps<'s>(before: &'s [Step], after: &'s [Step]) -> Vec<&'s Step> {
    let first = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    let shorter = before.len().min(after.len()) - first;
    let last = before.iter().rev().zip(after.iter().rev()).take(shorter).take_while(|(a, b)| a == b).count();
    let ends = |steps: &'s [Step]| {
        let changed = &steps[first..steps.len() - last];
        changed.first().into_iter().chain(changed.last())
    };
    ends(before).chain(ends(after)).collect()
}

/// A change of a general class, at a line.
pub fn general(program: &mut Program, random: &mut Random) -> Option<String> {
    let good = program.clone();
    for _ in 0..ATTEMPTS {
        let class = &CLASSES[random.below(CLASSES.len())];
        let what = (class.mutate)(program, random);
        if let Some(what) = what.filter(|_| changes_lines(&good, program)) {
            return Some(format!("{}: {what}", class.name));
        }
        *program = good.clone();
    }
    None
}

/// A change of the second family, at a line.
pub fn other_general(set: &mut PlanSet, job: &sets::Job, random: &mut Random) -> Option<String> {
    let good = set.clone();
    for _ in 0..ATTEMPTS {
        let what = other_kinds(set, job, random);
        let of_lines = good.programs.iter().zip(&set.programs).any(|(before, after)| changes_lines(before, after));
        if let Some(what) = what.filter(|_| of_lines) {
            return Some(what);
        }
        *set = good.clone();
    }
    None
}

/// A step reads another line, gathered or not, of as many bytes.
pub fn reads_another(program: &mut Program, random: &mut Random) -> Option<String> {
    let gathered: BTreeSet<BufferId> = places(program, |step| touches(program, step))
        .into_iter()
        .flat_map(|(t, s)| program.tasks[t].steps[s].writes.iter().map(|view| view.buffer))
        .collect();
    let wanted = |step: &Step| step.reads.iter().any(|view| gathered.contains(&view.buffer));
    let (t, s) = random.pick(&places(program, wanted))?;
    let step = &program.tasks[t].steps[s];
    let read = random.pick(&(0..step.reads.len()).filter(|i| gathered.contains(&step.reads[*i].buffer)).collect::<Vec<_>>())?;
    let own = step.reads[read].buffer;
    let bytes = |id: BufferId| program.buffers[id.index()].local.iter().product::<u64>();
    // Lines that are filled up often lie at one place.
    let offset = |id: BufferId| program.buffers[id.index()].offset;
    let fits = |id: &BufferId| offset(*id) != offset(own) && bytes(*id) == bytes(own);
    let others: Vec<BufferId> = gathered.iter().copied().filter(fits).collect();
    let other = random.pick(&others)?;
    let step = &mut program.tasks[t].steps[s];
    step.reads[read].buffer = other;
    Some(format!("`{}` {t}.{s} reads buffer {} for {}", step.text(), other.0, own.0))
}

/// A view of a range or of scratch begins elsewhere, or is of another size.
pub fn views(program: &mut Program, random: &mut Random) -> Option<String> {
    let of_line = |view: &shardc_ir::plan::View| is_flat(program, view) || is_scratch(program, view);
    let (t, s) = random.pick(&places(program, |step| step.reads.iter().chain(&step.writes).any(of_line)))?;
    let step = &program.tasks[t].steps[s];
    let of: Vec<bool> = step.reads.iter().chain(&step.writes).map(of_line).collect();
    let operand = random.pick(&(0..of.len()).filter(|i| of[*i]).collect::<Vec<_>>())?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let view = step.reads.iter_mut().chain(&mut step.writes).nth(operand)?;
    let before = *view;
    match random.below(4) {
        0 => view.offset += 8,
        1 => view.offset += view.bytes,
        2 => view.bytes = view.bytes.saturating_sub(8),
        _ => view.bytes += 8,
    }
    Some(format!("`{text}` {t}.{s}: operand {operand} is {}+{}, not {}+{}", view.offset, view.bytes, before.offset, before.bytes))
}
