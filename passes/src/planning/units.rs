//! Gathers parameters in units, one unit ahead: the call for a unit stands before the steps that
//! read the unit before it, so that it can run beside them, and no more than two units are whole at
//! a time.
//!
//! A unit is what is read between two narrow places of a task, where a single value of the samples
//! goes from step to step, as between the layers of a transformer; or about as many bytes as a call
//! takes at most. Source: Zhao et al., PyTorch FSDP (2023).

use super::buckets::{joined, same_call};
use shardc_ir::diagnostic::counted;
use shardc_ir::kernel::{Collective, CollectiveKind, Kernel};
use shardc_ir::plan::{BufferId, BufferKind, Program, Step, View};
use std::collections::{HashMap, HashSet};

/// A unit has about this many bytes at most.
const UNIT_BYTES: u64 = 64 << 20;

/// Joins the gathers of state variables, and makes the calls one unit ahead, task by task; those of
/// their new values where they stand.
pub fn gather(program: &mut Program) {
    for t in 0..program.tasks.len() {
        let steps = std::mem::take(&mut program.tasks[t].steps);
        let made: HashSet<BufferId> = steps
            .iter()
            .filter(|step| !is_of_state(program, step))
            .flat_map(|step| step.writes.iter().map(|view| view.buffer))
            .collect();
        // What the task makes of anything else cannot be gathered before.
        let is_ahead = |step: &Step| step.reads.iter().all(|view| !made.contains(&view.buffer));
        let (calls, others): (Vec<Step>, Vec<Step>) =
            steps.into_iter().partition(|step| gathers_state(program, step) && is_ahead(step));
        let steps = if calls.is_empty() { others } else { insert(program, calls, others) };
        program.tasks[t].steps = beside(program, steps);
    }
}

fn gathers_state(program: &Program, step: &Step) -> bool {
    let Kernel::Collective(Collective { kind: CollectiveKind::AllGather, .. }) = &step.kernel else { return false };
    let buffer = |view: &View| &program.buffers[view.buffer.index()];
    // The new value of a parameter is gathered into its state.
    let is_range = |view: &View| !buffer(view).sharding.flat.is_empty();
    let is_state = |view: &View| matches!(buffer(view).kind, BufferKind::State(_));
    // Nothing but the rounded copy of one has 16 bits and is a range.
    step.reads.iter().all(|view| is_range(view) && (is_state(view) || buffer(view).dtype.is_half()))
}

/// Whether a step makes something of state variables alone.
fn is_of_state(program: &Program, step: &Step) -> bool {
    let is_state = |view: &View| matches!(program.buffers[view.buffer.index()].kind, BufferKind::State(_));
    !step.reads.is_empty() && step.reads.iter().all(is_state) && matches!(step.kernel, Kernel::Map(_))
}

/// Joins gathers of new values of state variables that follow one another.
fn beside(program: &Program, steps: Vec<Step>) -> Vec<Step> {
    let is_state = |view: &View| matches!(program.buffers[view.buffer.index()].kind, BufferKind::State(_));
    let renews = |step: &Step| {
        matches!(&step.kernel, Kernel::Collective(call) if call.kind == CollectiveKind::AllGather)
            && step.writes.iter().all(is_state)
    };
    let bytes = |step: &Step| step.writes.iter().map(|view| view.bytes).sum::<u64>();
    let mut out: Vec<Vec<Step>> = vec![];
    for step in steps {
        match out.last_mut() {
            Some(run)
                if renews(&step)
                    && renews(&run[0])
                    && same_call(&run[0], &step)
                    && run.iter().map(bytes).sum::<u64>() + bytes(&step) <= UNIT_BYTES =>
            {
                run.push(step)
            }
            _ => out.push(vec![step]),
        }
    }
    out.into_iter().map(|run| all_of(run, "new parameter")).collect()
}

/// Calls of one unit, and the first step that reads what they gather.
struct Unit {
    first: usize,
    bytes: u64,
    calls: Vec<Step>,
}

