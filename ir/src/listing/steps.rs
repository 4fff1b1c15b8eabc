//! The steps of a listing: number, stream, what runs, the local type of what it writes, its task,
//! and for messages who, how much, why.

use super::summary::bytes_sent;
use super::units::bytes_text;
use crate::columns::{Column, align};
use crate::kernel::Kernel;
use crate::plan::{Program, Row, Step, Task, View, When};
use crate::waits::{Waits, derive};

/// Cells wider than this do not widen the column for the others.
const MAX_RESULT: usize = 20;
const MAX_OPERATION: usize = 60;
const MAX_TYPE: usize = 32;

/// A group of more ranks is abbreviated.
const MAX_GROUP: usize = 8;

/// All steps in order. If there are micro-batches, a heading says with which of them the steps
/// below it run.
pub fn text(program: &Program, rank: u64, spec_name: &str) -> String {
    let (mut rows, mut headings) = (vec![], vec![]);
    let times = times_of_tasks(program);
    let Waits(waits) = derive(program);
    let width = waits.len().saturating_sub(1).to_string().len().max(2);
    let mut waits = waits.iter();
    for (task, times) in program.tasks.iter().zip(times) {
        if headings.last().is_none_or(|(_, other)| *other != times) {
            headings.push((rows.len(), times));
        }
        for (step, waits) in task.steps.iter().zip(&mut waits) {
            let mut row = cells(program, rank, spec_name, step, &label(program, task, step));
            row[6] = [row[6].clone(), waits_text(waits, width)]
                .into_iter()
                .filter(|text| !text.is_empty())
                .collect::<Vec<_>>()
                .join("   ");
            rows.push(row);
        }
    }
    for (number, row) in rows.iter_mut().enumerate() {
        row[0] = format!("{number:0width$}");
    }
    let in_loops = program.mesh.microbatches() > 1;
    let columns = [
        Column::after(if in_loops { "    " } else { "  " }),
        Column::after(" "),
        Column::WORDS.limit(MAX_RESULT),
        Column::after(" = ").limit(MAX_OPERATION),
        Column::after("  : ").limit(MAX_TYPE),
        Column::WORDS,
        Column::after("   "),
    ];
    let steps = align(&rows, columns);
    if !in_loops {
        return steps;
    }
    let mut out = String::new();
    for (number, line) in steps.lines().enumerate() {
        for (_, times) in headings.iter().filter(|(at, _)| *at == number) {
            out.push_str(&match times {
                1 => "  once\n".to_string(),
                times => format!("  for each of {times} micro-batches\n"),
            });
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// The steps of the other queue that a step waits for.
fn waits_text(waits: &[usize], width: usize) -> String {
    let numbers: Vec<String> = waits.iter().map(|number| format!("{number:0width$}")).collect();
    if numbers.is_empty() { String::new() } else { format!("after {}", numbers.join(", ")) }
}

/// How often each task runs in a step of training.
fn times_of_tasks(program: &Program) -> Vec<u64> {
    let mut times = vec![0; program.tasks.len()];
    program.order.iter().for_each(|Row::Run { task, .. }| times[*task as usize] += 1);
    times
}

/// The task of a step: of a part of the model its stage, and the micro-batch where it runs with one
/// alone.
fn label(program: &Program, task: &Task, step: &Step) -> String {
    let last = program.mesh.microbatches() - 1;
    match task.name.chars().all(|c| c.is_ascii_uppercase()) {
        true if step.when == When::Last || last == 0 => format!("{}{}.{last}", task.name, task.stage),
        true => format!("{}{}", task.name, task.stage),
        false => task.name.clone(),
    }
}

fn cells(program: &Program, rank: u64, spec_name: &str, step: &Step, task: &str) -> [String; 7] {
    let stream = match step.stream {
        crate::plan::Stream::Main => "main",
        crate::plan::Stream::Comm => "comm",
    };
    let (result, operation) = ("", step.op.as_str());
    let types: Vec<String> = match &step.kernel {
        Kernel::Collective(call) if call.counts.len() > 1 => {
            vec![format!("{}[{}]", call.dtype, step.writes.iter().map(|view| view.bytes).sum::<u64>() / call.dtype.bytes())]
        }
        _ => step.writes.iter().map(|view| type_text(program, view)).collect(),
    };
    let (operation, note) = match &step.kernel {
        Kernel::Collective(call) => {
            let operands = operation.find('%').unwrap_or(operation.len());
            let (op, operands) = operation.split_at(operands);
            let group = group_text(&program.mesh.group(rank, &call.axes));
            let note = format!("{}{}", bytes_text(bytes_sent(program, call)), reason_text(step, spec_name));
            (format!("{} {group} {operands}", op.trim_end()).trim_end().to_string(), note)
        }
        _ => (operation.to_string(), partial_text(program, step)),
    };
    [String::new(), stream.to_string(), result.to_string(), operation, types.join(", "), task.to_string(), note]
}

fn type_text(program: &Program, view: &View) -> String {
    let buffer = &program.buffers[view.buffer.index()];
    let sizes: Vec<String> = buffer.local.iter().map(u64::to_string).collect();
    format!("{}[{}]", buffer.dtype, sizes.join(", "))
}

fn group_text(ranks: &[u64]) -> String {
    let list = |ranks: &[u64]| ranks.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    match ranks {
        [first @ .., last] if ranks.len() > MAX_GROUP => format!("{{{},…,{last}}}", list(&first[..MAX_GROUP - 2])),
        _ => format!("{{{}}}", list(ranks)),
    }
}

fn reason_text(step: &Step, spec_name: &str) -> String {
    let reason = step.provenance.reason.iter().map(|reason| format!("   {reason}"));
    let line = step.provenance.spec_line.iter().map(|line| format!(" ({spec_name}:{line})"));
    reason.chain(line).collect()
}

/// The axes over which what it writes is still partial.
fn partial_text(program: &Program, step: &Step) -> String {
    let buffers = step.writes.iter().map(|view| &program.buffers[view.buffer.index()]);
    let partial = buffers.map(|b| crate::sharding::Sharding { dims: vec![], ..b.sharding.clone() });
    partial.map(|sharding| sharding.text(&[], &program.mesh)).find(|text| !text.is_empty()).unwrap_or_default()
}
