//! Programs at other positions of the pipeline: tasks, states and inputs of other stages, programs
//! that are exchanged, and the classes of single programs at one position or on one rank.

use crate::foreign::{self, Plan};
use crate::jobs::{Compiled, Job};
use crate::mutate::CLASSES;
use crate::sets::{self, drop_unused, fit, on_rank};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferId, BufferKind, Program, Row, Task, View};
use shardc_ir::text::print;
use shardc_testkit::random::Random;

/// A program and another, by position in the set.
fn two(set: &PlanSet, random: &mut Random) -> (usize, usize) {
    let all = set.programs.len();
    let first = random.below(all);
    (first, (first + 1 + random.below(all - 1)) % all)
}

/// A row runs a task of another stage in place of its own: one that its program has, or one taken
/// over from another program, for all its rows or for one.
pub fn other_task(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let (own, other) = two(set, random);
    let from = set.programs[other].clone();
    let program = &mut set.programs[own];
    let rows = super::ends::runs(program);
    let row = random.pick(&rows)?;
    let Row::Run { task, time } = program.order[row].clone() else { return None };
    let name = &program.tasks[task as usize].name;
    let how = random.below(4);
    let text = format!("program {own}: row {row} ({name}.{time}), way {how}");
    if how == 0 {
        let others: Vec<u32> = (0..program.tasks.len() as u32).filter(|other| *other != task).collect();
        let new = random.pick(&others)?;
        program.order[row] = Row::Run { task: new, time };
        return Some(format!("{text}: task {new}"));
    }
    let alike: Vec<&Task> = from.tasks.iter().filter(|task| task.name == *name).collect();
    let taken = random.pick(&alike)?;
    let mut taken = taken.clone();
    for step in &mut taken.steps {
        for view in step.reads.iter_mut().chain(&mut step.writes) {
            view.buffer = taken_over(program, &from, view.buffer);
        }
    }
    fit(program);
    if how == 1 {
        program.tasks[task as usize] = taken;
    } else {
        program.tasks.push(taken);
        let new = program.tasks.len() as u32 - 1;
        match how {
            2 => program.order[row] = Row::Run { task: new, time },
            _ => program.order.insert(row, Row::Run { task: new, time }),
        }
    }
    Some(format!("{text}: of program {other}"))
}

/// The buffer with the name of one of another program; a new one behind all others where there is
/// none.
fn taken_over(program: &mut Program, from: &Program, id: BufferId) -> BufferId {
    let buffer = &from.buffers[id.index()];
    if let Some(there) = program.buffers.iter().position(|own| own.name == buffer.name && own.slot_bytes == buffer.slot_bytes) {
        return BufferId(there as u32);
    }
    let mut new = buffer.clone();
    new.offset = program.buffers.iter().map(|buffer| buffer.offset + buffer.slot_bytes * buffer.slots).max().unwrap_or(0);
    new.kind = match new.kind {
        BufferKind::Scalar(scalar) => BufferKind::Scalar(scalar),
        BufferKind::Communication => BufferKind::Communication,
        _ => BufferKind::Activation,
    };
    program.buffers.push(new);
    BufferId(program.buffers.len() as u32 - 1)
}

/// Two positions exchange their programs, one runs another's, or all run one.
pub fn exchanged(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let (a, b) = two(set, random);
    let how = random.below(4);
    match how {
        0 => set.of.swap(a, b),
        1 => {
            set.of[b] = set.of[a];
            drop_unused(set);
        }
        2 => {
            set.of.fill(a);
            drop_unused(set);
        }
        _ => set.of.rotate_left(1),
    }
    Some(format!("positions {a} and {b}, way {how}"))
}

