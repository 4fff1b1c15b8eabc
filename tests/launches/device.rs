//! A device that does what a launch table says, with numbers for contents: each range of bytes
//! holds a number of all that has led to it. It knows nothing of the proof. Queues run in any order
//! that their waits allow.

use shardc_codegen::program::Kernels;
use shardc_codegen::table::{Pointer, Range, Row, Table, Work};
use shardc_ir::plan::{BufferKind, Program, Stream};
use shardc_testkit::random::Random;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};

/// Steps that are run.
const STEPS: u64 = 2;

/// Which queue goes first where both can go on.
#[derive(Debug, Clone, Copy)]
pub enum First {
    /// As the table has it.
    Table,
    /// That queue, of those that there are.
    One(usize),
    Random(u64),
}

pub const ORDERS: [First; 7] =
    [First::Table, First::One(0), First::One(1), First::One(2), First::Random(1), First::Random(2), First::Random(3)];

/// All that the host, other ranks and the next step see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen(Vec<(String, Vec<u64>)>);

/// A row runs.
struct Run<'t> {
    step: u64,
    row: &'t Row,
    times: &'t [u64],
    /// The runs that it waits for.
    needs: Vec<usize>,
}

/// Memory in pieces, at whose ends ranges begin and end.
pub struct Device {
    cuts: Vec<u64>,
    /// For each function the pointers that it writes whole.
    whole: HashMap<String, Vec<bool>>,
}

impl Device {
    /// Memory for some tables of a program.
    pub fn new(program: &Program, tables: &[&Table], kernels: &Kernels) -> Device {
        let mut cuts = BTreeSet::from([0]);
        let microbatches = program.mesh.microbatches();
        for table in tables {
            cuts.insert(table.bytes());
            for range in table.sections.iter().flat_map(|section| &section.rows).flat_map(|row| row.work.ranges()) {
                for bytes in (0..microbatches.min(range.slots.max(1))).map(|time| range.at(time)) {
                    cuts.extend([bytes.start, bytes.end]);
                }
            }
        }
        for buffer in &program.buffers {
            cuts.extend([buffer.offset, buffer.offset + buffer.slot_bytes * buffer.slots]);
        }
        let pointers = |launch: &shardc_codegen::Launch| launch.parameters.iter().map(|p| p.whole).collect();
        let whole = kernels.launches().map(|launch| (launch.entry.clone(), pointers(launch))).collect();
        Device { cuts: cuts.into_iter().collect(), whole }
    }

    /// Runs two steps. An error is an access beyond the memory.
    pub fn run(&self, table: &Table, program: &Program, first: First) -> Result<Seen, String> {
        let mut contents: Vec<u64> = self.cuts.iter().map(|cut| number(&("start", cut))).collect();
        let mut seen = vec![];
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        let runs = runs(table, program);
        for at in order(&runs, first) {
            self.carry_out(&runs[at], table.bytes(), &mut contents, &mut seen, &mut counts)?;
        }
        for buffer in
            program.buffers.iter().filter(|buffer| matches!(buffer.kind, BufferKind::State(_) | BufferKind::Gradient(_)))
        {
            let range = buffer.offset..buffer.offset + buffer.slot_bytes * buffer.slots;
            seen.push((buffer.name.clone(), self.pieces(&range).map(|at| contents[at]).collect()));
        }
        seen.sort();
        Ok(Seen(seen))
    }

    fn pieces(&self, bytes: &std::ops::Range<u64>) -> std::ops::Range<usize> {
        let at = |byte: u64| self.cuts.partition_point(|cut| *cut < byte);
        at(bytes.start)..at(bytes.end)
    }

