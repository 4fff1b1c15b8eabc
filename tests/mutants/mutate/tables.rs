//! Mutations of a program's tables: buffers, slots, states, inputs, outputs, scalars.

use super::steps::alike;
use super::{resize, same, step};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::{Buffer, BufferId, BufferKind, Program, Row, View, When, aligned};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::sharding::Split;
use shardc_testkit::random::Random;
use std::sync::Arc;

/// Two buffers of one size lie where the other did: harmless where both last.
pub(super) fn exchange_buffers(program: &mut Program, random: &mut Random) -> Option<String> {
    let lasting = |b: &Buffer| matches!(b.kind, BufferKind::Gradient(_));
    let ids: Vec<usize> = (0..program.buffers.len()).filter(|i| lasting(&program.buffers[*i])).collect();
    let (a, b) = (random.pick(&ids)?, random.below(program.buffers.len()));
    let size = |i: usize| program.buffers[i].slot_bytes * program.buffers[i].slots;
    let (first, second) = (program.buffers[a].offset, program.buffers[b].offset);
    if a == b || size(a) != size(b) || first == second {
        return None;
    }
    (program.buffers[a].offset, program.buffers[b].offset) = (second, first);
    Some(format!("buffers {a} and {b}"))
}

/// Two buffers that one step touches come to lie at one place.
pub(super) fn overlap_buffers(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| s.reads.len() + s.writes.len() > 1)?.clone();
    let views: Vec<&View> = step.reads.iter().chain(&step.writes).collect();
    let (a, b) = (random.pick(&views)?, random.pick(&views)?);
    if same(a, b) || program.buffers[a.buffer.index()].offset == program.buffers[b.buffer.index()].offset {
        return None;
    }
    let shift = 64 * random.below(2) as u64;
    let to = program.buffers[b.buffer.index()].offset.checked_sub(shift)?;
    program.buffers[a.buffer.index()].offset = to;
    let text = format!("buffer {} at {to}", a.buffer.0);
    fit(program);
    Some(text)
}

/// The arena is as large as its buffers need.
fn fit(program: &mut Program) {
    let ends = program.buffers.iter().map(|buffer| buffer.offset + buffer.slot_bytes * buffer.slots);
    program.arena_bytes = aligned(ends.max().unwrap_or_default());
}

pub(super) fn move_buffer(program: &mut Program, random: &mut Random) -> Option<String> {
    let i = random.below(program.buffers.len());
    let buffer = &mut program.buffers[i];
    let before = buffer.offset;
    let room = (program.arena_bytes - buffer.slot_bytes * buffer.slots) / 64;
    buffer.offset = 64 * random.below(room as usize + 1) as u64;
    let text = (buffer.offset != before).then(|| format!("buffer {i} from {before} to {}", buffer.offset));
    fit(program);
    text
}

pub(super) fn change_slots(program: &mut Program, random: &mut Random) -> Option<String> {
    let microbatches = program.mesh.microbatches();
    let i = random.below(program.buffers.len());
    let buffer = &mut program.buffers[i];
    let (slots, bytes) = (buffer.slots, buffer.slot_bytes);
    match random.below(6) {
        0 => buffer.slot_bytes += 64,
        1 => buffer.slot_bytes -= 64,
        2 => buffer.slots = slots.saturating_sub(1).max(1),
        _ => buffer.slots = 1 + random.below(microbatches as usize) as u64,
    }
    let change = ((buffer.slots, buffer.slot_bytes) != (slots, bytes))
        .then(|| format!("buffer {i}: {} slots of {} bytes", buffer.slots, buffer.slot_bytes));
    // Behind all others there is room for as many as it says.
    if random.below(2) == 0 && program.buffers[i].slots > slots {
        program.buffers[i].offset = program.arena_bytes;
    }
    fit(program);
    change
}

