//! Random numbers.

use crate::{COORDINATES, Random, check, launch};
use shardc_executor::cpu::threads::Threads;
use shardc_ir::kernel::*;
use shardc_ir::mesh::AxisId;
use shardc_ir::position::*;

/// A dimension of `size` on this rank: whole, a third of a larger one, or blocks of which every
/// third is ours.
fn random_origin(random: &mut Random, size: u64) -> (u64, Origin) {
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

pub(crate) fn random_drawing(random: &mut Random, shape: Vec<u64>) -> Kernel {
    let (sizes, origins): (Vec<u64>, Vec<Origin>) = shape.iter().map(|size| random_origin(random, *size)).unzip();
    let strides = (0..shape.len()).map(|d| sizes[d + 1..].iter().product()).collect();
    let threshold = random.pick(&[0, 1 << 30, u32::MAX]);
    Kernel::Random(shardc_ir::kernel::Random { shape, strides, origins, threshold, stream: random.below(9) as u32 })
}

#[test]
fn drawings() {
    let mut random = Random::new(11);
    for _ in 0..300 {
        let shape = (0..random.below(4)).map(|_| random.size()).collect();
        let kernel = random_drawing(&mut random, shape);
        let counters = [vec![random.below(1 << 40) as f64], vec![random.below(1 << 34) as f64]];
        check(&kernel, &counters, &COORDINATES, 0.0);
    }
}

/// Shares of three standard deviations around what is asked for; streams, steps and seeds have
/// nothing to do with each other.
#[test]
fn drawings_keep_the_share_that_is_asked_for() {
    let (n, ratio) = (1u64 << 18, 0.1);
    let draw = |seed: f64, step: f64, stream: u32| {
        let threshold = shardc_ir::philox::threshold(ratio);
        let whole =
            shardc_ir::kernel::Random { shape: vec![n], strides: vec![1], origins: vec![Origin::whole(n)], threshold, stream };
        launch(&Kernel::Random(whole), &[vec![seed], vec![step]], &COORDINATES, Threads(1)).swap_remove(0)
    };
    let masks = [draw(1.0, 1.0, 0), draw(1.0, 1.0, 1), draw(1.0, 2.0, 0), draw(2.0, 1.0, 0)];
    let near = |count: usize, share: f64| {
        let deviation = (share * (1.0 - share) * n as f64).sqrt();
        assert!((count as f64 - share * n as f64).abs() <= 3.0 * deviation, "{count} of {n} for {share}");
    };
    for (i, mask) in masks.iter().enumerate() {
        near(mask.iter().filter(|v| **v == 1.0).count(), 1.0 - ratio);
        // Neighbours are dropped independently, and so are the same elements of two masks.
        near(mask.windows(2).filter(|w| w == &[0.0, 0.0]).count(), ratio * ratio);
        for other in &masks[..i] {
            near(mask.iter().zip(other).filter(|(a, b)| **a == 0.0 && **b == 0.0).count(), ratio * ratio);
        }
    }
}
