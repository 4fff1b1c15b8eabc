//! The part of the proof of a launch table that is of rows which carry out two steps. What the
//! first step leaves for the second is never written, and one of the two is done sooner or later
//! than in the program. So it shows:
//!
//! 1. No step that touches what one of the two writes, or writes what it reads, stands between its
//!    place in the program and that of the row.
//! 2. A product writes nothing that it reads, but for the matrix that it is added to.
//! 3. Nobody reads the bytes that were not written before somebody has written them, over two steps
//!    of training.

use super::bytes::{clash, meet, of_step};
use super::{Part, Ran, Range, Section, Table, Work};
use shardc_ir::plan::{Program, Task};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;
use std::ops::Range as Bytes;

/// Steps of training that are run, for what one leaves to the next.
const STEPS: usize = 2;

/// Checks all rows with two steps, of a table that is otherwise known to be its program's.
///
/// # Errors
/// The first row that is wrong.
pub fn check(table: &Table, program: &Program) -> Result<(), Reason> {
    for section in &table.sections {
        if let Part::Task(task) = section.part {
            check_places(section, program, &program.tasks[task as usize])?;
        }
        section.rows.iter().try_for_each(|row| check_operands(&row.work))?;
    }
    check_absent(table, program)
}

/// Chapter 1.
fn check_places(section: &Section, program: &Program, task: &Task) -> Result<(), Reason> {
    // For each step the position of its row.
    let mut places: Vec<Option<usize>> = vec![None; task.steps.len()];
    for (at, row) in section.rows.iter().enumerate() {
        for step in row.step.into_iter().chain(row.second) {
            places[step as usize] = Some(at);
        }
    }
    for row in section.rows.iter().filter(|row| row.second.is_some()) {
        for own in row.step.into_iter().chain(row.second).map(|step| step as usize) {
            let touched = of_step(program, &task.steps[own]);
            let is_passed = |other: usize| match (places[own], places[other]) {
                (Some(place), Some(there)) if place != there => (own < other) != (place < there),
                _ => false,
            };
            let passed = (0..task.steps.len()).filter(|other| *other != own && is_passed(*other));
            if let Some(other) = { passed }.find(|other| meet(&touched, &of_step(program, &task.steps[*other]))) {
                let [own, other] = [own, other].map(|step| program.text_of(&task.steps[step]));
                return Err(reason!("`{own}` is carried out on the other side of `{other}` than in the program"));
            }
        }
    }
    Ok(())
}

/// Chapter 2.
fn check_operands(work: &Work) -> Result<(), Reason> {
    let Work::Product { product, a, b, d, added, vector, .. } = work else { return Ok(()) };
    let whole = |range: &Range| match range.slots {
        1 => range.start..range.start + range.bytes,
        slots => range.start..range.start + (slots - 1) * range.slot_bytes + range.bytes,
    };
    let reads_vector = !product.epilogue.is_gradient();
    let mut reads: Vec<Bytes<u64>> = [a, b].map(whole).to_vec();
    reads.extend(vector.iter().filter(|_| reads_vector).map(whole));
    reads.extend(added.iter().filter(|added| *added != d).map(whole));
    let written: Vec<Bytes<u64>> = vector.iter().filter(|_| !reads_vector).map(whole).collect();
    let d = [whole(d)];
    match clash(&reads, &d) || clash(&reads, &written) || clash(&written, &d) {
        true => Err("a product writes what it reads".into()),
        false => Ok(()),
    }
}

/// Chapter 3.
fn check_absent(table: &Table, program: &Program) -> Result<(), Reason> {
    let mut absent = Absent::default();
    for ran in (0..STEPS).flat_map(|_| table.runs(program.mesh.microbatches())) {
        let [reads, writes] = ran.touches();
        if let Some(bytes) = reads.iter().find(|bytes| absent.has(bytes)) {
            return Err(reason!(
                "row {} reads bytes {} to {}, which a product did not write",
                ran.number,
                bytes.start,
                bytes.end
            ));
        }
        writes.iter().for_each(|bytes| absent.remove(bytes));
        absent.add(left_out(&ran, program));
    }
    Ok(())
}

/// The result of the first step of a row with two, where the second one reads it.
fn left_out(ran: &Ran<'_>, program: &Program) -> Option<Bytes<u64>> {
    let (Part::Task(task), Some(step), Some(second)) = (ran.part, ran.row.step, ran.row.second) else { return None };
    let [own, second] = [step, second].map(|step| &program.tasks[*task as usize].steps[step as usize]);
    let result = own.writes.first()?;
    let is_read = second.reads.contains(result);
    let buffer = &program.buffers[result.buffer.index()];
    let time = ran.times.first().copied().unwrap_or(0);
    let start = buffer.offset + time % buffer.slots * buffer.slot_bytes + result.offset;
    // The second step may write its own result there.
    let is_written = ran.touches()[1].iter().any(|bytes| bytes.start <= start && start + result.bytes <= bytes.end);
    (is_read && !is_written).then_some(start..start + result.bytes)
}

/// Bytes that nobody has written, as ranges that share none: their starts, with their ends.
#[derive(Default)]
struct Absent(BTreeMap<u64, u64>);

impl Absent {
    fn has(&self, bytes: &Bytes<u64>) -> bool {
        bytes.start < bytes.end && self.0.range(..bytes.end).next_back().is_some_and(|(_, end)| *end > bytes.start)
    }

    fn remove(&mut self, bytes: &Bytes<u64>) {
        while let Some((start, end)) = self.0.range(..bytes.end).next_back().map(|(start, end)| (*start, *end)) {
            if end <= bytes.start || bytes.is_empty() {
                return;
            }
            self.0.remove(&start);
            if end > bytes.end {
                self.0.insert(bytes.end, end);
            }
            if start < bytes.start {
                self.0.insert(start, bytes.start);
            }
        }
    }

    fn add(&mut self, bytes: Option<Bytes<u64>>) {
        if let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) {
            self.remove(&bytes);
            self.0.insert(bytes.start, bytes.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_bytes_are_those_added_and_not_removed() {
        let mut absent = Absent::default();
        absent.add(Some(10..30));
        absent.add(Some(25..40));
        absent.remove(&(12..14));
        absent.remove(&(14..14));
        let has: Vec<u64> = (0..50).filter(|byte| absent.has(&(*byte..byte + 1))).collect();
        assert_eq!(has, (10..12).chain(14..40).collect::<Vec<_>>());
        assert!(!absent.has(&(20..20)) && !absent.has(&(40..60)) && absent.has(&(0..11)) && absent.has(&(39..60)));
        absent.remove(&(0..100));
        assert!(!absent.has(&(0..100)));
    }
}
