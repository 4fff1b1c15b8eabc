//! Convolutions and pools: one product, or one comparison, after another.

use super::{Numbers, from_f64};
use crate::kernel::WindowDim;
use crate::ops::conv::Conv;
use crate::ops::pool::MaxPool;
use crate::types::{Tensor, Type};

/// Element numbers, within a plane each, of an input, a tap and an output that belong together.
#[derive(Clone, Copy)]
struct Link {
    input: usize,
    tap: usize,
    output: usize,
}

/// The first elements of a plane.
const FIRST: Link = Link { input: 0, tap: 0, output: 0 };

/// Calls `f` with all links of a window, of which there may be too many for a list; those of one
/// output come in the order of its taps. `outer` is where they are in the dimensions before.
fn each_link(dims: &[WindowDim], outer: Link, f: &mut impl FnMut(Link)) {
    let Some((dim, inner)) = dims.split_first() else { return f(outer) };
    let start = Link {
        input: outer.input * dim.input as usize,
        tap: outer.tap * dim.kernel as usize,
        output: outer.output * dim.output as usize,
    };
    // A window that was checked has no number of 32 bits.
    let (stride, dilation, input) = (dim.stride as i64, dim.dilation as i64, dim.input as i64);
    for p in 0..dim.output {
        let mut at = p as i64 * stride - dim.pad;
        for k in 0..dim.kernel {
            if (0..input).contains(&at) {
                let link =
                    Link { input: start.input + at as usize, tap: start.tap + k as usize, output: start.output + p as usize };
                each_link(inner, link, f);
            }
            at += dilation;
        }
    }
}

fn elements(shape: &[u64]) -> usize {
    shape.iter().product::<u64>() as usize
}

/// Calls `f` with the element numbers of `x`, `w` and `y` for each product of a convolution between
/// tensors of these types.
fn each_product(conv: &Conv, x: &Type, w: &Type, y: &Type, mut f: impl FnMut(usize, usize, usize)) {
    let window = conv.window.over(&x.shape[2..], &w.shape[2..]).expect("the op took its operands");
    let (input, taps, output) = (elements(&x.shape[2..]), elements(&w.shape[2..]), elements(&y.shape[2..]));
    let (groups, inputs) = (conv.groups as usize, w.shape[1] as usize);
    let outputs = w.shape[0] as usize / groups;
    for image in 0..x.shape[0] as usize {
        for channel in 0..groups * outputs {
            let y_plane = (image * groups * outputs + channel) * output;
            for c in 0..inputs {
                let x_plane = (image * groups * inputs + channel / outputs * inputs + c) * input;
                let w_plane = (channel * inputs + c) * taps;
                each_link(&window, FIRST, &mut |l| f(x_plane + l.input, w_plane + l.tap, y_plane + l.output));
            }
        }
    }
}

/// `y` from `x` and `w`.
pub(super) fn output(conv: &Conv, x: &Tensor, w: &Tensor, y: &Type) -> Tensor {
    let (a, b, mut out) = (Numbers::of(x), Numbers::of(w), vec![0.0; y.elements() as usize]);
    each_product(conv, &x.ty, &w.ty, y, |x, w, y| out[y] += a.f64(x) * b.f64(w));
    Tensor::from_f64(y.clone(), &out)
}

/// `x` from `y` and `w`.
pub(super) fn input(conv: &Conv, y: &Tensor, w: &Tensor, x: &Type) -> Tensor {
    let (a, b, mut out) = (Numbers::of(y), Numbers::of(w), vec![0.0; x.elements() as usize]);
    each_product(conv, x, &w.ty, &y.ty, |x, w, y| out[x] += a.f64(y) * b.f64(w));
    Tensor::from_f64(x.clone(), &out)
}

/// `w` from `x` and `y`.
pub(super) fn weight(conv: &Conv, x: &Tensor, y: &Tensor, w: &Type) -> Tensor {
    let (a, b, mut out) = (Numbers::of(x), Numbers::of(y), vec![0.0; w.elements() as usize]);
    each_product(conv, &x.ty, w, &y.ty, |x, w, y| out[w] += a.f64(x) * b.f64(y));
    Tensor::from_f64(w.clone(), &out)
}

/// For each output of a pool over `x`, its first largest input, if it has any.
fn largest(pool: &MaxPool, x: &Tensor) -> Vec<Option<usize>> {
    let (ty, numbers) = (&x.ty, Numbers::of(x));
    let window = pool.window.over(&ty.shape[2..], &pool.kernel).expect("the op took its operands");
    let (input, output) = (elements(&ty.shape[2..]), window.iter().map(|d| d.output as usize).product::<usize>());
    let planes = elements(&ty.shape[..2]);
    let mut first: Vec<Option<usize>> = vec![None; planes * output];
    for plane in 0..planes {
        each_link(&window, FIRST, &mut |link| {
            let (at, best) = (plane * input + link.input, &mut first[plane * output + link.output]);
            let exceeds = |a: f64, b: f64| a > b || (a.is_nan() && !b.is_nan());
            if best.is_none_or(|best| exceeds(numbers.f64(at), numbers.f64(best))) {
                *best = Some(at);
            }
        });
    }
    first
}

/// The largest elements.
pub(super) fn max_pool(pool: &MaxPool, x: &Tensor, y: &Type) -> Tensor {
    let numbers = Numbers::of(x);
    from_f64(y, largest(pool, x).into_iter().map(|at| at.map_or(f64::NEG_INFINITY, |at| numbers.f64(at))))
}

/// Each output's gradient at its largest element.
pub(super) fn max_pool_grad(pool: &MaxPool, x: &Tensor, dy: &Tensor) -> Tensor {
    let mut dx = vec![0.0; x.ty.elements() as usize];
    for (at, gradient) in largest(pool, x).iter().zip(dy.to_f64()) {
        at.iter().for_each(|at| dx[*at] += gradient);
    }
    Tensor::from_f64(x.ty.clone(), &dx)
}
