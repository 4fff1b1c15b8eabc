//! Arenas that an allocator of its own has laid out anew: rightly, or with one thing overlooked.

use super::Plan;
use crate::jobs::Job;
use crate::ranks::{Launch, launches};
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::{Buffer, BufferKind, Program, Step, View, When, aligned};
use shardc_testkit::random::Random;

/// The launches, first and last, between which a buffer holds something, as often as it does.
pub type Lives = Vec<Vec<(usize, usize)>>;

/// Whether the host fills a buffer before a step.
pub fn is_filled(buffer: &Buffer) -> bool {
    matches!(buffer.kind, BufferKind::State(_) | BufferKind::Input(_) | BufferKind::Constant(_) | BufferKind::Scalar(_))
}

/// Whether a step writes all of a view's buffer and needs nothing of what was there.
fn defines(program: &Program, step: &Step, view: &View) -> bool {
    let buffer = &program.buffers[view.buffer.index()];
    let elements: u64 = buffer.local.iter().product();
    let whole = view.offset == 0 && view.bytes == elements * buffer.dtype.bytes();
    let all = match &step.kernel {
        Kernel::ScatterAdd(_) | Kernel::MaxPoolGrad(_) => false,
        Kernel::Move(copy) => copy.shape.iter().product::<u64>() == elements,
        _ => true,
    };
    whole && all && step.reads.iter().all(|read| read.buffer != view.buffer)
}

/// When each buffer holds something, over these launches.
pub fn lives(program: &Program, all: &[Launch]) -> Lives {
    let mut lives: Lives = vec![vec![]; program.buffers.len()];
    let filled = |i: usize| is_filled(&program.buffers[i]);
    (0..lives.len()).filter(|i| filled(*i)).for_each(|i| lives[i].push((0, 0)));
    for (at, (t, s, _)) in all.iter().enumerate() {
        let step = &program.tasks[*t].steps[*s];
        for view in step.reads.iter().chain(&step.writes) {
            match lives[view.buffer.index()].last_mut() {
                Some((_, last)) => *last = (*last).max(at),
                None => lives[view.buffer.index()].push((at, at)),
            }
        }
        for view in step.writes.iter().filter(|view| defines(program, step, view)) {
            let life = &mut lives[view.buffer.index()];
            // What was there ended with its last reader, not here.
            if let Some((first, last)) = life.last_mut()
                && *first < at
            {
                *last = last_touch(program, all, view, *first, at);
                life.push((at, at));
            }
        }
    }
    for (buffer, life) in program.buffers.iter().zip(&mut lives) {
        let end = all.len();
        match buffer.kind {
            _ if buffer.slots > 1 => *life = vec![(0, end)],
            BufferKind::State(_) | BufferKind::Constant(_) => *life = vec![(0, end)],
            BufferKind::Gradient(_) | BufferKind::Output(_) => life.iter_mut().rev().take(1).for_each(|(_, last)| *last = end),
            _ => {}
        }
    }
    lives
}

/// The last launch before `end` that touches a view's buffer.
fn last_touch(program: &Program, all: &[Launch], view: &View, first: usize, end: usize) -> usize {
    let touches = |(t, s, _): &Launch| {
        let step = &program.tasks[*t].steps[*s];
        step.reads.iter().chain(&step.writes).any(|other| other.buffer == view.buffer)
    };
    (first..end).rev().find(|at| touches(&all[*at])).unwrap_or(first)
}

/// Whether two buffers may not share bytes.
fn conflict(program: &Program, lives: &Lives, a: usize, b: usize) -> bool {
    let meet = |x: &(usize, usize), y: &(usize, usize)| x.0 <= y.1 && y.0 <= x.1;
    (is_filled(&program.buffers[a]) && is_filled(&program.buffers[b]))
        || lives[a].iter().any(|x| lives[b].iter().any(|y| meet(x, y)))
}

fn size(buffer: &Buffer) -> u64 {
    buffer.slot_bytes * buffer.slots
}

fn share(a: &Buffer, b: &Buffer) -> bool {
    a.offset < b.offset + size(b) && b.offset < a.offset + size(a)
}

