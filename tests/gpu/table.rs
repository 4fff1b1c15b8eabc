//! What the executor tells the devices is the launch table, row by row, on every rank.

use super::fake::{is_full, is_inside_software};
use super::jobs::{BF16, Planned};
use shardc_codegen::table::{Part, Ran, Range, Table, Work};
use shardc_executor::load::LoadedSet;
use shardc_executor::memory::Place;
use shardc_fakecuda::control;
use shardc_fakecuda::trace::{Called, Row, Traced};
use shardc_gpu::start::{OwnGpu, tables};
use shardc_ir::kernel::{Collective, CollectiveKind};
use shardc_ir::plan::{Stream, Way};
use std::collections::BTreeMap;

const STEPS: u64 = 3;

/// The rows of one device, of steps only: what the host copies and waits for is no row of a table.
fn of_steps(trace: &[Row], device: u64, table: &Table, base: u64) -> Vec<Row> {
    let own = trace.iter().filter(|row| row.device as u64 == device);
    let begins = |row: &&Row| matches!(row.work, Traced::Memset { to, .. } if to == base + table.fault.start);
    own.skip_while(|row| !begins(row)).filter(|row| !matches!(row.work, Traced::Copy { is_pinned: false, .. })).cloned().collect()
}

/// Where the memory of a rank begins: what is cleared whole.
fn base(trace: &[Row], device: u64, table: &Table) -> u64 {
    let whole = |row: &Row| match row.work {
        Traced::Memset { to, bytes, .. } if row.device as u64 == device && bytes == table.bytes() => Some(to),
        _ => None,
    };
    trace.iter().find_map(whole).expect("the memory is cleared")
}

/// A rank with its table, seen as its device's trace should be.
struct Expected<'a> {
    place: &'a Place,
    table: &'a Table,
    base: u64,
}

