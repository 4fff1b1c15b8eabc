//! Map: a fused elementwise program over broadcast inputs.

use crate::cpu::block::{Bound, Worker};
use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::fused::Fused;
use crate::cpu::number::Number;
use crate::cpu::signature::Signature;
use crate::cpu::space;
use crate::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Map, Origin};
use shardc_ir::mesh::Mesh;

/// What `map` demands of its operands; an error if it is not well formed.
pub fn signature(map: &Map, mesh: &Mesh) -> Result<Signature, String> {
    let total = space::elements(&map.shape)? as u64;
    let mut signature = Signature::default();
    for input in &map.inputs {
        signature = signature.reads(input.dtype, space::extent(&map.shape, &input.strides, (0, 0))?);
    }
    for output in &map.outputs {
        signature = signature.writes(*output, total);
    }
    if map.program.inputs as usize != map.inputs.len() || map.program.outputs.len() != map.outputs.len() {
        return Err("the program's inputs or outputs are not the kernel's".to_string());
    }
    for (dimension, origin) in &map.origins {
        let size = *map.shape.get(*dimension as usize).ok_or("an origin for a dimension that is not there")?;
        check_origin(origin, size, mesh)?;
    }
    Ok(signature)
}

/// Whether `origin` can be evaluated for indices below `size`.
pub fn check_origin(origin: &Origin, size: u64, mesh: &Mesh) -> Result<(), String> {
    crate::cpu::signature::offset_range(&origin.offset, mesh)?;
    let digits_fit = origin
        .digits
        .iter()
        .all(|d| d.divisor > 0 && d.size > 0 && d.size.checked_mul(d.stride).is_some_and(|reach| reach <= i64::MAX as u64 / 64));
    if digits_fit && origin.digits.len() <= 32 && size <= isize::MAX as u64 {
        Ok(())
    } else {
        Err("an origin has digits that are no digits".to_string())
    }
}

/// Whether input `i` may be the same memory as an output: it has the output's type and steps.
pub fn may_be_in_place(map: &Map, input: usize, output: usize) -> bool {
    let shape: Vec<usize> = map.shape.iter().map(|n| *n as usize).collect();
    let same_steps = |(d, stride): (usize, &isize)| shape[d] == 1 || *stride == map.inputs[input].strides[d] as isize;
    map.inputs[input].dtype == map.outputs[output]
        && (shape.contains(&0) || space::contiguous(&shape).iter().enumerate().all(same_steps))
}

/// Makes `map` ready; `in_place` says for each input which output is the same memory.
pub fn prepare(map: &Map, in_place: &[Option<usize>]) -> Result<Fused, String> {
    Fused::new(map, &vec![0; map.shape.len()], in_place, true)
}

/// Runs it; an error where an integer is divided by 0.
pub fn launch(
    fused: &Fused,
    reads: &[Slice<'_>],
    writes: Vec<SliceMut<'_>>,
    coordinates: &[u64],
    threads: Threads,
) -> Result<(), String> {
    match fused.compute {
        DType::F64 => run::<f64>(fused, reads, writes, coordinates, threads),
        DType::F32 => run::<f32>(fused, reads, writes, coordinates, threads),
        DType::I64 | DType::Bool => run::<i64>(fused, reads, writes, coordinates, threads),
    }
}

fn run<T: Number>(
    fused: &Fused,
    reads: &[Slice<'_>],
    writes: Vec<SliceMut<'_>>,
    coordinates: &[u64],
    threads: Threads,
) -> Result<(), String> {
    if fused.total == 0 {
        return Ok(());
    }
    let bound = Bound::<T>::new(fused, reads, coordinates);
    let work = fused.total * fused.weight.max(2);
    let items = cut(fused, writes, threads.parts(work));
    threads.for_each(work, items, |(start, end, outputs)| Worker::new(&bound, outputs, start).store(start, end));
    bound.outcome()
}

/// Cuts the space into about `parts` ranges of whole blocks, each with its part of the outputs.
fn cut<'a>(fused: &Fused, mut rest: Vec<SliceMut<'a>>, parts: usize) -> Vec<(usize, usize, Vec<SliceMut<'a>>)> {
    let row = fused.shape.last().copied().unwrap_or(1);
    let block = fused.block();
    // Long rows are cut at blocks too: a block never spans the border of a row, so any multiple of it from a row's start will do.
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