pub(super) fn change_sharding(program: &mut Program, random: &mut Random) -> Option<String> {
    let mesh = program.mesh.clone();
    let i = random.below(program.buffers.len());
    let buffer = &mut program.buffers[i];
    let before = buffer.sharding.clone();
    let sharding = &mut buffer.sharding;
    let split: Vec<(usize, usize)> =
        sharding.dims.iter().enumerate().flat_map(|(d, splits)| (0..splits.len()).map(move |s| (d, s))).collect();
    let axis = AxisId(random.below(mesh.axes().len()) as u8);
    match (random.below(5), random.pick(&split)) {
        (0, Some((d, s))) if mesh.size(axis) == mesh.size(sharding.dims[d][s].axis) => sharding.dims[d][s].axis = axis,
        (1, Some((d, s))) => {
            sharding.dims[d].remove(s);
        }
        (2, Some((d, s))) => sharding.dims[d][s].stride = (sharding.dims[d][s].stride / 2).max(1),
        (3, _) if !sharding.partial.is_empty() => {
            sharding.partial.pop();
        }
        (3, _) => sharding.add_partial(axis, ReduceKind::Sum),
        (_, _) if !sharding.dims.is_empty() && !sharding.depends_on(axis) => {
            let d = random.below(sharding.dims.len());
            sharding.dims[d].push(Split { axis, stride: 1 });
        }
        _ => return None,
    }
    if random.below(2) == 0 {
        buffer.local = buffer.sharding.local(&buffer.shape, &mesh);
    }
    (buffer.sharding != before).then(|| format!("buffer {i}: {:?}", buffer.sharding))
}

/// The shape, or why a buffer exists.
pub(super) fn change_type(program: &mut Program, random: &mut Random) -> Option<String> {
    let kinds: Vec<BufferKind> = program.buffers.iter().map(|b| b.kind.clone()).collect();
    let i = random.below(program.buffers.len());
    let buffer = &mut program.buffers[i];
    let before = (buffer.shape.clone(), buffer.kind.clone());
    if random.below(2) == 0 && !buffer.shape.is_empty() {
        let d = random.below(buffer.shape.len());
        resize(&mut buffer.shape[d], random)?;
    } else {
        buffer.kind = random.pick(&kinds)?;
    }
    ((buffer.shape.clone(), buffer.kind.clone()) != before).then(|| format!("buffer {i}: {:?} {:?}", buffer.shape, buffer.kind))
}

pub(super) fn drop_row(program: &mut Program, random: &mut Random) -> Option<String> {
    let row = program.order.remove(random.below(program.order.len()));
    Some(format!("{row:?}"))
}

pub(super) fn duplicate_row(program: &mut Program, random: &mut Random) -> Option<String> {
    let at = random.below(program.order.len());
    let (row, to) = (program.order[at].clone(), random.below(program.order.len() + 1));
    program.order.insert(to, row.clone());
    Some(format!("{row:?} of {at} again at {to}"))
}

pub(super) fn move_row(program: &mut Program, random: &mut Random) -> Option<String> {
    let (from, to) = (random.below(program.order.len()), random.below(program.order.len()));
    let row = program.order.remove(from);
    let text = format!("{row:?} of {from} to {to}");
    program.order.insert(to, row);
    (from != to).then_some(text)
}

/// A row runs for another micro-batch, or two rows exchange theirs.
pub(super) fn change_row(program: &mut Program, random: &mut Random) -> Option<String> {
    let (all, other) = (program.mesh.microbatches(), random.pick(&program.order)?);
    let at = random.below(program.order.len());
    let (Row::Run { time, .. }, Row::Run { time: of_other, .. }) = (&mut program.order[at], other) else { return None };
    let before = *time;
    *time = if random.below(2) == 0 { random.below(all as usize) as u64 } else { of_other };
    (*time != before).then(|| format!("row {at}: micro-batch {time} for {before}"))
}

/// A step runs with each micro-batch, or with the last alone.
pub(super) fn change_when(program: &mut Program, random: &mut Random) -> Option<String> {
    if program.mesh.microbatches() == 1 {
        return None;
    }
    let step = step(program, random, |_| true)?;
    step.when = if step.when == When::Last { When::Each } else { When::Last };
    Some(format!("`{}`: {:?}", step.text(), step.when))
}

pub(super) fn exchange_tasks(program: &mut Program, random: &mut Random) -> Option<String> {
    let (a, b) = (random.below(program.tasks.len()), random.below(program.tasks.len()));
    if random.below(3) == 0 {
        program.order.retain(|row| !matches!(row, Row::Run { task, .. } if *task as usize == a));
        return Some(format!("task {a} never runs"));
    }
    program.tasks.swap(a, b);
    (a != b).then(|| format!("tasks {a} and {b}"))
}

pub(super) fn exchange_states(program: &mut Program, random: &mut Random) -> Option<String> {
    let (a, b) = (random.below(program.states.len()), random.below(program.states.len()));
    let (first, second) = (program.states.get(a)?.clone(), program.states[b].clone());
    let shape = |id: BufferId| program.buffers[id.index()].shape.clone();
    if a == b || shape(first.buffer) != shape(second.buffer) {
        return None;
    }
    let how = random.below(2);
    if how == 0 {
        (program.states[a].buffer, program.states[b].buffer) = (second.buffer, first.buffer);
    } else {
        (program.states[a].name, program.states[b].name) = (second.name, first.name);
    }
    Some(format!("states {a} and {b}, {}", ["buffers", "names"][how]))
}

