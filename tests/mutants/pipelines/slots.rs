//! Buffers with a slot fewer than they need, and slots that share bytes.

use crate::sets::fit;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferId, BufferKind, Program};
use shardc_testkit::random::Random;

fn several(program: &Program) -> Vec<BufferId> {
    let lasts = |kind: &BufferKind| !matches!(kind, BufferKind::Activation | BufferKind::Communication);
    let of = |(id, buffer): (u32, &shardc_ir::plan::Buffer)| (buffer.slots > 1 && !lasts(&buffer.kind)).then_some(BufferId(id));
    (0..).zip(&program.buffers).filter_map(of).collect()
}

/// A program of the set and a buffer of its that has several slots.
fn pick(set: &PlanSet, random: &mut Random) -> Option<(usize, BufferId)> {
    let all = set.programs.iter().enumerate().flat_map(|(at, program)| several(program).into_iter().map(move |id| (at, id)));
    random.pick(&all.collect::<Vec<_>>())
}

/// A buffer has fewer slots; its last bytes may be given to another.
pub fn fewer(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let (at, id) = pick(set, random)?;
    let program = &mut set.programs[at];
    let given = random.below(2) == 0;
    let all = random.below(4) == 0;
    let buffer = &mut program.buffers[id.index()];
    buffer.slots = if all { 1 } else { buffer.slots - 1 };
    let text = format!("program {at}: `{}` has {} slots, given {given}", buffer.name, buffer.slots);
    let (room, free) = (buffer.offset + buffer.slot_bytes * buffer.slots, buffer.slot_bytes);
    if given {
        let fits = |(other, buffer): &(usize, &shardc_ir::plan::Buffer)| {
            *other != id.index() && buffer.slots == 1 && buffer.slot_bytes <= free && buffer.kind == BufferKind::Activation
        };
        let others: Vec<usize> = program.buffers.iter().enumerate().filter(fits).map(|(other, _)| other).collect();
        program.buffers[random.pick(&others)?].offset = room;
    }
    fit(program);
    Some(text)
}

/// A buffer with several slots begins a slot earlier or later, or another lies in one of its slots.
pub fn shared(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let (at, id) = pick(set, random)?;
    let program = &mut set.programs[at];
    let how = random.below(3);
    let slot = random.below(program.buffers[id.index()].slots as usize) as u64;
    let of_slot = program.buffers[id.index()].offset + slot * program.buffers[id.index()].slot_bytes;
    let text = match how {
        0 => {
            let buffer = &mut program.buffers[id.index()];
            buffer.offset += buffer.slot_bytes;
            format!("`{}` begins a slot later", buffer.name)
        }
        1 => {
            let buffer = &mut program.buffers[id.index()];
            buffer.offset = buffer.offset.checked_sub(buffer.slot_bytes)?;
            format!("`{}` begins a slot earlier", buffer.name)
        }
        _ => {
            let other = random.below(program.buffers.len());
            if other == id.index() {
                return None;
            }
            program.buffers[other].offset = of_slot;
            format!("`{}` lies in slot {slot} of `{}`", program.buffers[other].name, program.buffers[id.index()].name)
        }
    };
    fit(program);
    Some(format!("program {at}: {text}"))
}

/// What is received comes to lie where another buffer does, or another buffer where it does.
pub fn received_over(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let at = random.below(set.programs.len());
    let program = &mut set.programs[at];
    let received = program.messages.iter().filter(|message| !message.sends).map(|message| message.view.buffer.index());
    let own = random.pick(&received.collect::<Vec<_>>())?;
    let lasts = |i: usize| matches!(program.buffers[i].kind, BufferKind::Constant(_) | BufferKind::Scalar(_));
    let others = (0..program.buffers.len()).filter(|i| *i != own && program.buffers[*i].slots == 1 && !lasts(*i));
    let other = random.pick(&others.collect::<Vec<_>>())?;
    let (from, to) = if random.below(2) == 0 { (own, other) } else { (other, own) };
    let offset = program.buffers[to].offset;
    if program.buffers[from].offset == offset {
        return None;
    }
    program.buffers[from].offset = offset;
    let text = format!("program {at}: `{}` lies where `{}` does", program.buffers[from].name, program.buffers[to].name);
    fit(program);
    Some(text)
}

/// Two buffers with several slots lie one over the other, or exchange how many they have.
pub fn exchanged(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let (at, first) = pick(set, random)?;
    let program = &mut set.programs[at];
    let others: Vec<BufferId> = several(program).into_iter().filter(|id| *id != first).collect();
    let second = random.pick(&others)?;
    let (a, b) = (program.buffers[first.index()].clone(), program.buffers[second.index()].clone());
    let how = random.below(2);
    if how == 0 && a.slots != b.slots {
        program.buffers[first.index()].slots = b.slots;
        program.buffers[second.index()].slots = a.slots;
    } else {
        program.buffers[first.index()].offset = b.offset;
    }
    fit(program);
    Some(format!("program {at}: `{}` and `{}`, way {how}", a.name, b.name))
}
