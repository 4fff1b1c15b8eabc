//! The proof of a launch table, for every rank and at the sizes that it has: it carries out its
//! program, which is proven to carry out the graph.
//!
//! 1. **Room.** Every range lies in the device's memory. The arena, the word for wrong data and the
//!    room for partial results are apart, and only launches of the main queue use the last two.
//! 2. **Translation.** Each row is what the generators make of its step again: the function and its
//!    launch, or what cuBLASLt is told; the step's operands at their bytes. The sections run in the
//!    order of the program, so calls and messages have its one order, which is proven to meet on
//!    all ranks: in that order each can go on when all before it have ended, whatever the queues,
//!    as rows wait for earlier ones only. Calls of collectives have a queue and each way of
//!    messages another one, which share no communicator. A product of cuBLASLt may carry out a
//!    second step as well: `seconds` shows that nothing is lost by it.
//! 3. **Order.** Over two steps, one behind the other, any two rows of which one writes what the
//!    other touches are ordered by their queue or by waits, as they are in the program. Within a
//!    queue that is the order of the table; a wait orders what its queue began up to then, and what
//!    that queue knew to have ended, of any other queue.
//! 4. **Accesses.** What a launch touches lies inside its operands, and no result is written by two
//!    threads (see [`crate::bounds`]).
//! 5. **Limits.** Every GPU takes the grid, the block and its shared memory.
//!
//! A table says nothing else: nothing is allocated, and nothing is waited for, between the host's
//! writing and its reading.

use super::bytes::meet;
use super::{FAULT_BYTES, Part, Ran, Row, Section, Table, Work};
use super::{seconds, sections};
use crate::bounds;
use crate::function::MAX_GRID;
use crate::program::Kernels;
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::{Program, Stream};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range as Bytes;

/// The most threads of a block, and bytes of shared memory that a block has on every architecture
/// from sm_80 on. Source: CUDA C++ Programming Guide, Technical Specifications per Compute
/// Capability (sm_86, sm_89 and sm_120 have the least).
const MAX_BLOCK: u32 = 1024;
const MAX_SHARED: u32 = 99 << 10;

/// Every row is checked between a step and the next one, too.
const STEPS: usize = 2;

/// What was proven, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// Rows, each counted once however often it runs.
    pub rows: usize,
    /// Kernels of ours that are launched in a step.
    pub launches: usize,
    /// Products of matrices in a step.
    pub products: usize,
    /// Calls of communicators, and groups of messages, in a step.
    pub calls: usize,
    /// Events that are waited for in a step.
    pub waits: usize,
    /// Bytes of the device's memory.
    pub bytes: u64,
}

/// Proves that a table carries out `program`, which is proven itself. `kernels` makes the texts
/// again.
///
/// # Errors
/// The first row that is wrong, and how.
pub fn check(table: &Table, program: &Program, kernels: &mut Kernels) -> Result<Checked, Reason> {
    check_shape(table, program)?;
    check_translation(table, program, kernels)?;
    seconds::check(table, program)?;
    check_order(table, program)?;
    for launch in kernels.launches() {
        bounds::check(launch, &program.mesh)?;
        check_limits(launch.grid, launch.block, launch.shared).map_err(|why| reason!("`{}` {why}", launch.entry))?;
    }
    let ran: Vec<Ran<'_>> = table.runs(program.mesh.microbatches()).collect();
    let count = |is: fn(&Work) -> bool| ran.iter().filter(|ran| is(&ran.row.work)).count();
    Ok(Checked {
        rows: table.sections.iter().map(|section| section.rows.len()).sum(),
        launches: count(|work| matches!(work, Work::Launch { grid, .. } if !grid.contains(&0))),
        products: count(|work| matches!(work, Work::Product { .. })),
        calls: count(|work| matches!(work, Work::Call { .. } | Work::Messages { .. })),
        waits: ran.iter().map(|ran| ran.row.waits.len()).sum(),
        bytes: table.bytes(),
    })
}

