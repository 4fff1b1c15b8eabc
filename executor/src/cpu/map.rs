//! Map: a fused elementwise program over broadcast inputs.

pub mod block;
mod join;
mod known;
pub mod program;
mod registers;
mod table;
mod update;

use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::map::block::{Bound, Worker};
use crate::cpu::map::program::Fused;
use crate::cpu::number::Number;
use crate::cpu::threads::Threads;
use crate::cpu::{Arguments, Cpu, Launch};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Implements, Map};
use shardc_ir::reason::Reason;

impl Implements<Map> for Cpu {
    fn ready(&self, map: &Map, in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        Ok(Box::new(Fused::new(map, &vec![0; map.shape.len()], in_place, true)?))
    }
}

impl Launch for Fused {
    /// An integer that is divided by 0 is an error.
    fn launch(&self, Arguments { reads, writes, coordinates, threads }: Arguments<'_>) -> Result<(), Reason> {
        match self.compute {
            DType::F64 => run::<f64>(self, reads, writes, coordinates, threads),
            DType::F32 | DType::BF16 | DType::F16 => run::<f32>(self, reads, writes, coordinates, threads),
            DType::I64 | DType::Bool => run::<i64>(self, reads, writes, coordinates, threads),
        }
    }
}

fn run<T: Number>(
    fused: &Fused,
    reads: &[Slice<'_>],
    writes: Vec<SliceMut<'_>>,
    coordinates: &[u64],
    threads: Threads,
) -> Result<(), Reason> {
    if fused.total == 0 {
        return Ok(());
    }
    let bound = Bound::<T>::new(fused, reads, coordinates);
    let work = fused.total * fused.weight.max(2);
    let items = cut(fused, writes, threads.parts(work));
    threads.for_each(work, items, |(start, end, outputs)| match &fused.update {
        Some(update) => bound.update(update, outputs, start, end),
        None => Worker::new(&bound, outputs, start).store(start, end),
    });
    bound.outcome()
}

/// Cuts the space into about `parts` ranges of whole blocks, each with its part of the outputs.
fn cut<'a>(fused: &Fused, mut rest: Vec<SliceMut<'a>>, parts: usize) -> Vec<(usize, usize, Vec<SliceMut<'a>>)> {
    let row = fused.shape.last().copied().unwrap_or(1);
    let block = fused.block();
    // Long rows are cut at blocks too: a block never spans the border of a row, so any multiple of
    // it from a row's start will do.
    let unit = if row > block && fused.total > row { row } else { block };
    let step = fused.total.div_ceil(parts).div_ceil(unit) * unit;
    let mut items = vec![];
    let mut start = 0;
    while start < fused.total {
        let end = (start + step).min(fused.total);
        let (heads, tails) = rest.into_iter().map(|output| output.split_at(end - start)).unzip();
        rest = tails;
        items.push((start, end, heads));
        start = end;
    }
    items
}
