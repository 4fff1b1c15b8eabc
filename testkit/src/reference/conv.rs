//! Conv: plain loops, random instances, other sizes.

use super::draw::{Draw, tolerance};
use super::{Judged, Try, indices, product};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Conv, ConvResult, Kernel, WindowDim};

impl Judged for Conv {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], _coordinates: &[u64]) {
        let sizes = |f: fn(&WindowDim) -> u64| self.window.iter().map(f).collect::<Vec<u64>>();
        let (input, output, kernel) = (sizes(|d| d.input), sizes(|d| d.output), sizes(|d| d.kernel));
        let results = match self.result {
            ConvResult::Output => product(&[self.batch, self.groups, self.outputs]) * product(&output),
            ConvResult::Input => product(&[self.batch, self.groups, self.inputs]) * product(&input),
            ConvResult::Weight => product(&[self.groups, self.outputs, self.inputs]) * product(&kernel),
        };
        out[0][..results].fill(0.0);
        let flat = |index: &[u64], shape: &[u64]| index.iter().zip(shape).fold(0, |at, (i, n)| at * n + i) as usize;
        // Where the terms of a plane are: in the input, the kernel and the output.
        let mut terms = vec![];
        for position in indices(&output) {
            for tap in indices(&kernel) {
                let source: Option<Vec<u64>> =
                    self.window.iter().zip(position.iter().zip(&tap)).map(|(d, (p, k))| d.source(*p, *k)).collect();
                if let Some(source) = source {
                    terms.push([flat(&source, &input), flat(&tap, &kernel), flat(&position, &output)]);
                }
            }
        }
        for index in indices(&[self.batch, self.groups, self.outputs, self.inputs]) {
            let [n, g, o, c] = index[..] else { unreachable!() };
            let plane = |number: u64, shape: &[u64]| (number * shape.iter().product::<u64>()) as usize;
            let x_plane = plane((n * self.groups + g) * self.inputs + c, &input);
            let w_plane = plane((g * self.outputs + o) * self.inputs + c, &kernel);
            let y_plane = plane((n * self.groups + g) * self.outputs + o, &output);
            for [x, w, y] in &terms {
                let (x, w, y) = (x_plane + x, w_plane + w, y_plane + y);
                match self.result {
                    ConvResult::Output => out[0][y] += reads[0][x] * reads[1][w],
                    ConvResult::Input => out[0][x] += reads[0][y] * reads[1][w],
                    ConvResult::Weight => out[0][w] += reads[0][x] * reads[1][y],
                }
            }
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        for size in [&mut self.batch, &mut self.inputs, &mut self.outputs] {
            *size = to(*size);
        }
    }

    fn instances(each: &mut Try<'_>) {
        let mut random = Draw::new(16);
        for case in 0..450 {
            let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
            let (inputs, outputs) = random.pick(&[(1, 1), (1, 1), (2, 3), (5, 4), (20, 3), (7, 33)]);
            let (batch, groups) = (random.pick(&[1, 2, 5]), random.pick(&[1, 1, 2, 3]));
            let pointwise = WindowDim { input: 6, output: 6, kernel: 1, stride: 1, dilation: 1, pad: 0 };
            let window = if random.below(5) == 0 { vec![pointwise; 2] } else { random.window() };
            for result in [ConvResult::Output, ConvResult::Input, ConvResult::Weight] {
                let conv = Conv { dtype, result, batch, groups, inputs, outputs, window: window.clone() };
                let kernel = Kernel::Conv(conv);
                let reads = random.operands(&kernel);
                each(&kernel, &reads, tolerance(dtype) * 8.0);
            }
        }
    }
}
