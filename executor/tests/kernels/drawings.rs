//! Random numbers.

use crate::launch;
use shardc_executor::cpu::threads::Threads;
use shardc_ir::kernel::*;
use shardc_ir::position::*;
use shardc_testkit::reference::draw::COORDINATES;

/// Shares of three standard deviations around what is asked for; streams, steps and seeds have
/// nothing to do with each other.
#[test]
fn drawings_keep_the_share_that_is_asked_for() {
    let (n, ratio) = (1u64 << 18, 0.1);
    let draw = |seed: f64, step: f64, stream: u32| {
        let threshold = shardc_ir::philox::threshold(ratio);
        let whole = Random { shape: vec![n], strides: vec![1], origins: vec![Origin::whole(n)], threshold, stream };
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
