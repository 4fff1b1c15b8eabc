//! Ranges of other lines: another parameter's, another rank's, another moment's, and updates of a
//! part of a range.

use super::{flat, is_flat};
use crate::foreign;
use crate::mutate::{places, step};
use shardc_ir::kernel::Kernel;
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::{BufferId, BufferKind, Program, StateRole, Step, View};
use shardc_testkit::random::Random;

/// Flat buffers whose range is as long as that of `id`.
fn alike(program: &Program, id: BufferId, of: impl Fn(&BufferKind) -> bool) -> Vec<BufferId> {
    let own = &program.buffers[id.index()];
    let fits = |other: &BufferId| {
        let buffer = &program.buffers[other.index()];
        *other != id && buffer.local == own.local && buffer.dtype == own.dtype && of(&buffer.kind)
    };
    flat(program).into_iter().filter(fits).collect()
}

/// The views of a step that are of one buffer become views of another: all, those that are read or
/// those that are written.
fn replace(step: &mut Step, from: BufferId, to: BufferId, how: usize) {
    let put = |views: &mut Vec<View>| views.iter_mut().filter(|view| view.buffer == from).for_each(|view| view.buffer = to);
    if how != 1 {
        put(&mut step.reads);
    }
    if how != 2 {
        put(&mut step.writes);
    }
}

/// A step takes a range of another value, of one of `kinds`, for one of those.
fn another(program: &mut Program, random: &mut Random, of: impl Fn(&Program, &BufferKind) -> bool) -> Option<String> {
    let views = |step: &Step| step.reads.iter().chain(&step.writes).copied().collect::<Vec<_>>();
    let wanted = |view: &View| is_flat(program, view) && of(program, &program.buffers[view.buffer.index()].kind);
    let (t, s) = random.pick(&places(program, |step| views(step).iter().any(wanted)))?;
    let own: Vec<View> = views(&program.tasks[t].steps[s]).into_iter().filter(wanted).collect();
    let from = random.pick(&own)?.buffer;
    let to = random.pick(&alike(program, from, |kind| of(program, kind)))?;
    let how = random.below(3);
    let step = &mut program.tasks[t].steps[s];
    replace(step, from, to, how);
    Some(format!("`{}` {t}.{s} takes buffer {} for {}, way {how}", step.text(), to.0, from.0))
}

fn is_role(program: &Program, kind: &BufferKind, role: StateRole) -> bool {
    matches!(kind, BufferKind::State(i) if program.states[*i as usize].role == role)
}

/// A step takes another parameter's range, or the gradient of another.
pub fn other_parameter(program: &mut Program, random: &mut Random) -> Option<String> {
    if random.below(2) == 0 {
        return another(program, random, |_, kind| matches!(kind, BufferKind::Gradient(_)));
    }
    another(program, random, |program, kind| is_role(program, kind, StateRole::Parameter))
}

/// A step takes another moment's range, or another part of its own.
pub fn other_moment(program: &mut Program, random: &mut Random) -> Option<String> {
    if random.below(2) == 0 {
        return another(program, random, |program, kind| is_role(program, kind, StateRole::Moment));
    }
    let buffers = program.buffers.clone();
    let roles: Vec<bool> = buffers.iter().map(|buffer| is_role(program, &buffer.kind, StateRole::Moment)).collect();
    let wanted = |view: &View| roles[view.buffer.index()] && !buffers[view.buffer.index()].sharding.flat.is_empty();
    let step = step(program, random, |step| step.reads.iter().any(wanted))?;
    let text = step.text();
    let (reads, both) = (step.reads.len(), random.below(2) == 0);
    let first = random.pick(&(0..reads).filter(|i| wanted(&step.reads[*i])).collect::<Vec<_>>())?;
    let own = step.reads[first];
    let by = 8 * (1 + random.below(2) as u64);
    let other = View { offset: own.offset + by, ..own };
    step.reads[first] = other;
    if both {
        step.writes.iter_mut().filter(|view| **view == own).for_each(|view| *view = other);
    }
    Some(format!("`{text}`: operand {first} {by} bytes further, written too {both}"))
}

