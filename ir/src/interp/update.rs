//! Optimizer updates, written from PyTorch's documentation of them.

use crate::ops::update::{Adam, Sgd};
use crate::types::Tensor;

/// Stochastic gradient descent: `w, g, lr, [m] -> w, [m]`.
pub(super) fn sgd(op: &Sgd, operands: &[Tensor]) -> Vec<Tensor> {
    if is_skipped(op.skips, operands) {
        return [&operands[..1], &operands[3..operands.len() - 1]].concat();
    }
    let (mut w, mut g, lr) = (operands[0].to_f64(), operands[1].to_f64(), operands[2].to_f64()[0]);
    for i in 0..w.len() {
        g[i] += op.weight_decay * w[i];
    }
    let mut results = vec![];
    if let Some(m) = operands.get(3).filter(|_| op.momentum != 0.0) {
        let mut m = m.to_f64();
        for i in 0..w.len() {
            m[i] = op.momentum * m[i] + g[i];
            g[i] = if op.nesterov { g[i] + op.momentum * m[i] } else { m[i] };
        }
        results.push(Tensor::from_f64(operands[0].ty.clone(), &m));
    }
    for i in 0..w.len() {
        w[i] -= lr * g[i];
    }
    results.insert(0, Tensor::from_f64(operands[0].ty.clone(), &w));
    results
}

/// Adam and AdamW: `w, g, lr, 1 - beta1^t, 1 - beta2^t, m, v -> w, m, v`.
pub(super) fn adam(op: &Adam, operands: &[Tensor]) -> Vec<Tensor> {
    if is_skipped(op.skips, operands) {
        return [&operands[..1], &operands[5..7]].concat();
    }
    let [mut w, mut g, lr, c1, c2, mut m, mut v] = [0, 1, 2, 3, 4, 5, 6].map(|i| operands[i].to_f64());
    for i in 0..w.len() {
        if op.decoupled {
            w[i] -= lr[0] * op.weight_decay * w[i];
        } else {
            g[i] += op.weight_decay * w[i];
        }
        m[i] = op.beta1 * m[i] + (1.0 - op.beta1) * g[i];
        v[i] = op.beta2 * v[i] + (1.0 - op.beta2) * g[i] * g[i];
        w[i] -= lr[0] * (m[i] / c1[0]) / ((v[i] / c2[0]).sqrt() + op.eps);
    }
    [w, m, v].iter().map(|x| Tensor::from_f64(operands[0].ty.clone(), x)).collect()
}

/// Whether the last operand says that the step does not count.
fn is_skipped(skips: bool, operands: &[Tensor]) -> bool {
    skips && operands.last().is_some_and(|counts| counts.to_f64()[0] == 0.0)
}
