//! Convolutions and pools.

use crate::check;
use shardc_executor::cpu;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_testkit::reference::draw::{Draw, tolerance};

/// The same window over both dimensions of a square.
pub(crate) fn square(input: u64, kernel: u64, stride: u64, pad: u64) -> Vec<WindowDim> {
    let output = (input + 2 * pad - kernel) / stride + 1;
    vec![WindowDim { input, output, kernel, stride, dilation: 1, pad: pad as i64 }; 2]
}

/// Sizes at which convolutions are cut into parts: of a sample, of several samples with wide and
/// with narrow planes, of channels; kernels that are larger than the caches; samples that
/// fill lines; and single channels in groups that do, or do not.
#[test]
fn convolutions_in_parts() {
    let mut random = Draw::new(17);
    let line = |input, kernel| vec![WindowDim { input, output: input + 2 - kernel, kernel, stride: 1, dilation: 1, pad: 1 }];
    let dim = |input: u64, output: u64, pad: i64| WindowDim { input, output, kernel: 3, stride: 1, dilation: 1, pad };
    let cases = [
        (3, 1, 5, 5, square(60, 3, 1, 1)),
        (1, 1, 200, 3, square(80, 3, 1, 1)),
        (40, 1, 40, 30, square(4, 3, 1, 1)),
        (9, 1, 600, 20, square(5, 3, 2, 1)),
        (2, 3, 6, 8, line(9000, 5)),
        (3, 1, 40, 30, square(16, 1, 1, 0)),
        (3, 1, 40, 30, square(15, 1, 2, 0)),
        (5, 1, 130, 140, square(9, 3, 2, 1)),
        (7, 2, 16, 20, square(3, 3, 1, 1)),
        (2, 1, 8, 9, square(31, 3, 1, 1)),
        (3, 1, 160, 192, square(2, 3, 1, 1)),
        (16, 1, 160, 192, square(2, 3, 1, 1)),
        (16, 1, 100, 120, square(4, 5, 1, 2)),
        (32, 2, 20, 130, square(4, 3, 2, 1)),
        (16, 1, 140, 9, square(8, 3, 1, 1)),
        (48, 3, 9, 10, square(7, 5, 2, 2)),
        (16, 1, 30, 40, square(16, 4, 2, 1)),
        (16, 1, 12, 70, line(40, 5)),
        (3, 20, 1, 1, square(5, 3, 1, 1)),
        (2, 33, 1, 1, square(9, 5, 2, 2)),
        (5, 16, 1, 1, square(2, 7, 1, 3)),
        (2, 18, 1, 1, square(16, 3, 1, 1)),
        (2, 20, 1, 1, square(33, 3, 2, 1)),
        (3, 9, 1, 1, square(30, 5, 1, 2)),
        (1, 8, 1, 1, line(200, 5)),
        // Eight samples: a line has two positions, and one that is left over half a line.
        (8, 1, 160, 192, square(2, 3, 1, 1)),
        (24, 3, 9, 10, square(7, 5, 2, 2)),
        (8, 1, 140, 9, square(8, 3, 1, 1)),
        (24, 1, 131, 137, square(3, 3, 1, 1)),
        (3, 1, 131, 137, square(4, 3, 1, 1)),
        // Outputs of few inputs, and inputs of few outputs: tiles save nothing.
        (16, 1, 40, 39, vec![dim(30, 6, 0), dim(6, 40, 1)]),
    ];
    for (batch, groups, inputs, outputs, window) in cases {
        // The terms of the longest sum, whose rounding grows with the root of their number.
        let plane = window.iter().map(|dim| dim.output).product::<u64>();
        let terms = (inputs.max(outputs) * window.iter().map(|dim| dim.kernel).product::<u64>()).max(batch * plane) as f64;
        for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 0.5 * tolerance(DType::F32) * terms.sqrt())] {
            for result in [ConvResult::Output, ConvResult::Input, ConvResult::Weight] {
                let kernel = Kernel::Conv(Conv { dtype, result, batch, groups, inputs, outputs, window: window.clone() });
                let reads = random.operands(&kernel);
                check(&kernel, &reads, tolerance);
            }
        }
    }
}