pub(super) fn exchange_outputs(program: &mut Program, random: &mut Random) -> Option<String> {
    let a = random.below(program.outputs.len());
    let id = program.outputs.get(a)?.buffer;
    let shape = |id: BufferId| program.buffers[id.index()].shape.clone();
    let ids = (0..program.buffers.len() as u32).map(BufferId);
    let others: Vec<BufferId> = ids.filter(|other| *other != id && shape(*other) == shape(id)).collect();
    let other = random.pick(&others)?;
    if let Some(second) = program.outputs.iter_mut().find(|o| o.buffer == other) {
        second.buffer = id;
    }
    program.outputs[a].buffer = other;
    Some(format!("output {a} is buffer {}", other.0))
}

pub(super) fn exchange_inputs(program: &mut Program, random: &mut Random) -> Option<String> {
    let (a, b) = (random.below(program.inputs.len()), random.below(program.inputs.len()));
    let (first, second) = (program.inputs.get(a)?.buffer, program.inputs[b].buffer);
    if a == b || program.buffers[first.index()].shape != program.buffers[second.index()].shape {
        let other = alike(program, random, first)?;
        program.inputs[a].buffer = other;
        return Some(format!("input {a} is buffer {}", other.0));
    }
    (program.inputs[a].buffer, program.inputs[b].buffer) = (second, first);
    Some(format!("inputs {a} and {b}"))
}

pub(super) fn exchange_gradients(program: &mut Program, random: &mut Random) -> Option<String> {
    let ids: Vec<usize> =
        (0..program.buffers.len()).filter(|i| matches!(program.buffers[*i].kind, BufferKind::Gradient(_))).collect();
    let (a, b) = (random.pick(&ids)?, random.pick(&ids)?);
    if a == b {
        return None;
    }
    let (first, second) = (program.buffers[a].kind.clone(), program.buffers[b].kind.clone());
    (program.buffers[a].kind, program.buffers[b].kind) = (second, first);
    Some(format!("gradients {a} and {b}"))
}

pub(super) fn change_bytes(program: &mut Program, random: &mut Random) -> Option<String> {
    if program.constants.is_empty() {
        return None;
    }
    let constant = random.below(program.constants.len());
    let bytes = Arc::make_mut(&mut program.constants[constant].bytes);
    let (at, bit) = (random.below(bytes.len()), random.below(8));
    bytes[at] ^= 1 << bit;
    Some(format!("constant {constant}: bit {bit} of byte {at}"))
}

pub(super) fn drop_entry(program: &mut Program, random: &mut Random) -> Option<String> {
    let table = random.below(4);
    let len = [program.states.len(), program.inputs.len(), program.outputs.len(), program.constants.len()][table];
    if len == 0 {
        return None;
    }
    let entry = random.below(len);
    match table {
        0 => drop(program.states.remove(entry)),
        1 => drop(program.inputs.remove(entry)),
        2 => drop(program.outputs.remove(entry)),
        _ => drop(program.constants.remove(entry)),
    }
    Some(format!("{} {entry}", ["state", "input", "output", "constant"][table]))
}

/// The learning rate or the seed.
pub(super) fn change_numbers(program: &mut Program, random: &mut Random) -> Option<String> {
    if random.below(2) == 0 {
        program.seed += 1 + random.below(100) as u64;
        return Some(format!("seed {}", program.seed));
    }
    program.learning_rate.lr *= 1.0 + random.unit();
    Some(format!("rate {}", program.learning_rate.lr))
}

pub(super) fn exchange_scalars(program: &mut Program, random: &mut Random) -> Option<String> {
    use shardc_ir::plan::HostScalar::{LearningRate, Seed, StepCount};
    let ids: Vec<usize> =
        (0..program.buffers.len()).filter(|i| matches!(program.buffers[*i].kind, BufferKind::Scalar(_))).collect();
    let i = random.pick(&ids)?;
    let kind = BufferKind::Scalar(random.pick(&[LearningRate, Seed, StepCount])?);
    let before = std::mem::replace(&mut program.buffers[i].kind, kind.clone());
    (before != kind).then(|| format!("buffer {i}: {kind:?}"))
}