    fn carry_out(
        &self,
        run: &Run<'_>,
        memory: u64,
        contents: &mut [u64],
        seen: &mut Vec<(String, Vec<u64>)>,
        counts: &mut BTreeMap<String, u64>,
    ) -> Result<(), String> {
        let time = run.times.first().copied().unwrap_or(0);
        let bytes = |range: &Range, time: u64| {
            let bytes = range.at(time);
            if bytes.end > memory { Err(format!("{bytes:?} of {memory}")) } else { Ok(bytes) }
        };
        let held = |contents: &[u64], range: &Range, time: u64| -> Result<Vec<u64>, String> {
            Ok(self.pieces(&bytes(range, time)?).map(|at| contents[at]).collect())
        };
        let put = |contents: &mut [u64], range: &Range, time: u64, what: u64, whole: bool| -> Result<(), String> {
            for at in self.pieces(&bytes(range, time)?) {
                let before = if whole { 0 } else { contents[at] };
                contents[at] = number(&(what, self.cuts[at] - range.at(time).start, before));
            }
            Ok(())
        };
        let mut nth = |name: String| {
            let count = counts.entry(name).or_default();
            *count += 1;
            *count
        };
        match &run.row.work {
            Work::Launch { grid, .. } if grid.contains(&0) => {}
            Work::Launch { kernel, entry, grid, block, shared, pointers, numbers } => {
                let read = |pointer: &&Pointer| pointer.is_read;
                let reads: Vec<_> =
                    pointers.iter().filter(read).map(|p| held(contents, &p.range, time)).collect::<Result<_, _>>()?;
                let names: Vec<_> = pointers.iter().map(|p| (&p.name, p.range.bytes, p.is_read, p.is_written)).collect();
                let numbers = format!("{numbers:?}");
                let what = number(&(kernel, entry, grid, block, shared, names, reads, numbers, time));
                let whole = self.whole.get(entry);
                for (at, pointer) in pointers.iter().enumerate().filter(|(_, pointer)| pointer.is_written) {
                    let whole = whole.and_then(|whole| whole.get(at)).copied().unwrap_or(false);
                    put(contents, &pointer.range, time, number(&(what, at)), whole)?;
                }
            }
            Work::Product { product, a, b, d, added, vector, room } => {
                let is_gradient = product.epilogue.is_gradient();
                let reads = [a, b].into_iter().chain(added).chain(vector.iter().filter(|_| !is_gradient));
                let held: Vec<_> = reads.map(|range| held(contents, range, time)).collect::<Result<_, _>>()?;
                let what = number(&(format!("{product:?}"), held));
                for vector in vector.iter().filter(|_| is_gradient) {
                    put(contents, vector, time, number(&("vector", what)), true)?;
                }
                put(
                    contents,
                    d,
                    time,
                    what,
                    product.d.batch * product.d.columns * product.d.rows == d.bytes / product.d.dtype.bytes(),
                )?;
                put(contents, room, time, number(&("room", what)), true)?;
            }
            Work::Call { call, reads, writes } => {
                let call = format!("{call:?}");
                let held: Vec<_> = reads.iter().map(|range| held(contents, range, time)).collect::<Result<_, _>>()?;
                let what = number(&(&call, held, nth("calls".into())));
                for (at, range) in writes.iter().enumerate() {
                    put(contents, range, time, number(&(what, at)), true)?;
                }
            }
            Work::Messages { way, ranges } => {
                for (range, time) in ranges.iter().zip(run.times) {
                    let peer = format!("{way:?}");
                    let nth = nth(peer.clone());
                    if way.sends {
                        seen.push((format!("{peer} {nth}"), held(contents, range, *time)?));
                    } else {
                        put(contents, range, *time, number(&(peer, nth)), true)?;
                    }
                }
            }
            Work::CopyInput { input, to } => put(contents, to, 0, number(&("input", input, run.step)), true)?,
            Work::CopyScalar { scalar, to } => put(contents, to, 0, number(&("scalar", scalar, run.step)), true)?,
            Work::Clear { to } => put(contents, to, 0, number(&"zeros"), true)?,
            Work::CopyOutput { output, from } => {
                seen.push((format!("output {output} of {}", run.step), held(contents, from, 0)?))
            }
            Work::CopyFault { from } => seen.push((format!("fault of {}", run.step), held(contents, from, 0)?)),
        }
        Ok(())
    }
}

fn number(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// All runs of two steps in the order of the table.
fn runs<'t>(table: &'t Table, program: &Program) -> Vec<Run<'t>> {
    let mut latest: HashMap<usize, usize> = HashMap::new();
    let mut runs = vec![];
    for step in 0..STEPS {
        for ran in table.runs(program.mesh.microbatches()) {
            let needs = ran.row.waits.iter().filter_map(|on| latest.get(&(*on as usize)).copied()).collect();
            latest.insert(ran.number, runs.len());
            runs.push(Run { step, row: ran.row, times: ran.times, needs });
        }
    }
    runs
}

/// An order in which the queues may run.
fn order(runs: &[Run<'_>], first: First) -> Vec<usize> {
    if let First::Table = first {
        return (0..runs.len()).collect();
    }
    let mut queues: BTreeMap<Stream, Vec<usize>> = BTreeMap::new();
    runs.iter().enumerate().for_each(|(at, run)| queues.entry(run.row.stream).or_default().push(at));
    let queues: Vec<Vec<usize>> = queues.into_values().collect();
    let count = queues.len();
    let (mut next, mut ended, mut out) = (vec![0; count], vec![false; runs.len()], vec![]);
    let mut random = Random(if let First::Random(seed) = first { seed } else { 0 });
    while out.len() < runs.len() {
        let can =
            |queue: usize| queues[queue].get(next[queue]).filter(|at| runs[**at].needs.iter().all(|on| ended[*on])).copied();
        let (preferred, is_forward) = match first {
            First::Table => (0, true),
            First::One(queue) => (queue % count, true),
            First::Random(_) => (random.below(count), random.below(2) == 0),
        };
        let mut in_turn = (0..count).map(|by| (preferred + if is_forward { by } else { count - by }) % count);
        let found = in_turn.find_map(|queue| can(queue).map(|at| (queue, at)));
        let (queue, at) = found.expect("waits are for what the table has earlier");
        (ended[at], next[queue]) = (true, next[queue] + 1);
        out.push(at);
    }
    out
}
