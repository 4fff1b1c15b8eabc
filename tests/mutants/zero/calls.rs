//! Gathers and scatters: left out, too early, too late, of another kind, over other axes, of other
//! operands; and the sums over micro-batches beside them.

use super::{gathers, is_flat, scatters, touches};
use crate::foreign;
use crate::mutate::{is_call, places};
use shardc_ir::kernel::{Collective, CollectiveKind, Kernel};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::{BufferId, BufferKind, Program, Step, View, When};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_testkit::random::Random;

/// One of a call's operands is left out, with its op or without.
fn without(step: &mut Step, operand: usize, with_op: bool) {
    let Kernel::Collective(call) = &mut step.kernel else { return };
    call.counts.remove(operand);
    step.reads.remove(operand);
    step.writes.remove(operand);
    if with_op && operand < step.provenance.ops.len() {
        step.provenance.ops.remove(operand);
    }
}

/// A gather is left out: the call, the copy behind it, or one of several operands.
pub fn gather_dropped(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, |step| gathers(program, step)))?;
    let text = program.tasks[t].steps[s].text();
    let steps = &mut program.tasks[t].steps;
    let operands = steps[s].reads.len();
    let how = random.below(3);
    match how {
        0 if operands > 1 => without(&mut steps[s], random.below(operands), random.below(2) == 0),
        1 => {
            let written = steps[s].writes[0].buffer;
            let reads = |step: &Step| matches!(step.kernel, Kernel::Move(_)) && step.reads[0].buffer == written;
            let copy = s + 1 + steps[s + 1..].iter().position(reads)?;
            steps.remove(copy);
        }
        _ => drop(steps.remove(s)),
    }
    Some(format!("`{text}` {t}.{s}, way {how}"))
}

/// A gather, or the copy behind it, comes behind a step that reads what it makes.
pub fn gather_late(program: &mut Program, random: &mut Random) -> Option<String> {
    let makes = |step: &Step| gathers(program, step) || (matches!(step.kernel, Kernel::Move(_)) && touches(program, step));
    let (t, s) = random.pick(&places(program, makes))?;
    let steps = &program.tasks[t].steps;
    let written = |id: BufferId| steps[s].writes.iter().any(|view| view.buffer == id);
    let readers = (s + 1..steps.len()).filter(|i| steps[*i].reads.iter().any(|view| written(view.buffer)));
    let to = random.pick(&readers.collect::<Vec<_>>())?;
    let text = steps[s].text();
    program.tasks[t].steps[s..=to].rotate_left(1);
    Some(format!("`{text}` {t}.{s} behind {to}"))
}

/// A gather comes before the step that makes what it reads, or reads what was there before.
pub fn gather_stale(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, |step| gathers(program, step)))?;
    let steps = &program.tasks[t].steps;
    let text = steps[s].text();
    let operand = random.below(steps[s].reads.len());
    let own = steps[s].reads[operand].buffer;
    let made = steps[..s].iter().rposition(|step| step.writes.iter().any(|view| view.buffer == own));
    match made.filter(|_| random.below(2) == 0) {
        Some(to) => {
            program.tasks[t].steps[to..=s].rotate_right(1);
            Some(format!("`{text}` {t}.{s} before {to}"))
        }
        None => {
            let local = |id: BufferId| (&program.buffers[id.index()].shape, &program.buffers[id.index()].local);
            let fits = |id: &BufferId| *id != own && local(*id) == local(own);
            let other = random.pick(&super::flat(program).into_iter().filter(fits).collect::<Vec<_>>())?;
            program.tasks[t].steps[s].reads[operand].buffer = other;
            Some(format!("`{text}` {t}.{s} gathers buffer {} for {}", other.0, own.0))
        }
    }
}

