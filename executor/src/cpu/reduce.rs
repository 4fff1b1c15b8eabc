//! Reduce: sums, maxima and minima of a fused program's result.
//!
//! The space is brought into the form `[kept outer, reduced, kept inner]`. Without an inner part
//! each result is a reduction of a row, in fixed lanes; with one, rows are added to each other. A
//! few last positions that are reduced, too, may be kept until all else is reduced.
//! Partial results meet in a balanced tree, so that the error of a sum grows with the logarithm of
//! its length, and everything about the order follows from the shape alone.

mod pairwise;
mod values;

use crate::cpu::element::{Cast, Element, Slice, SliceMut, convert, each_type};
use crate::cpu::lanes::{self, Lanes};
use crate::cpu::map::block::{Bound, Worker};
use crate::cpu::map::program::Fused;
use crate::cpu::number::Number;
use crate::cpu::simd::simd;
use crate::cpu::softmax::{LANES, fold};
use crate::cpu::threads::Threads;
use crate::cpu::{Arguments, Cpu, Launch};
use pairwise::Pairwise;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::counted;
use shardc_ir::kernel::{Implements, Map, MapInput, Reduce};
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::ScalarProgram;
use values::Values;

/// The most blocks of columns that are added up together: their sums stay in the first cache.
const TOGETHER: usize = 4;

/// At most so many last positions are reduced apart from the others.
const FEW: u64 = 64;

/// So many positions lie side by side where they are, and at most so many results are held.
const BESIDE: u64 = 512;
const HELD: u64 = 1 << 16;

/// Of fewer others it is not worth it.
const OTHERS: u64 = 4;

/// A reduction made ready.
#[derive(Debug)]
pub struct Prepared {
    fused: Fused,
    kind: ReduceKind,
    accumulate: DType,
    outer: usize,
    reduced: usize,
    inner: usize,
    /// So many neighbouring results of these are combined to one at last, or 1.
    folded: usize,
    /// The leaf of f32 whose squares are added up in f64.
    squares: Option<usize>,
}

impl Implements<Reduce> for Cpu {
    fn ready(&self, reduce: &Reduce, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        let rank = reduce.reduced.len();
        let last = last_folded(reduce);
        let reduced: Vec<bool> = reduce.reduced.iter().enumerate().map(|(d, reduced)| *reduced && d < last).collect();
        let inner_from = reduced.iter().rposition(|r| *r).map_or(0, |last| last + 1);
        let group = |d: usize| if d >= inner_from { 2 } else { usize::from(reduced[d]) };
        let mut order: Vec<usize> = (0..rank).collect();
        order.sort_by_key(|d| group(*d));
        let sizes = |g: usize| -> usize { (0..rank).filter(|d| group(*d) == g).map(|d| reduce.map.shape[d] as usize).product() };
        let map = permuted(&reduce.map, &order);
        let groups: Vec<usize> = order.iter().map(|d| group(*d)).collect();
        let fused = Fused::new(&map, &groups, &[], false)?;
        let is_sum = (fused.compute, reduce.accumulate, reduce.kind) == (DType::F32, DType::F64, ReduceKind::Sum);
        let are_added = is_sum && reduce.reduced.iter().all(|reduced| *reduced);
        Ok(Box::new(Prepared {
            squares: fused.squares().filter(|_| are_added),
            fused,
            kind: reduce.kind,
            accumulate: if reduce.accumulate == DType::Bool { DType::I64 } else { reduce.accumulate },
            outer: sizes(0),
            reduced: sizes(1),
            inner: sizes(2),
            folded: reduce.map.shape[last..].iter().product::<u64>() as usize,
        }))
    }
}

/// The first of the last dimensions that are reduced apart from the others; the number of all where
/// there are none. Such are the positions of small planes, of which many channels are kept: samples
/// are added up as they lie, then the positions.
fn last_folded(reduce: &Reduce) -> usize {
    let (shape, rank) = (&reduce.map.shape, reduce.reduced.len());
    let last = reduce.reduced.iter().rposition(|reduced| !reduced).map_or(0, |kept| kept + 1);
    let Some(other) = reduce.reduced[..last].iter().rposition(|reduced| *reduced) else { return rank };
    let sizes = |reduced: bool| (0..last).filter(move |d| reduce.reduced[*d] == reduced).map(|d| shape[d]);
    let positions = counted(shape[last..].iter().copied());
    let beside = counted(shape[other + 1..].iter().copied());
    let held = counted(sizes(false).chain([positions]));
    let is_worth_it = (2..=FEW).contains(&positions) && beside >= BESIDE && counted(sizes(true)) >= OTHERS;
    if is_worth_it && held <= HELD { last } else { rank }
}

