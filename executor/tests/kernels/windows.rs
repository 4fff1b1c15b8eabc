//! Convolutions and pools.

use crate::{COORDINATES, Random, check, mesh, operands, tolerance};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;

/// A window of one to three dimensions with at least one output.
fn random_window(random: &mut Random) -> Vec<WindowDim> {
    let dims = 1 + random.below(3);
    let mut window = vec![];
    while window.len() < dims as usize {
        let input = if dims == 1 { random.pick(&[1, 5, 40, 200]) } else { random.pick(&[1, 2, 5, 9]) };
        let (kernel, stride) = (random.pick(&[1, 2, 3, 5]), random.pick(&[1, 1, 2, 3]));
        let (dilation, pad, after) = (random.pick(&[1, 1, 2]), random.below(4) as i64 - 1, random.below(4) as i64 - 1);
        let room = input as i64 + pad + after - ((kernel - 1) * dilation + 1) as i64;
        if room >= 0 {
            window.push(WindowDim { input, output: room as u64 / stride + 1, kernel, stride, dilation, pad });
        }
    }
    window
}

/// The same window over both dimensions of a square.
pub(crate) fn square(input: u64, kernel: u64, stride: u64, pad: u64) -> Vec<WindowDim> {
    let output = (input + 2 * pad - kernel) / stride + 1;
    vec![WindowDim { input, output, kernel, stride, dilation: 1, pad: pad as i64 }; 2]
}

#[test]
fn convolutions_and_their_gradients() {
    let mut random = Random::new(16);
    for case in 0..450 {
        let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let (inputs, outputs) = random.pick(&[(1, 1), (1, 1), (2, 3), (5, 4), (20, 3), (7, 33)]);
        let (batch, groups) = (random.pick(&[1, 2, 5]), random.pick(&[1, 1, 2, 3]));
        let pointwise = WindowDim { input: 6, output: 6, kernel: 1, stride: 1, dilation: 1, pad: 0 };
        let window = if random.below(5) == 0 { vec![pointwise; 2] } else { random_window(&mut random) };
        for result in [ConvResult::Output, ConvResult::Input, ConvResult::Weight] {
            let conv = Conv { dtype, result, batch, groups, inputs, outputs, window: window.clone() };
            let kernel = Kernel::Conv(conv);
            let reads = operands(&mut random, &kernel);
            check(&kernel, &reads, &COORDINATES, tolerance(dtype) * 8.0);
        }
    }
}

/// Sizes at which convolutions are cut into parts: of a sample, of several samples with wide and
/// with narrow planes, of channels; and kernels that are larger than the caches.
#[test]
fn convolutions_in_parts() {
    let mut random = Random::new(17);
    let line = |input, kernel| vec![WindowDim { input, output: input + 2 - kernel, kernel, stride: 1, dilation: 1, pad: 1 }];
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
    ];
    for (batch, groups, inputs, outputs, window) in cases {
        // The terms of the longest sum, whose rounding grows with the root of their number.
        let plane = window.iter().map(|dim| dim.output).product::<u64>();
        let terms = (inputs.max(outputs) * window.iter().map(|dim| dim.kernel).product::<u64>()).max(batch * plane) as f64;
        for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 0.5 * tolerance(DType::F32) * terms.sqrt())] {
            for result in [ConvResult::Output, ConvResult::Input, ConvResult::Weight] {
                let kernel = Kernel::Conv(Conv { dtype, result, batch, groups, inputs, outputs, window: window.clone() });
                let reads = operands(&mut random, &kernel);
                check(&kernel, &reads, &COORDINATES, tolerance);
            }
        }
    }
}

/// Windows of which little lies inside, and strides, dilations and pads that reach far.
#[test]
fn convolutions_under_strange_windows() {
    let mut random = Random::new(19);
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
    for window in windows {
        for result in [ConvResult::Output, ConvResult::Input, ConvResult::Weight] {
            let conv = Conv { dtype: DType::F32, result, batch: 3, groups: 1, inputs: 8, outputs: 8, window: window.clone() };
            let kernel = Kernel::Conv(conv);
            let reads = operands(&mut random, &kernel);
            check(&kernel, &reads, &COORDINATES, tolerance(DType::F32) * 8.0);
        }
    }
}

#[test]
fn pools_and_their_gradients() {
    let mut random = Random::new(18);
    for case in 0..400 {
        let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let mut window = random_window(&mut random);
        if case % 10 == 9 {
            // So spread out that planes are walked by tables.
            window = vec![WindowDim { input: 40, output: 40, kernel: 3, stride: 1, dilation: 9000, pad: 9000 }];
        }
        let pool = MaxPool { dtype, planes: random.pick(&[1, 2, 5]), window };
        let forward = Kernel::MaxPool(pool.clone());
        let mut reads = operands(&mut random, &forward);
        // Equal elements, and some that are infinite or no number.
        for value in &mut reads[0] {
            *value = match random.below(40) {
                0 => f64::NAN,
                1 => f64::NEG_INFINITY,
                n => (n % 7) as f64,
            };
        }
        check(&forward, &reads, &COORDINATES, 0.0);
        let outputs = forward.signature(&mesh()).unwrap().writes[0].elements;
        reads.push(random.values(dtype, outputs));
        check(&Kernel::MaxPoolGrad(MaxPoolGrad(pool)), &reads, &COORDINATES, tolerance(dtype));
    }
}