impl Expected<'_> {
    /// The rows of one step that are told, those without blocks are not. Results may be copied out
    /// before rows that write none of them: where in `told` they are, if that is so.
    fn runs(&self, told: &[Row]) -> Vec<Ran<'_>> {
        let has_blocks = |ran: &Ran<'_>| !matches!(&ran.row.work, Work::Launch { grid, .. } if grid.contains(&0));
        let mut runs: Vec<Ran<'_>> = self.table.runs(self.place.program().mesh.microbatches()).filter(has_blocks).collect();
        let results = runs.iter().position(|ran| matches!(ran.part, Part::End)).unwrap();
        let is_result = |row: &Row| matches!(row.work, Traced::Copy { to: None, is_pinned: true, .. });
        let first = told.iter().position(is_result).unwrap().min(results);
        let read: Vec<_> = runs[results..].iter().flat_map(|ran| ran.touches()[0].clone()).collect();
        for written in runs[first..results].iter().flat_map(|ran| ran.touches()[1].clone()) {
            assert!(
                read.iter().all(|read| read.end <= written.start || written.end <= read.start),
                "a result is copied too early"
            );
        }
        let count = runs.len() - results;
        runs[first..].rotate_right(count);
        runs
    }

    fn at(&self, range: &Range, time: u64) -> u64 {
        self.base + range.at(time).start
    }

    /// Holds what was traced for a run against its row.
    fn holds(&self, ran: &Ran<'_>, traced: &Traced) -> Result<(), String> {
        let time = ran.times[0];
        let at = |range: &Range| self.at(range, time);
        let same = match (&ran.row.work, traced) {
            (Work::Launch { entry, grid, block, shared, pointers, numbers, .. }, Traced::Launch { .. }) => {
                let mut coordinates = self.place.coordinates.clone();
                *coordinates.last_mut().unwrap() = time;
                let pointers = pointers.iter().map(|pointer| at(&pointer.range)).collect();
                let numbers = numbers.iter().map(|number| number.at(&coordinates)).collect();
                let (entry, block) = (entry.clone(), [*block, 1, 1]);
                *traced == Traced::Launch { entry, grid: *grid, block, shared: *shared, pointers, numbers }
            }
            (
                Work::Product { product, a, b, d, added, vector, room },
                Traced::Product { product: told, a: ta, b: tb, c, d: td, bias, workspace },
            ) => {
                let places =
                    (at(a), at(b), added.as_ref().map_or(at(d), at), at(d), vector.as_ref().map(at), [at(room), room.bytes]);
                let lies = |layout: &shardc_codegen::matmul::Layout| {
                    (layout.rows, layout.columns, layout.leading, layout.batch, layout.stride)
                };
                let layouts = [&product.a, &product.b, &product.c, &product.d].map(lies);
                let were = told.layouts.iter().map(|l| (l.rows, l.columns, l.leading, l.batch, l.stride));
                places == (*ta, *tb, *c, *td, *bias, *workspace)
                    && told.transposed == product.transposed
                    && told.scales == [product.alpha, product.beta]
                    && were.eq(layouts)
            }
            (Work::Call { call, reads, writes }, Traced::Nccl { calls }) => self.calls(call, reads, writes, time, calls),
            (Work::Messages { way, ranges }, Traced::Nccl { calls }) => self.messages(*way, ranges, ran.times, calls),
            (Work::CopyInput { to, .. } | Work::CopyScalar { to, .. }, Traced::Copy { .. }) => {
                *traced == Traced::Copy { to: Some(at(to)), from: None, bytes: to.bytes, is_pinned: true }
            }
            (Work::CopyOutput { from, .. } | Work::CopyFault { from }, Traced::Copy { .. }) => {
                *traced == Traced::Copy { to: None, from: Some(at(from)), bytes: from.bytes, is_pinned: true }
            }
            (Work::Clear { to }, Traced::Memset { .. }) => *traced == Traced::Memset { to: at(to), value: 0, bytes: to.bytes },
            _ => false,
        };
        if same { Ok(()) } else { Err(format!("row {} says {:?}, and the device was told {traced:?}", ran.number, ran.row.work)) }
    }

    fn calls(&self, call: &Collective, reads: &[Range], writes: &[Range], time: u64, calls: &[Called]) -> bool {
        let mesh = &self.place.program().mesh;
        let members = mesh.group(self.place.number(), &call.axes);
        let own = members.iter().position(|member| *member == self.place.number()).unwrap();
        let kind = match call.kind {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllToAll => return !calls.is_empty() && calls.iter().all(|c| c.size == members.len()),
        };
        let operands = call.counts.iter().zip(reads.iter().zip(writes)).filter(|(count, _)| **count > 0);
        let fits = |(told, (count, (from, to))): (&Called, (&u64, (&Range, &Range)))| {
            (told.call.as_str(), told.rank, told.size, told.count) == (kind, own, members.len(), *count)
                && (told.from, told.to) == (Some(self.at(from, time)), Some(self.at(to, time)))
        };
        operands.clone().count() == calls.len() && calls.iter().zip(operands).all(fits)
    }

    fn messages(&self, way: Way, ranges: &[Range], times: &[u64], calls: &[Called]) -> bool {
        let mesh = &self.place.program().mesh;
        let mut coordinates = self.place.coordinates.clone();
        coordinates[way.axis.index()] = way.peer;
        // The communicator of a way has its two ranks, in their order.
        let is_second = self.place.number() > mesh.rank(&coordinates);
        let fits = |(told, (range, time)): (&Called, (&Range, &u64))| {
            let (call, place) = if way.sends { ("send", told.from) } else { ("recv", told.to) };
            told.call == call
                && place == Some(self.at(range, *time))
                && (told.rank, told.size) == (usize::from(is_second), 2)
                && told.peer == Some(usize::from(!is_second))
                && told.count == range.bytes
        };
        ranges.len() == calls.len() && calls.iter().zip(ranges.iter().zip(times)).all(fits)
    }
}

/// For each stream, the last row of it.
type Clock = BTreeMap<u32, u64>;

