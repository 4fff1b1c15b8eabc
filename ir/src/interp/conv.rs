//! Convolutions and pools: one product, or one comparison, after another.

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

/// All links of a window; those of one output come in the order of its taps.
fn links(dims: &[WindowDim]) -> Vec<Link> {
    let mut all = vec![Link { input: 0, tap: 0, output: 0 }];
    for dim in dims {
        let along: Vec<[usize; 3]> = (0..dim.output)
            .flat_map(|p| (0..dim.kernel).filter_map(move |k| dim.source(p, k).map(|i| [i as usize, k as usize, p as usize])))
            .collect();
        let (input, kernel, output) = (dim.input as usize, dim.kernel as usize, dim.output as usize);
        let join = |l: &Link| {
            let l = *l;
            along.iter().map(move |[i, k, p]| Link {
                input: l.input * input + i,
                tap: l.tap * kernel + k,
                output: l.output * output + p,
            })
        };
        all = all.iter().flat_map(join).collect();
    }
    all
}

fn elements(shape: &[u64]) -> usize {
    shape.iter().product::<u64>() as usize
}

/// Calls `f` with the element numbers of `x`, `w` and `y` for each product of a convolution between
/// tensors of these types.
fn each_product(conv: &Conv, x: &Type, w: &Type, y: &Type, mut f: impl FnMut(usize, usize, usize)) {
    let window = conv.window.over(&x.shape[2..], &w.shape[2..]).expect("the op took its operands");
    let links = links(&window);
    let (input, taps, output) = (elements(&x.shape[2..]), elements(&w.shape[2..]), elements(&y.shape[2..]));
    let (groups, inputs) = (conv.groups as usize, w.shape[1] as usize);
    let outputs = w.shape[0] as usize / groups;
    for image in 0..x.shape[0] as usize {
        for channel in 0..groups * outputs {
            let y_plane = (image * groups * outputs + channel) * output;
            for c in 0..inputs {
                let x_plane = (image * groups * inputs + channel / outputs * inputs + c) * input;
                let w_plane = (channel * inputs + c) * taps;
                links.iter().for_each(|l| f(x_plane + l.input, w_plane + l.tap, y_plane + l.output));
            }
        }
    }
}

/// `y` from `x` and `w`.
pub(super) fn output(conv: &Conv, x: &Tensor, w: &Tensor, y: &Type) -> Tensor {
    let (a, b, mut out) = (x.to_f64(), w.to_f64(), vec![0.0; y.elements() as usize]);
    each_product(conv, &x.ty, &w.ty, y, |x, w, y| out[y] += a[x] * b[w]);
    Tensor::from_f64(y.clone(), &out)
}

/// `x` from `y` and `w`.
pub(super) fn input(conv: &Conv, y: &Tensor, w: &Tensor, x: &Type) -> Tensor {
    let (a, b, mut out) = (y.to_f64(), w.to_f64(), vec![0.0; x.elements() as usize]);
    each_product(conv, x, &w.ty, &y.ty, |x, w, y| out[x] += a[y] * b[w]);
    Tensor::from_f64(x.clone(), &out)
}

/// `w` from `x` and `y`.
pub(super) fn weight(conv: &Conv, x: &Tensor, y: &Tensor, w: &Type) -> Tensor {
    let (a, b, mut out) = (x.to_f64(), y.to_f64(), vec![0.0; w.elements() as usize]);
    each_product(conv, &x.ty, w, &y.ty, |x, w, y| out[w] += a[x] * b[y]);
    Tensor::from_f64(w.clone(), &out)
}

/// For each output of a pool over `x`, its first largest input, if it has any.
fn largest(pool: &MaxPool, ty: &Type, x: &[f64]) -> Vec<Option<usize>> {
    let window = pool.window.over(&ty.shape[2..], &pool.kernel).expect("the op took its operands");
    let links = links(&window);
    let (input, output) = (elements(&ty.shape[2..]), window.iter().map(|d| d.output as usize).product::<usize>());
    let planes = elements(&ty.shape[..2]);
    let mut first: Vec<Option<usize>> = vec![None; planes * output];
    for plane in 0..planes {
        for link in &links {
            let (at, best) = (plane * input + link.input, &mut first[plane * output + link.output]);
            if best.is_none_or(|b| x[at] > x[b] || (x[at].is_nan() && !x[b].is_nan())) {
                *best = Some(at);
            }
        }
    }
    first
}

/// The largest elements.
pub(super) fn max_pool(pool: &MaxPool, x: &Tensor, y: &Type) -> Tensor {
    let values = x.to_f64();
    let largest: Vec<f64> =
        largest(pool, &x.ty, &values).iter().map(|at| at.map_or(f64::NEG_INFINITY, |at| values[at])).collect();
    Tensor::from_f64(y.clone(), &largest)
}

/// Each output's gradient at its largest element.
pub(super) fn max_pool_grad(pool: &MaxPool, x: &Tensor, dy: &Tensor) -> Tensor {
    let mut dx = vec![0.0; x.ty.elements() as usize];
    for (at, gradient) in largest(pool, &x.ty, &x.to_f64()).iter().zip(dy.to_f64()) {
        at.iter().for_each(|at| dx[*at] += gradient);
    }
    Tensor::from_f64(x.ty.clone(), &dx)
}
