//! Mutants of what kernels and calls read and write: copies of masters, masters, gradients, sums of
//! the norm.

use super::numbers::writes_state;
use crate::mutate::{is_call, places};
use crate::sets::fit;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Collective, CollectiveKind, Kernel, Source};
use shardc_ir::plan::{Buffer, BufferId, BufferKind, Program, StateRole, Step, View};
use shardc_testkit::random::Random;

fn buffer(program: &Program, view: View) -> &Buffer {
    &program.buffers[view.buffer.index()]
}

/// The role of the state variable that a view is of.
fn role(program: &Program, view: View) -> Option<StateRole> {
    match buffer(program, view).kind {
        BufferKind::State(state) => Some(program.states[state as usize].role),
        _ => None,
    }
}

/// Whether a step makes a rounded copy of a parameter.
fn is_copy(program: &Program, step: &Step) -> bool {
    let of_master = step.reads.iter().any(|view| role(program, *view) == Some(StateRole::Parameter));
    let is_narrow = |view: &View| buffer(program, *view).dtype.is_half();
    of_master && matches!(step.kernel, Kernel::Map(_)) && step.writes.iter().any(is_narrow)
}

/// Whether a step renews a master.
fn is_update(program: &Program, step: &Step) -> bool {
    writes_state(program, step, |role| role == StateRole::Parameter)
}

/// Steps that `of` holds for.
fn pick(program: &Program, random: &mut Random, of: fn(&Program, &Step) -> bool) -> Option<(usize, usize)> {
    random.pick(&places(program, |step| of(program, step)))
}

/// Another buffer of the type and size, of those that `of` holds for.
fn alike(program: &Program, own: BufferId, random: &mut Random, of: impl Fn(&Buffer) -> bool) -> Option<BufferId> {
    let mine = &program.buffers[own.index()];
    let fits = |id: &u32| {
        let other = &program.buffers[*id as usize];
        *id != own.0 && other.dtype == mine.dtype && other.local == mine.local && of(other)
    };
    random.pick(&(0..program.buffers.len() as u32).filter(fits).collect::<Vec<_>>()).map(BufferId)
}

/// A copy is made of another parameter, of a moment, or of any other buffer.
pub fn copy_of_other(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = pick(program, random, is_copy)?;
    let read = program.tasks[t].steps[s].reads.iter().position(|view| role(program, *view) == Some(StateRole::Parameter))?;
    let own = program.tasks[t].steps[s].reads[read].buffer;
    let only_states = random.below(3) > 0;
    let other = alike(program, own, random, |other| !only_states || matches!(other.kind, BufferKind::State(_)))?;
    let step = &mut program.tasks[t].steps[s];
    step.reads[read].buffer = other;
    Some(format!("`{}` {t}.{s} reads buffer {} for {}", step.text(), other.0, own.0))
}

/// A copy is made later in its task, or at the end of the last one, behind the update.
pub fn copy_late(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = pick(program, random, is_copy)?;
    let step = program.tasks[t].steps.remove(s);
    let to = if random.below(2) == 0 { t } else { program.tasks.len() - 1 };
    let steps = &mut program.tasks[to].steps;
    let first = if to == t { s + 1 } else { 0 };
    let at = (first + random.below(steps.len() + 1 - first.min(steps.len()))).min(steps.len());
    let text = step.text();
    steps.insert(at, step);
    Some(format!("`{text}` {t}.{s} at {to}.{at}"))
}

/// No copy is made, so that the one of the step before is read.
pub fn copy_stale(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = pick(program, random, is_copy)?;
    let step = program.tasks[t].steps.remove(s);
    Some(format!("`{}` {t}.{s}", step.text()))
}

/// What a product reads is another copy.
pub fn other_copy(program: &mut Program, random: &mut Random) -> Option<String> {
    let reads_narrow = |program: &Program, step: &Step| {
        matches!(step.kernel, Kernel::Contract(_)) && step.reads.iter().all(|view| buffer(program, *view).dtype.is_half())
    };
    let (t, s) = pick(program, random, reads_narrow)?;
    let operand = random.below(2);
    let own = program.tasks[t].steps[s].reads[operand].buffer;
    let other = alike(program, own, random, |_| true)?;
    let step = &mut program.tasks[t].steps[s];
    step.reads[operand].buffer = other;
    Some(format!("`{}` {t}.{s} reads buffer {} for {}", step.text(), other.0, own.0))
}