/// An update comes behind the gather of what it makes, or before what it reads is complete.
pub fn update_moved(program: &mut Program, random: &mut Random) -> Option<String> {
    let of_state = |view: &View| matches!(program.buffers[view.buffer.index()].kind, BufferKind::State(_));
    let updates = |step: &Step| !is_call(step) && step.writes.iter().any(|view| is_flat(program, view) && of_state(view));
    let (t, s) = random.pick(&places(program, updates))?;
    let steps = &program.tasks[t].steps;
    let own = |views: &[View], other: &[View]| views.iter().any(|view| other.iter().any(|o| o.buffer == view.buffer));
    let behind = (s + 1..steps.len()).filter(|i| own(&steps[s].writes, &steps[*i].reads));
    let before = (0..s).filter(|i| own(&steps[s].reads, &steps[*i].writes));
    let to = random.pick(&before.chain(behind).collect::<Vec<_>>())?;
    let text = steps[s].text();
    if to < s {
        program.tasks[t].steps[to..=s].rotate_right(1);
    } else {
        program.tasks[t].steps[s..=to].rotate_left(1);
    }
    Some(format!("`{text}` {t}.{s} past {to}"))
}

/// Where a call of lines is.
fn call(program: &Program, random: &mut Random) -> Option<(usize, usize)> {
    random.pick(&places(program, |step| gathers(program, step) || scatters(program, step)))
}

/// A scatter is an all-reduce or a gather, a gather a scatter, or they combine otherwise.
pub fn other_kind(program: &mut Program, random: &mut Random) -> Option<String> {
    let mesh = program.mesh.clone();
    let (t, s) = call(program, random)?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let Kernel::Collective(call) = &mut step.kernel else { return None };
    let before = call.clone();
    let members: u64 = call.axes.iter().map(|axis| mesh.size(*axis)).product();
    use CollectiveKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
    if random.below(3) == 0 {
        call.op = [ReduceKind::Max, ReduceKind::Min][random.below(2)];
    } else {
        call.kind = random.pick(&[AllGather, AllReduce, AllToAll, ReduceScatter])?;
        if call.kind == AllReduce && before.kind == ReduceScatter && random.below(2) == 0 {
            call.counts.iter_mut().for_each(|count| *count *= members);
        }
    }
    let text = format!("`{text}` {t}.{s}: {:?} {:?}", call.kind, call.op);
    if *call == before {
        return None;
    }
    let fitted = random.below(2) == 0 && foreign::fit(step, &mesh).is_some();
    Some(format!("{text}, fitted {fitted}"))
}

/// A call of lines goes over another axis, over more, over fewer, or in another order.
pub fn other_axes(program: &mut Program, random: &mut Random) -> Option<String> {
    let mesh = program.mesh.clone();
    let (t, s) = call(program, random)?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let Kernel::Collective(Collective { axes, .. }) = &mut step.kernel else { return None };
    let before = axes.clone();
    let axis = AxisId(random.below(mesh.rank_axes().len()) as u8);
    match random.below(4) {
        0 if axes.len() > 1 => drop(axes.pop()),
        0 | 1 => axes[0] = axis,
        2 => axes.push(axis),
        _ => axes.reverse(),
    }
    if *axes == before {
        return None;
    }
    let text = format!("`{text}` {t}.{s}: {axes:?}, not {before:?}");
    let fitted = random.below(2) == 0 && foreign::fit(step, &mesh).is_some();
    Some(format!("{text}, fitted {fitted}"))
}

/// A scatter changes places with the sum over micro-batches: it comes before what adds one up or
/// behind it, in its task or another, or with each or only the last of them.
pub fn scatter_across(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = random.pick(&places(program, |step| scatters(program, step)))?;
    let text = program.tasks[t].steps[s].text();
    let steps = &program.tasks[t].steps;
    let own = |i: usize, j: usize| {
        let meet = |a: &[View], b: &[View]| a.iter().any(|a| b.iter().any(|b| a.buffer == b.buffer));
        meet(&steps[i].writes, &steps[j].reads) || meet(&steps[i].reads, &steps[j].writes)
    };
    let past: Vec<usize> = (0..steps.len()).filter(|i| *i != s && own(s, *i)).collect();
    let how = random.below(4);
    match (how, random.pick(&past)) {
        (0, _) if program.mesh.microbatches() > 1 => {
            let when = &mut program.tasks[t].steps[s].when;
            *when = if *when == When::Last { When::Each } else { When::Last };
        }
        (1, _) => {
            let step = program.tasks[t].steps.remove(s);
            let to = random.below(program.tasks.len());
            let at = random.below(program.tasks[to].steps.len() + 1);
            program.tasks[to].steps.insert(at, step);
        }
        (_, Some(to)) if to < s => program.tasks[t].steps[to..=s].rotate_right(1),
        (_, Some(to)) => program.tasks[t].steps[s..=to].rotate_left(1),
        _ => return None,
    }
    Some(format!("`{text}` {t}.{s} past one of {past:?}, way {how}"))
}

