//! Tables whose entries are there twice, are gone with all that makes them, or have other names in
//! program and graph alike; rows that are interleaved otherwise, steps with other micro-batches.

use super::{Plan, at_the_end, fit_arena, touched, with_ops};
use crate::jobs::Job;
use crate::mutate::places;
use shardc_ir::ops::Op;
use shardc_ir::ops::leaf::Input;
use shardc_ir::plan::{BufferId, BufferKind, Program, Row, When};
use shardc_testkit::random::Random;

/// An entry is there twice, for its own buffer or for a new one.
pub fn duplicate(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let table = random.below(4);
    let all = [program.states.len(), program.inputs.len(), program.outputs.len(), program.constants.len()][table];
    let at = random.below(all);
    let new = random.below(2) == 0;
    let next = BufferId(program.buffers.len() as u32);
    let of = |old: BufferId| if new { next } else { old };
    let (old, kind) = match table {
        0 => {
            let mut entry = program.states.get(at)?.clone();
            let old = std::mem::replace(&mut entry.buffer, of(program.states[at].buffer));
            program.states.push(entry);
            (old, BufferKind::State(all as u32))
        }
        1 => {
            let mut entry = program.inputs.get(at)?.clone();
            let old = std::mem::replace(&mut entry.buffer, of(program.inputs[at].buffer));
            program.inputs.push(entry);
            (old, BufferKind::Input(all as u32))
        }
        2 => {
            let mut entry = program.outputs.get(at)?.clone();
            let old = std::mem::replace(&mut entry.buffer, of(program.outputs[at].buffer));
            program.outputs.push(entry);
            (old, BufferKind::Output(all as u32))
        }
        _ => {
            let mut entry = program.constants.get(at)?.clone();
            let old = std::mem::replace(&mut entry.buffer, of(program.constants[at].buffer));
            program.constants.push(entry);
            (old, BufferKind::Constant(all as u32))
        }
    };
    if new {
        let mut buffer = program.buffers[old.index()].clone();
        buffer.kind = kind;
        program.buffers.push(buffer);
        at_the_end(program, next);
        let writes = random.below(2) == 0;
        let takes = |s: &shardc_ir::plan::Step| (if writes { &s.writes } else { &s.reads }).iter().any(|v| v.buffer == old);
        if let Some((t, s)) = random.pick(&places(program, takes)) {
            let step = &mut program.tasks[t].steps[s];
            let views = if writes { &mut step.writes } else { &mut step.reads };
            views.iter_mut().filter(|v| v.buffer == old).for_each(|v| v.buffer = next);
        }
    }
    Some(format!("entry {at} of table {table} again{}", if new { " with a buffer" } else { "" }))
}

/// An output, a gradient or the update of a state is gone with the steps that make it, in the
/// program alone or in graph and program.
pub fn leave_out(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let (graph, program) = (&mut plan.graph, &mut plan.program);
    let both = random.below(3) > 0;
    let how = random.below(3);
    let (id, what) = match how {
        0 => {
            let at = random.below(program.outputs.len());
            let output = program.outputs.get(at)?.clone();
            program.outputs.remove(at);
            program.buffers[output.buffer.index()].kind = BufferKind::Activation;
            for (i, output) in (0..).zip(&program.outputs) {
                program.buffers[output.buffer.index()].kind = BufferKind::Output(i);
            }
            if both {
                graph.outputs.retain(|o| o.name != output.name);
            }
            (output.buffer, output.name)
        }
        1 => {
            let ids = (0..program.buffers.len()).filter(|i| matches!(program.buffers[*i].kind, BufferKind::Gradient(_)));
            let id = random.pick(&ids.collect::<Vec<_>>())?;
            let BufferKind::Gradient(of) = program.buffers[id].kind else { return None };
            let name = program.states[of as usize].name.clone();
            program.buffers[id].kind = BufferKind::Activation;
            if both {
                graph.states.iter_mut().filter(|s| s.name == name).for_each(|s| s.gradient = None);
            }
            (BufferId(id as u32), name)
        }
        _ => {
            let state = random.pick(&program.states)?;
            if both {
                graph.states.iter_mut().filter(|s| s.name == state.name).for_each(|s| s.update = None);
            }
            (state.buffer, state.name)
        }
    };
    let steps = how == 2 || random.below(2) == 0;
    if steps {
        let makes = |s: &shardc_ir::plan::Step| s.writes.iter().all(|view| view.buffer == id);
        program.tasks.iter_mut().for_each(|task| task.steps.retain(|step| !makes(step)));
    }
    Some(format!(
        "{what} is gone, way {how}{}{}",
        if both { ", in the graph too" } else { "" },
        if steps { ", its steps" } else { "" }
    ))
}

