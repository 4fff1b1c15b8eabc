//! MaxPool and its gradient: 16 planes at a time where they are small, else plane by plane, over
//! spread planes.

mod turned;

use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::number::Number;
use crate::cpu::scratch;
use crate::cpu::simd::simd;
use crate::cpu::threads::Threads;
use crate::cpu::turned::LINE;
use crate::cpu::window::{FEW_LANES, LANES, Run, Spread, Table, Window};
use crate::cpu::{Arguments, Cpu, Launch};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Implements, MaxPool, MaxPoolGrad};
use shardc_ir::reason::Reason;
use turned::Turned;

/// A pool made ready.
#[derive(Debug)]
struct Prepared {
    dtype: DType,
    planes: usize,
    window: Window,
    walk: Walk,
}

/// The gradient of a pool made ready.
#[derive(Debug)]
struct Gradient(Prepared);

/// How windows are walked.
#[derive(Debug)]
enum Walk {
    Turned(Turned),
    Spread(Box<Spread>),
    /// Through a table, if a spread plane would be much too large.
    Table(Table),
}

/// Makes a pool or its gradient ready.
fn prepare(pool: &MaxPool) -> Result<Prepared, Reason> {
    let window = Window::new(&pool.window)?;
    let planes = pool.planes as usize;
    let turned = Turned::new(&window, planes).map(Walk::Turned);
    let spread = || Spread::new(&window).map(|spread| Walk::Spread(Box::new(spread)));
    let walk = turned.or_else(spread).unwrap_or_else(|| Walk::Table(Table::new(&window, 0..window.outputs())));
    Ok(Prepared { dtype: pool.dtype, planes, window, walk })
}

impl Prepared {
    /// How many planes are an item.
    fn share(&self, work: usize, threads: Threads) -> usize {
        let planes = self.planes.div_ceil(threads.parts(work)).max(1);
        if let Walk::Turned(_) = self.walk { planes.next_multiple_of(LINE) } else { planes }
    }
}

impl Implements<MaxPool> for Cpu {
    fn ready(&self, pool: &MaxPool, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        Ok(Box::new(prepare(pool)?))
    }
}

impl Launch for Prepared {
    fn launch(&self, Arguments { reads, mut writes, threads, .. }: Arguments<'_>) -> Result<(), Reason> {
        match self.dtype {
            DType::F64 => forward::<f64>(self, reads, writes.remove(0), threads),
            _ => forward::<f32>(self, reads, writes.remove(0), threads),
        }
        Ok(())
    }
}

impl Implements<MaxPoolGrad> for Cpu {
    fn ready(&self, gradient: &MaxPoolGrad, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        Ok(Box::new(Gradient(prepare(&gradient.0)?)))
    }
}

impl Launch for Gradient {
    fn launch(&self, Arguments { reads, mut writes, threads, .. }: Arguments<'_>) -> Result<(), Reason> {
        match self.0.dtype {
            DType::F64 => gradient::<f64>(&self.0, reads, writes.remove(0), threads),
            _ => gradient::<f32>(&self.0, reads, writes.remove(0), threads),
        }
        Ok(())
    }
}