/// Neighbourhoods of 3 x 3 by tiles: panels of one to three groups of 16 channels, with and without
/// some that are missing; odd planes; tiles that hang over; pads on one side; several samples at
/// once, and some rows of one; sums over more channels than are added at once; gradients of kernels
/// in several parts, and in more than are held at once.
#[test]
fn neighbourhoods_in_tiles() {
    let mut random = Draw::new(23);
    let dim = |input: u64, output: u64, pad: i64| WindowDim { input, output, kernel: 3, stride: 1, dilation: 1, pad };
    let mut cases = vec![
        (22, 1, 32, 32, square(6, 3, 1, 1)),
        (17, 1, 40, 56, square(4, 3, 1, 1)),
        (16, 1, 280, 210, square(4, 3, 1, 1)),
        (13, 1, 40, 80, square(8, 3, 1, 1)),
        (3, 2, 70, 37, square(17, 3, 1, 1)),
        (3, 1, 150, 200, square(17, 3, 1, 1)),
        (1, 1, 32, 48, square(130, 3, 1, 1)),
        (11, 1, 48, 64, vec![dim(9, 7, 0), dim(21, 23, 2)]),
        (13, 1, 47, 60, vec![dim(10, 11, 2), dim(11, 10, 0)]),
        (16, 1, 40, 39, vec![dim(30, 24, 0), dim(28, 34, 1)]),
        (3, 2, 38, 63, vec![WindowDim { kernel: 1, ..dim(1, 1, 0) }, dim(18, 20, 2), dim(16, 16, 1)]),
        (20, 1, 64, 70, vec![dim(16, 16, 1), dim(15, 16, 1)]),
    ];
    for _ in 0..16 {
        let (inputs, outputs) = (44 + random.below(40), 44 + random.below(40));
        let mut size = || {
            let (input, pad) = (12 + random.below(8), random.below(3));
            dim(input, input + 2 * pad - 2, pad as i64)
        };
        let window = vec![size(), size()];
        cases.push((8, 1 + random.below(2), inputs, outputs, window));
    }
    for (batch, groups, inputs, outputs, window) in cases {
        let plane = window.iter().map(|dim| dim.output).product::<u64>();
        let terms = (inputs.max(outputs) * 9).max(batch * plane) as f64;
        for result in [ConvResult::Output, ConvResult::Input, ConvResult::Weight] {
            let window = window.clone();
            let kernel = Kernel::Conv(Conv { dtype: DType::F32, result, batch, groups, inputs, outputs, window });
            let method = format!("{:?}", cpu::prepare(&kernel, &[None; 2]).unwrap());
            assert!(!has_vectors() || method.contains("Winograd"), "{kernel:?}");
            let reads = random.operands(&kernel);
            check(&kernel, &reads, tolerance(DType::F32) * terms.sqrt());
        }
    }
}

/// The gradients of kernels of small planes, which are summed tap by tap: pads on all sides,
/// strides, dilations and groups, windows of two to nine taps; channels that fill no line; samples
/// that are added in one go, in several, and in one that is smaller.
#[test]
fn kernels_of_small_planes() {
    let mut random = Draw::new(29);
    let dim = |[input, output, kernel, stride, dilation]: [u64; 5], pad: i64| WindowDim {
        input,
        output,
        kernel,
        stride,
        dilation,
        pad,
    };
    let cases = [
        (16, 1, 64, 40, square(2, 3, 1, 1)),
        (70, 1, 48, 24, square(2, 3, 1, 1)),
        (130, 2, 17, 9, square(2, 3, 1, 1)),
        (5, 1, 83, 21, square(3, 3, 1, 1)),
        (19, 1, 40, 16, square(5, 3, 1, 1)),
        (8, 3, 50, 33, vec![dim([4, 2, 3, 2, 1], 1), dim([3, 2, 3, 2, 1], 1)]),
        (9, 1, 31, 8, vec![dim([6, 6, 3, 1, 2], 2), dim([5, 5, 3, 1, 1], 1)]),
        (300, 1, 16, 30, vec![dim([2, 3, 2, 1, 1], 1)]),
        (40, 1, 100, 48, vec![dim([4, 4, 5, 1, 1], 2)]),
        (40, 1, 65, 31, vec![dim([2, 2, 2, 1, 1], 1), dim([2, 2, 2, 1, 1], 0), dim([3, 2, 2, 1, 1], 0)]),
        (33, 1, 200, 60, vec![dim([6, 6, 9, 1, 1], 4)]),
    ];
    for (batch, groups, inputs, outputs, window) in cases {
        let plane = window.iter().map(|dim| dim.output).product::<u64>();
        let kernel = Kernel::Conv(Conv { dtype: DType::F32, result: ConvResult::Weight, batch, groups, inputs, outputs, window });
        let method = format!("{:?}", cpu::prepare(&kernel, &[None; 2]).unwrap());
        assert!(!has_vectors() || method.contains("ByTaps"), "{kernel:?}");
        check(&kernel, &random.operands(&kernel), tolerance(DType::F32) * ((batch * plane) as f64).sqrt());
    }
}

/// Whether convolutions may go by vector instructions here.
fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Windows of which little lies inside, and strides, dilations and pads that reach far.
#[test]
fn convolutions_under_strange_windows() {
    let mut random = Draw::new(19);
    let dim =
        |[input, output, kernel, stride, dilation]: [u64; 5], pad| WindowDim { input, output, kernel, stride, dilation, pad };
    let far = 1 << 28;
    let windows = [
        vec![dim([9, 9, 3, 1, 1], 1), dim([1, 1, 1, far, 1], 0)],
        vec![dim([2, 9, 1, far, 1], i64::from(i32::MAX))],
        vec![dim([9, 9, 3, 1, 1], 1), dim([1, 1, 1, u64::from(u32::MAX >> 1), 1], 0)],
        vec![dim([3, 2, 2, 1, 1], -5)],
        vec![dim([3, 3, 1, 1, 1], 0), dim([3, 2, 2, 1, 1], -5)],
        vec![dim([1, 1, 2, 1, 4090], 0)],
        vec![dim([1, 1, 2, 1, far], 0)],
        vec![dim([50, 1, 1, 1 << 24, 1], 0)],
        vec![dim([3000, 1, 1, 1 << 24, 1], 0)],
    ];
    for (window, batch) in windows.iter().flat_map(|window| [(window, 3), (window, 8), (window, 16)]) {
        for result in [ConvResult::Output, ConvResult::Input, ConvResult::Weight] {
            let conv = Conv { dtype: DType::F32, result, batch, groups: 1, inputs: 8, outputs: 8, window: window.clone() };
            let kernel = Kernel::Conv(conv);
            let reads = random.operands(&kernel);
            check(&kernel, &reads, tolerance(DType::F32) * 8.0);
        }
    }
}