/// What adds a micro-batch to a gradient is left out, done twice, done for the last alone, begins
/// with other numbers, or adds another.
pub fn sum(program: &mut Program, random: &mut Random) -> Option<String> {
    let adds = |step: &Step| step.op.starts_with("accumulate") || step.op == "fill 0";
    let (t, s) = random.pick(&places(program, |step| adds(step) && step.writes.iter().any(|view| of_gradient(program, view))))?;
    let text = program.tasks[t].steps[s].text();
    let how = random.below(5);
    let local = |view: &View| program.buffers[view.buffer.index()].local.clone();
    match how {
        0 => drop(program.tasks[t].steps.remove(s)),
        1 if !program.tasks[t].steps[s].reads.is_empty() => {
            let step = program.tasks[t].steps[s].clone();
            program.tasks[t].steps.insert(s + 1, step);
        }
        2 => program.tasks[t].steps[s].when = When::Last,
        3 => {
            let step = &program.tasks[t].steps[s];
            let added = *step.reads.get(1)?;
            let fits = |view: &View| view.buffer != added.buffer && local(view) == local(&added);
            let others: Vec<View> = program.tasks[t]
                .steps
                .iter()
                .filter(|step| adds(step))
                .filter_map(|step| step.reads.get(1))
                .copied()
                .filter(fits)
                .collect();
            program.tasks[t].steps[s].reads[1] = random.pick(&others)?;
        }
        _ => {
            let step = program.tasks[t].steps.remove(s);
            let to = random.below(program.tasks.len());
            if to == t {
                return None;
            }
            program.tasks[to].steps.insert(0, step);
        }
    }
    Some(format!("`{text}` {t}.{s}, way {how}"))
}

/// Whether a view is of a gradient that is flat, or of the sum that is scattered to one.
fn of_gradient(program: &Program, view: &View) -> bool {
    let scattered = |step: &Step| scatters(program, step) && step.reads.iter().any(|read| read.buffer == view.buffer);
    let is_gradient = matches!(program.buffers[view.buffer.index()].kind, BufferKind::Gradient(_));
    (is_gradient && is_flat(program, view)) || !places(program, scattered).is_empty()
}

/// A joined call loses an operand, has one twice, or exchanges two: what is read, what is written,
/// both, or the ops.
pub fn joined(program: &mut Program, random: &mut Random) -> Option<String> {
    let several = |step: &Step| step.reads.len() > 1 && (gathers(program, step) || scatters(program, step));
    let (t, s) = random.pick(&places(program, several))?;
    let mesh = program.mesh.clone();
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let (a, b) = (random.below(step.reads.len()), random.below(step.reads.len()));
    let how = random.below(8);
    let Kernel::Collective(call) = &mut step.kernel else { return None };
    match how {
        0 => without(step, a, true),
        1 => without(step, a, false),
        2 => {
            call.counts.push(call.counts[a]);
            step.reads.push(step.reads[a]);
            step.writes.push(step.writes[a]);
            step.provenance.ops.push(step.provenance.ops[a].clone());
        }
        3 => step.reads.swap(a, b),
        4 => step.writes.swap(a, b),
        5 => step.reads[a] = step.reads[b],
        6 => call.counts.swap(a, b),
        // The order of the pairs is free to choose, but ops are named in it.
        _ => step.provenance.ops.swap(a, b),
    }
    let fitted = random.below(2) == 0 && foreign::fit(step, &mesh).is_some();
    Some(format!("`{text}` {t}.{s}: {a} and {b}, way {how}, fitted {fitted}"))
}