fn forward<T: Number>(p: &Prepared, reads: &[Slice<'_>], mut write: SliceMut<'_>, threads: Threads) {
    let (Some(x), Some(y)) = (T::of(reads[0]), T::take(&mut write)) else { return };
    let (input, output) = (p.window.inputs(), p.window.outputs());
    let work = p.planes * (input + output * p.window.taps());
    let planes = p.share(work, threads);
    let items: Vec<(&mut [T], &[T])> = y[..p.planes * output].chunks_mut(planes * output).zip(x.chunks(planes * input)).collect();
    threads.for_each(work, items, |(y, x)| match &p.walk {
        Walk::Turned(turned) => turned.largest(x, y),
        Walk::Spread(spread) => scratch::with(spread.len + spread.outputs, |memory: &mut [T]| {
            let (laid, largest) = memory.split_at_mut(spread.len);
            y.chunks_exact_mut(output).zip(x.chunks_exact(input)).for_each(|(y, x)| largest_spread(spread, x, y, laid, largest));
        }),
        Walk::Table(table) => {
            let taps = 0..p.window.taps();
            y.chunks_exact_mut(output).zip(x.chunks_exact(input)).for_each(|(y, x)| largest_in_table(table, taps.clone(), x, y));
        }
    });
}

fn gradient<T: Number>(p: &Prepared, reads: &[Slice<'_>], mut write: SliceMut<'_>, threads: Threads) {
    let (Some(x), Some(dy), Some(dx)) = (T::of(reads[0]), T::of(reads[1]), T::take(&mut write)) else { return };
    let (input, output) = (p.window.inputs(), p.window.outputs());
    let work = p.planes * (input + 4 * output * p.window.taps());
    let planes = p.share(work, threads);
    let operands = x.chunks(planes * input).zip(dy.chunks(planes * output));
    let items: Vec<_> = dx[..p.planes * input].chunks_mut(planes * input).zip(operands).collect();
    threads.for_each(work, items, |(dx, (x, dy))| {
        let planes = || x.chunks_exact(input).zip(dy.chunks_exact(output));
        match &p.walk {
            Walk::Turned(turned) => turned.gradient(x, dy, dx),
            Walk::Spread(spread) => scratch::with(3 * spread.len + 3 * spread.outputs, |memory: &mut [T]| {
                let (inside, memory) = memory.split_at_mut(spread.len);
                scratch::with(input, |ones: &mut [T]| {
                    ones.fill(T::ONE);
                    spread.lay(ones, T::ZERO, inside);
                });
                for (dx, (x, dy)) in dx.chunks_exact_mut(input).zip(planes()) {
                    gradient_spread(spread, x, dy, dx, inside, memory);
                }
            }),
            Walk::Table(table) => scratch::with(output, |largest: &mut [T]| {
                for (dx, (x, dy)) in dx.chunks_exact_mut(input).zip(planes()) {
                    gradient_in_table(table, 0..p.window.taps(), x, dy, dx, largest);
                }
            }),
        }
    });
}

simd! {
    fn largest_spread<T: Number>(spread: &Spread, x: &[T], y: &mut [T], laid: &mut [T], largest: &mut [T]) {
        spread.lay(x, T::LOWEST, laid);
        largest_of_taps(spread, laid, largest);
        spread.unpitch(largest, y);
    }

    /// `inside` is 1 where the spread plane holds an input.
    fn gradient_spread<T: Number>(spread: &Spread, x: &[T], dy: &[T], dx: &mut [T], inside: &[T], memory: &mut [T]) {
        let (laid, memory) = memory.split_at_mut(spread.len);
        let (gradient, memory) = memory.split_at_mut(spread.len);
        let (largest, memory) = memory.split_at_mut(spread.outputs);
        let (pitched, open) = memory.split_at_mut(spread.outputs);
        spread.lay(x, T::LOWEST, laid);
        largest_of_taps(spread, laid, largest);
        spread.pitch(dy, pitched);
        gradient.fill(T::ZERO);
        open.fill(T::ONE);
        for base in &spread.bases {
            let operands = laid[*base..].iter().zip(&inside[*base..]).zip(&*largest).zip(&*pitched);
            for ((((x, inside), largest), dy), (dx, open)) in operands.zip(gradient[*base..].iter_mut().zip(&mut *open)) {
                // Read before anything is chosen: else stores have masks, and the next tap waits.
                let (dy, was_open) = (*dy, *open);
                let equal = (*x == *largest) | (Number::is_nan(*x) & Number::is_nan(*largest));
                let hit = equal & (*inside != T::ZERO) & (was_open != T::ZERO);
                *dx = dx.add(if hit { dy } else { T::ZERO });
                *open = if hit { T::ZERO } else { was_open };
            }
        }
        spread.gather(gradient, dx);
    }
}

/// For each output in the spread's order, the largest of what its taps see.
#[inline(always)]
fn largest_of_taps<T: Number>(spread: &Spread, laid: &[T], largest: &mut [T]) {
    match spread.lanes {
        FEW_LANES => largest_in_lanes::<T, FEW_LANES>(spread, laid, largest),
        _ => largest_in_lanes::<T, LANES>(spread, laid, largest),
    }
}

#[inline(always)]
fn largest_in_lanes<T: Number, const N: usize>(spread: &Spread, laid: &[T], largest: &mut [T]) {
    for (block, out) in largest[..spread.outputs].chunks_exact_mut(N).enumerate() {
        let mut lanes = [T::LOWEST; N];
        for base in &spread.bases {
            let seen = &laid[base + block * N..][..N];
            lanes.iter_mut().zip(seen).for_each(|(lane, x)| *lane = lane.max(*x));
        }
        out.copy_from_slice(&lanes);
    }
}

/// Every output of a run with the input that it sees.
fn pairs(run: &Run, step: usize) -> impl Iterator<Item = (usize, usize)> {
    let (output, input) = (run.output as usize, run.input as usize);
    (0..run.len as usize).map(move |i| (output + i, input + i * step))
}

fn largest_in_table<T: Number>(table: &Table, taps: std::ops::Range<usize>, x: &[T], y: &mut [T]) {
    y.fill(T::LOWEST);
    for run in taps.flat_map(|tap| table.tap(tap)) {
        pairs(run, table.step).for_each(|(output, input)| y[output] = y[output].max(x[input]));
    }
}

fn gradient_in_table<T: Number>(table: &Table, taps: std::ops::Range<usize>, x: &[T], dy: &[T], dx: &mut [T], largest: &mut [T]) {
    largest_in_table(table, taps.clone(), x, largest);
    dx.fill(T::ZERO);
    let mut open = vec![true; dy.len()];
    for run in taps.flat_map(|tap| table.tap(tap)) {
        for (output, input) in pairs(run, table.step) {
            let equal = x[input] == largest[output] || (Number::is_nan(x[input]) && Number::is_nan(largest[output]));
            if equal && std::mem::replace(&mut open[output], false) {
                dx[input] = dx[input].add(dy[output]);
            }
        }
    }
}
