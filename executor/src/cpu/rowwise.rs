//! Rowwise: softmax, layer norm, RMS norm and their gradients, rotary embeddings; each row on its
//! own.

use crate::cpu::element::{Slice, SliceMut};
use crate::cpu::functions::Functions;
use crate::cpu::number::Real;
use crate::cpu::reduce::in_lanes;
use crate::cpu::simd::simd;
use crate::cpu::softmax::{exponentials, largest};
use crate::cpu::threads::Threads;
use crate::cpu::{Arguments, Cpu, Launch};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Implements, RowExtent, RowProgram, Rowwise};
use shardc_ir::reason::Reason;

impl Implements<Rowwise> for Cpu {
    fn ready(&self, rowwise: &Rowwise, _in_place: &[Option<usize>]) -> Result<Self::Ready, Reason> {
        Ok(Box::new(rowwise.clone()))
    }
}

impl Launch for Rowwise {
    fn launch(&self, Arguments { reads, writes, threads, .. }: Arguments<'_>) -> Result<(), Reason> {
        match self.dtype {
            DType::F64 => run::<f64>(self, reads, writes, threads),
            _ => run::<f32>(self, reads, writes, threads),
        }
        Ok(())
    }
}

fn run<T: Real>(rowwise: &Rowwise, reads: &[Slice<'_>], mut writes: Vec<SliceMut<'_>>, threads: Threads) {
    let (rows, width) = (rowwise.rows as usize, rowwise.width as usize);
    if rows == 0 {
        return;
    }
    let reads: Vec<&[T]> = reads.iter().filter_map(|read| T::of(*read)).collect();
    let writes: Vec<&mut [T]> = writes.iter_mut().filter_map(T::take).collect();
    let (read_extents, write_extents) = rowwise.program.operands();
    if width == 0 {
        // The mean of nothing is not a number.
        let statistics = writes.into_iter().zip(write_extents).filter(|(_, extent)| matches!(extent, RowExtent::Rows));
        return statistics.for_each(|(write, _)| write[..rows].fill(T::from_f64(f64::NAN)));
    }
    let table = if let RowProgram::Rotary { period, .. } = rowwise.program { period as usize * width } else { 0 };
    let work = rows * width * 8;
    let step = rows.div_ceil(threads.parts(work));
    let mut items: Vec<Vec<&mut [T]>> = (0..rows.div_ceil(step)).map(|_| vec![]).collect();
    for (write, extent) in writes.into_iter().zip(write_extents) {
        let per_row = if let RowExtent::All | RowExtent::Flow = extent { width } else { 1 };
        for (item, part) in items.iter_mut().zip(write[..rows * per_row].chunks_mut(step * per_row)) {
            item.push(part);
        }
    }
    threads.for_each(work, items.into_iter().enumerate().collect(), |(item, mut writes)| {
        let first = item * step;
        let count = step.min(rows - first);
        let part = |extent: &RowExtent| match extent {
            RowExtent::All | RowExtent::Flow => first * width..(first + count) * width,
            RowExtent::Width => 0..width,
            RowExtent::Rows => first..first + count,
            RowExtent::Table => 0..table,
        };
        let reads: Vec<&[T]> = reads.iter().zip(read_extents).map(|(read, extent)| &read[part(extent)]).collect();
        block(rowwise.program, width, first, &reads, &mut writes);
    });
}

simd! {
    /// Runs `program` over some rows, the first of which is row `first`.
    fn block<T: Real>(program: RowProgram, width: usize, first: usize, reads: &[&[T]], writes: &mut [&mut [T]]) {
        match (program, reads, writes) {
            (RowProgram::Softmax, [x], [y]) => {
                for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                    softmax(x, y);
                }
            }
            (RowProgram::SoftmaxGrad, [y, dy], [dx]) => {
                for ((y, dy), dx) in y.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
                    softmax_grad(y, dy, dx);
                }
            }
            (RowProgram::LayerNorm { eps }, [x, scale, bias], [y, mean, rstd]) => {
                let eps = T::from_f64(eps);
                for (row, (x, y)) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).enumerate() {
                    (mean[row], rstd[row]) = layer_norm(x, scale, bias, eps, y);
                }
            }
            (RowProgram::LayerNormGrad, [x, scale, mean, rstd, dy], [dx]) => {
                let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
                for (row, ((x, dy), dx)) in rows.enumerate() {
                    layer_norm_grad(x, scale, mean[row], rstd[row], dy, dx);
                }
            }
            (RowProgram::RmsNorm { eps }, [x, scale], [y, rstd]) => {
                let eps = T::from_f64(eps);
                for (row, (x, y)) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).enumerate() {
                    rstd[row] = rms_norm(x, scale, eps, y);
                }
            }
            (RowProgram::RmsNormGrad, [x, scale, rstd, dy], [dx]) => {
                let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
                for (row, ((x, dy), dx)) in rows.enumerate() {
                    rms_norm_grad(x, scale, rstd[row], dy, dx);
                }
            }
            (RowProgram::Rotary { repeat, period, transposed }, [x, cos, sin], [y]) => {
                for (row, (x, y)) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).enumerate() {
                    let at = (first + row) / repeat as usize % period as usize * width;
                    rotary(x, &cos[at..at + width], &sin[at..at + width], transposed, y);
                }
            }
            _ => {}
        }
    }
}

