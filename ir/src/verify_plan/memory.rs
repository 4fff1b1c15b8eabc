//! Runs one step of training over the arena without its numbers: each byte remembers which buffer it was last written as.
//!
//! Gradients that are reduced together lie in one bucket, a buffer that covers theirs. It holds nothing of its own: a call that
//! reads the bucket reads its members, and one that writes it writes them.

use super::{Violation, numbered, violation};
use crate::plan::{Buffer, BufferId, BufferKind, Program, Repeat, Step, View};
use std::collections::BTreeMap;
use std::ops::Range;

/// Checks all accesses of one step of training and returns how many there are.
pub fn check(program: &Program) -> Result<u64, Violation> {
    for buffer in &program.buffers {
        inside_arena(buffer, program).map_err(|message| Violation { message, spec_line: None })?;
    }
    for (number, _, step) in numbered(program) {
        for view in step.reads.iter().chain(&step.writes) {
            let slot = &program.buffers[view.buffer.index()];
            if view.offset.checked_add(view.bytes).is_none_or(|end| end > slot.slot_bytes) {
                return Err(violation(number, step, format_args!("leaves its buffer `{}`", slot.name)));
            }
        }
        own_operands(number, step, program)?;
    }
    let mut run = Run { program, buckets: buckets(program), written: BTreeMap::new(), accesses: 0 };
    run.host_writes();
    run.steps()?;
    run.host_reads()?;
    Ok(run.accesses)
}

fn inside_arena(buffer: &Buffer, program: &Program) -> Result<(), String> {
    let elements = buffer.local.iter().product::<u64>();
    if elements.checked_mul(buffer.dtype.bytes()).is_none_or(|bytes| bytes > buffer.slot_bytes) {
        return Err(format!("buffer `{}` is too small for its elements", buffer.name));
    }
    if buffer.slots != 1 && buffer.slots != program.mesh.microbatches() {
        return Err(format!("buffer `{}` has {} slots, not one or one for each micro-batch", buffer.name, buffer.slots));
    }
    if buffer.offset + buffer.slot_bytes * buffer.slots > program.arena_bytes {
        return Err(format!("buffer `{}` reaches beyond the arena", buffer.name));
    }
    Ok(())
}

/// A step may write over what it reads only as the same view, element by element in place.
fn own_operands(number: usize, step: &Step, program: &Program) -> Result<(), Violation> {
    let place = |view: &View| bytes_of(program, view, 0);
    for (w, write) in step.writes.iter().enumerate() {
        let name = |view: &View| program.buffers[view.buffer.index()].name.clone();
        if let Some(other) = step.writes[..w].iter().find(|other| overlap(&place(write), &place(other))) {
            let why = format!("writes `{}` and `{}` to the same bytes", name(other), name(write));
            return Err(violation(number, step, why));
        }
        let clash =
            step.reads.iter().find(|read| overlap(&place(write), &place(read)) && place(write).start != place(read).start);
        if let Some(read) = clash {
            let why = format!("writes `{}` over bytes of `{}` that it still reads", name(write), name(read));
            return Err(violation(number, step, why));
        }
    }
    Ok(())
}

/// For each buffer, the gradients whose bytes it covers exactly, if it is a bucket.
fn buckets(program: &Program) -> Vec<Vec<BufferId>> {
    let range = |b: &Buffer| b.offset..b.offset + b.slot_bytes * b.slots;
    let gradients: Vec<(BufferId, Range<u64>)> = (program.buffers.iter().enumerate())
        .filter(|(_, b)| matches!(b.kind, BufferKind::Gradient(_)))
        .map(|(i, b)| (BufferId(i as u32), range(b)))
        .collect();
    let members = |bucket: &Buffer| {
        if bucket.kind != BufferKind::Communication || bucket.slots != 1 {
            return vec![];
        }
        let bucket = range(bucket);
        let inside = gradients.iter().filter(|(_, g)| bucket.start <= g.start && g.end <= bucket.end);
        let (ids, sizes): (Vec<BufferId>, Vec<u64>) = inside.map(|(id, g)| (*id, g.end - g.start)).unzip();
        if sizes.iter().sum::<u64>() == bucket.end - bucket.start { ids } else { vec![] }
    };
    program.buffers.iter().map(members).collect()
}

/// Who wrote some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Writer {
    /// As which buffer.
    buffer: BufferId,
    /// The first byte of the buffer, or of its slot.
    start: u64,
    /// The step's number; `None` for the host.
    step: Option<usize>,
}

struct Run<'p> {
    program: &'p Program,
    buckets: Vec<Vec<BufferId>>,
    /// Disjoint written ranges by their first byte: (end, writer).
    written: BTreeMap<u64, (u64, Writer)>,
    accesses: u64,
}