/// A master is not renewed: the step is left out, or its result is written elsewhere.
pub fn master(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = pick(program, random, is_update)?;
    if random.below(2) == 0 {
        let step = program.tasks[t].steps.remove(s);
        return Some(format!("`{}` {t}.{s} is left out", step.text()));
    }
    let step = &program.tasks[t].steps[s];
    let written = step.writes.iter().position(|view| role(program, *view) == Some(StateRole::Parameter))?;
    let own = step.writes[written].buffer;
    let other = alike(program, own, random, |_| true)?;
    let step = &mut program.tasks[t].steps[s];
    step.writes[written].buffer = other;
    Some(format!("`{}` {t}.{s} writes buffer {} for {}", step.text(), other.0, own.0))
}

/// Operand `read` is of another type.
fn retype(kernel: &mut Kernel, read: usize, dtype: DType) -> Option<()> {
    match kernel {
        Kernel::Map(map) => map.inputs[read].dtype = dtype,
        Kernel::Bundle(bundle) => {
            for member in &mut bundle.members {
                let own = member.reads.iter().zip(&mut member.kernel.map_mut().inputs);
                let reading = own.filter(|(source, _)| **source == Source::Read(read as u32));
                reading.for_each(|(_, input)| input.dtype = dtype);
            }
        }
        _ => return None,
    }
    Some(())
}

/// A master is renewed from its rounded copy.
pub fn update_of_copy(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = pick(program, random, is_update)?;
    let step = &program.tasks[t].steps[s];
    let reads: Vec<usize> =
        (0..step.reads.len()).filter(|i| role(program, step.reads[*i]) == Some(StateRole::Parameter)).collect();
    let read = random.pick(&reads)?;
    let own = step.reads[read].buffer;
    let of_own = |copy: &Step| is_copy(program, copy) && copy.reads.iter().any(|view| view.buffer == own);
    let (of, at) = random.pick(&places(program, of_own))?;
    let copy = program.tasks[of].steps[at].writes.iter().find(|view| buffer(program, **view).dtype.is_half()).copied()?;
    let dtype = buffer(program, copy).dtype;
    let step = &mut program.tasks[t].steps[s];
    retype(&mut step.kernel, read, dtype)?;
    step.reads[read] = copy;
    Some(format!("`{}` {t}.{s} reads buffer {} for {}", step.text(), copy.buffer.0, own.0))
}

/// Whether a step adds to what earlier micro-batches have left, or writes a gradient.
fn accumulates(program: &Program, step: &Step) -> bool {
    let is_sum = |view: &View| {
        let buffer = buffer(program, *view);
        matches!(buffer.kind, BufferKind::Gradient(_) | BufferKind::Activation) && step.reads.contains(view)
    };
    let is_gradient = |view: &View| matches!(buffer(program, *view).kind, BufferKind::Gradient(_));
    !is_call(step) && step.writes.iter().any(|view| is_sum(view) || is_gradient(view))
}

/// Gradients are added up elsewhere, or on something else.
pub fn sum_elsewhere(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = pick(program, random, accumulates)?;
    let step = &program.tasks[t].steps[s];
    let written = random.below(step.writes.len());
    let own = step.writes[written].buffer;
    let other = alike(program, own, random, |_| true)?;
    let step = &mut program.tasks[t].steps[s];
    let how = random.below(3);
    if how != 1 {
        step.writes[written].buffer = other;
    }
    if how > 0 {
        step.reads.iter_mut().filter(|view| view.buffer == own).for_each(|view| view.buffer = other);
    }
    Some(format!("`{}` {t}.{s}: buffer {} for {}, way {how}", step.text(), other.0, own.0))
}

/// Each micro-batch adds to another slot.
pub fn other_slot(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = pick(program, random, accumulates)?;
    let id = random.pick(&program.tasks[t].steps[s].writes)?.buffer;
    let slots = program.mesh.microbatches();
    let end = program.arena_bytes;
    let buffer = &mut program.buffers[id.index()];
    if buffer.slots == slots {
        return None;
    }
    (buffer.slots, buffer.offset) = (slots, end);
    let text = format!("`{}` has {slots} slots", buffer.name);
    fit(program);
    Some(text)
}

