//! Rowwise: plain loops, random instances, other sizes.

use super::draw::{Draw, tolerance};
use super::{Judged, Try};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Kernel, RowExtent, RowProgram, Rowwise};

impl Judged for Rowwise {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], _coordinates: &[u64]) {
        let width = self.width as usize;
        let n = width as f64;
        let (first, rest) = out.split_at_mut(1);
        for row in 0..self.rows as usize {
            let range = row * width..(row + 1) * width;
            let x = &reads[0][range.clone()];
            let y = &mut first[0][range.clone()];
            match self.program {
                RowProgram::Softmax => {
                    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
                    (0..width).for_each(|i| y[i] = (x[i] - max).exp() / sum);
                }
                RowProgram::SoftmaxGrad => {
                    let dy = &reads[1][range];
                    let inner: f64 = (0..width).map(|i| x[i] * dy[i]).sum();
                    (0..width).for_each(|i| y[i] = x[i] * (dy[i] - inner));
                }
                RowProgram::LayerNorm { eps } => {
                    let mean = x.iter().sum::<f64>() / n;
                    let rstd = 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + eps).sqrt();
                    (0..width).for_each(|i| y[i] = (x[i] - mean) * rstd * reads[1][i] + reads[2][i]);
                    (rest[0][row], rest[1][row]) = (mean, rstd);
                }
                RowProgram::LayerNormGrad => {
                    let (mean, rstd, dy) = (reads[2][row], reads[3][row], &reads[4][range]);
                    let h: Vec<f64> = x.iter().map(|x| (x - mean) * rstd).collect();
                    let g: Vec<f64> = dy.iter().zip(&reads[1]).map(|(dy, scale)| dy * scale).collect();
                    let mean_g = g.iter().sum::<f64>() / n;
                    let mean_gh = g.iter().zip(&h).map(|(g, h)| g * h).sum::<f64>() / n;
                    (0..width).for_each(|i| y[i] = rstd * (g[i] - mean_g - h[i] * mean_gh));
                }
                RowProgram::RmsNorm { eps } => {
                    let rstd = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / n + eps).sqrt();
                    (0..width).for_each(|i| y[i] = x[i] * rstd * reads[1][i]);
                    rest[0][row] = rstd;
                }
                RowProgram::RmsNormGrad => {
                    let (rstd, dy) = (reads[2][row], &reads[3][range]);
                    let h: Vec<f64> = x.iter().map(|x| x * rstd).collect();
                    let g: Vec<f64> = dy.iter().zip(&reads[1]).map(|(dy, scale)| dy * scale).collect();
                    let mean_gh = g.iter().zip(&h).map(|(g, h)| g * h).sum::<f64>() / n;
                    (0..width).for_each(|i| y[i] = rstd * (g[i] - h[i] * mean_gh));
                }
                RowProgram::Rotary { repeat, period, transposed } => {
                    let table = row / repeat as usize % period as usize * width;
                    let (cos, sin, half) = (&reads[1][table..], &reads[2][table..], width / 2);
                    // The map as a matrix: row `i` is what `y[i]` takes of each `x[j]`.
                    let entry = |i: usize, j: usize| match (i == j, i < half) {
                        (true, _) => cos[i],
                        (_, true) if j == i + half => -sin[i],
                        (_, false) if j + half == i => sin[i],
                        _ => 0.0,
                    };
                    for (i, y) in y.iter_mut().enumerate() {
                        *y = (0..width).map(|j| x[j] * if transposed { entry(j, i) } else { entry(i, j) }).sum();
                    }
                }
            }
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        self.rows = to(self.rows);
    }

    fn instances(each: &mut Try<'_>) {
        let mut random = Draw::new(4);
        for case in 0..300 {
            let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
            let program = [
                RowProgram::Softmax,
                RowProgram::SoftmaxGrad,
                RowProgram::LayerNorm { eps: 1e-2 },
                RowProgram::LayerNormGrad,
                RowProgram::RmsNorm { eps: 1e-2 },
                RowProgram::RmsNormGrad,
                RowProgram::Rotary { repeat: random.size(), period: random.size(), transposed: case % 4 < 2 },
            ][case / 2 % 7];
            let even = if let RowProgram::Rotary { .. } = program { 2 } else { 1 };
            let width = random.pick(&[1, 2, 5, 31, 32, 33, 100, 1500]) * even;
            let (read, written) = program.operands();
            let flows = [read, written].concat().contains(&RowExtent::Flow) && dtype == DType::F32;
            let flow = if flows { random.pick(&[DType::F32, DType::BF16, DType::F16]) } else { dtype };
            let rounding = match flow {
                DType::BF16 => 2f64.powi(-8),
                DType::F16 => 2f64.powi(-11),
                _ => 0.0,
            };
            let kernel = Kernel::Rowwise(Rowwise { dtype, flow, rows: random.size(), width, program });
            let reads = random.operands(&kernel);
            each(&kernel, &reads, tolerance(dtype) * 8.0 + rounding);
        }
    }
}
