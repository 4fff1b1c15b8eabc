//! Random: plain loops, random instances, other sizes.

use super::draw::Draw;
use super::{Judged, Try, indices};
use shardc_ir::kernel::{Kernel, Random};
use shardc_ir::mesh::AxisId;
use shardc_ir::philox;
use shardc_ir::position::*;

impl Judged for Random {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], coordinates: &[u64]) {
        for (position, index) in indices(&self.shape).iter().enumerate() {
            let global =
                index.iter().zip(&self.origins).zip(&self.strides).map(|((i, o), s)| o.global(*i, coordinates) as u64 * s).sum();
            let word = philox::word(global, reads[0][0] as i64 as u64, self.stream, reads[1][0] as u64);
            out[0][position] = f64::from(u8::from(word >= self.threshold));
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        self.shape.iter_mut().for_each(|size| *size = to(*size));
    }

    fn instances(each: &mut Try<'_>) {
        let mut random = Draw::new(11);
        for _ in 0..300 {
            let shape = (0..random.below(4)).map(|_| random.size()).collect();
            let kernel = drawn(&mut random, shape);
            let counters = [vec![random.below(1 << 40) as f64], vec![random.below(1 << 34) as f64]];
            each(&kernel, &counters, 0.0);
        }
    }
}

/// A dimension of `size` on this rank: whole, a third of a larger one, or blocks of which every
/// third is ours.
fn origin(random: &mut Draw, size: u64) -> (u64, Origin) {
    let third = |stride| Offset { base: 0, terms: vec![(AxisId(1), stride as i64)] };
    match random.below(4) {
        0 => (size * 3, Origin { offset: third(size), ..Origin::whole(size) }),
        1 if size.is_multiple_of(2) => {
            let digits =
                vec![OriginDigit { divisor: 2, size: size / 2, stride: 6 }, OriginDigit { divisor: 1, size: 2, stride: 1 }];
            (size * 3, Origin { offset: third(2), digits })
        }
        2 => (size * 3, Origin { offset: third(1), digits: vec![OriginDigit { divisor: 1, size, stride: 3 }] }),
        _ => (size, Origin::whole(size)),
    }
}

/// Truth values of a shape.
pub fn drawn(random: &mut Draw, shape: Vec<u64>) -> Kernel {
    let (sizes, origins): (Vec<u64>, Vec<Origin>) = shape.iter().map(|size| origin(random, *size)).unzip();
    let strides = (0..shape.len()).map(|d| sizes[d + 1..].iter().product()).collect();
    let threshold = random.pick(&[0, 1 << 30, u32::MAX]);
    Kernel::Random(Random { shape, strides, origins, threshold, stream: random.below(9) as u32 })
}
