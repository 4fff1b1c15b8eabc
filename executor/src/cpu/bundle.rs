//! Bundle: maps and reductions row by row.
//!
//! The rows are cut into chunks that stay in a cache of the second level; every member runs over a
//! chunk before the next chunk begins. Members whose rows cannot be cut run one after another over
//! all of it.

use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::threads::Threads;
use crate::cpu::{Arguments, Cpu, Launch};
use shardc_ir::kernel::{Bundle, Form, Implements, Member, Source};
use shardc_ir::reason::Reason;
use std::sync::Mutex;

/// Elements of the widest member in a chunk of rows, where a row has no more. Follows from the
/// shape alone, as results must.
const CHUNK: u64 = 1 << 14;

/// Fewer rows than these are not cut: they would leave threads idle.
const ROWS: u64 = 64;

/// A bundle made ready.
#[derive(Debug)]
struct Prepared {
    rows: usize,
    /// Rows of a chunk.
    chunk: usize,
    /// The members over a chunk, and over the last one, where that has fewer rows.
    whole: Vec<Ready>,
    last: Vec<Ready>,
    /// For each operand that the bundle reads, which result is the same memory.
    in_place: Vec<Option<usize>>,
    /// For each result its elements in a row.
    widths: Vec<usize>,
    work: usize,
}

/// A member made ready.
#[derive(Debug)]
struct Ready {
    launch: Box<dyn Launch>,
    reads: Vec<Source>,
    /// For each operand, the elements from one row to the next.
    steps: Vec<usize>,
    /// Its results among those of the bundle.
    first: usize,
    count: usize,
}

impl Implements<Bundle> for Cpu {
    fn ready(&self, bundle: &Bundle, in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        let widest = bundle.members.iter().filter_map(|member| member.kernel.width(bundle.rows)).max().unwrap_or(1);
        let is_forward = |member: &Member| member.kernel.map().inputs.iter().all(|input| input.strides[0] >= 0);
        let can_cut = bundle.rows >= ROWS
            && bundle.members.iter().all(|member| member.over(bundle.rows, 1).is_some_and(|cut| is_forward(&cut)));
        let chunk = if can_cut { (CHUNK / widest.max(1)).clamp(1, bundle.rows.max(1)) } else { bundle.rows };
        let over = |rows: u64| ready(bundle, in_place, can_cut.then_some(rows));
        let last = if chunk == 0 { 0 } else { bundle.rows % chunk };
        let outputs = |member: &Member| member.kernel.map().outputs.len();
        let width = |member: &Member| member.kernel.result_width(bundle.rows).unwrap_or(0) as usize;
        Ok(Box::new(Prepared {
            rows: bundle.rows as usize,
            chunk: chunk as usize,
            whole: over(chunk)?,
            last: if last == 0 { vec![] } else { over(last)? },
            in_place: in_place.to_vec(),
            widths: bundle.members.iter().flat_map(|member| vec![width(member); outputs(member)]).collect(),
            work: usize::try_from(bundle.flops()).unwrap_or(usize::MAX),
        }))
    }
}

/// The members over so many rows, or as they are.
fn ready(bundle: &Bundle, in_place: &[Option<usize>], rows: Option<u64>) -> Result<Vec<Ready>, Reason> {
    let mut all = vec![];
    for (member, first) in bundle.members.iter().zip(bundle.results()) {
        let cut = rows.and_then(|rows| member.over(bundle.rows, rows));
        let step = |at: usize| cut.as_ref().map_or(0, |cut| cut.kernel.map().inputs[at].strides[0] as usize);
        let steps = (0..member.reads.len()).map(step).collect();
        let kernel = cut.as_ref().unwrap_or(member).kernel.alone();
        let count = member.kernel.map().outputs.len();
        let own = |source: &Source| match source {
            Source::Read(read) => in_place.get(*read as usize).copied().flatten(),
            Source::Write(_) => None,
        };
        let own: Vec<Option<usize>> =
            member.reads.iter().map(|source| own(source)?.checked_sub(first).filter(|result| *result < count)).collect();
        all.push(Ready { launch: kernel.ready(&Cpu, &own)?, reads: member.reads.clone(), steps, first, count });
    }
    Ok(all)
}

impl Launch for Prepared {
    fn launch(&self, Arguments { reads, mut writes, coordinates, threads }: Arguments<'_>) -> Result<(), Reason> {
        if self.chunk >= self.rows {
            return self.run(&self.whole, 0, reads, &mut writes, coordinates, threads);
        }
        let mut items = vec![];
        for start in (0..self.rows).step_by(self.chunk) {
            let rows = self.chunk.min(self.rows - start);
            let parts = writes.into_iter().zip(&self.widths).map(|(write, width)| write.split_at(rows * width));
            let (own, rest) = parts.unzip();
            items.push((start, own));
            writes = rest;
        }
        let failed = Mutex::new(None);
        threads.for_each(self.work, items, |(start, mut own): (usize, Vec<SliceMut<'_>>)| {
            let members = if self.rows - start < self.chunk { &self.last } else { &self.whole };
            if let Err(why) = self.run(members, start, reads, &mut own, coordinates, Threads(1)) {
                failed.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(why);
            }
        });
        failed.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
    }
}

impl Prepared {
    /// Runs the members over the rows from `start` on, which `writes` begins with.
    fn run(
        &self,
        members: &[Ready],
        start: usize,
        reads: &[Slice<'_>],
        writes: &mut [SliceMut<'_>],
        coordinates: &[u64],
        threads: Threads,
    ) -> Result<(), Reason> {
        for member in members {
            let (before, own) = writes.split_at_mut(member.first);
            let (own, behind) = own.split_at_mut(member.count);
            let written = |at: usize| match at.checked_sub(member.first + member.count) {
                Some(at) => behind[at].as_slice(),
                None => before[at].as_slice(),
            };
            let is_own = |at: usize| (member.first..member.first + member.count).contains(&at);
            let read = |(source, step): (&Source, &usize)| match *source {
                Source::Write(at) => written(at as usize),
                Source::Read(at) => match self.in_place[at as usize] {
                    Some(write) if !is_own(write) => written(write),
                    Some(_) => reads[at as usize],
                    None => reads[at as usize].from(start * step),
                },
            };
            let reads: Vec<Slice<'_>> = member.reads.iter().zip(&member.steps).map(read).collect();
            let writes = own.iter_mut().map(SliceMut::reborrow).collect();
            member.launch.launch(Arguments { reads: &reads, writes, coordinates, threads })?;
        }
        Ok(())
    }
}
