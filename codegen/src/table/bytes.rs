//! Bytes that steps and rows touch, and whether they meet.

use shardc_ir::plan::{Program, Step, View};
use std::ops::Range;

/// The bytes of a view; those of all slots where its buffer has several.
pub fn span(program: &Program, view: &View) -> Range<u64> {
    let buffer = &program.buffers[view.buffer.index()];
    let (start, bytes) = match buffer.slots {
        1 => (buffer.offset + view.offset, view.bytes),
        slots => (buffer.offset, buffer.slot_bytes * slots),
    };
    start..start + bytes
}

/// What a step reads and what it writes.
pub fn of_step(program: &Program, step: &Step) -> [Vec<Range<u64>>; 2] {
    [&step.reads, &step.writes].map(|views| views.iter().map(|view| span(program, view)).collect())
}

/// Whether some bytes are in both.
pub fn clash(a: &[Range<u64>], b: &[Range<u64>]) -> bool {
    // An empty range has none, wherever it is.
    let share = |a: &Range<u64>, b: &Range<u64>| a.start.max(b.start) < a.end.min(b.end);
    a.iter().any(|x| b.iter().any(|y| share(x, y)))
}

/// Whether two, each by what is read and what is written, touch the same bytes, and one writes
/// them.
pub fn meet([reads, writes]: &[Vec<Range<u64>>; 2], [own_reads, own_writes]: &[Vec<Range<u64>>; 2]) -> bool {
    clash(writes, own_writes) || clash(writes, own_reads) || clash(reads, own_writes)
}