impl Launch for Prepared {
    /// An integer that is divided by 0 is an error.
    fn launch(&self, Arguments { reads, mut writes, coordinates, threads }: Arguments<'_>) -> Result<(), Reason> {
        match self.fused.compute {
            DType::F64 => launch_with::<f64>(self, reads, writes.remove(0), coordinates, threads),
            DType::F32 | DType::BF16 | DType::F16 => launch_with::<f32>(self, reads, writes.remove(0), coordinates, threads),
            DType::I64 | DType::Bool => launch_with::<i64>(self, reads, writes.remove(0), coordinates, threads),
        }
    }
}

/// The same kernel with its dimensions in another order.
fn permuted(map: &Map, order: &[usize]) -> Map {
    let position = |d: u16| order.iter().position(|o| *o == d as usize).unwrap_or_default() as u16;
    Map {
        compute: map.compute,
        shape: order.iter().map(|d| map.shape[*d]).collect(),
        inputs: map
            .inputs
            .iter()
            .map(|input| MapInput { dtype: input.dtype, strides: order.iter().map(|d| input.strides[*d]).collect() })
            .collect(),
        program: ScalarProgram {
            code: map.program.code.iter().map(|i| i.map(|register| register, position)).collect(),
            ..map.program.clone()
        },
        outputs: map.outputs.clone(),
        origins: map.origins.iter().map(|(d, origin)| (position(*d), origin.clone())).collect(),
    }
}

fn launch_with<T: Number>(
    p: &Prepared,
    reads: &[Slice<'_>],
    write: SliceMut<'_>,
    coordinates: &[u64],
    threads: Threads,
) -> Result<(), Reason> {
    let bound = Bound::<T>::new(&p.fused, reads, coordinates);
    match p.accumulate {
        DType::F64 => run::<T, f64>(p, &bound, write, threads),
        DType::F32 | DType::BF16 | DType::F16 => run::<T, f32>(p, &bound, write, threads),
        DType::I64 | DType::Bool => run::<T, i64>(p, &bound, write, threads),
    }
    bound.outcome()
}

fn run<T: Number, A: Number>(p: &Prepared, bound: &Bound<'_, T>, mut write: SliceMut<'_>, threads: Threads) {
    let kept = p.kept();
    if kept == 0 || p.reduced == 0 {
        each_type!(SliceMut, &mut write, out => lanes::store(Lanes::All(identity::<A>(p.kind)), &mut out[..kept / p.folded]));
        return;
    }
    let chunks = p.chunks();
    let mut partial = vec![A::ZERO; chunks * kept];
    let items = p.items(chunks, threads, &mut partial);
    let work = p.fused.total * p.fused.weight.max(2);
    threads.for_each(work, items, |item| {
        let mut worker = Worker::new(bound, vec![], 0);
        match p.squares.and_then(|leaf| bound.singles(leaf)) {
            Some(elements) => item.out[0] = A::from_f64(squares(p, &elements[item.from..item.to], item.from)),
            _ if p.inner == 1 => rows(p, item, &mut worker),
            _ => columns(p, item, &mut worker),
        }
    });
    tree(p.kind, &mut partial, chunks, kept);
    if p.folded > 1 {
        let mut folded = vec![A::ZERO; kept / p.folded];
        reduce_rows(p.kind, &partial[..kept], &mut folded);
        partial = folded;
    }
    let results = kept / p.folded;
    each_type!(SliceMut, &mut write, out => convert(&partial[..results], &mut out[..results]));
}

/// A part of the work: results `out` of the kept index `outer`.. and inner columns from `column`,
/// over `from..to` of the reduced space.
struct Item<'a, A> {
    outer: usize,
    column: usize,
    from: usize,
    to: usize,
    out: &'a mut [A],
}

impl Prepared {
    /// How many results there are before some are combined.
    fn kept(&self) -> usize {
        self.outer * self.inner
    }

    /// Into how many parts the reduced space is cut: only where the kept one is too small to share.
    fn chunks(&self) -> usize {
        let columns = self.inner.div_ceil(self.fused.block());
        if self.outer * columns >= 16 { 1 } else { (self.fused.total / 32_768).clamp(1, 64).min(self.reduced) }
    }