/// A state is bound at another position: moved there, held there too, or held nowhere; or two
/// positions exchange two states of one size.
pub fn state(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let (own, other) = two(set, random);
    let at = random.below(set.programs[own].states.len());
    let entry = set.programs[own].states.get(at)?.clone();
    let how = random.below(5);
    let text = format!("`{}` of {own}, {other}, way {how}", entry.name);
    if how == 4 {
        let size = |program: &Program, id: BufferId| program.buffers[id.index()].shape.clone();
        let wanted = size(&set.programs[own], entry.buffer);
        let there = &set.programs[other];
        let alike: Vec<usize> = (0..there.states.len()).filter(|i| size(there, there.states[*i].buffer) == wanted).collect();
        let second = random.pick(&alike)?;
        let theirs = std::mem::replace(&mut set.programs[other].states[second].name, entry.name);
        set.programs[own].states[at].name = theirs;
        return Some(text);
    }
    if how < 3 {
        let buffer = set.programs[own].buffers[entry.buffer.index()].clone();
        let program = &mut set.programs[other];
        let mut buffer = shardc_ir::plan::Buffer { kind: BufferKind::State(program.states.len() as u32), ..buffer };
        buffer.offset = program.arena_bytes;
        if how == 2
            && let Some(at) = &mut buffer.sharding.at
        {
            at.positions = vec![other as u64];
        }
        program.buffers.push(buffer);
        let id = BufferId(program.buffers.len() as u32 - 1);
        program.states.push(shardc_ir::plan::StateVariable { buffer: id, ..entry });
        fit(program);
    }
    if how != 1 {
        forget_state(&mut set.programs[own], at);
    }
    Some(text)
}

/// A program without a state, which becomes an activation.
fn forget_state(program: &mut Program, at: usize) {
    program.states.remove(at);
    for buffer in &mut program.buffers {
        buffer.kind = match buffer.kind {
            BufferKind::State(i) | BufferKind::Gradient(i) if i as usize == at => BufferKind::Activation,
            BufferKind::State(i) if i as usize > at => BufferKind::State(i - 1),
            BufferKind::Gradient(i) if i as usize > at => BufferKind::Gradient(i - 1),
            ref kind => kind.clone(),
        };
    }
}

/// An input or an output is there at another position too, or at none.
pub fn entry(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let (own, other) = two(set, random);
    let from = set.programs[own].clone();
    let (is_input, is_moved) = (random.below(2) == 0, random.below(2) == 0);
    let all = if is_input { from.inputs.len() } else { from.outputs.len() };
    let at = random.below(all);
    if all == 0 {
        return None;
    }
    let id = if is_input { from.inputs[at].buffer } else { from.outputs[at].buffer };
    if random.below(4) > 0 {
        let program = &mut set.programs[other];
        let mut buffer = from.buffers[id.index()].clone();
        let next = BufferId(program.buffers.len() as u32);
        buffer.offset = program.arena_bytes;
        if is_input {
            buffer.kind = BufferKind::Input(program.inputs.len() as u32);
            program.inputs.push(shardc_ir::plan::ProgramInput { buffer: next, ..from.inputs[at].clone() });
        } else {
            buffer.kind = BufferKind::Output(program.outputs.len() as u32);
            program.outputs.push(shardc_ir::plan::ProgramOutput { buffer: next, ..from.outputs[at].clone() });
        }
        program.buffers.push(buffer);
        fit(program);
    }
    if is_moved {
        let program = &mut set.programs[own];
        if is_input {
            drop(program.inputs.remove(at))
        } else {
            drop(program.outputs.remove(at))
        }
        for buffer in &mut program.buffers {
            buffer.kind = match buffer.kind {
                BufferKind::Input(i) if is_input && i as usize == at => BufferKind::Activation,
                BufferKind::Input(i) if is_input && i as usize > at => BufferKind::Input(i - 1),
                BufferKind::Output(i) if !is_input && i as usize == at => BufferKind::Activation,
                BufferKind::Output(i) if !is_input && i as usize > at => BufferKind::Output(i - 1),
                ref kind => kind.clone(),
            };
        }
    }
    Some(format!("entry {at} of {own}, {other}: input {is_input}, moved {is_moved}"))
}

