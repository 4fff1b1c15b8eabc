//! Move: a copy between two strided layouts.

use crate::cpu::element::{Element, Slice, each_type};
#[cfg(target_arch = "x86_64")]
use crate::cpu::lines::Vectors;
use crate::cpu::space::collapse;
use crate::cpu::threads::Threads;
use crate::cpu::tiles::{self, Steps, Tile};
use crate::cpu::{Arguments, Cpu, Launch};
use shardc_ir::kernel::{Implements, Move};
use shardc_ir::position::Offset;
use shardc_ir::reason::Reason;

/// A copy made ready: dimensions by descending stride of the destination, the last two forming the
/// tiles that are copied.
#[derive(Debug)]
struct Prepared {
    src_offset: Offset,
    dst_offset: Offset,
    outer: Vec<Dim>,
    rows: Dim,
    cols: Dim,
}

#[derive(Debug, Clone, Copy)]
struct Dim {
    size: usize,
    src: isize,
    dst: usize,
}

impl Implements<Move> for Cpu {
    fn ready(&self, copy: &Move, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        let mut order: Vec<usize> = (0..copy.shape.len()).collect();
        order.sort_by_key(|d| std::cmp::Reverse(copy.dst_strides[*d]));
        let shape: Vec<usize> = order.iter().map(|d| copy.shape[*d] as usize).collect();
        let pick = |strides: &[i64]| -> Vec<isize> { order.iter().map(|d| strides[*d] as isize).collect() };
        let mut strides = vec![pick(&copy.src_strides), pick(&copy.dst_strides)];
        let shape = collapse(&shape, &mut strides, &vec![0; shape.len()]);
        let mut outer: Vec<Dim> = shape
            .iter()
            .enumerate()
            .map(|(d, size)| Dim { size: *size, src: strides[0][d], dst: strides[1][d] as usize })
            .collect();
        let one = Dim { size: 1, src: 0, dst: 0 };
        let cols = outer.pop().unwrap_or(one);
        // The rows of a transposition are the dimension that is contiguous in the source; otherwise
        // the next one out.
        let transposed = outer.iter().position(|d| d.src == 1 && cols.src != 1 && cols.src != 0);
        let rows = match transposed.or(outer.len().checked_sub(1)) {
            Some(rows) => outer.remove(rows),
            None => one,
        };
        Ok(Box::new(Prepared { src_offset: copy.src_offset.clone(), dst_offset: copy.dst_offset.clone(), outer, rows, cols }))
    }
}

impl Launch for Prepared {
    fn launch(&self, Arguments { reads, mut writes, coordinates, threads }: Arguments<'_>) -> Result<(), Reason> {
        each_type!(SliceMut, writes.remove(0), out => run(self, reads[0], out, coordinates, threads));
        Ok(())
    }
}

fn run<T: Element>(p: &Prepared, read: Slice<'_>, out: &mut [T], coordinates: &[u64], threads: Threads) {
    let Some(data) = T::of(read) else { return };
    let (src, dst) = (p.src_offset.at(coordinates) as isize, p.dst_offset.at(coordinates) as usize);
    let outer: Vec<Steps> = p.outer.iter().map(|d| Steps { size: d.size, stride: d.dst }).collect();
    let steps = |d: Dim| Steps { size: d.size, stride: d.dst };
    let out = out.get_mut(dst..).unwrap_or_default();
    let tiles = tiles::cut(out, &outer, steps(p.rows), steps(p.cols));
    let work = tiles.len() * p.rows.size * p.cols.size * 2;
    let height = p.rows.size.div_ceil(threads.parts(work)).next_multiple_of(BLOCK);
    let mut items = vec![];
    for (position, tile) in tiles.into_iter().enumerate() {
        let start = src + source(&p.outer, position);
        let parts = tile.split(height, usize::MAX).into_iter();
        items.extend(parts.map(|(row, _, tile)| (start + row as isize * p.rows.src, tile)));
    }
    threads.for_each(work, items, |(start, tile)| copy_tile(p, data, start, tile));
}

/// The side of the squares in which a transposition goes.
const BLOCK: usize = 16;

fn copy_tile<T: Element>(p: &Prepared, data: &[T], start: isize, mut tile: Tile<'_, T>) {
    let rows = tile.rows();
    if p.cols.dst != 1 && p.cols.size > 1 {
        let mut out = tile.matrix();
        for row in 0..rows {
            for col in 0..p.cols.size {
                out[(row, col)] = data[(start + row as isize * p.rows.src + col as isize * p.cols.src) as usize];
            }
        }
        return;
    }
    if p.cols.src == 1 || p.cols.src == 0 || rows == 1 {
        for row in 0..rows {
            copy_row(data, start + row as isize * p.rows.src, p.cols.src, tile.row(row));
        }
        return;
    }
    for top in (0..rows).step_by(BLOCK) {
        for left in (0..p.cols.size).step_by(BLOCK) {
            let width = BLOCK.min(p.cols.size - left);
            let is_whole = width == BLOCK && rows - top >= BLOCK && p.rows.src == 1 && p.cols.src > 0;
            let from = start + top as isize + left as isize * p.cols.src;
            if is_whole && copy_square(data, from as usize, p.cols.src as usize, &mut tile, [top, left]) {
                continue;
            }
            for row in top..rows.min(top + BLOCK) {
                let from = start + row as isize * p.rows.src + left as isize * p.cols.src;
                copy_row(data, from, p.cols.src, &mut tile.row(row)[left..left + width]);
            }
        }
    }
}

/// Copies a square of f32, whose columns are neighbours in the source and `step` apart, by vector
/// instructions. Says whether there are such.
#[cfg(target_arch = "x86_64")]
fn copy_square<T: Element>(data: &[T], from: usize, step: usize, tile: &mut Tile<'_, T>, [top, left]: [usize; 2]) -> bool {
    let (Slice::F32(data), Some(vectors)) = (T::wrap(data), Vectors::detect()) else { return false };
    let columns: [&[f32]; BLOCK] = std::array::from_fn(|i| &data[from + i * step..][..BLOCK]);
    let mut square = [[0.0; BLOCK]; BLOCK];
    vectors.interleave(&columns, &mut square, 1);
    for (row, values) in square.iter().enumerate() {
        let values = T::of(Slice::F32(values)).expect("the elements are f32");
        tile.row(top + row)[left..left + BLOCK].copy_from_slice(values);
    }
    true
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_square<T>(_data: &[T], _from: usize, _step: usize, _tile: &mut Tile<'_, T>, _at: [usize; 2]) -> bool {
    false
}

fn copy_row<T: Element>(data: &[T], start: isize, stride: isize, out: &mut [T]) {
    match stride {
        1 => out.copy_from_slice(&data[start as usize..][..out.len()]),
        0 => out.fill(data[start as usize]),
        _ => {
            for (i, out) in out.iter_mut().enumerate() {
                *out = data[(start + i as isize * stride) as usize];
            }
        }
    }
}

fn source(outer: &[Dim], position: usize) -> isize {
    let (mut offset, mut rest) = (0, position);
    for dim in outer.iter().rev() {
        offset += (rest % dim.size) as isize * dim.src;
        rest /= dim.size;
    }
    offset
}
