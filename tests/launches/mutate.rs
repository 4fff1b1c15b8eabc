//! Mutants of launch tables, a class a line.

use shardc_codegen::matmul::Compute;
use shardc_codegen::table::{Range, Row, Table, Work};
use shardc_ir::plan::{Stream, When};
use shardc_testkit::random::Random;
use std::collections::BTreeSet;

/// A class of mutants: its name, and what it does to a table; it says what it did, or that it found
/// nothing to do.
pub type Class = (&'static str, fn(&mut Table, &mut Random) -> Option<String>);

pub const CLASSES: [Class; 16] = [
    ("range moved", |table, random| {
        let by = [16, 64, 256, 4096][random.below(4)];
        let range = range(table, random)?;
        range.start = if random.below(2) == 0 { range.start + by } else { range.start.checked_sub(by)? };
        Some(format!("{range:?}, moved by {by}"))
    }),
    ("range of another", |table, random| {
        let other = *range(table, random)?;
        let range = range(table, random)?;
        range.start = other.start;
        Some(format!("{range:?}"))
    }),
    ("range cut or grown", |table, random| {
        let range = range(table, random)?;
        range.bytes = if random.below(2) == 0 { range.bytes + 4 } else { range.bytes.checked_sub(4)? };
        Some(format!("{range:?}"))
    }),
    ("slots", |table, random| {
        let range = range(table, random)?;
        match random.below(2) {
            0 => range.slots += 1,
            _ => range.slot_bytes += 64,
        }
        Some(format!("{range:?}"))
    }),
    ("grid or block", |table, random| {
        let Work::Launch { grid, block, shared, .. } = &mut launch(table, random)?.work else { return None };
        match random.below(4) {
            0 => grid[0] = grid[0].checked_sub(1)?,
            1 => grid[0] += 1,
            2 => *block /= 2,
            _ => *shared = if *shared == 0 { 64 } else { 0 },
        }
        Some(format!("{grid:?} {block} {shared}"))
    }),
    ("function", |table, random| {
        let Work::Launch { kernel, entry, .. } = launch(table, random)?.work.clone() else { return None };
        let Work::Launch { kernel: own, entry: own_entry, .. } = &mut launch(table, random)?.work else { return None };
        (*own, *own_entry) = (kernel, entry);
        Some(own_entry.clone())
    }),
    ("pointers swapped", |table, random| {
        let Work::Launch { pointers, .. } = &mut launch(table, random)?.work else { return None };
        let (a, b) = (random.below(pointers.len()), random.below(pointers.len()));
        let (first, second) = (pointers[a].range, pointers[b].range);
        (pointers[a].range, pointers[b].range) = (second, first);
        Some(format!("{} and {}", pointers[a].name, pointers[b].name))
    }),
    ("product", |table, random| {
        let Work::Product { product, .. } = &mut pick(table, random, |row| matches!(row.work, Work::Product { .. }))?.work else {
            return None;
        };
        match random.below(6) {
            0 => product.transposed[random.below(2)] ^= true,
            1 => product.d.leading += 1,
            2 => product.a.rows += 1,
            3 => product.b.stride += 4,
            4 => product.beta = 1.0,
            _ => product.compute = Compute::Tf32,
        }
        Some(format!("{product:?}"))
    }),
    ("wait missing", |table, random| {
        let row = pick(table, random, |row| !row.waits.is_empty())?;
        let at = random.below(row.waits.len());
        Some(format!("{}", row.waits.remove(at)))
    }),
    ("wait for another", |table, random| {
        let rows = table.first_rows()[table.sections.len()];
        let row = pick(table, random, |row| !row.waits.is_empty())?;
        let at = random.below(row.waits.len());
        row.waits[at] = random.below(rows) as u32;
        Some(format!("{:?}", row.waits))
    }),
    ("rows swapped", |table, random| {
        let section = random.below(table.sections.len());
        let rows = &mut table.sections[section].rows;
        let a = random.below(rows.len());
        let b = if random.below(2) == 0 { (a + 1) % rows.len().max(1) } else { random.below(rows.len()) };
        (!rows.is_empty()).then(|| rows.swap(a, b))?;
        Some(format!("{a} and {b} of section {section}"))
    }),
    ("row lost or twice", |table, random| {
        let section = random.below(table.sections.len());
        let rows = &mut table.sections[section].rows;
        if rows.is_empty() {
            return None;
        }
        let at = random.below(rows.len());
        match random.below(2) {
            0 => drop(rows.remove(at)),
            _ => rows.insert(at, rows[at].clone()),
        }
        Some(format!("{at} of section {section}"))
    }),
    ("workspace shared", |table, random| {
        let (arena, bytes) = (table.arena, table.bytes());
        let row = pick(table, random, |row| row.work.ranges().iter().any(|range| range.start >= arena))?;
        let range = ranges(&mut row.work).into_iter().find(|range| range.start >= arena)?;
        range.start = (random.below(bytes as usize) as u64).next_multiple_of(64);
        Some(format!("{range:?}"))
    }),
    ("other queue", |table, random| {
        let of_rows = table.sections.iter().flat_map(|section| &section.rows).map(|row| row.stream);
        let all: BTreeSet<Stream> = of_rows.chain([Stream::Main, Stream::Comm]).collect();
        let row = pick(table, random, |_| true)?;
        let others: Vec<Stream> = all.into_iter().filter(|stream| *stream != row.stream).collect();
        row.stream = others[random.below(others.len())];
        Some(format!("{:?}", row.stream))
    }),
    ("order", |table, random| {
        let (a, b) = (random.below(table.order.len()), random.below(table.order.len()));
        match random.below(3) {
            0 => table.order.swap(a, b),
            1 => drop(table.order.remove(a)),
            _ => {
                let time = table.order[a].times.first_mut()?;
                *time += 1;
            }
        }
        Some(format!("{a} {b}"))
    }),
    ("calls and copies", |table, random| {
        let row = pick(table, random, |row| !matches!(row.work, Work::Launch { .. }))?;
        match &mut row.work {
            Work::Call { call, .. } => match random.below(2) {
                0 => call.counts[0] += 1,
                _ => call.axes = call.axes.iter().rev().copied().take(1).collect(),
            },
            Work::Messages { way, .. } => way.sends = !way.sends,
            Work::CopyInput { input, .. } => *input = random.below(2) as u32,
            Work::CopyOutput { output, .. } => *output = random.below(2) as u32,
            _ => row.when = When::Last,
        }
        Some(format!("{:?}", row.work))
    }),
];

fn pick<'t>(table: &'t mut Table, random: &mut Random, is: impl Fn(&Row) -> bool) -> Option<&'t mut Row> {
    let mut rows: Vec<&mut Row> = table.sections.iter_mut().flat_map(|section| &mut section.rows).filter(|row| is(row)).collect();
    if rows.is_empty() { None } else { Some(rows.swap_remove(random.below(rows.len()))) }
}

fn launch<'t>(table: &'t mut Table, random: &mut Random) -> Option<&'t mut Row> {
    pick(table, random, |row| matches!(row.work, Work::Launch { .. }))
}

/// A range that a row names.
fn range<'t>(table: &'t mut Table, random: &mut Random) -> Option<&'t mut Range> {
    let mut ranges = ranges(&mut pick(table, random, |_| true)?.work);
    if ranges.is_empty() { None } else { Some(ranges.swap_remove(random.below(ranges.len()))) }
}

/// All ranges that a row names.
fn ranges(work: &mut Work) -> Vec<&mut Range> {
    match work {
        Work::Launch { pointers, .. } => pointers.iter_mut().map(|pointer| &mut pointer.range).collect(),
        Work::Product { a, b, d, added, vector, room, .. } => [a, b, d, room].into_iter().chain(added).chain(vector).collect(),
        Work::Call { reads, writes, .. } => reads.iter_mut().chain(writes).collect(),
        Work::Messages { ranges, .. } => ranges.iter_mut().collect(),
        Work::CopyInput { to, .. } | Work::CopyScalar { to, .. } | Work::Clear { to } => vec![to],
        Work::CopyOutput { from, .. } | Work::CopyFault { from } => vec![from],
    }
}