/// Two state variables exchange their ranges, in the table of the host.
pub fn states(program: &mut Program, random: &mut Random) -> Option<String> {
    let is_flat = |i: &usize| !program.buffers[program.states[*i].buffer.index()].sharding.flat.is_empty();
    let all: Vec<usize> = (0..program.states.len()).filter(is_flat).collect();
    let a = random.pick(&all)?;
    let local = |i: usize| program.buffers[program.states[i].buffer.index()].local.clone();
    let b = random.pick(&all.iter().copied().filter(|b| *b != a && local(*b) == local(a)).collect::<Vec<_>>())?;
    let how = random.below(3);
    let (first, second) = (program.states[a].clone(), program.states[b].clone());
    match how {
        0 => {
            (program.states[a].buffer, program.states[b].buffer) = (second.buffer, first.buffer);
            program.buffers[first.buffer.index()].kind = BufferKind::State(b as u32);
            program.buffers[second.buffer.index()].kind = BufferKind::State(a as u32);
        }
        1 => (program.states[a].name, program.states[b].name) = (second.name.clone(), first.name.clone()),
        _ => {
            let offset = program.buffers[first.buffer.index()].offset;
            program.buffers[first.buffer.index()].offset = program.buffers[second.buffer.index()].offset;
            program.buffers[second.buffer.index()].offset = offset;
        }
    }
    // Where both lie is free to choose.
    (how < 2).then(|| format!("`{}` and `{}`, way {how}", first.name, second.name))
}

/// A buffer says that other axes cut it, or in another order.
pub fn axes(program: &mut Program, random: &mut Random) -> Option<String> {
    let mesh = program.mesh.clone();
    let axis = AxisId(random.below(mesh.axes().len()) as u8);
    let id = random.pick(&flat(program))?;
    let buffer = &mut program.buffers[id.index()];
    let before = buffer.sharding.clone();
    match random.below(5) {
        0 => buffer.sharding.flat.reverse(),
        1 => buffer.sharding.flat = vec![axis],
        2 => buffer.sharding.flat.push(axis),
        3 => buffer.sharding.flat.insert(0, axis),
        _ => drop(buffer.sharding.flat.pop()),
    }
    if random.below(2) == 0 {
        buffer.local = buffer.sharding.local(&buffer.shape, &mesh);
    }
    let text = buffer.sharding.text(&buffer.shape, &mesh);
    (buffer.sharding != before).then(|| format!("buffer {}: `{text}`", id.0))
}

/// What a rank keeps of a line is another rank's range, or begins elsewhere.
pub fn other_range(program: &mut Program, random: &mut Random) -> Option<String> {
    let axes = program.mesh.axes().len();
    let cuts = |step: &Step| matches!(&step.kernel, Kernel::Move(copy) if !copy.src_offset.terms.is_empty());
    let all = places(program, |step| cuts(step) && step.writes.iter().all(|view| is_flat(program, view)));
    let (t, s) = random.pick(&all)?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let Kernel::Move(copy) = &mut step.kernel else { return None };
    let before = copy.src_offset.clone();
    let offset = &mut copy.src_offset;
    let term = random.below(offset.terms.len());
    let how = random.below(7);
    match how {
        0 => offset.terms[term].0 = AxisId(random.below(axes) as u8),
        1 => offset.terms[term].1 += 1,
        2 => offset.terms[term].1 -= 1,
        3 => offset.base += 1,
        4 => drop(offset.terms.remove(term)),
        5 => {
            // The ranges from the last to the first.
            let weight = offset.terms[term].1;
            offset.base += weight * (program.mesh.size(offset.terms[term].0) as i64 - 1);
            offset.terms[term].1 = -weight;
        }
        _ => offset.terms.reverse(),
    }
    (*offset != before).then(|| format!("`{text}` {t}.{s}, way {how}"))
}

/// An update takes fewer elements than the range has, or more, or begins behind its first.
pub fn partly(program: &mut Program, random: &mut Random) -> Option<String> {
    let (mesh, buffers) = (program.mesh.clone(), program.buffers.clone());
    let updates = |step: &Step| {
        let of_state = |view: &View| {
            let buffer = &buffers[view.buffer.index()];
            matches!(buffer.kind, BufferKind::State(_)) && !buffer.sharding.flat.is_empty()
        };
        matches!(step.kernel, Kernel::Map(_)) && step.writes.iter().any(of_state)
    };
    let step = step(program, random, updates)?;
    let text = step.text();
    let Kernel::Map(map) = &mut step.kernel else { return None };
    let size = map.shape.first_mut()?;
    let before = *size;
    let how = random.below(4);
    match how {
        0 => *size = size.div_ceil(2),
        1 => *size += 1,
        _ => *size -= 1,
    }
    foreign::fit(step, &mesh)?;
    if how == 3 {
        let ranges =
            step.reads.iter_mut().chain(&mut step.writes).filter(|view| !buffers[view.buffer.index()].sharding.flat.is_empty());
        ranges.for_each(|view| view.offset += 8);
    }
    Some(format!("`{text}`: not {before} elements, way {how}"))
}
