//! Pools: the largest element, the mean or a norm under a window or of whole planes.
//!
//! Sums under a window are a convolution of each plane with a constant kernel.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::window::{Moves, numbers, spatial};
use shardc_ir::kernel::WindowDim;
use shardc_ir::ops::conv::Conv;
use shardc_ir::ops::pool::MaxPool;
use shardc_ir::ops::window::Window;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Unary};
use shardc_ir::types::{Tensor, Type};

type Outputs = Result<Vec<Value>, Reason>;

/// The largest element under a window
pub(in crate::onnx) fn max_pool(c: &mut Call<'_, '_>) -> Outputs {
    // It says how the second output counts.
    c.ignore("storage_order");
    if c.node.output.get(1).is_some_and(|name| !name.is_empty()) {
        return Err("its output `Indices` is not supported".into());
    }
    let pool = Pool::read(c)?;
    Ok(vec![c.emit(MaxPool { kernel: pool.kernel, window: pool.window }, &[pool.x])?])
}

/// The mean of the elements under a window; pads count only if the node says so
pub(in crate::onnx) fn average_pool(c: &mut Call<'_, '_>) -> Outputs {
    let with_pads = c.attribute_int("count_include_pad", 0)? != 0;
    let pool = Pool::read(c)?;
    let taps: u64 = pool.kernel.iter().product();
    if pool.window.pads.iter().all(|pads| *pads == [0, 0]) {
        return Ok(vec![pool.sum(c, &pool.x, 1.0 / taps as f64)?]);
    }
    let (shape, counts) = pool.counts(c, with_pads)?;
    if counts.iter().all(|n| *n == taps) {
        return Ok(vec![pool.sum(c, &pool.x, 1.0 / taps as f64)?]);
    }
    let sum = pool.sum(c, &pool.x, 1.0)?;
    let reciprocals: Vec<f64> = counts.iter().map(|n| 1.0 / *n as f64).collect();
    let reciprocals = Value::Known(Tensor::from_f64(Type::new(c.ty(&sum)?.dtype, shape), &reciprocals));
    Ok(vec![c.binary(Binary::Mul, &sum, &reciprocals)?])
}

/// The p-norm of the elements under a window
pub(in crate::onnx) fn lp_pool(c: &mut Call<'_, '_>) -> Outputs {
    let pool = Pool::read(c)?;
    norm(c, |c, powers| pool.sum(c, powers, 1.0))
}

/// The mean of each plane
pub(in crate::onnx) fn global_average_pool(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let count: u64 = spatial(&c.shape(&x)?)?.iter().product();
    let sum = of_planes(c, ReduceKind::Sum, &x)?;
    Ok(vec![c.scale(&sum, 1.0 / count as f64)?])
}

/// The largest element of each plane
pub(in crate::onnx) fn global_max_pool(c: &mut Call<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    Ok(vec![of_planes(c, ReduceKind::Max, &x)?])
}

/// The p-norm of each plane
pub(in crate::onnx) fn global_lp_pool(c: &mut Call<'_, '_>) -> Outputs {
    norm(c, |c, powers| of_planes(c, ReduceKind::Sum, powers))
}

/// All elements of each plane combined; spatial dimensions stay with size 1.
fn of_planes(c: &mut Call<'_, '_>, kind: ReduceKind, x: &Value) -> Result<Value, Reason> {
    let shape = c.shape(x)?;
    let dims = spatial(&shape)?.len();
    let axes: Vec<usize> = (2..2 + dims).collect();
    let y = c.reduce(kind, x, &axes)?;
    c.reshape(&y, [&shape[..2], &vec![1; dims]].concat())
}

/// `(sum of |x|^p)^(1/p)`, summed by `sum`.
fn norm(c: &mut Call<'_, '_>, sum: impl Fn(&mut Call<'_, '_>, &Value) -> Result<Value, Reason>) -> Outputs {
    let x = c.input(0)?;
    let p = c.attribute_int("p", 2)?;
    if p < 1 {
        return Err(reason!("attribute `p` is {p}"));
    }
    let size = c.unary(Unary::Abs, &x)?;
    Ok(vec![match p {
        1 => sum(c, &size)?,
        2 => {
            let squares = c.binary(Binary::Mul, &x, &x)?;
            let sum = sum(c, &squares)?;
            c.unary(Unary::Sqrt, &sum)?
        }
        _ => {
            let powers = c.with_number(Binary::Pow, &size, p as f64)?;
            let sum = sum(c, &powers)?;
            c.with_number(Binary::Pow, &sum, 1.0 / p as f64)?
        }
    }])
}