    /// All work as items that write disjoint parts of `partial`, which holds all results for each
    /// chunk.
    fn items<'a, A>(&self, chunks: usize, threads: Threads, partial: &'a mut [A]) -> Vec<Item<'a, A>> {
        let kept = self.kept();
        let blocks = self.blocks(chunks, threads);
        let step = self.chunk_step(chunks);
        let row = self.fused.shape.last().copied().unwrap_or(1).max(1);
        // Where nothing is added up, the last dimension is a kept one, and blocks are rows of it.
        let unit = if self.reduced == 1 && row <= self.fused.block() { row } else { 1 };
        let mut items = vec![];
        for (chunk, mut rest) in partial.chunks_mut(kept).enumerate() {
            let (from, to) = ((chunk * step).min(self.reduced), ((chunk + 1) * step).min(self.reduced));
            let mut at = 0;
            while at < kept {
                let len = if self.inner == 1 {
                    (32_768 / self.reduced).max(1).next_multiple_of(unit).min(kept - at)
                } else {
                    let column = at % self.inner;
                    let end = (0..blocks).fold(column, |end, _| end + self.fused.block_at(end, self.inner));
                    end - column
                };
                let (out, tail) = rest.split_at_mut(len);
                rest = tail;
                items.push(Item { outer: at / self.inner, column: at % self.inner, from, to, out });
                at += len;
            }
        }
        items
    }

    /// How many blocks of columns go together, so that memory is read on and on: as many as leave
    /// parts for all threads.
    fn blocks(&self, chunks: usize, threads: Threads) -> usize {
        let items = self.outer * self.inner.div_ceil(self.fused.block()) * chunks;
        (items / (8 * threads.0).max(1)).clamp(1, TOGETHER)
    }

    /// The length of one chunk of the reduced space: whole rows of the last dimension where that
    /// one is reduced.
    fn chunk_step(&self, chunks: usize) -> usize {
        let row = if self.inner == 1 { self.fused.shape.last().copied().unwrap_or(1) } else { 1 };
        let unit = if row <= self.fused.block() { row } else { 1 };
        self.reduced.div_ceil(chunks).div_ceil(unit) * unit
    }
}

/// Reduces rows: each result over a range of contiguous positions.
fn rows<T: Number, A: Number>(p: &Prepared, item: Item<'_, A>, worker: &mut Worker<'_, '_, T>) {
    let mut converted = vec![];
    if item.to - item.from == p.reduced && p.reduced <= p.fused.block() {
        let (mut start, mut rest) = (item.outer * p.reduced, item.out);
        while !rest.is_empty() {
            let together = p.fused.block_at(start, start + rest.len() * p.reduced) / p.reduced;
            let (out, tail) = rest.split_at_mut(together);
            let values = worker.first_result(start, together * p.reduced);
            Values::of(p.kind, values, together * p.reduced, &mut converted).reduce_rows(p.kind, out);
            (start, rest) = (start + together * p.reduced, tail);
        }
        return;
    }
    for (i, out) in item.out.iter_mut().enumerate() {
        let base = (item.outer + i) * p.reduced;
        let (mut at, end) = (base + item.from, base + item.to);
        let mut pairs = Pairwise::new(p.kind, 1);
        while at < end {
            let len = p.fused.block_at(at, end);
            let values = worker.first_result(at, len);
            let mut sum = [A::ZERO];
            Values::of(p.kind, values, len, &mut converted).reduce_rows(p.kind, &mut sum);
            pairs.push(&sum);
            at += len;
        }
        pairs.finish(std::slice::from_mut(out));
    }
}

/// The sum of the squares of neighbouring elements, of which the first is at `start`: in the order
/// of [`rows`], but without a block of squares in between.
fn squares(p: &Prepared, elements: &[f32], start: usize) -> f64 {
    let mut pairs = Pairwise::new(ReduceKind::Sum, 1);
    let (mut at, end) = (start, start + elements.len());
    while at < end {
        let len = p.fused.block_at(at, end);
        pairs.push(&[square_sum(&elements[at - start..][..len])]);
        at += len;
    }
    let mut sum = [0.0];
    pairs.finish(&mut sum);
    sum[0]
}

/// Adds rows: each result over positions that are `inner` apart.
fn columns<T: Number, A: Number>(p: &Prepared, item: Item<'_, A>, worker: &mut Worker<'_, '_, T>) {
    const ROWS: usize = 16;
    let width = item.out.len();
    let together = if width == p.inner { (p.fused.block() / width).max(1) } else { 1 };
    let mut converted = vec![];
    let mut pairs = Pairwise::new(p.kind, width);
    let mut group = vec![A::ZERO; width];
    let mut held = 0;
    let mut row = item.from;
    while row < item.to {
        let count = together.min(item.to - row);
        let start = (item.outer * p.reduced + row) * p.inner + item.column;
        let mut from = 0;
        while from < width {
            // One block of several rows, or of several blocks of a row one after another.
            let len = if count > 1 { width } else { p.fused.block_at(item.column + from, item.column + width) };
            let values = worker.first_result(start + from, count * len);
            let values = Values::of(p.kind, values, count * len, &mut converted);
            for row in 0..count {
                values.add(p.kind, row * len, &mut group[from..from + len], held == 0);
                held += usize::from(from + len == width);
                if held == ROWS {
                    pairs.push(&group);
                    held = 0;
                }
            }
            from += len;
        }
        row += count;
    }
    if held > 0 {
        pairs.push(&group);
    }
    pairs.finish(item.out);
}

