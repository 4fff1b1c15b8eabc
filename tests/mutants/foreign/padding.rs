//! Room behind elements: slots, arenas and offsets with more of it, and kernels that reach into it.

use super::{Plan, at_the_end, element, fit, fit_arena};
use crate::jobs::Job;
use crate::mutate::{places, step};
use shardc_ir::kernel::Kernel;
use shardc_testkit::random::Random;

/// Slots are larger, or buffers lie further on, with or without those behind them.
pub fn pad(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let id = random.below(program.buffers.len());
    let (by, how) = (64 * (1 + random.below(2) as u64), random.below(8));
    match how {
        0 => program.arena_bytes += by,
        1 => {
            program.buffers[id].slot_bytes += by;
            let end = program.buffers[id].offset + program.buffers[id].slot_bytes - by;
            program.buffers.iter_mut().filter(|b| b.offset >= end).for_each(|b| b.offset += by);
        }
        2 | 3 => program.buffers[id].slot_bytes += by,
        _ => program.buffers[id].offset += by,
    }
    if how > 0 {
        fit_arena(program);
    }
    Some(format!("buffer {id} by {by}, way {how}"))
}

/// A kernel takes more elements than there are, as far as the slots of its operands reach.
pub fn reach(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let mesh = plan.program.mesh.clone();
    let (t, s) = random.pick(&places(&plan.program, |s| !s.kernel.clone().form_mut().sizes_mut().is_empty()))?;
    let mut step = plan.program.tasks[t].steps[s].clone();
    let mut sizes = step.kernel.form_mut().sizes_mut();
    let i = random.below(sizes.len());
    let before = *sizes[i];
    *sizes[i] += 1 + random.below(3) as u64;
    fit(&mut step, &mesh)?;
    let views = || step.reads.iter().chain(&step.writes).copied();
    let mut larger = 0;
    for view in views() {
        let buffer = &mut plan.program.buffers[view.buffer.index()];
        while view.offset + view.bytes > buffer.slot_bytes {
            (buffer.slot_bytes, larger) = (buffer.slot_bytes + 64, larger + 1);
            if larger > 8 {
                return None;
            }
        }
    }
    if larger > 0 {
        views().for_each(|view| at_the_end(&mut plan.program, view.buffer));
        fit_arena(&mut plan.program);
    }
    let text = format!("size {i} of `{}` {t}.{s}: more than {before}", step.text());
    plan.program.tasks[t].steps[s] = step;
    Some(text)
}

/// A call or a fill takes its whole slots.
pub fn whole_slots(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let (mesh, buffers) = (plan.program.mesh.clone(), plan.program.buffers.clone());
    let step = step(&mut plan.program, random, |s| matches!(s.kernel, Kernel::Collective(_) | Kernel::Fill(_)))?;
    let slot = |i: usize| {
        let buffer = &buffers[step.writes[i].buffer.index()];
        buffer.slot_bytes / element(buffer)
    };
    let counts: Vec<u64> = (0..step.writes.len()).map(slot).collect();
    let before = step.kernel.clone();
    let mut sizes = step.kernel.form_mut().sizes_mut();
    sizes.iter_mut().zip(counts).for_each(|(size, slot)| **size = slot);
    fit(step, &mesh)?;
    (step.kernel != before).then(|| format!("`{}` takes its slots", step.text()))
}
