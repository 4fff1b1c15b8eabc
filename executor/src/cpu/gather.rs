//! Gather: rows of tables by index; and ScatterAdd, its transpose.

use crate::cpu::element::{Element, Slice, SliceMut, each_type};
use crate::cpu::number::Number;
use crate::cpu::reduce::combine;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps};
use crate::cpu::{Arguments, Cpu, Launch};
use shardc_ir::kernel::{Gather, Implements, ONTO, ScatterAdd};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;

impl Implements<Gather> for Cpu {
    fn ready(&self, gather: &Gather, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        Ok(Box::new(gather.clone()))
    }
}

impl Launch for Gather {
    /// An index outside the whole table is an error.
    fn launch(&self, Arguments { reads, mut writes, coordinates, threads }: Arguments<'_>) -> Result<(), Reason> {
        let rows = local_rows(self, reads[1], coordinates)?;
        each_type!(SliceMut, writes.remove(0), out => gather_rows(self, reads[0], &rows, out, threads));
        Ok(())
    }
}

/// What the sums of a scatter begin with.
#[derive(Debug, Clone, Copy)]
enum Begin {
    Zeros,
    Table,
    /// The table is where the result will be.
    InPlace,
}

#[derive(Debug)]
struct Scatter {
    gather: Gather,
    begin: Begin,
}

impl Implements<ScatterAdd> for Cpu {
    fn ready(&self, scatter: &ScatterAdd, in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        let begin = match in_place.get(ONTO) {
            Some(Some(_)) => Begin::InPlace,
            _ if scatter.onto => Begin::Table,
            _ => Begin::Zeros,
        };
        Ok(Box::new(Scatter { gather: scatter.gather.clone(), begin }))
    }
}

impl Launch for Scatter {
    /// An index outside the whole table is an error.
    fn launch(&self, Arguments { reads, mut writes, coordinates, threads }: Arguments<'_>) -> Result<(), Reason> {
        let rows = local_rows(&self.gather, reads[0], coordinates)?;
        match writes.remove(0) {
            SliceMut::F64(out) => self.run(reads, &rows, out, threads),
            SliceMut::F32(out) => self.run(reads, &rows, out, threads),
            SliceMut::I64(out) => self.run(reads, &rows, out, threads),
            // 16-bit floats are widened before.
            SliceMut::BF16(_) | SliceMut::F16(_) | SliceMut::Bool(_) => {}
        }
        Ok(())
    }
}

/// Elements that a thread puts in place at a time.
const PART: usize = 1 << 16;

impl Scatter {
    fn run<T: Number>(&self, reads: &[Slice<'_>], rows: &[Option<usize>], out: &mut [T], threads: Threads) {
        let Gather { batch, outer, rows: height, inner, .. } = self.gather;
        let tables = &mut out[..(batch * outer * height * inner) as usize];
        let work = tables.len() / 8;
        match self.begin {
            Begin::InPlace => {}
            Begin::Zeros => threads.for_each(work, tables.chunks_mut(PART).collect(), |part| part.fill(T::ZERO)),
            Begin::Table => {
                let from = T::of(reads[ONTO]).unwrap_or_default();
                let parts = tables.chunks_mut(PART).zip(from.chunks(PART));
                threads.for_each(work, parts.collect(), |(part, from)| part.copy_from_slice(&from[..part.len()]));
            }
        }
        scatter_rows(&self.gather, reads[1], rows, tables, threads);
    }
}

/// The local row of each index; `None` where another rank holds it.
fn local_rows(gather: &Gather, indices: Slice<'_>, coordinates: &[u64]) -> Result<Vec<Option<usize>>, Reason> {
    let indices = i64::of(indices).unwrap_or_default();
    let total = gather.total_rows as i64;
    let offset = gather.origin.offset.at(coordinates);
    indices[..(gather.batch * gather.count) as usize]
        .iter()
        .enumerate()
        .map(|(position, index)| {
            let global = if *index < 0 { index + total } else { *index };
            if !(0..total).contains(&global) {
                return Err(reason!("index {index} at position {position} is outside a table of {total} rows"));
            }
            let within = (global - offset) as u64;
            let digits = gather.origin.digits.iter();
            let local = digits.map(|d| within.checked_div(d.stride).map_or(0, |q| q % d.size * d.divisor)).sum::<u64>();
            let held = global >= offset && local < gather.rows && gather.origin.global(local, coordinates) == global;
            Ok(held.then_some(local as usize))
        })
        .collect()
}

fn gather_rows<T: Element>(gather: &Gather, tables: Slice<'_>, rows: &[Option<usize>], out: &mut [T], threads: Threads) {
    let (Some(tables), inner) = (T::of(tables), gather.inner as usize) else { return };
    let (count, outer, height) = (gather.count as usize, gather.outer as usize, gather.rows as usize);
    let blocks = gather.batch as usize * outer;
    if inner == 0 || count == 0 || blocks == 0 {
        return;
    }
    let work = blocks * count * inner;
    let step = (blocks * count).div_ceil(threads.parts(work));
    let items: Vec<_> = out[..work].chunks_mut(step * inner).enumerate().map(|(i, out)| (i * step, out)).collect();
    threads.for_each(work, items, |(first, out)| {
        let (mut block, mut position) = (first / count, first % count);
        for out in out.chunks_exact_mut(inner) {
            match rows[block / outer * count + position] {
                Some(row) => out.copy_from_slice(&tables[(block * height + row) * inner..][..inner]),
                None => out.fill(T::zeroed()),
            }
            position += 1;
            if position == count {
                (block, position) = (block + 1, 0);
            }
        }
    });
}

fn scatter_rows<T: Number>(gather: &Gather, source: Slice<'_>, rows: &[Option<usize>], tables: &mut [T], threads: Threads) {
    let (Some(source), inner) = (T::of(source), gather.inner as usize) else { return };
    let (count, outer, height) = (gather.count as usize, gather.outer as usize, gather.rows as usize);
    let blocks = gather.batch as usize * outer;
    // Threads own columns, so that each element is summed in index order by one of them.
    let work = blocks * count * inner;
    let width = inner.div_ceil(threads.parts(work)).next_multiple_of(16);
    let tiles = tiles::cut(
        tables,
        &[Steps { size: blocks, stride: height * inner }],
        Steps { size: height, stride: inner },
        Steps { size: inner, stride: 1 },
    );
    let mut items = vec![];
    for (block, tile) in tiles.into_iter().enumerate() {
        items.extend(tile.split(usize::MAX, width).into_iter().map(|(_, left, tile)| (block, left, tile)));
    }
    threads.for_each(work, items, |(block, left, mut tile)| {
        let source = &source[block * count * inner..];
        for (position, row) in rows[block / outer * count..][..count].iter().enumerate() {
            if let Some(row) = row {
                let into = tile.row(*row);
                let width = into.len();
                combine(ReduceKind::Sum, into, &source[position * inner + left..][..width]);
            }
        }
    });
}