fn insert(program: &Program, calls: Vec<Step>, others: Vec<Step>) -> Vec<Step> {
    // What rounds a range stands before the call that gathers it.
    let gathered: HashSet<BufferId> = calls.iter().flat_map(|call| call.reads.iter().map(|view| view.buffer)).collect();
    let makes = |step: &Step| is_of_state(program, step) && step.writes.iter().all(|view| gathered.contains(&view.buffer));
    let (mut makers, others): (Vec<Step>, Vec<Step>) = others.into_iter().partition(makes);
    let mut with_makers = |unit: Unit| {
        let read: HashSet<BufferId> = unit.calls.iter().flat_map(|call| call.reads.iter().map(|view| view.buffer)).collect();
        let (mut steps, rest): (Vec<Step>, Vec<Step>) =
            std::mem::take(&mut makers).into_iter().partition(|step| step.writes.iter().any(|view| read.contains(&view.buffer)));
        makers = rest;
        steps.extend(in_calls(unit.calls));
        steps
    };
    let units = units(program, calls, &others);
    // Before which step each unit's call is made: the first that reads the unit before it.
    let firsts: Vec<usize> = units.iter().map(|unit| unit.first).collect();
    let mut ahead = units.into_iter().enumerate().map(|(u, unit)| (firsts[u.saturating_sub(1)], unit)).peekable();
    let mut out = vec![];
    for (i, step) in others.into_iter().enumerate() {
        while let Some((_, unit)) = ahead.next_if(|(at, _)| *at <= i) {
            out.extend(with_makers(unit));
        }
        out.push(step);
    }
    ahead.for_each(|(_, unit)| out.extend(with_makers(unit)));
    out
}

/// The units in the order of their first steps.
fn units(program: &Program, calls: Vec<Step>, others: &[Step]) -> Vec<Unit> {
    let mut read: HashMap<BufferId, usize> = HashMap::new();
    for (i, step) in others.iter().enumerate() {
        for view in &step.reads {
            read.entry(view.buffer).or_insert(i);
        }
    }
    let first = |call: &Step| call.writes.iter().filter_map(|view| read.get(&view.buffer)).min().copied().unwrap_or(others.len());
    let mut calls: Vec<(usize, Step)> = calls.into_iter().map(|call| (first(&call), call)).collect();
    calls.sort_by_key(|(first, _)| *first);
    let narrow = narrow(program, others);
    let mut units: Vec<Unit> = vec![];
    for (first, call) in calls {
        let bytes = call.writes.iter().map(|view| view.bytes).sum::<u64>();
        match units.last_mut() {
            Some(unit) if unit.bytes + bytes <= UNIT_BYTES && !(unit.first + 1..=first).any(|i| narrow[i]) => {
                unit.bytes += bytes;
                unit.calls.push(call);
            }
            _ => units.push(Unit { first, bytes, calls: vec![call] }),
        }
    }
    units
}

/// For each step, and behind the last, whether at most one value of the samples crosses the place
/// before it.
fn narrow(program: &Program, steps: &[Step]) -> Vec<bool> {
    let mut lives: HashMap<BufferId, (usize, usize)> = HashMap::new();
    for (i, step) in steps.iter().enumerate() {
        for view in &step.reads {
            lives.entry(view.buffer).and_modify(|(_, last)| *last = i);
        }
        for view in &step.writes {
            lives.entry(view.buffer).or_insert((i, i));
        }
    }
    let is_of_samples = |id: &BufferId| {
        let buffer = &program.buffers[id.index()];
        matches!(buffer.kind, BufferKind::Activation) && buffer.sharding.dims.iter().any(|splits| !splits.is_empty())
    };
    let mut crossing = vec![0i64; steps.len() + 2];
    for (_, (first, last)) in lives.iter().filter(|(id, _)| is_of_samples(id)) {
        crossing[first + 1] += 1;
        crossing[last + 1] -= 1;
    }
    let mut now = 0;
    crossing
        .iter()
        .take(steps.len() + 1)
        .map(|change| {
            now += change;
            now <= 1
        })
        .collect()
}

/// Calls that can be one as one.
fn in_calls(calls: Vec<Step>) -> Vec<Step> {
    let mut groups: Vec<Vec<Step>> = vec![];
    for call in calls {
        match groups.iter_mut().find(|group| same_call(&group[0], &call)) {
            Some(group) => group.push(call),
            None => groups.push(vec![call]),
        }
    }
    groups.into_iter().map(|group| all_of(group, "parameter")).collect()
}

/// The calls as one, for so many of `what`.
fn all_of(group: Vec<Step>, what: &str) -> Step {
    let reason = counted(group.len(), what);
    joined(group, reason)
}