/// Offsets drawn anew, so that buffers share bytes only where `lives` allows it.
fn allocate(program: &mut Program, lives: &Lives, random: &mut Random) {
    let mut left: Vec<usize> = (0..program.buffers.len()).collect();
    let mut placed: Vec<usize> = vec![];
    while !left.is_empty() {
        let id = left.swap_remove(random.below(left.len()));
        let in_the_way: Vec<usize> = placed.iter().copied().filter(|other| conflict(program, lives, id, *other)).collect();
        let mut offsets: Vec<u64> = placed.iter().map(|i| program.buffers[*i].offset + size(&program.buffers[*i])).collect();
        offsets.extend(placed.iter().map(|i| program.buffers[*i].offset));
        offsets.push(0);
        offsets.retain(|offset| {
            let moved = Buffer { offset: *offset, ..program.buffers[id].clone() };
            in_the_way.iter().all(|other| !share(&moved, &program.buffers[*other]))
        });
        offsets.sort();
        offsets.truncate(3);
        program.buffers[id].offset = random.pick(&offsets).unwrap_or_default();
        placed.push(id);
    }
    let end = program.buffers.iter().map(|buffer| buffer.offset + size(buffer)).max();
    program.arena_bytes = aligned(end.unwrap_or_default());
}

/// Every buffer is elsewhere, and none where another lives.
pub fn repack(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let lives = lives(&plan.program, &launches(&plan.program));
    allocate(&mut plan.program, &lives, random);
    Some("repacked".to_string())
}

/// Every buffer is elsewhere, and some are where another lives.
pub fn repack_wrongly(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let good = plan.program.clone();
    let all = launches(&good);
    let right = lives(&good, &all);
    let several = |b: &usize| good.buffers[*b].slots > 1;
    let one = random.below(good.buffers.len());
    for _ in 0..12 {
        let how = random.below(10);
        let mut wrong = right.clone();
        let shorter =
            |life: &mut Vec<(usize, usize)>| life.iter_mut().for_each(|(first, last)| *last = (*last).max(*first + 1) - 1);
        let without = |keep: &dyn Fn(&Launch) -> bool| {
            let kept = |(at, launch): (usize, &Launch)| keep(launch).then_some(at);
            let numbers: Vec<usize> = all.iter().enumerate().filter_map(kept).collect();
            let some: Vec<Launch> = numbers.iter().map(|at| all[*at]).collect();
            let number = |at: usize| numbers.get(at).copied().unwrap_or(all.len());
            let back = |life: Vec<(usize, usize)>| life.into_iter().map(|(a, b)| (number(a), number(b))).collect();
            lives(&good, &some).into_iter().map(back).collect::<Lives>()
        };
        match how {
            0 => wrong.iter_mut().for_each(shorter),
            1 => shorter(&mut wrong[one]),
            2 => wrong.iter_mut().flatten().for_each(|(first, last)| *first = (*first + 1).min(*last)),
            3 => wrong[one].clear(),
            4 => wrong = without(&|(_, _, time)| *time == 0),
            5 => wrong = without(&|(t, s, _)| good.tasks[*t].steps[*s].when == When::Each),
            6 => wrong.iter_mut().for_each(|life| life.truncate(1)),
            7 => {
                for (buffer, life) in good.buffers.iter().zip(&mut wrong) {
                    let lasts = matches!(buffer.kind, BufferKind::Gradient(_) | BufferKind::Output(_));
                    life.iter_mut().filter(|_| lasts).for_each(|(first, last)| *last = *first);
                }
            }
            8 => wrong = without(&|(t, s, _)| !crate::mutate::is_call(&good.tasks[*t].steps[*s])),
            _ => {
                (0..good.buffers.len()).filter(several).for_each(|b| plan.program.buffers[b].slots = 1);
            }
        }
        allocate(&mut plan.program, &wrong, random);
        for (buffer, before) in plan.program.buffers.iter_mut().zip(&good.buffers) {
            buffer.slots = before.slots;
        }
        let end = plan.program.buffers.iter().map(|buffer| buffer.offset + size(buffer)).max();
        plan.program.arena_bytes = aligned(end.unwrap_or_default());
        let buffers = &plan.program.buffers;
        let wrongly = |a: usize| (0..a).any(|b| share(&buffers[a], &buffers[b]) && conflict(&good, &right, a, b));
        if (0..buffers.len()).any(wrongly) {
            return Some(format!("repacked, way {how}, buffer {one}"));
        }
    }
    None
}
