//! Mutations of steps: their order, their operands, the bytes of each operand.

use super::{StepIndex, is_call, places, step};
use shardc_ir::plan::{Buffer, BufferId, Program, Step, View};
use shardc_testkit::random::Random;

/// Whether the order of two steps matters: one writes what the other touches.
fn depend(program: &Program, a: &Step, b: &Step) -> bool {
    let range = |v: &View| {
        let buffer = &program.buffers[v.buffer.index()];
        (buffer.offset + v.offset, buffer.offset + v.offset + v.bytes)
    };
    let meet = |a: &View, b: &View| range(a).0 < range(b).1 && range(b).0 < range(a).1;
    let writes = |a: &Step, b: &Step| a.writes.iter().any(|w| b.reads.iter().chain(&b.writes).any(|v| meet(w, v)));
    writes(a, b) || writes(b, a)
}

pub(super) fn drop_step(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, |_| true))?;
    let step = program.tasks[t].steps.remove(s);
    Some(format!("`{}` {t}.{s}", step.text()))
}

pub(super) fn duplicate_step(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, |_| true))?;
    let step = program.tasks[t].steps[s].clone();
    let to = s + 1 + random.below(program.tasks[t].steps.len() - s);
    let text = format!("`{}` {t}.{s} again at {to}", step.text());
    program.tasks[t].steps.insert(to, step);
    Some(text)
}

pub(super) fn swap_steps(program: &mut Program, random: &mut Random) -> Option<String> {
    let steps = |(t, s): StepIndex| (&program.tasks[t].steps[s - 1], &program.tasks[t].steps[s]);
    let matters = |place: &StepIndex| place.1 > 0 && depend(program, steps(*place).0, steps(*place).1);
    let all: Vec<StepIndex> = places(program, |_| true).into_iter().filter(matters).collect();
    let (t, s) = random.pick(&all)?;
    program.tasks[t].steps.swap(s - 1, s);
    Some(format!("`{}` {t}.{s}", program.tasks[t].steps[s].text()))
}

/// A step goes elsewhere, past one that it depends on or that depends on it.
pub(super) fn move_step(program: &mut Program, random: &mut Random) -> Option<String> {
    let all = places(program, |_| true);
    let from = random.below(all.len());
    let (t, s) = all[from];
    let step = program.tasks[t].steps[s].clone();
    let past: Vec<StepIndex> =
        all.iter().copied().filter(|p| *p != (t, s) && depend(program, &program.tasks[p.0].steps[p.1], &step)).collect();
    let (to_t, to_s) = random.pick(&past)?;
    // Behind a later one, before an earlier one.
    let after = (to_t, to_s) > (t, s);
    program.tasks[t].steps.remove(s);
    let to_s = if to_t == t && after { to_s } else { to_s + usize::from(after) };
    let text = format!("`{}` {t}.{s} to {to_t}.{to_s}", step.text());
    program.tasks[to_t].steps.insert(to_s, step);
    Some(text)
}

/// A random operand.
pub(super) fn view<'p>(program: &'p mut Program, random: &mut Random) -> Option<(&'p mut View, String)> {
    let step = step(program, random, |_| true)?;
    let i = random.below(step.reads.len() + step.writes.len());
    let text = format!("operand {i} of `{}`", step.text());
    let view = step.reads.iter_mut().chain(&mut step.writes).nth(i)?;
    Some((view, text))
}

pub(super) fn resize_view(program: &mut Program, random: &mut Random) -> Option<String> {
    let (view, text) = view(program, random)?;
    let bytes = view.bytes;
    view.bytes = match random.below(5) {
        0 => bytes / 2,
        1 => bytes * 2,
        2 => bytes.saturating_sub(8),
        3 => bytes + 8,
        _ => 0,
    };
    (view.bytes != bytes).then(|| format!("{text}: {bytes} to {} bytes", view.bytes))
}

pub(super) fn move_view(program: &mut Program, random: &mut Random) -> Option<String> {
    let (view, text) = view(program, random)?;
    let by = random.pick(&[8, 16, 64, view.bytes.max(8), 4])?;
    view.offset += by;
    Some(format!("{text}: {by} bytes further"))
}

/// Another buffer of the same local shape.
pub(super) fn alike(program: &Program, random: &mut Random, id: BufferId) -> Option<BufferId> {
    let of = |id: BufferId| program.buffers[id.index()].clone();
    let key = |b: &Buffer| (b.local.clone(), b.dtype, b.slots);
    let ids = (0..program.buffers.len() as u32).map(BufferId);
    let others: Vec<BufferId> = ids.filter(|other| *other != id && key(&of(*other)) == key(&of(id))).collect();
    random.pick(&others)
}

pub(super) fn read_another(program: &mut Program, random: &mut Random) -> Option<String> {
    replace_operand(program, random, |s| &mut s.reads)
}

pub(super) fn write_another(program: &mut Program, random: &mut Random) -> Option<String> {
    replace_operand(program, random, |s| &mut s.writes)
}

fn replace_operand(program: &mut Program, random: &mut Random, of: fn(&mut Step) -> &mut Vec<View>) -> Option<String> {
    let (t, s) = random.pick(&places(program, |s| !of(&mut s.clone()).is_empty()))?;
    let i = random.below(of(&mut program.tasks[t].steps[s]).len());
    let id = of(&mut program.tasks[t].steps[s])[i].buffer;
    let other = alike(program, random, id)?;
    let in_place = is_call(&program.tasks[t].steps[s]);
    let step = &mut program.tasks[t].steps[s];
    of(step)[i].buffer = other;
    if in_place && random.below(2) == 0 {
        step.reads.iter_mut().chain(&mut step.writes).filter(|v| v.buffer == id).for_each(|v| v.buffer = other);
    }
    Some(format!("operand {i} of `{}` {t}.{s}: buffer {} for {}", step.text(), other.0, id.0))
}

pub(super) fn exchange_operands(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| s.reads.len() > 1)?;
    let (i, j) = (random.below(step.reads.len()), random.below(step.reads.len()));
    if step.reads[i] == step.reads[j] || step.reads[i].bytes != step.reads[j].bytes {
        return None;
    }
    step.reads.swap(i, j);
    Some(format!("operands {i} and {j} of `{}`", step.text()))
}

/// A step carries out what another does, on its own operands.
pub(super) fn replace_step(program: &mut Program, random: &mut Random) -> Option<String> {
    let all = places(program, |_| true);
    let (t, s) = random.pick(&all)?;
    let step = program.tasks[t].steps[s].clone();
    let sizes = |step: &Step| -> Vec<Vec<u64>> {
        [&step.reads, &step.writes].iter().map(|views| views.iter().map(|view| view.bytes).collect()).collect()
    };
    let alike: Vec<StepIndex> =
        places(program, |other| sizes(other) == sizes(&step) && other.kernel.name() == step.kernel.name() && *other != step);
    let (other_t, other_s) = random.pick(&alike)?;
    let other = program.tasks[other_t].steps[other_s].clone();
    let text = format!("`{}` {t}.{s} as {other_t}.{other_s}", step.text());
    program.tasks[t].steps[s] = match random.below(3) {
        // Everything but the operands is the other's.
        0 => Step { reads: step.reads, writes: step.writes, ..other },
        1 => Step { provenance: other.provenance, ..step },
        _ => Step { reads: other.reads, ..step },
    };
    Some(text)
}
