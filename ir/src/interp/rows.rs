//! Softmax and normalisations, row by row, with their gradients from the textbook.

use crate::ops::attention::HeadLayout;
use crate::ops::rotary::Rotary;
use crate::types::{Tensor, Type};

/// `exp(x) / sum exp(x)`
pub(super) fn softmax(operands: &[Tensor], results: &[Type]) -> Vec<Tensor> {
    per_row(&[Row], operands, results, |x| {
        let max = x[0].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exp: Vec<f64> = x[0].iter().map(|v| (v - max).exp()).collect();
        let sum: f64 = exp.iter().sum();
        vec![exp.iter().map(|v| v / sum).collect()]
    })
}

/// `y, dy -> y * (dy - sum(y * dy))`
pub(super) fn softmax_grad(operands: &[Tensor], results: &[Type]) -> Vec<Tensor> {
    per_row(&[Row, Row], operands, results, |x| {
        let (y, dy) = (x[0], x[1]);
        let dot: f64 = y.iter().zip(dy).map(|(a, b)| a * b).sum();
        vec![y.iter().zip(dy).map(|(a, b)| a * (b - dot)).collect()]
    })
}

/// `x, scale, bias -> y, mean, rstd`
pub(super) fn layer_norm(eps: f64, operands: &[Tensor], results: &[Type]) -> Vec<Tensor> {
    per_row(&[Row, Vector, Vector], operands, results, |x| {
        let (x, scale, bias) = (x[0], x[1], x[2]);
        let mean = mean(x.iter().copied(), x.len());
        let rstd = 1.0 / (mean_square(x.iter().map(|v| v - mean), x.len()) + eps).sqrt();
        let y = (0..x.len()).map(|i| (x[i] - mean) * rstd * scale[i] + bias[i]).collect();
        vec![y, vec![mean], vec![rstd]]
    })
}

/// `x, scale, mean, rstd, dy -> dx`
pub(super) fn layer_norm_grad(operands: &[Tensor], results: &[Type]) -> Vec<Tensor> {
    per_row(&[Row, Vector, Number, Number, Row], operands, results, |x| {
        let (x, scale, m, rstd, dy) = (x[0], x[1], x[2][0], x[3][0], x[4]);
        let normal: Vec<f64> = x.iter().map(|v| (v - m) * rstd).collect();
        let g: Vec<f64> = scale.iter().zip(dy).map(|(s, d)| s * d).collect();
        let mean_g = mean(g.iter().copied(), g.len());
        let mean_gn = mean(g.iter().zip(&normal).map(|(a, b)| a * b), g.len());
        vec![(0..g.len()).map(|i| rstd * (g[i] - mean_g - normal[i] * mean_gn)).collect()]
    })
}

/// `x, scale -> y, rstd`
pub(super) fn rms_norm(eps: f64, operands: &[Tensor], results: &[Type]) -> Vec<Tensor> {
    per_row(&[Row, Vector], operands, results, |x| {
        let (x, scale) = (x[0], x[1]);
        let rstd = 1.0 / (mean_square(x.iter().copied(), x.len()) + eps).sqrt();
        vec![x.iter().zip(scale).map(|(v, s)| v * rstd * s).collect(), vec![rstd]]
    })
}

/// `x, cos, sin -> x * cos + turn(x) * sin`, or the transpose of that map.
pub(super) fn rotary(op: &Rotary, operands: &[Tensor]) -> Tensor {
    let (x, cos, sin) = (operands[0].to_f64(), operands[1].to_f64(), operands[2].to_f64());
    let [_, second, third, width] = operands[0].ty.shape[..] else { unreachable!("x has four dimensions") };
    let (width, half) = (width as usize, width as usize / 2);
    let position = |row: usize| match op.layout {
        HeadLayout::HeadMajor => row % third as usize,
        HeadLayout::TokenMajor => row / third as usize % second as usize,
    };
    let y: Vec<f64> = (0..x.len())
        .map(|i| {
            let (row, e) = (i / width, i % width);
            let (here, table) = (row * width, position(row) * width);
            let (partner, sign) = if e < half { (e + half, -1.0) } else { (e - half, 1.0) };
            let turned = if op.transposed {
                -sign * x[here + partner] * sin[table + partner]
            } else {
                sign * x[here + partner] * sin[table + e]
            };
            x[i] * cos[table + e] + turned
        })
        .collect();
    Tensor::from_f64(operands[0].ty.clone(), &y)
}

/// `x, scale, rstd, dy -> dx`
pub(super) fn rms_norm_grad(operands: &[Tensor], results: &[Type]) -> Vec<Tensor> {
    per_row(&[Row, Vector, Number, Row], operands, results, |x| {
        let (x, scale, rstd, dy) = (x[0], x[1], x[2][0], x[3]);
        let normal: Vec<f64> = x.iter().map(|v| v * rstd).collect();
        let g: Vec<f64> = scale.iter().zip(dy).map(|(s, d)| s * d).collect();
        let mean_gn = mean(g.iter().zip(&normal).map(|(a, b)| a * b), g.len());
        vec![(0..g.len()).map(|i| rstd * (g[i] - normal[i] * mean_gn)).collect()]
    })
}

fn mean(values: impl Iterator<Item = f64>, count: usize) -> f64 {
    values.sum::<f64>() / count as f64
}

fn mean_square(values: impl Iterator<Item = f64>, count: usize) -> f64 {
    mean(values.map(|v| v * v), count)
}

/// How an operand is read for one row.
enum Read {
    /// Its own row of the width of the first operand.
    Row,
    /// The whole vector, the same for every row.
    Vector,
    /// Its one number for the row.
    Number,
}
use Read::{Number, Row, Vector};

/// Runs `f` on each row; its results are appended to one another.
fn per_row(reads: &[Read], operands: &[Tensor], results: &[Type], f: impl Fn(&[&[f64]]) -> Vec<Vec<f64>>) -> Vec<Tensor> {
    let (width, rows) = operands[0].ty.shape.split_last().expect("rows have a width");
    let (width, rows) = (*width as usize, rows.iter().product::<u64>() as usize);
    let values: Vec<Vec<f64>> = operands.iter().map(Tensor::to_f64).collect();
    let mut out: Vec<Vec<f64>> = vec![vec![]; results.len()];
    for r in 0..rows {
        let part = |(read, v): (&Read, &'_ Vec<f64>)| match read {
            Row => r * width..(r + 1) * width,
            Vector => 0..v.len(),
            Number => r..r + 1,
        };
        let row: Vec<&[f64]> = reads.iter().zip(&values).map(|(read, v)| &v[part((read, v))]).collect();
        out.iter_mut().zip(f(&row)).for_each(|(all, part)| all.extend(part));
    }
    results.iter().zip(out).map(|(ty, v)| Tensor::from_f64(ty.clone(), &v)).collect()
}
