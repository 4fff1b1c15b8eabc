//! Mutations of collectives: kind, group, count, partner.

use super::{is_call, places, resize, step};
use shardc_ir::kernel::{Collective, CollectiveKind, Kernel};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::{Program, Step};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_testkit::random::Random;

/// A random call, with all that its step holds.
fn call<'p>(program: &'p mut Program, random: &mut Random, of: impl Fn(&Collective) -> bool) -> Option<&'p mut Step> {
    step(program, random, |s| matches!(&s.kernel, Kernel::Collective(c) if of(c)))
}

/// Changes a call; `fit` makes count and views those of the new kind and group.
fn change_call(step: &mut Step, members: u64, fit: bool, change: impl FnOnce(&mut Collective)) {
    let Kernel::Collective(call) = &mut step.kernel else { return };
    change(call);
    if !fit {
        return;
    }
    let element = call.dtype.bytes();
    for ((read, write), count) in step.reads.iter().zip(&mut step.writes).zip(&mut call.counts) {
        let (whole, part) = (read.bytes, read.bytes / members.max(1) / element * element);
        let (counted, written) = match call.kind {
            CollectiveKind::AllReduce => (whole, whole),
            CollectiveKind::AllGather => (whole, whole * members),
            CollectiveKind::ReduceScatter => (part, part),
            CollectiveKind::AllToAll => (part, whole),
        };
        *count = counted / element;
        write.bytes = written;
    }
}

fn members(program: &Program, axes: &[AxisId]) -> u64 {
    axes.iter().map(|a| program.mesh.size(*a)).product()
}

pub(super) fn change_kind(program: &mut Program, random: &mut Random) -> Option<String> {
    let all = program.clone();
    let step = call(program, random, |_| true)?;
    let Kernel::Collective(before) = step.kernel.clone() else { return None };
    use CollectiveKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
    let kind = random.pick(&[AllReduce, AllGather, ReduceScatter, AllToAll])?;
    change_call(step, members(&all, &before.axes), random.below(3) > 0, |call| call.kind = kind);
    (kind != before.kind).then(|| format!("`{}`: {kind:?}", step.text()))
}

pub(super) fn change_op(program: &mut Program, random: &mut Random) -> Option<String> {
    let reduces = |c: &Collective| matches!(c.kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter);
    let step = call(program, random, reduces)?;
    let text = step.text();
    let Kernel::Collective(call) = &mut step.kernel else { return None };
    let before = call.op;
    call.op = random.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min])?;
    (call.op != before).then(|| format!("`{text}`: {:?}", call.op))
}

pub(super) fn exchange_axis(program: &mut Program, random: &mut Random) -> Option<String> {
    let mesh = program.mesh.clone();
    let step = call(program, random, |_| true)?;
    let text = step.text();
    let Kernel::Collective(call) = &mut step.kernel else { return None };
    let i = random.below(call.axes.len());
    let axis = AxisId(random.below(mesh.rank_axes().len()) as u8);
    if call.axes.contains(&axis) || mesh.size(axis) != mesh.size(call.axes[i]) {
        return None;
    }
    call.axes[i] = axis;
    Some(format!("`{text}`: {:?}", call.axes))
}

pub(super) fn reorder_axes(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = call(program, random, |c| c.axes.len() > 1)?;
    let Kernel::Collective(call) = &mut step.kernel else { return None };
    call.axes.reverse();
    Some(format!("`{}`", step.text()))
}

pub(super) fn resize_group(program: &mut Program, random: &mut Random) -> Option<String> {
    let all = program.clone();
    let step = call(program, random, |_| true)?;
    let Kernel::Collective(before) = step.kernel.clone() else { return None };
    let mut axes = before.axes.clone();
    let axis = AxisId(random.below(all.mesh.rank_axes().len()) as u8);
    match axes.iter().position(|a| *a == axis) {
        Some(_) if axes.len() == 1 => return None,
        Some(i) => {
            axes.remove(i);
        }
        None => axes.push(axis),
    }
    change_call(step, members(&all, &axes), random.below(3) > 0, |call| call.axes = axes.clone());
    Some(format!("`{}`: {axes:?}", step.text()))
}

pub(super) fn resize_collective(program: &mut Program, random: &mut Random) -> Option<String> {
    let all = program.clone();
    let step = call(program, random, |_| true)?;
    let Kernel::Collective(before) = step.kernel.clone() else { return None };
    if random.below(2) == 0 {
        let Kernel::Collective(call) = &mut step.kernel else { return None };
        let operand = random.below(call.counts.len());
        let change = resize(&mut call.counts[operand], random)?;
        return Some(format!("`{}`: {change}", step.text()));
    }
    // Less, and all operands with it.
    let less = before.dtype.bytes() * members(&all, &before.axes);
    let operand = random.below(step.reads.len());
    if step.reads[operand].bytes <= less {
        return None;
    }
    step.reads[operand].bytes -= less;
    change_call(step, members(&all, &before.axes), true, |_| {});
    Some(format!("`{}`: {less} bytes less", step.text()))
}

/// One of a call's operands is left out, there twice, or exchanged with another; of its source and
/// its destination, or of one of them.
pub(super) fn change_operands(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = call(program, random, |call| call.counts.len() > 1)?;
    let Kernel::Collective(call) = &mut step.kernel else { return None };
    let (a, b) = (random.below(call.counts.len()), random.below(call.counts.len()));
    let how = random.below(5);
    match how {
        0 => {
            call.counts.remove(a);
            step.reads.remove(a);
            step.writes.remove(a);
        }
        1 => {
            call.counts.push(call.counts[a]);
            step.reads.push(step.reads[a]);
            step.writes.push(step.writes[a]);
        }
        2 => step.reads.swap(a, b),
        3 => step.writes.swap(a, b),
        _ => {
            call.counts.swap(a, b);
            step.reads.swap(a, b);
            step.writes.swap(a, b);
        }
    }
    Some(format!(
        "`{}`: {} of operands {a} and {b}",
        step.text(),
        ["one less", "one twice", "sources", "destinations", "places"][how]
    ))
}

/// Two calls exchange their groups, or their operands.
pub(super) fn exchange_collectives(program: &mut Program, random: &mut Random) -> Option<String> {
    let calls = places(program, is_call);
    let (a, b) = (random.pick(&calls)?, random.pick(&calls)?);
    let (first, second) = (program.tasks[a.0].steps[a.1].clone(), program.tasks[b.0].steps[b.1].clone());
    let how = random.below(2);
    let (Kernel::Collective(x), Kernel::Collective(y)) = (&first.kernel, &second.kernel) else { return None };
    let different = if how == 0 { x.axes != y.axes } else { first.reads != second.reads };
    if a == b || !different {
        return None;
    }
    for (place, other, call) in [(a, &second, y), (b, &first, x)] {
        let step = &mut program.tasks[place.0].steps[place.1];
        if how == 0 {
            change_call(step, 1, false, |c| c.axes = call.axes.clone());
        } else {
            (step.reads, step.writes) = (other.reads.clone(), other.writes.clone());
        }
    }
    Some(format!("`{}` and `{}`, {}", first.text(), second.text(), ["groups", "operands"][how]))
}