impl Run<'_> {
    /// Before a step the host has filled states, inputs, constants and scalars.
    fn host_writes(&mut self) {
        for (i, buffer) in self.program.buffers.iter().enumerate() {
            let filled = matches!(
                buffer.kind,
                BufferKind::State(_) | BufferKind::Input(_) | BufferKind::Constant(_) | BufferKind::Scalar(_)
            );
            for slot in (0..buffer.slots).filter(|_| filled) {
                let start = buffer.offset + slot * buffer.slot_bytes;
                let writer = Writer { buffer: BufferId(i as u32), start, step: None };
                self.write(start..start + content_bytes(buffer), writer);
            }
        }
    }

    fn steps(&mut self) -> Result<(), Violation> {
        let tasks = &self.program.tasks;
        let starts: Vec<usize> = tasks
            .iter()
            .scan(0, |at, task| {
                let start = *at;
                *at += task.steps.len();
                Some(start)
            })
            .collect();
        let mut t = 0;
        while t < tasks.len() {
            let end = t + tasks[t..].iter().take_while(|task| task.repeat == tasks[t].repeat).count();
            let times = if tasks[t].repeat == Repeat::EachMicrobatch { self.program.mesh.microbatches() } else { 1 };
            for time in 0..times {
                for task in t..end {
                    for (i, step) in tasks[task].steps.iter().enumerate() {
                        self.step(starts[task] + i, step, time)?;
                    }
                }
            }
            t = end;
        }
        Ok(())
    }

    fn step(&mut self, number: usize, step: &Step, time: u64) -> Result<(), Violation> {
        for view in &step.reads {
            self.accesses += 1;
            self.each_part(view, time, |run, buffer, range, start| {
                run.whole(range, buffer, start).map_err(|why| {
                    let name = &run.program.buffers[buffer.index()].name;
                    violation(number, step, format_args!("of micro-batch {time} reads `{name}`{why}"))
                })
            })?;
        }
        for view in &step.writes {
            self.accesses += 1;
            self.each_part(view, time, |run, buffer, range, start| {
                run.write(range, Writer { buffer, start, step: Some(number) });
                Ok(())
            })?;
        }
        Ok(())
    }

    /// After a step the host reads outputs and gradients; states and constants stay.
    fn host_reads(&self) -> Result<(), Violation> {
        for (i, buffer) in self.program.buffers.iter().enumerate() {
            if matches!(
                buffer.kind,
                BufferKind::Activation | BufferKind::Communication | BufferKind::Scalar(_) | BufferKind::Input(_)
            ) {
                continue;
            }
            for slot in 0..buffer.slots {
                let start = buffer.offset + slot * buffer.slot_bytes;
                self.whole(start..start + content_bytes(buffer), BufferId(i as u32), start).map_err(|why| Violation {
                    message: format!("at the end of a step the host reads `{}`{why}", buffer.name),
                    spec_line: None,
                })?;
            }
        }
        Ok(())
    }

    /// Calls `f` with each buffer that a view means, its bytes, and the first byte of the buffer's slot: itself, or what a bucket covers.
    fn each_part(
        &mut self,
        view: &View,
        time: u64,
        mut f: impl FnMut(&mut Self, BufferId, Range<u64>, u64) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let members = self.buckets[view.buffer.index()].clone();
        if members.is_empty() {
            let range = bytes_of(self.program, view, time);
            let start = range.start - view.offset;
            return f(self, view.buffer, range, start);
        }
        for id in members {
            let member = &self.program.buffers[id.index()];
            f(self, id, member.offset..member.offset + content_bytes(member), member.offset)?;
        }
        Ok(())
    }

    /// Whether all of `range` was last written as `buffer` in the slot that begins at `start`; why not, in words.
    fn whole(&self, range: Range<u64>, buffer: BufferId, start: u64) -> Result<(), String> {
        let mut at = range.start;
        while at < range.end {
            let found = self.written.range(..=at).next_back().filter(|(_, (end, _))| *end > at);
            let Some((_, (end, writer))) = found else {
                return Err(", which nothing has written".to_string());
            };
            if (writer.buffer, writer.start) != (buffer, start) {
                let other = &self.program.buffers[writer.buffer.index()].name;
                return Err(match writer.step {
                    Some(step) => format!(", whose bytes step {step} has overwritten with `{other}`"),
                    None => format!(", whose bytes the host has overwritten with `{other}`"),
                });
            }
            at = *end;
        }
        Ok(())
    }

    fn write(&mut self, range: Range<u64>, writer: Writer) {
        if range.is_empty() {
            return;
        }
        self.split_at(range.start);
        self.split_at(range.end);
        let inside: Vec<u64> = self.written.range(range.clone()).map(|(start, _)| *start).collect();
        for start in inside {
            self.written.remove(&start);
        }
        self.written.insert(range.start, (range.end, writer));
    }

    /// Cuts the range that holds `at` in two.
    fn split_at(&mut self, at: u64) {
        let Some((start, (end, writer))) = self.written.range(..at).next_back().map(|(start, entry)| (*start, *entry)) else {
            return;
        };
        if end > at {
            self.written.insert(start, (at, writer));
            self.written.insert(at, (end, writer));
        }
    }
}

/// The bytes of a view at micro-batch `time`.
fn bytes_of(program: &Program, view: &View, time: u64) -> Range<u64> {
    let buffer = &program.buffers[view.buffer.index()];
    let slot = if buffer.slots > 1 { time * buffer.slot_bytes } else { 0 };
    let start = buffer.offset + slot + view.offset;
    start..start + view.bytes
}

/// The bytes of a slot that hold elements.
fn content_bytes(buffer: &Buffer) -> u64 {
    buffer.local.iter().product::<u64>() * buffer.dtype.bytes()
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end && !a.is_empty() && !b.is_empty()
}