/// A buffer of a program says that it is held elsewhere, everywhere or nowhere.
pub fn held(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let (own, other) = two(set, random);
    let (axis, all) = (set.axes[0], set.of.len() as u64);
    let program = &mut set.programs[own];
    let all_of: Vec<usize> = (0..program.buffers.len()).filter(|i| program.buffers[*i].sharding.at.is_some()).collect();
    let buffer = random.pick(&all_of)?;
    let sharding = &mut program.buffers[buffer].sharding;
    let at = |positions: Vec<u64>| Some(shardc_ir::sharding::At { axis, positions });
    sharding.at = match random.below(4) {
        0 => None,
        1 => at(vec![]),
        2 => at((0..all).filter(|position| *position != own as u64).collect()),
        _ => at(vec![other as u64]),
    };
    Some(format!("program {own}: `{}` is held at {:?}", program.buffers[buffer].name, program.buffers[buffer].sharding.at))
}

/// A change of a single program, at one position.
pub fn at_one_position(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let at = random.below(set.programs.len());
    let class = &CLASSES[random.below(CLASSES.len())];
    let what = (class.mutate)(&mut set.programs[at], random)?;
    Some(format!("program {at}: {}: {what}", class.name))
}

/// A change of a program of the second family, at one position; the graph stays.
pub fn other_kinds(set: &mut PlanSet, job: &sets::Job, random: &mut Random) -> Option<String> {
    let at = random.below(set.programs.len());
    let Compiled { graph, reference, spec, .. } = &job.plans;
    let (program, graph, reference, spec) = (set.programs[at].clone(), graph.clone(), reference.clone(), spec.clone());
    let alone = Job { name: job.name.to_string(), program, graph, reference, spec };
    let mut plan = Plan { program: alone.program.clone(), graph: alone.graph.clone() };
    let what = foreign::any(&mut plan, &alone, random)?;
    set.programs[at] = plan.program;
    (print(&plan.graph) == print(&alone.graph)).then(|| format!("program {at}: {what}"))
}

/// A change of a single program, on one rank of several at its position.
pub fn on_one_rank(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let mesh = set.mesh().clone();
    let world = mesh.world_size();
    if world == set.of.len() as u64 {
        return None;
    }
    let rank = random.below(world as usize) as u64;
    let class = &CLASSES[random.below(CLASSES.len())];
    let mut program = set.of_rank(&mesh, rank).clone();
    let what = (class.mutate)(&mut program, random)?;
    on_rank(set, rank, program);
    Some(format!("rank {rank}: {}: {what}", class.name))
}

/// One rank of several at a position exchanges a row of messages with its neighbour, or drops a
/// message.
pub fn rows_of_one_rank(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let mesh = set.mesh().clone();
    let world = mesh.world_size();
    if world == set.of.len() as u64 {
        return None;
    }
    let rank = random.below(world as usize) as u64;
    let mut program = set.of_rank(&mesh, rank).clone();
    let row = random.pick(&super::ends::exchanges(&program))?;
    let how = random.below(3);
    match (how, &mut program.order[row]) {
        (0, Row::Exchange(messages)) => drop(messages.remove(random.below(messages.len()))),
        (1, Row::Exchange(messages)) if messages.len() > 1 => messages.reverse(),
        _ => {
            let to = (row + 1).min(program.order.len() - 1);
            program.order.swap(row, to);
        }
    }
    on_rank(set, rank, program);
    Some(format!("rank {rank}: row {row}, way {how}"))
}

/// A step reads what was received another time, or what is sent: another buffer that a message
/// fills.
pub fn reads_another(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let at = random.below(set.programs.len());
    let program = &mut set.programs[at];
    let views: Vec<View> = program.messages.iter().map(|message| message.view).collect();
    let view = random.pick(&views)?;
    let places: Vec<(usize, usize, usize)> = (program.tasks.iter().enumerate())
        .flat_map(|(t, task)| task.steps.iter().enumerate().map(move |(s, step)| (t, s, step)))
        .flat_map(|(t, s, step)| (0..step.reads.len()).map(move |r| (t, s, r, step.reads[r])))
        .filter(|(.., read)| read.buffer != view.buffer && read.bytes == view.bytes)
        .map(|(t, s, r, _)| (t, s, r))
        .collect();
    let (t, s, r) = random.pick(&places)?;
    let step = &mut program.tasks[t].steps[s];
    step.reads[r] = view;
    Some(format!("program {at}: `{}` reads buffer {} as operand {r}", step.text(), view.buffer.0))
}