/// Combines `chunks` parts of `width` elements into the first one, in a balanced tree.
fn tree<A: Number>(kind: ReduceKind, parts: &mut [A], chunks: usize, width: usize) {
    let mut step = 1;
    while step < chunks {
        for left in (0..chunks).step_by(2 * step).filter(|left| left + step < chunks) {
            let (head, tail) = parts.split_at_mut((left + step) * width);
            combine(kind, &mut head[left * width..][..width], &tail[..width]);
        }
        step *= 2;
    }
}

/// The result of a reduction of nothing.
pub fn identity<A: Number>(kind: ReduceKind) -> A {
    match kind {
        ReduceKind::Sum => A::ZERO,
        ReduceKind::Max => A::LOWEST,
        ReduceKind::Min => A::HIGHEST,
    }
}

simd! {
    /// `into[i] = kind(into[i], from[i])`
    pub fn combine<A: Number>(kind: ReduceKind, into: &mut [A], from: &[A]) {
        match kind {
            ReduceKind::Sum => into.iter_mut().zip(from).for_each(|(a, b)| *a = a.add(*b)),
            ReduceKind::Max => into.iter_mut().zip(from).for_each(|(a, b)| *a = a.max(*b)),
            ReduceKind::Min => into.iter_mut().zip(from).for_each(|(a, b)| *a = a.min(*b)),
        }
    }

    /// The sum of squares, each rounded to f32.
    fn square_sum(row: &[f32]) -> f64 {
        sum_in_lanes(row, |value| f64::from(value * value))
    }

    /// Reduces each of `out.len()` rows of equal length.
    fn reduce_rows<A: Number>(kind: ReduceKind, values: &[A], out: &mut [A]) {
        let width = values.len() / out.len();
        for (out, row) in out.iter_mut().zip(values.chunks_exact(width)) {
            *out = match kind {
                ReduceKind::Sum => in_lanes(row, A::ZERO, A::add),
                ReduceKind::Max => in_lanes(row, A::LOWEST, A::max),
                ReduceKind::Min => in_lanes(row, A::HIGHEST, A::min),
            };
        }
    }
}

/// `into[i] = kind(into[i], from[i])` of floats of 16 bits: computed in f32, and rounded.
pub fn combine_halves<H: Element>(kind: ReduceKind, into: &mut [H], from: &[H])
where
    f32: Cast<H>,
{
    const BLOCK: usize = 512;
    let (mut a, mut b) = ([0f32; BLOCK], [0f32; BLOCK]);
    for (into, from) in into.chunks_mut(BLOCK).zip(from.chunks(BLOCK)) {
        let (a, b) = (&mut a[..into.len()], &mut b[..into.len()]);
        convert(into, a);
        convert(from, b);
        combine(kind, a, b);
        convert(a, into);
    }
}

/// Reduces a row in 32 lanes, then the lanes in halves.
#[inline(always)]
pub(super) fn in_lanes<A: Number>(row: &[A], start: A, f: impl Fn(A, A) -> A) -> A {
    fold(lanes_of(row, start, &f), f)
}

/// The sum of what `f` makes of each element of a row, in the order of [`in_lanes`].
#[inline(always)]
fn sum_in_lanes(row: &[f32], f: impl Fn(f32) -> f64) -> f64 {
    fold(lanes_of(row, 0.0, |sum, value| sum + f(value)), |a, b| a + b)
}

/// For each of 32 lanes what `f` makes of its elements of a row, one after another.
#[inline(always)]
fn lanes_of<T: Copy, A: Copy>(row: &[T], start: A, f: impl Fn(A, T) -> A) -> [A; LANES] {
    let mut lanes = [start; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for values in whole {
        for i in 0..LANES {
            lanes[i] = f(lanes[i], values[i]);
        }
    }
    if !rest.is_empty() {
        for (lane, value) in lanes.iter_mut().zip(rest) {
            *lane = f(*lane, *value);
        }
    }
    lanes
}
