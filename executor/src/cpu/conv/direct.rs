//! Convolutions in groups of few channels, as depthwise ones are: sums over taps of whole planes,
//! laid out so that each tap sees one contiguous run.

use crate::cpu::conv::Sizes;
use crate::cpu::number::{Number, Real};
use crate::cpu::scratch;
use crate::cpu::simd::simd;
use crate::cpu::threads::Threads;
use crate::cpu::window::{FEW_LANES, LANES, Spread, Window};
use shardc_ir::kernel::ConvResult;

/// With more pairs of channels in a group a matrix product is faster.
const PAIRS: usize = 16;

/// A convolution made ready.
#[derive(Debug)]
pub struct Direct {
    sizes: Sizes,
    spread: Spread,
    /// Whether it is the gradient of the input as a convolution of the output's, with the taps of
    /// the kernels in reverse order. `sizes` and `spread` are that one's.
    is_reversed: bool,
}

impl Direct {
    /// The convolution, if this is a good way to compute it.
    pub fn new(sizes: Sizes, window: &Window) -> Option<Direct> {
        if sizes.inputs.saturating_mul(sizes.outputs) > PAIRS {
            return None;
        }
        if let (ConvResult::Input, Some(reversed)) = (sizes.result, window.reversed()) {
            let (result, inputs, outputs) = (ConvResult::Output, sizes.outputs, sizes.inputs);
            let sizes = Sizes { result, inputs, outputs, input: sizes.output, output: sizes.input, ..sizes };
            return Spread::new(&reversed).map(|spread| Direct { sizes, spread, is_reversed: true });
        }
        Spread::new(window).map(|spread| Direct { sizes, spread, is_reversed: false })
    }

    /// Runs it; `a` is what the input is not.
    pub fn run<T: Real>(&self, a: &[T], b: &[T], result: &mut [T], threads: Threads) {
        match self.sizes.result {
            ConvResult::Output if self.is_reversed => scratch::with(a.len(), |reversed: &mut [T]| {
                self.reverse(a, reversed);
                self.output(reversed, b, result, threads);
            }),
            ConvResult::Output => self.output(a, b, result, threads),
            ConvResult::Input => self.input(a, b, result, threads),
            ConvResult::Weight => self.weight(a, b, result, threads),
        }
    }

    /// Elements of the kernels, of the inputs and of the outputs of one group of one sample.
    fn lens(&self) -> [usize; 3] {
        let s = &self.sizes;
        [s.outputs * s.inputs * s.taps, s.inputs * s.input, s.outputs * s.output]
    }

    /// The kernels of the reversed convolution.
    fn reverse<T: Real>(&self, w: &[T], reversed: &mut [T]) {
        let s = &self.sizes;
        let group = s.outputs * s.inputs * s.taps;
        for (w, reversed) in w.chunks_exact(group).zip(reversed.chunks_exact_mut(group)) {
            for (position, taps) in reversed.chunks_exact_mut(s.taps).enumerate() {
                let (output, input) = (position / s.inputs, position % s.inputs);
                let from = &w[(input * s.outputs + output) * s.taps..][..s.taps];
                taps.iter_mut().zip(from.iter().rev()).for_each(|(to, from)| *to = *from);
            }
        }
    }

    /// A measure of the work of one group of one sample.
    fn work(&self) -> usize {
        let s = &self.sizes;
        s.inputs * self.spread.len + s.inputs * s.outputs * s.taps * self.spread.outputs / 2
    }

    fn output<T: Real>(&self, w: &[T], x: &[T], y: &mut [T], threads: Threads) {
        let (s, spread, [w_len, x_len, y_len]) = (&self.sizes, &self.spread, self.lens());
        let work = s.batch * s.groups * self.work();
        let each = (s.batch * s.groups).div_ceil(threads.parts(work)).max(1);
        let items: Vec<_> = y.chunks_mut(each * y_len).enumerate().collect();
        threads.for_each(work, items, |(part, y)| {
            scratch::with(s.inputs * spread.len + spread.outputs, |memory: &mut [T]| {
                let (laid, sums) = memory.split_at_mut(s.inputs * spread.len);
                for (i, y) in y.chunks_mut(y_len).enumerate() {
                    let position = part * each + i;
                    let w = &w[position % s.groups * w_len..][..w_len];
                    output(s, spread, w, &x[position * x_len..][..x_len], y, laid, sums);
                }
            });
        });
    }

    fn input<T: Real>(&self, w: &[T], y: &[T], x: &mut [T], threads: Threads) {
        let (s, spread, [w_len, x_len, y_len]) = (&self.sizes, &self.spread, self.lens());
        let work = 2 * s.batch * s.groups * self.work();
        let each = (s.batch * s.groups).div_ceil(threads.parts(work)).max(1);
        let items: Vec<_> = x.chunks_mut(each * x_len).enumerate().collect();
        threads.for_each(work, items, |(part, x)| {
            scratch::with(spread.len + s.outputs * spread.outputs, |memory: &mut [T]| {
                let (laid, pitched) = memory.split_at_mut(spread.len);
                for (i, x) in x.chunks_mut(x_len).enumerate() {
                    let position = part * each + i;
                    let w = &w[position % s.groups * w_len..][..w_len];
                    input(s, spread, w, &y[position * y_len..][..y_len], x, laid, pitched);
                }
            });
        });
    }