/// A state, an input or an output has another name, in program and graph; or two exchange theirs.
pub fn rename(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let (graph, program) = (&mut plan.graph, &mut plan.program);
    let table = random.below(3);
    let names: Vec<String> = match table {
        0 => program.states.iter().map(|s| s.name.clone()).collect(),
        1 => program.inputs.iter().map(|s| s.name.clone()).collect(),
        _ => program.outputs.iter().map(|s| s.name.clone()).collect(),
    };
    let a = random.pick(&names)?;
    let b = if random.below(2) == 0 { "another".to_string() } else { random.pick(&names)? };
    if a == b {
        return None;
    }
    let rename = |name: &mut String| {
        let other = if *name == a { Some(&b) } else { Some(&a).filter(|_| *name == b) };
        other.into_iter().for_each(|other| name.clone_from(other));
    };
    match table {
        0 => {
            program.states.iter_mut().for_each(|s| rename(&mut s.name));
            graph.states.iter_mut().for_each(|s| rename(&mut s.name));
        }
        1 => {
            program.inputs.iter_mut().for_each(|s| rename(&mut s.name));
            *graph = with_ops(graph, |_, op| match op {
                Op::Input(input) => {
                    let mut name = input.name.clone();
                    rename(&mut name);
                    Op::Input(Input { name, ..input.clone() })
                }
                op => op.clone(),
            });
        }
        _ => {
            program.outputs.iter_mut().for_each(|s| rename(&mut s.name));
            graph.outputs.iter_mut().for_each(|s| rename(&mut s.name));
        }
    }
    Some(format!("`{a}` is `{b}` in table {table} and in the graph"))
}

/// Two states, outputs or gradients exchange what they are, in program and graph.
pub fn exchange(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let (graph, program) = (&mut plan.graph, &mut plan.program);
    let (a, b) = (random.below(graph.states.len()), random.below(graph.states.len()));
    if a == b || graph.states[a].ty != graph.states[b].ty {
        return None;
    }
    let how = random.below(3);
    let (first, second) = (graph.states[a].clone(), graph.states[b].clone());
    if how != 1 {
        (graph.states[a].update, graph.states[b].update) = (second.update, first.update);
    }
    if how != 0 {
        (graph.states[a].gradient, graph.states[b].gradient) = (second.gradient, first.gradient);
    }
    let buffer = |program: &Program, name: &str| program.states.iter().find(|s| s.name == name).map(|s| s.buffer);
    let (x, y) = (buffer(program, &first.name)?, buffer(program, &second.name)?);
    if how != 1 {
        for view in program.tasks.iter_mut().flat_map(|task| &mut task.steps).flat_map(|step| &mut step.writes) {
            view.buffer = if view.buffer == x {
                y
            } else if view.buffer == y {
                x
            } else {
                view.buffer
            };
        }
    }
    if how != 0 {
        let (BufferKind::State(i), BufferKind::State(j)) =
            (program.buffers[x.index()].kind.clone(), program.buffers[y.index()].kind.clone())
        else {
            return None;
        };
        for buffer in &mut program.buffers {
            buffer.kind = match buffer.kind {
                BufferKind::Gradient(of) if of == i => BufferKind::Gradient(j),
                BufferKind::Gradient(of) if of == j => BufferKind::Gradient(i),
                _ => continue,
            };
        }
    }
    Some(format!("states {a} and {b} in program and graph, way {how}"))
}

/// The micro-batch of a row that runs a task.
fn time_of(row: &Row) -> Option<u64> {
    match row {
        Row::Run { time, .. } => Some(*time),
        Row::Exchange(_) => None,
    }
}

