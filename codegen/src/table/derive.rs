//! The launch table of a program, from its steps and the waits that follow from them.

use super::sections::{self, workspace};
use super::{FAULT_BYTES, Part, Row, Section, Table};
use crate::program::Kernels;
use shardc_ir::plan::{Program, Stream, aligned};
use shardc_ir::waits;
use std::collections::BTreeSet;

/// The table of a program. Steps that have no kernel are in [`Kernels::missing`]: where there are
/// any, the table does not carry out the program.
pub fn derive(program: &Program, kernels: &mut Kernels) -> Table {
    let (sections, order) = sections::of(program, kernels);
    let used = sections.iter().flat_map(|section| &section.rows).map(|row| used(row, workspace(program))).max().unwrap_or(0);
    let start = workspace(program);
    let workspace = start..start + if used == 0 { 0 } else { aligned(used) };
    let fault = program.arena_bytes..program.arena_bytes + FAULT_BYTES;
    let mut table = Table { arena: program.arena_bytes, workspace, fault, sections, order };
    let waits = waits_of(program, &table);
    for (row, waits) in table.sections.iter_mut().flat_map(|section| &mut section.rows).zip(waits) {
        row.waits = waits.into_iter().collect();
    }
    table
}

/// Bytes of the room for partial results that a row takes.
fn used(row: &Row, start: u64) -> u64 {
    let ends = row.work.ranges().into_iter().filter(|range| range.start >= start).map(|range| range.start + range.bytes - start);
    ends.max().unwrap_or(0)
}

/// The rows that each row waits for. Those of steps are the program's: the first row of a step
/// waits for the last one of another. The queue of communication begins behind what the host has
/// written, and the host reads when it has ended.
fn waits_of(program: &Program, table: &Table) -> Vec<BTreeSet<u32>> {
    let firsts = table.first_rows();
    let rows = Rows::of(program, table, &firsts);
    let mut waits = vec![BTreeSet::new(); firsts[table.sections.len()]];
    for (number, on) in waits::derive(program).0.iter().enumerate() {
        for first in rows.of[number].iter().map(|(first, _)| *first) {
            waits[first].extend(on.iter().flat_map(|on| &rows.of[*on]).map(|(_, last)| *last as u32));
        }
    }
    let comm: Vec<usize> =
        table.runs(program.mesh.microbatches()).filter(|ran| ran.row.stream == Stream::Comm).map(|ran| ran.number).collect();
    if let (Some(first), Some(last)) = (comm.first().copied(), comm.last().copied()) {
        waits[first].insert(firsts[1] as u32 - 1);
        waits[firsts[table.sections.len() - 1]].insert(last as u32);
    }
    waits
}

/// The first and the last row of each step, and behind these of each message: one pair for a step,
/// one for each set of messages that it is in.
struct Rows {
    of: Vec<Vec<(usize, usize)>>,
}

impl Rows {
    fn of(program: &Program, table: &Table, firsts: &[usize]) -> Rows {
        let steps = program.first_steps();
        let all = steps[program.tasks.len()];
        let mut of = vec![vec![]; all + program.messages.len()];
        for (section, first) in table.sections.iter().zip(firsts) {
            let Section { part, rows } = section;
            match part {
                Part::Begin | Part::End => {}
                Part::Task(task) => {
                    for (number, step) in (*first..).zip(rows).filter_map(|(number, row)| Some((number, row.step?))) {
                        let own: &mut Vec<(usize, usize)> = &mut of[steps[*task as usize] + step as usize];
                        match own.last_mut() {
                            Some((_, last)) => *last = number,
                            None => own.push((number, number)),
                        }
                    }
                }
                Part::Exchange(messages) => messages.iter().for_each(|m| of[all + *m as usize].push((*first, *first))),
            }
        }
        Rows { of }
    }
}
