//! What a step of training is by its definition: losses, clipping and the updates of optimizers in
//! plain f64, written apart from the ops and passes that they are held against. Source: PyTorch's
//! documentation of each; You et al., LAMB (2019).

use shardc_ir::reason::Reason;
use shardc_ir::spec::{Decayed, Loss, Moments, Optimizer, OptimizerRule};

/// An array of whole numbers of f64.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// The sizes of its dimensions.
    pub shape: Vec<u64>,
    /// Its elements, the last dimension fastest.
    pub elements: Vec<f64>,
}

/// The mean loss of a batch, from the model's output and the labels. A model that computes its own
/// loss has no labels.
///
/// # Errors
/// If the arrays do not fit each other.
pub fn loss(loss: &Loss, output: &Array, labels: &[f64]) -> Result<f64, Reason> {
    let mean = |terms: &mut dyn Iterator<Item = f64>| {
        let (mut sum, mut count) = (0.0, 0.0);
        for term in terms {
            sum += term;
            count += 1.0;
        }
        sum / count
    };
    let pairs = || output.elements.iter().zip(labels);
    let like = match loss {
        Loss::Output { .. } => 0,
        Loss::CrossEntropy { .. } => labels.len(),
        _ => output.elements.len(),
    };
    if labels.len() != like {
        return Err("there are not as many labels as the output needs".into());
    }
    match loss {
        Loss::Mse { .. } => Ok(mean(&mut pairs().map(|(x, y)| (x - y) * (x - y)))),
        Loss::BceWithLogits { .. } => {
            let log_sigmoid = |x: f64| if x < 0.0 { x - x.exp().ln_1p() } else { -(-x).exp().ln_1p() };
            Ok(mean(&mut pairs().map(|(x, y)| -y * log_sigmoid(*x) - (1.0 - y) * log_sigmoid(-x))))
        }
        Loss::Output { .. } => Ok(mean(&mut output.elements.iter().copied())),
        Loss::CrossEntropy { ignore_index, label_smoothing, class_axis, .. } => {
            let axis = if *class_axis < 0 { class_axis + output.shape.len() as i64 } else { *class_axis };
            let axis = usize::try_from(axis).ok().filter(|axis| *axis < output.shape.len()).ok_or("there is no such axis")?;
            let [outer, classes, inner] = [&output.shape[..axis], &output.shape[axis..=axis], &output.shape[axis + 1..]]
                .map(|d| d.iter().product::<u64>() as usize);
            if labels.len() != outer * inner {
                return Err("there are not as many labels as the output needs".into());
            }
            let term = |row: usize| {
                let label = labels[row] as i64;
                if Some(label) == *ignore_index {
                    return None;
                }
                let at = |class: usize| output.elements[(row / inner * classes + class) * inner + row % inner];
                let high = (0..classes).map(at).fold(f64::NEG_INFINITY, f64::max);
                let log_sum = high + (0..classes).map(|class| (at(class) - high).exp()).sum::<f64>().ln();
                let spread = (0..classes).map(|class| log_sum - at(class)).sum::<f64>() / classes as f64;
                let own = usize::try_from(label).ok().filter(|class| *class < classes);
                let sharp = own.map_or(log_sum, |class| log_sum - at(class));
                Some((1.0 - label_smoothing) * sharp + label_smoothing * spread)
            };
            Ok(mean(&mut (0..outer * inner).filter_map(term)))
        }
    }
}

/// The norm of all gradients together, and what clipping to `limit` multiplies each by.
pub fn clipped<'a>(gradients: impl Iterator<Item = &'a [f64]>, limit: Option<f64>) -> (f64, f64) {
    let norm = gradients.flatten().map(|g| g * g).sum::<f64>().sqrt();
    (norm, limit.map_or(1.0, |limit| (limit / (norm + 1e-6)).min(1.0)))
}

/// A parameter and its moments, in the order of [`moments`], before a step and after it.
#[derive(Debug, Clone, PartialEq)]
pub struct Updated {
    /// The parameter.
    pub parameter: Vec<f64>,
    /// Its moments.
    pub moments: Vec<Vec<f64>>,
}

/// The endings of the names of a parameter's moments.
pub fn moments(rule: OptimizerRule) -> &'static [&'static str] {
    match rule {
        OptimizerRule::Sgd { momentum: 0.0, .. } => &[],
        OptimizerRule::Sgd { .. } => &["m"],
        OptimizerRule::Adam(_) | OptimizerRule::AdamW(_) | OptimizerRule::Lamb(_) => &["m", "v"],
    }
}

/// The update of a parameter of `rank` dimensions by its clipped gradient `g`, at the learning rate
/// `lr` and step `t`, from 1.
pub fn update(optimizer: &Optimizer, rank: usize, lr: f64, t: u64, before: &Updated, g: &[f64]) -> Updated {
    let decays = optimizer.decay == Decayed::All || rank >= 2;
    let decay = if decays { optimizer.weight_decay } else { 0.0 };
    let mut after = before.clone();
    let n = before.parameter.len();
    match optimizer.rule {
        OptimizerRule::Sgd { momentum, nesterov } => {
            for i in 0..n {
                let w = before.parameter[i];
                let g = g[i] + decay * w;
                let step = match after.moments.first_mut() {
                    None => g,
                    Some(velocity) => {
                        velocity[i] = momentum * velocity[i] + g;
                        if nesterov { g + momentum * velocity[i] } else { velocity[i] }
                    }
                };
                after.parameter[i] = w - lr * step;
            }
        }
        OptimizerRule::Adam(m) | OptimizerRule::AdamW(m) => {
            let decoupled = matches!(optimizer.rule, OptimizerRule::AdamW(_));
            let coupled = if decoupled { 0.0 } else { decay };
            let g: Vec<f64> = (0..n).map(|i| g[i] + coupled * before.parameter[i]).collect();
            let direction = direction(m, t, &mut after.moments, &g);
            let kept = if decoupled { 1.0 - lr * decay } else { 1.0 };
            (0..n).for_each(|i| after.parameter[i] = before.parameter[i] * kept - lr * direction[i]);
        }
        OptimizerRule::Lamb(m) => {
            let mut direction = direction(m, t, &mut after.moments, g);
            (0..n).for_each(|i| direction[i] += decay * before.parameter[i]);
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let (weight, step) = (norm(&before.parameter), norm(&direction));
            let trust = if weight > 0.0 && step > 0.0 { weight / step } else { 1.0 };
            (0..n).for_each(|i| after.parameter[i] = before.parameter[i] - lr * trust * direction[i]);
        }
    }
    after
}

/// Adam's direction; the moments move.
fn direction(Moments { beta1, beta2, eps }: Moments, t: u64, moments: &mut [Vec<f64>], g: &[f64]) -> Vec<f64> {
    let [first, second] = moments else { return vec![] };
    let correction = |beta: f64| 1.0 - beta.powf(t as f64);
    let (c1, c2) = (correction(beta1), correction(beta2));
    let mut element = |i: usize| {
        first[i] = beta1 * first[i] + (1.0 - beta1) * g[i];
        second[i] = beta2 * second[i] + (1.0 - beta2) * g[i] * g[i];
        (first[i] / c1) / ((second[i] / c2).sqrt() + eps)
    };
    (0..g.len()).map(&mut element).collect()
}
