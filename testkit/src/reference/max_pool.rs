//! MaxPool and its gradient: plain loops, random instances, other sizes.

use super::draw::{Draw, mesh, tolerance};
use super::{Judged, Try, indices};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Kernel, MaxPool, MaxPoolGrad, WindowDim};

impl Judged for MaxPool {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], _coordinates: &[u64]) {
        let (x, y) = (&reads[0], &mut out[0]);
        let (seen, (input, output)) = (seen(self), planes(self));
        for plane in 0..self.planes as usize {
            let (x, y) = (&x[plane * input..][..input], &mut y[plane * output..][..output]);
            y.iter_mut().zip(&seen).for_each(|(y, seen)| *y = largest(x)(seen).map_or(f64::NEG_INFINITY, |i| x[i]));
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        self.planes = to(self.planes);
    }

    fn instances(each: &mut Try<'_>) {
        pairs(|pool, reads| each(&Kernel::MaxPool(pool.clone()), &reads[..1], 0.0));
    }
}

impl Judged for MaxPoolGrad {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], _coordinates: &[u64]) {
        let (Self(pool), dx) = (self, &mut out[0]);
        let (seen, (input, output)) = (seen(pool), planes(pool));
        for plane in 0..pool.planes as usize {
            let (x, dx) = (&reads[0][plane * input..][..input], &mut dx[plane * input..][..input]);
            dx.fill(0.0);
            for (dy, seen) in reads[1][plane * output..][..output].iter().zip(&seen) {
                largest(x)(seen).iter().for_each(|i| dx[*i] += dy);
            }
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        self.0.resize(to);
    }

    fn instances(each: &mut Try<'_>) {
        pairs(|pool, reads| each(&Kernel::MaxPoolGrad(MaxPoolGrad(pool.clone())), reads, tolerance(pool.dtype)));
    }
}

/// Random pools, each with its input and gradients of its output.
fn pairs(mut each: impl FnMut(&MaxPool, &[Vec<f64>])) {
    let mut random = Draw::new(18);
    for case in 0..400 {
        let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let mut window = random.window();
        if case % 10 == 9 {
            // So spread out that planes are walked by tables.
            window = vec![WindowDim { input: 40, output: 40, kernel: 3, stride: 1, dilation: 9000, pad: 9000 }];
        }
        let pool = MaxPool { dtype, planes: random.pick(&[1, 2, 5, 19, 40]), window };
        let forward = Kernel::MaxPool(pool.clone());
        let mut reads = random.operands(&forward);
        // Equal elements, and some that are infinite or no number.
        for value in &mut reads[0] {
            *value = match random.below(40) {
                0 => f64::NAN,
                1 => f64::NEG_INFINITY,
                n => (n % 7) as f64,
            };
        }
        let outputs = forward.signature(&mesh()).unwrap().writes[0].elements;
        reads.push(random.values(dtype, outputs));
        each(&pool, &reads);
    }
}

/// For each output of a pool the elements that it sees, in order.
fn seen(pool: &MaxPool) -> Vec<Vec<usize>> {
    let sizes = |f: fn(&WindowDim) -> u64| pool.window.iter().map(f).collect::<Vec<u64>>();
    let (input, taps) = (sizes(|d| d.input), indices(&sizes(|d| d.kernel)));
    let source = |position: &[u64], tap: &[u64]| -> Option<usize> {
        let dims = pool.window.iter().zip(position.iter().zip(tap));
        dims.zip(&input).try_fold(0, |at, ((d, (p, k)), n)| Some(at * *n as usize + d.source(*p, *k)? as usize))
    };
    indices(&sizes(|d| d.output)).iter().map(|position| taps.iter().filter_map(|tap| source(position, tap)).collect()).collect()
}

/// The first largest of some elements; not-a-number is larger than any other.
fn largest(x: &[f64]) -> impl Fn(&[usize]) -> Option<usize> {
    move |seen| {
        seen.iter().copied().reduce(|best, i| if x[i] > x[best] || (x[i].is_nan() && !x[best].is_nan()) { i } else { best })
    }
}

/// Elements of a plane of a pool's input and of its output.
fn planes(pool: &MaxPool) -> (usize, usize) {
    (pool.window.iter().map(|d| d.input as usize).product(), pool.window.iter().map(|d| d.output as usize).product())
}