/// Checks that a table can be read beside `program`: it names parts that the program has, and bytes
/// of its own memory.
///
/// # Errors
/// The first that is not there.
pub fn check_shape(table: &Table, program: &Program) -> Result<(), Reason> {
    check_parts(table, program)?;
    check_room(table, program)
}

fn check_parts(table: &Table, program: &Program) -> Result<(), Reason> {
    let is_axis = |axis: &AxisId| axis.index() < program.mesh.rank_axes().len();
    let has_work = |row: &Row| match &row.work {
        Work::CopyInput { input, .. } => (*input as usize) < program.inputs.len(),
        Work::CopyOutput { output, .. } => (*output as usize) < program.outputs.len(),
        Work::Call { call, .. } => call.axes.iter().all(is_axis),
        Work::Messages { way, .. } => is_axis(&way.axis),
        Work::Launch { .. } | Work::Product { .. } | Work::CopyScalar { .. } | Work::Clear { .. } | Work::CopyFault { .. } => {
            true
        }
    };
    for section in &table.sections {
        let is_there = match &section.part {
            Part::Begin | Part::End => true,
            Part::Task(task) => (*task as usize) < program.tasks.len(),
            Part::Messages(messages) => messages.iter().all(|m| (*m as usize) < program.messages.len()),
        };
        if !is_there || !section.rows.iter().all(has_work) {
            return Err("it has parts that the program does not have".into());
        }
    }
    match table.order.iter().all(|run| (run.section as usize) < table.sections.len()) {
        true => Ok(()),
        false => Err("it runs a section that it does not have".into()),
    }
}

/// Chapter 1, and that what the other chapters index is there.
fn check_room(table: &Table, program: &Program) -> Result<(), Reason> {
    let start = sections::workspace(program);
    let is_room = table.workspace.start == start && table.workspace.end >= start;
    if table.arena != program.arena_bytes || table.fault != (program.arena_bytes..program.arena_bytes + FAULT_BYTES) || !is_room {
        return Err("its memory is not the program's arena, the word for wrong data, and room behind them".into());
    }
    let rows = *table.first_rows().last().unwrap_or(&0);
    for run in &table.order {
        for row in &table.sections[run.section as usize].rows {
            let count = if let Work::Messages { ranges, .. } = &row.work { ranges.len() } else { 1 };
            if run.times.len() != count {
                return Err(reason!("section {} runs with {} times for {count}", run.section, run.times.len()));
            }
        }
    }
    for (number, row) in table.sections.iter().flat_map(|section| &section.rows).enumerate() {
        let wrong = |why: &str| reason!("row {number} {why}");
        if row.waits.iter().any(|on| *on as usize >= rows) {
            return Err(wrong("waits for a row that is not there"));
        }
        for range in row.work.ranges() {
            let last = range.slots.checked_sub(1).and_then(|slots| slots.checked_mul(range.slot_bytes));
            let end = last.and_then(|last| last.checked_add(range.start)).and_then(|start| start.checked_add(range.bytes));
            let Some(end) = end.filter(|end| *end <= table.bytes()) else {
                return Err(wrong("reaches beyond the device's memory"));
            };
            let is_behind = end > table.arena && range.bytes > 0;
            let is_one_place = range.start >= start || end <= start && range.start >= table.arena;
            if is_behind && (row.stream != Stream::Main || !is_one_place) {
                return Err(wrong("uses what lies behind the arena with other bytes, or in another queue"));
            }
        }
    }
    Ok(())
}