fn is_scalar_sum(_: &Program, step: &Step) -> bool {
    let Kernel::Collective(call) = &step.kernel else { return false };
    call.kind == CollectiveKind::AllReduce && call.dtype.is_float() && call.counts == [1]
}

/// A number, such as the norm, is not reduced on its way.
pub fn not_reduced(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = pick(program, random, is_scalar_sum)?;
    let step = program.tasks[t].steps.remove(s);
    Some(format!("`{}` {t}.{s}", step.text()))
}

/// The flag is of another number than the norm, such as a part of it.
pub fn flag_of_part(program: &mut Program, random: &mut Random) -> Option<String> {
    use shardc_ir::scalar::Instr;
    let compares = |_: &Program, step: &Step| matches!(&step.kernel, Kernel::Map(map) if map.program.code.contains(&Instr::Const(f64::INFINITY)));
    let (t, s) = pick(program, random, compares)?;
    let read = random.below(program.tasks[t].steps[s].reads.len().max(1));
    let own = program.tasks[t].steps[s].reads.get(read)?.buffer;
    let other = alike(program, own, random, |_| true)?;
    let step = &mut program.tasks[t].steps[s];
    step.reads[read].buffer = other;
    Some(format!("`{}` {t}.{s} reads buffer {} for {}", step.text(), other.0, own.0))
}

/// A step reads another truth value, or another number, in the place of the flag.
pub fn other_flag(program: &mut Program, random: &mut Random) -> Option<String> {
    let reads_flag = |program: &Program, step: &Step| {
        step.reads.iter().any(|view| buffer(program, *view).dtype == DType::Bool) && writes_state(program, step, |_| true)
    };
    let (t, s) = pick(program, random, reads_flag)?;
    let step = &program.tasks[t].steps[s];
    let read = step.reads.iter().position(|view| buffer(program, *view).dtype == DType::Bool)?;
    let own = step.reads[read];
    let single = |id: &u32| {
        let other = &program.buffers[*id as usize];
        *id != own.buffer.0 && other.local.iter().product::<u64>() == 1 && other.dtype.is_float()
    };
    let id = random.pick(&(0..program.buffers.len() as u32).filter(single).collect::<Vec<_>>())?;
    let dtype = program.buffers[id as usize].dtype;
    let step = &mut program.tasks[t].steps[s];
    retype(&mut step.kernel, read, dtype)?;
    step.reads[read] = View { buffer: BufferId(id), offset: 0, bytes: dtype.bytes() };
    Some(format!("`{}` {t}.{s} reads buffer {id} for {}", step.text(), own.buffer.0))
}

fn gathers_copies(_: &Program, step: &Step) -> bool {
    matches!(&step.kernel, Kernel::Collective(Collective { kind: CollectiveKind::AllGather, dtype, .. }) if dtype.is_half())
}

/// A gather of copies is left out, or comes behind a step that may read what it gathers.
pub fn gather(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s) = pick(program, random, gathers_copies)?;
    let step = program.tasks[t].steps.remove(s);
    let text = step.text();
    if random.below(2) == 0 {
        return Some(format!("`{text}` {t}.{s} is left out"));
    }
    let written = |other: &Step| other.reads.iter().any(|read| step.writes.iter().any(|view| view.buffer == read.buffer));
    let readers: Vec<usize> = (s..program.tasks[t].steps.len()).filter(|i| written(&program.tasks[t].steps[*i])).collect();
    let at = random.pick(&readers)? + 1;
    program.tasks[t].steps.insert(at, step);
    Some(format!("`{text}` {t}.{s} at {t}.{at}"))
}

/// A call carries numbers of another type.
pub fn call(program: &mut Program, random: &mut Random) -> Option<String> {
    let carries = |_: &Program, step: &Step| matches!(&step.kernel, Kernel::Collective(call) if call.dtype.is_half());
    let (t, s) = pick(program, random, carries)?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let Kernel::Collective(call) = &mut step.kernel else { return None };
    let before = call.dtype;
    call.dtype = random.pick(&[DType::BF16, DType::F16, DType::F32])?;
    if call.dtype == DType::F32 {
        call.counts.iter_mut().for_each(|count| *count /= 2);
    }
    let after = call.dtype;
    (before != after).then(|| format!("`{text}` {t}.{s}: {after} for {before}"))
}
