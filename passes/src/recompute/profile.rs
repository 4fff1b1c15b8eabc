//! What the parts of a model hold, read off plans: how many bytes of each unit wait for the
//! backward pass, and how many more are live while a unit runs.
//!
//! A plan in which all units are treated alike says it of each of them under that treatment. A mix
//! is taken to need, while a unit runs, what that unit needs in its own plan, beside what the units
//! up to it hold in theirs: units are run one after another, and backwards.

use shardc_ir::plan::lives::{lasts, lives};
use shardc_ir::plan::{BufferKind, Program, Step};

/// What a program holds, by unit.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// What lasts, and what is live where no unit runs but all may wait.
    pub floor: u64,
    /// For each unit.
    pub units: Vec<Held>,
    /// What is live beside all that waits where no unit runs in the loop: at the loss.
    pub rest: u64,
}

/// What a unit holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes that wait for the backward pass, once.
    pub waits: u64,
    /// Bytes that wait in several slots, one for each micro-batch in flight: they are taken all the
    /// time.
    pub flies: u64,
    /// Bytes that are live beside those while the unit runs.
    pub works: u64,
}

impl Profile {
    /// The profile of a program; `unit_of` gives the unit of a module's path, of so many.
    pub fn of(program: &Program, count: usize, unit_of: impl Fn(&str) -> Option<usize>) -> Profile {
        let bytes = |i: usize| program.buffers[i].slot_bytes.saturating_mul(program.buffers[i].slots);
        let of_step = |step: &Step| step.provenance.scope.as_deref().and_then(&unit_of);
        let lives = lives(program);
        // Forward steps write, and backward ones read, what waits.
        let mut maker: Vec<Option<usize>> = vec![None; program.buffers.len()];
        let mut waits = vec![false; program.buffers.len()];
        for task in &program.tasks {
            for step in &task.steps {
                if task.name.starts_with('F') {
                    let touched = step.writes.iter().chain(&step.reads).map(|view| view.buffer.index());
                    touched.for_each(|i| maker[i] = maker[i].or(of_step(step)));
                } else if task.name.starts_with(['B', 'W']) {
                    step.reads.iter().for_each(|view| waits[view.buffer.index()] = true);
                }
            }
        }
        let mut profile = Profile { units: vec![Held::default(); count], ..Profile::default() };
        let passing = |i: &usize| matches!(program.buffers[*i].kind, BufferKind::Activation | BufferKind::Communication);
        profile.floor = (0..program.buffers.len()).filter(|i| lasts(&program.buffers[*i])).map(bytes).sum();
        let mut change: Vec<(u64, u64)> = vec![(0, 0); program.tasks.iter().map(|task| task.steps.len()).sum::<usize>() + 2];
        for i in (0..program.buffers.len()).filter(passing) {
            let Some((first, last)) = lives[i] else { continue };
            change[first].0 += bytes(i);
            change[last + 1].1 += bytes(i);
            if let (true, Some(unit)) = (waits[i], maker[i]) {
                let held = &mut profile.units[unit];
                *(if program.buffers[i].slots > 1 { &mut held.flies } else { &mut held.waits }) += bytes(i);
            }
        }
        let waiting: Vec<u64> = profile
            .units
            .iter()
            .scan(0, |sum, held| {
                *sum += held.waits;
                Some(*sum)
            })
            .collect();
        let flying: u64 = profile.units.iter().map(|held| held.flies).sum();
        let all = waiting.last().copied().unwrap_or(0);
        let (mut live, mut at) = (0u64, 0);
        for task in &program.tasks {
            let in_loop = task.name.starts_with(['F', 'B', 'W']);
            for step in &task.steps {
                live = live + change[at].0 - change[at].1;
                at += 1;
                match of_step(step).filter(|_| in_loop) {
                    Some(unit) => {
                        let works = live.saturating_sub(waiting[unit] + flying);
                        profile.units[unit].works = profile.units[unit].works.max(works);
                    }
                    None => profile.rest = profile.rest.max(live.saturating_sub(all + flying)),
                }
            }
        }
        profile
    }
}