    fn weight<T: Real>(&self, y: &[T], x: &[T], w: &mut [T], threads: Threads) {
        let (s, spread, [w_len, x_len, y_len]) = (&self.sizes, &self.spread, self.lens());
        let items: Vec<_> = w.chunks_mut(w_len).enumerate().collect();
        threads.for_each(s.batch * s.groups * self.work(), items, |(group, w)| {
            w.fill(<T as Number>::ZERO);
            scratch::with(s.inputs * spread.len + spread.outputs, |memory: &mut [T]| {
                let (laid, pitched) = memory.split_at_mut(s.inputs * spread.len);
                for image in 0..s.batch {
                    let position = image * s.groups + group;
                    let (x, y) = (&x[position * x_len..][..x_len], &y[position * y_len..][..y_len]);
                    weight(s, spread, y, x, w, laid, pitched);
                }
            });
        });
    }
}

simd! {
    /// The outputs of one group of one sample.
    fn output<T: Real>(s: &Sizes, spread: &Spread, w: &[T], x: &[T], y: &mut [T], laid: &mut [T], sums: &mut [T]) {
        for (x, laid) in x.chunks_exact(s.input).zip(laid.chunks_exact_mut(spread.len)) {
            spread.lay(x, <T as Number>::ZERO, laid);
        }
        for (w, y) in w.chunks_exact(s.inputs * s.taps).zip(y.chunks_exact_mut(s.output)) {
            match spread.lanes {
                FEW_LANES => sum::<T, FEW_LANES>(s, spread, w, laid, sums),
                _ => sum::<T, LANES>(s, spread, w, laid, sums),
            }
            spread.unpitch(sums, y);
        }
    }

    /// The inputs of one group of one sample.
    fn input<T: Real>(s: &Sizes, spread: &Spread, w: &[T], y: &[T], x: &mut [T], laid: &mut [T], pitched: &mut [T]) {
        for (y, pitched) in y.chunks_exact(s.output).zip(pitched.chunks_exact_mut(spread.outputs)) {
            spread.pitch(y, pitched);
        }
        for (channel, x) in x.chunks_exact_mut(s.input).enumerate() {
            laid.fill(<T as Number>::ZERO);
            for (output, pitched) in pitched.chunks_exact(spread.outputs).enumerate() {
                let w = &w[(output * s.inputs + channel) * s.taps..][..s.taps];
                for (w, base) in w.iter().zip(&spread.bases) {
                    laid[*base..].iter_mut().zip(pitched).for_each(|(sum, y)| *sum += *w * *y);
                }
            }
            spread.gather(laid, x);
        }
    }

    /// Adds what one group of one sample gives to the group's kernels.
    fn weight<T: Real>(s: &Sizes, spread: &Spread, y: &[T], x: &[T], w: &mut [T], laid: &mut [T], pitched: &mut [T]) {
        for (x, laid) in x.chunks_exact(s.input).zip(laid.chunks_exact_mut(spread.len)) {
            spread.lay(x, <T as Number>::ZERO, laid);
        }
        for (y, w) in y.chunks_exact(s.output).zip(w.chunks_exact_mut(s.inputs * s.taps)) {
            spread.pitch(y, pitched);
            for (laid, w) in laid.chunks_exact(spread.len).zip(w.chunks_exact_mut(s.taps)) {
                for (base, w) in spread.bases.iter().zip(w) {
                    let laid = &laid[*base..][..pitched.len()];
                    *w += if spread.lanes == FEW_LANES { dot::<T, FEW_LANES>(pitched, laid) } else { dot::<T, LANES>(pitched, laid) };
                }
            }
        }
    }
}

/// One plane of outputs in the spread's order.
#[inline(always)]
fn sum<T: Real, const N: usize>(s: &Sizes, spread: &Spread, w: &[T], laid: &[T], sums: &mut [T]) {
    for (block, sums) in sums.chunks_exact_mut(N).enumerate() {
        let mut lanes = [<T as Number>::ZERO; N];
        for (w, laid) in w.chunks_exact(s.taps).zip(laid.chunks_exact(spread.len)) {
            for (w, base) in w.iter().zip(&spread.bases) {
                let seen = &laid[base + block * N..][..N];
                lanes.iter_mut().zip(seen).for_each(|(sum, x)| *sum += *w * *x);
            }
        }
        sums.copy_from_slice(&lanes);
    }
}

/// The sum of products, by lanes.
#[inline(always)]
fn dot<T: Real, const N: usize>(a: &[T], b: &[T]) -> T {
    let mut lanes = [<T as Number>::ZERO; N];
    for (a, b) in a.chunks_exact(N).zip(b.chunks_exact(N)) {
        lanes.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += *a * *b);
    }
    let mut width = N / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
        width /= 2;
    }
    lanes[0]
}