#[inline(always)]
fn rotary<T: Real>(x: &[T], cos: &[T], sin: &[T], transposed: bool, y: &mut [T]) {
    let half = x.len() / 2;
    let ((x0, x1), (y0, y1)) = (x.split_at(half), y.split_at_mut(half));
    let ((cos0, cos1), (sin0, sin1)) = (cos.split_at(half), sin.split_at(half));
    for i in 0..half {
        if transposed {
            y0[i] = x0[i] * cos0[i] + x1[i] * sin1[i];
            y1[i] = x1[i] * cos1[i] - x0[i] * sin0[i];
        } else {
            y0[i] = x0[i] * cos0[i] - x1[i] * sin0[i];
            y1[i] = x1[i] * cos1[i] + x0[i] * sin1[i];
        }
    }
}

#[inline(always)]
fn softmax<T: Real>(x: &[T], y: &mut [T]) {
    y.copy_from_slice(x);
    let scale = exponentials(y, largest(x)).recip();
    for y in y {
        *y *= scale;
    }
}

#[inline(always)]
fn softmax_grad<T: Real>(y: &[T], dy: &[T], dx: &mut [T]) {
    for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
        *dx = *y * *dy;
    }
    let inner = sum(dx);
    for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
        *dx = *y * (*dy - inner);
    }
}

/// Two passes, so that the variance does not suffer from a large mean. Returns mean and rstd.
#[inline(always)]
fn layer_norm<T: Real>(x: &[T], scale: &[T], bias: &[T], eps: T, y: &mut [T]) -> (T, T) {
    let width = width_of(x);
    let mean = sum(x) / width;
    for (y, x) in y.iter_mut().zip(x) {
        let centred = *x - mean;
        *y = centred * centred;
    }
    let rstd = (sum(y) / width + eps).sqrt().recip();
    for (((y, x), scale), bias) in y.iter_mut().zip(x).zip(scale).zip(bias) {
        *y = (*x - mean) * rstd * *scale + *bias;
    }
    (mean, rstd)
}

/// With `h = (x - mean) * rstd` and `g = dy * scale`:
/// `dx = rstd * (g - mean(g) - h * mean(g * h))`.
#[inline(always)]
fn layer_norm_grad<T: Real>(x: &[T], scale: &[T], mean: T, rstd: T, dy: &[T], dx: &mut [T]) {
    let width = width_of(x);
    for ((dx, dy), scale) in dx.iter_mut().zip(dy).zip(scale) {
        *dx = *dy * *scale;
    }
    let mean_g = sum(dx) / width;
    for (dx, x) in dx.iter_mut().zip(x) {
        *dx *= (*x - mean) * rstd;
    }
    let mean_gh = sum(dx) / width;
    for (((dx, dy), scale), x) in dx.iter_mut().zip(dy).zip(scale).zip(x) {
        let h = (*x - mean) * rstd;
        *dx = rstd * (*dy * *scale - mean_g - h * mean_gh);
    }
}

/// Returns rstd.
#[inline(always)]
fn rms_norm<T: Real>(x: &[T], scale: &[T], eps: T, y: &mut [T]) -> T {
    for (y, x) in y.iter_mut().zip(x) {
        *y = *x * *x;
    }
    let rstd = (sum(y) / width_of(x) + eps).sqrt().recip();
    for ((y, x), scale) in y.iter_mut().zip(x).zip(scale) {
        *y = *x * rstd * *scale;
    }
    rstd
}

/// With `h = x * rstd` and `g = dy * scale`: `dx = rstd * (g - h * mean(g * h))`.
#[inline(always)]
fn rms_norm_grad<T: Real>(x: &[T], scale: &[T], rstd: T, dy: &[T], dx: &mut [T]) {
    for (((dx, dy), scale), x) in dx.iter_mut().zip(dy).zip(scale).zip(x) {
        *dx = *dy * *scale * (*x * rstd);
    }
    let mean_gh = sum(dx) / width_of(x);
    for (((dx, dy), scale), x) in dx.iter_mut().zip(dy).zip(scale).zip(x) {
        *dx = rstd * (*dy * *scale - *x * rstd * mean_gh);
    }
}

/// The sum of a row: lanes over parts of 1024, which are added in order.
#[inline(always)]
fn sum<T: Real>(row: &[T]) -> T {
    row.chunks(1024).fold(T::ZERO, |total, part| total + in_lanes(part, T::ZERO, Functions::add))
}

#[inline(always)]
fn width_of<T: Real>(row: &[T]) -> T {
    T::from_f64(row.len() as f64)
}
