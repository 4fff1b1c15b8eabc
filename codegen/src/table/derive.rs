//! The launch table of a program, from its steps and the waits that follow from them.

use super::sections::{self, workspace};
use super::{FAULT_BYTES, Ran, Row, Table};
use crate::program::Kernels;
use shardc_ir::plan::{Program, Stream, aligned};
use shardc_ir::waits::{self, Queued};
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

/// The rows that each row waits for, by the rule that a program's steps do. The queues of
/// communication begin behind what the host has written, and the host reads when they have ended.
fn waits_of(program: &Program, table: &Table) -> Vec<BTreeSet<u32>> {
    let firsts = table.first_rows();
    let microbatches = program.mesh.microbatches();
    let queued = |ran: Ran<'_>| {
        let [reads, writes] = ran.touches();
        Queued { number: ran.number, stream: ran.row.stream, reads, writes }
    };
    let waits = waits::of(table.runs(microbatches).map(queued), firsts[table.sections.len()]);
    let mut waits: Vec<BTreeSet<u32>> = waits.0.into_iter().map(|on| on.into_iter().map(|on| on as u32).collect()).collect();
    let streams: BTreeSet<Stream> = table.sections.iter().flat_map(|section| &section.rows).map(|row| row.stream).collect();
    for stream in streams.into_iter().filter(|stream| *stream != Stream::Main) {
        let of_stream = |ran: Ran<'_>| (ran.row.stream == stream).then_some(ran.number);
        let rows: Vec<usize> = table.runs(microbatches).filter_map(of_stream).collect();
        if let (Some(first), Some(last)) = (rows.first().copied(), rows.last().copied()) {
            waits[first].insert(firsts[1] as u32 - 1);
            waits[firsts[table.sections.len() - 1]].insert(last as u32);
        }
    }
    waits
}