/// For each row of a device what has ended before it begins.
fn before<'a>(rows: impl Iterator<Item = &'a Row>) -> BTreeMap<u64, Clock> {
    let mut streams: BTreeMap<u32, Clock> = BTreeMap::new();
    let mut behind: BTreeMap<u64, Clock> = BTreeMap::new();
    let mut all = BTreeMap::new();
    for row in rows {
        let mut before = streams.get(&row.stream).cloned().unwrap_or_default();
        for (stream, last) in row.waits.iter().filter_map(|wait| behind.get(wait)).flatten() {
            let own = before.entry(*stream).or_default();
            *own = (*own).max(*last);
        }
        let mut known = before.clone();
        known.insert(row.stream, row.row);
        streams.insert(row.stream, known.clone());
        behind.insert(row.row, known);
        all.insert(row.row, before);
    }
    all
}

/// Holds the trace of a run against the tables.
fn equals_the_table(model: &str, mesh: &str, microbatches: u64, lines: &str, graphs: bool) {
    let job = Planned::new(model, mesh, microbatches, lines);
    control::reset(1);
    let mut executor = job.started(&OwnGpu, graphs).unwrap();
    job.train(&mut executor, STEPS).unwrap();
    drop(executor);
    let trace: Vec<Row> = control::trace().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (tables, _) = tables(&job.set).unwrap();
    let loaded = LoadedSet::new(job.set.clone()).unwrap();
    let mut rows = 0;
    for rank in 0..job.set.mesh().world_size() {
        let place = Place::new(loaded.of_rank(rank).clone(), rank);
        let table = tables.of_rank(job.set.mesh(), rank);
        let base = base(&trace, rank, table);
        let expected = Expected { place: &place, table, base };
        let told = of_steps(&trace, rank, table, base);
        let runs = expected.runs(&told);
        assert_eq!(told.len(), runs.len() * STEPS as usize, "{}: rows of rank {rank}", job.name);
        let before = before(trace.iter().filter(|row| row.device as u64 == rank));
        let mut streams: BTreeMap<u32, Stream> = BTreeMap::new();
        for step in told.chunks(runs.len()) {
            // For each row of the table the row of the trace that ran it last in this step.
            let mut last: BTreeMap<usize, (u32, u64)> = BTreeMap::new();
            for (ran, row) in runs.iter().zip(step) {
                expected.holds(ran, &row.work).unwrap_or_else(|why| panic!("{}, rank {rank}: {why}", job.name));
                assert_eq!(
                    *streams.entry(row.stream).or_insert(ran.row.stream),
                    ran.row.stream,
                    "{}: row {}",
                    job.name,
                    ran.number
                );
                let waits = ran.row.waits.iter().filter_map(|wait| last.get(&(*wait as usize)));
                for (stream, wait) in waits {
                    let known = before[&row.row].get(stream).is_some_and(|known| known >= wait);
                    assert!(known, "{}, rank {rank}: row {} does not wait for {wait}: {row:?}", job.name, ran.number);
                }
                last.insert(ran.number, (row.stream, row.row));
            }
        }
        rows += told.len();
    }
    let how = if graphs { "graphs" } else { "no graphs" };
    eprintln!("{} ({how}): {rows} operations are rows of the tables", job.name);
}

#[test]
fn devices_are_told_what_tables_say() {
    if !is_inside_software("table::devices_are_told_what_tables_say", &[]) {
        return;
    }
    for graphs in [false, true] {
        equals_the_table("mlp", "dp=1", 2, "", graphs);
        equals_the_table("gpt2", "dp=2", 1, "zero stage=3 axis=dp\n", graphs);
        equals_the_table("gpt2", "pp=2", 4, "pipeline axis=pp schedule=1f1b\n", graphs);
        if is_full() {
            equals_the_table("gpt2", "dp=2 tp=2", 2, &format!("zero stage=1 axis=dp\n{BF16}"), graphs);
            equals_the_table("gpt2", "pp=2 tp=2", 4, "pipeline axis=pp schedule=zb-h1\n", graphs);
            equals_the_table("llama", "pp=4", 4, "pipeline axis=pp schedule=1f1b\n", graphs);
            equals_the_table("resnet", "dp=4", 1, "", graphs);
        }
    }
}