/// Chapter 2.
fn check_translation(table: &Table, program: &Program, kernels: &mut Kernels) -> Result<(), Reason> {
    let (sections, order) = sections::of(program, kernels);
    if let Some((why, (_, first))) = kernels.missing.iter().next() {
        return Err(reason!("`{first}` has no kernel: {why}"));
    }
    if order != table.order {
        return Err("its sections do not run in the order of the program".into());
    }
    if sections.len() != table.sections.len() {
        return Err(reason!("it has {} sections for {}", table.sections.len(), sections.len()));
    }
    let mut number = 0;
    for (own, made) in table.sections.iter().zip(&sections) {
        if own.part != made.part || own.rows.len() != made.rows.len() {
            return Err(reason!("the section of {:?} has {} rows for {}", made.part, own.rows.len(), made.rows.len()));
        }
        for (row, made) in own.rows.iter().zip(&made.rows) {
            if (row.step, row.second, row.stream, row.when, &row.work)
                != (made.step, made.second, made.stream, made.when, &made.work)
            {
                return Err(reason!("row {number} is not what {} becomes", told(program, own, made.step)));
            }
            number += 1;
        }
    }
    Ok(())
}

/// A step of a section, for people.
fn told(program: &Program, section: &Section, step: Option<u32>) -> String {
    match (&section.part, step) {
        (Part::Task(task), Some(step)) => {
            let task = &program.tasks[*task as usize];
            format!("`{}` of task {}", program.text_of(&task.steps[step as usize]), task.name)
        }
        (part, _) => format!("{part:?}"),
    }
}

/// The runs of a queue that some other queue does not know to have ended.
#[derive(Default)]
struct Running {
    /// How many ended before them.
    gone: usize,
    /// For each its row's number, and what it touches.
    left: VecDeque<(usize, [Vec<Bytes<u64>>; 2])>,
}

/// For each queue how many of its runs have ended.
type Ended = Vec<usize>;

/// Chapter 3.
fn check_order(table: &Table, program: &Program) -> Result<(), Reason> {
    let rows: Vec<&Row> = table.sections.iter().flat_map(|section| &section.rows).collect();
    let streams: BTreeSet<Stream> = rows.iter().map(|row| row.stream).collect();
    let streams: BTreeMap<Stream, usize> = streams.into_iter().zip(0..).collect();
    let count = streams.len();
    // What each queue knows to have ended before its own next run begins, and for each row what has
    // ended when its last run has.
    let mut known: Vec<Ended> = vec![vec![0; count]; count];
    let mut behind: Vec<Ended> = vec![vec![0; count]; rows.len()];
    let mut running: Vec<Running> = (0..count).map(|_| Running::default()).collect();
    for ran in (0..STEPS).flat_map(|_| table.runs(program.mesh.microbatches())) {
        let own = streams[&ran.row.stream];
        for on in &ran.row.waits {
            known[own].iter_mut().zip(&behind[*on as usize]).for_each(|(known, ended)| *known = *ended.max(known));
        }
        let touches = ran.touches();
        for queue in (0..count).filter(|queue| *queue != own) {
            let Running { gone, left } = &running[queue];
            let may_run = left.range(known[own][queue] - gone..);
            if let Some((other, _)) = { may_run }.find(|(_, other)| meet(other, &touches)) {
                return Err(reason!("row {} does not wait for row {other}, which touches the same bytes", ran.number));
            }
        }
        running[own].left.push_back((ran.number, touches));
        known[own][own] = running[own].gone + running[own].left.len();
        behind[ran.number].clone_from(&known[own]);
        // What all know to have ended is no longer compared with anything.
        for (queue, Running { gone, left }) in running.iter_mut().enumerate() {
            let ended = (0..count).filter(|other| *other != queue).map(|other| known[other][queue]).min();
            let ended = ended.unwrap_or(known[queue][queue]);
            left.drain(..ended - *gone);
            *gone = ended;
        }
    }
    Ok(())
}

/// Chapter 5.
fn check_limits(grid: [u32; 3], block: u32, shared: u32) -> Result<(), Reason> {
    if grid.into_iter().zip(MAX_GRID).any(|(blocks, most)| u64::from(blocks) > most) {
        return Err(reason!("has a grid of {grid:?} blocks"));
    }
    if block == 0 || block > MAX_BLOCK || shared > MAX_SHARED {
        return Err(reason!("has blocks of {block} threads and {shared} bytes of shared memory"));
    }
    Ok(())
}
