//! Kernels that depend on where a rank stands: another axis, another digit, a term more or less,
//! the same in several kernels.

use super::Plan;
use crate::jobs::Job;
use crate::mutate::places;
use shardc_ir::kernel::{Kernel, Position};
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::plan::{Program, Step};
use shardc_testkit::random::Random;

fn depends(step: &Step) -> bool {
    step.kernel.clone().form_mut().positions_mut().iter().any(|position| !position.offset.terms.is_empty())
}

fn has_positions(step: &Step) -> bool {
    !step.kernel.clone().form_mut().positions_mut().is_empty()
}

fn change(kernel: &mut Kernel, mut with: impl FnMut(&mut Position<'_>)) {
    kernel.form_mut().positions_mut().iter_mut().for_each(&mut with);
}

/// One axis for another.
fn exchanged(axis: &mut AxisId, (a, b): (AxisId, AxisId)) {
    *axis = if *axis == a {
        b
    } else if *axis == b {
        a
    } else {
        *axis
    };
}

fn two_axes(mesh: &Mesh, random: &mut Random) -> Option<(AxisId, AxisId)> {
    let all = mesh.axes().len();
    let (a, b) = (AxisId(random.below(all) as u8), AxisId(random.below(all) as u8));
    (a != b).then_some((a, b))
}

/// The axes of all offsets of a kernel, or of all kernels of a task, are exchanged.
pub fn exchange_axes(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let axes = two_axes(&plan.program.mesh, random)?;
    let (t, s) = random.pick(&places(&plan.program, depends))?;
    let swap = |step: &mut Step| {
        change(&mut step.kernel, |p| p.offset.terms.iter_mut().for_each(|(axis, _)| exchanged(axis, axes)));
    };
    let steps = &mut plan.program.tasks[t].steps;
    let all = random.below(3) == 0;
    if all {
        steps.iter_mut().for_each(swap)
    } else {
        swap(&mut steps[s])
    }
    Some(format!("{axes:?} in {t}.{s}{}", if all { " and all of its task" } else { "" }))
}

/// A term of one offset is that of another, is there twice, is gone, or comes with the micro-batch.
pub fn move_term(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let time = plan.program.mesh.microbatch_axis();
    let others: Vec<(AxisId, i64)> = terms(&plan.program);
    let (t, s) = random.pick(&places(&plan.program, has_positions))?;
    let (how, term) = (random.below(6), random.pick(&others)?);
    let step = &mut plan.program.tasks[t].steps[s];
    let mut positions = step.kernel.form_mut().positions_mut();
    let (a, b) = (random.below(positions.len()), random.below(positions.len()));
    match how {
        0 => positions[a].offset.terms.push(term),
        1 => *positions[a].offset.terms.first_mut()? = term,
        2 => {
            let moved = positions[a].offset.terms.pop()?;
            positions[b].offset.terms.push(moved);
        }
        3 => {
            let copied = *positions[a].offset.terms.first()?;
            positions[b].offset.terms.push(copied);
        }
        4 => {
            let (_, factor) = positions[a].offset.terms.pop()?;
            positions[a].offset.base += factor;
        }
        _ => positions[a].offset.terms.first_mut()?.0 = time,
    }
    Some(format!("offsets {a} and {b} of `{}` {t}.{s}, way {how}", step.text()))
}

fn terms(program: &Program) -> Vec<(AxisId, i64)> {
    let steps = program.tasks.iter().flat_map(|task| &task.steps);
    let of = |step: &Step| -> Vec<(AxisId, i64)> {
        let mut kernel = step.kernel.clone();
        kernel.form_mut().positions_mut().iter().flat_map(|p| p.offset.terms.clone()).collect()
    };
    steps.flat_map(of).collect()
}

/// A digit of a local index counts otherwise, or two are exchanged, or one is another kernel's.
pub fn digits(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let has_digits = |step: &Step| {
        step.kernel.clone().form_mut().positions_mut().iter().any(|p| p.digits.as_ref().is_some_and(|d| !d.is_empty()))
    };
    let (t, s) = random.pick(&places(&plan.program, has_digits))?;
    let (how, i) = (random.below(5), random.below(4));
    let step = &mut plan.program.tasks[t].steps[s];
    let mut positions = step.kernel.form_mut().positions_mut();
    let all = positions.len();
    let position = &mut positions[i % all];
    let digits = position.digits.as_mut()?;
    let at = random.below(digits.len());
    match how {
        0 => digits.get_mut(at)?.stride *= 2,
        1 => digits.get_mut(at)?.divisor *= 2,
        2 => {
            let digit = *digits.get(at)?;
            digits.push(digit);
        }
        3 => {
            digits.pop()?;
        }
        _ => {
            let (factor, digit) = (&mut position.offset.terms.first_mut()?.1, digits.get_mut(at)?);
            let before = *factor;
            (*factor, digit.stride) = (digit.stride as i64, before.unsigned_abs());
        }
    }
    Some(format!("digit {at} of origin {i} of `{}` {t}.{s}, way {how}", step.text()))
}