/// Several rows change: dropped, doubled, exchanged, for other micro-batches.
pub fn rows(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let order = &mut plan.program.order;
    let (all, microbatches) = (order.len(), plan.program.mesh.microbatches());
    let (at, other, how) = (random.below(all), random.below(all), random.below(6));
    match how {
        0 => {
            let task = order[at].clone();
            order.retain(|row| *row != task);
        }
        1 => {
            let of = time_of(&order[at]);
            order.retain(|row| time_of(row) != of || microbatches == 1);
        }
        2 => {
            let rows: Vec<Row> = order[at.min(other)..=at.max(other)].to_vec();
            order.splice(at..at, rows);
        }
        3 => order.swap(at, other),
        4 => order[at.min(other)..=at.max(other)].reverse(),
        _ => {
            let by = 1 + random.below(microbatches as usize) as u64;
            for row in order.iter_mut() {
                if let Row::Run { time, .. } = row {
                    *time = (*time + by) % microbatches;
                }
            }
        }
    }
    Some(format!("rows {at} and {other}, way {how}"))
}

/// The rows of two micro-batches come in another order, with slots for both, for one, or not.
pub fn interleave(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let microbatches = program.mesh.microbatches();
    if microbatches == 1 {
        return None;
    }
    let (first, second) = (random.below(microbatches as usize) as u64, random.below(microbatches as usize) as u64);
    if first == second {
        return None;
    }
    let twice = |task: u32| program.order.iter().filter(|row| matches!(row, Row::Run { task: t, .. } if *t == task)).count() > 1;
    let is_of = |row: &Row| matches!(row, Row::Run { task, time } if twice(*task) && (*time == first || *time == second));
    let places: Vec<usize> = (0..program.order.len()).filter(|i| is_of(&program.order[*i])).collect();
    let mut rows: Vec<Row> = places.iter().map(|i| program.order[*i].clone()).collect();
    let before = rows.clone();
    for i in (1..rows.len()).rev() {
        rows.swap(i, random.below(i + 1));
    }
    if rows == before {
        return None;
    }
    places.into_iter().zip(rows).for_each(|(at, row)| program.order[at] = row);
    let how = random.below(3);
    if how > 0 {
        let ids: Vec<BufferId> = touched(program);
        let fewer = random.below(ids.len());
        for (i, id) in ids.into_iter().enumerate() {
            let buffer = &mut program.buffers[id.index()];
            let takes_slots = buffer.kind == BufferKind::Activation && buffer.slots == 1;
            if takes_slots && (how == 1 || i != fewer) && buffer.sharding.splits(program.mesh.microbatch_axis()) {
                buffer.slots = microbatches;
                at_the_end(program, id);
            }
        }
        fit_arena(program);
    }
    Some(format!("rows of micro-batches {first} and {second} are {:?}, way {how}", program.order))
}

/// Several steps run with each micro-batch, or with the last alone.
pub fn whens(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    if program.mesh.microbatches() == 1 {
        return None;
    }
    let task = random.below(program.tasks.len());
    let all = program.tasks[task].steps.len();
    let (a, b, how) = (random.below(all), random.below(all), random.below(3));
    let flip = |when: When| if when == When::Last { When::Each } else { When::Last };
    let steps = &mut program.tasks[task].steps;
    match how {
        0 => steps.iter_mut().for_each(|step| step.when = When::Each),
        1 => steps[a.min(b)..].iter_mut().for_each(|step| step.when = When::Last),
        _ => steps[a.min(b)..=a.max(b)].iter_mut().for_each(|step| step.when = flip(step.when)),
    }
    Some(format!("steps {a} and {b} of task {task}, way {how}"))
}

/// A buffer has one slot fewer, or slots of which each begins elsewhere.
pub fn slots(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let several: Vec<BufferId> = touched(program).into_iter().filter(|id| program.buffers[id.index()].slots > 1).collect();
    let id = random.pick(&several)?;
    let how = random.below(4);
    let buffer = &mut program.buffers[id.index()];
    match how {
        0 => buffer.slots -= 1,
        1 => buffer.slots = 1,
        2 => buffer.offset += 64,
        _ => buffer.offset = buffer.offset.checked_sub(64)?,
    }
    let text = format!("buffer {}: {} slots at {}, way {how}", id.0, buffer.slots, buffer.offset);
    fit_arena(program);
    Some(text)
}