/// A pool's operand and window.
struct Pool {
    x: Value,
    kernel: Vec<u64>,
    /// With pads after the input up to the last window.
    window: Window,
    /// The pads that the node gives.
    pads: Vec<[i64; 2]>,
    dims: Vec<WindowDim>,
}

impl Pool {
    fn read(c: &mut Call<'_, '_>) -> Result<Pool, Reason> {
        let x = c.input(0)?;
        let shape = c.shape(&x)?;
        let sizes = spatial(&shape)?;
        let kernel = numbers(c, "kernel_shape", sizes.len(), 1)?.ok_or("attribute `kernel_shape` is missing")?;
        let moves = Moves::read(c, sizes.len())?;
        let ceil = c.attribute_int("ceil_mode", 0)? != 0;
        let mut window = moves.window(sizes, &kernel);
        let pads = window.pads.clone();
        for (d, [before, after]) in pads.iter().enumerate() {
            let extent = moves.extent(d, &kernel) as i64;
            if *before >= extent || *after >= extent {
                return Err(reason!("pads of {before} and {after} for a window that spans {extent} elements"));
            }
        }
        let given = window.over(sizes, &kernel)?;
        if ceil {
            for (d, dim) in given.iter().enumerate() {
                // One window more, if it begins before the pads that come after the input.
                let next = (dim.output * dim.stride) as i64 - pads[d][0];
                let reached = next - dim.stride as i64 + moves.extent(d, &kernel) as i64;
                if reached < sizes[d] as i64 + pads[d][1] && next < sizes[d] as i64 {
                    window.pads[d][1] = reached + dim.stride as i64 - sizes[d] as i64;
                }
            }
        }
        let dims = window.over(sizes, &kernel)?;
        Ok(Pool { x, kernel, window, pads, dims })
    }

    /// The sum of what is under the window, times `factor`; `x` has the pool's shape.
    fn sum(&self, c: &mut Call<'_, '_>, x: &Value, factor: f64) -> Result<Value, Reason> {
        let shape = c.shape(x)?;
        let (channels, sizes) = shape.split_at(2);
        let whole = self.kernel == sizes && self.dims.iter().all(|d| d.output == 1 && d.dilation == 1 && d.pad == 0);
        if whole {
            let sum = of_planes(c, ReduceKind::Sum, x)?;
            return c.scale(&sum, factor);
        }
        let planes = c.reshape(x, [&[channels[0] * channels[1], 1], sizes].concat())?;
        let factor = c.number(x, factor)?;
        let kernel = c.broadcast(&factor, [&[1, 1], &self.kernel[..]].concat())?;
        let y = c.emit(Conv { window: self.window.clone(), groups: 1 }, &[planes, kernel])?;
        let outputs: Vec<u64> = self.dims.iter().map(|d| d.output).collect();
        c.reshape(&y, [channels, &outputs[..]].concat())
    }

    /// How many elements each window counts, with a shape that broadcasts to the result's.
    fn counts(&self, c: &mut Call<'_, '_>, with_pads: bool) -> Result<(Vec<u64>, Vec<u64>), Reason> {
        let shape: Vec<u64> = self.dims.iter().map(|d| d.output).collect();
        c.context.allow(&shape)?;
        let mut counts = vec![1];
        for (dim, pads) in self.dims.iter().zip(&self.pads) {
            let [before, after] = if with_pads { *pads } else { [0, 0] };
            let (low, high) = (-before, dim.input as i64 + after);
            let (step, kernel) = (dim.dilation as i64, dim.kernel as i64);
            let along = (0..dim.output).map(|p| {
                let first = (p * dim.stride) as i64 - dim.pad;
                // Taps from the first at or after a bound.
                let from = |bound: i64| ((bound - first).max(0) as u64).div_ceil(step as u64).min(kernel as u64);
                from(high) - from(low)
            });
            let along: Vec<u64> = along.collect();
            counts = counts.iter().flat_map(|n| along.iter().map(move |m| n * m)).collect();
        }
        Ok((shape, counts))
    }
}
