//! The statements of the spec about the training step: batch, loss, optimizer, schedule.

use super::Located;
use crate::train::Decay;
use serde::{Deserialize, Serialize};

/// `batch 8 microbatches=4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Samples of a step over all ranks and micro-batches: dimension 0 of every input.
    pub size: u64,
    /// Parts of the batch that go through the model one after another; divides `size`, also after
    /// the data axes.
    pub microbatches: u64,
}

/// `loss`: what is minimised. Names are of the model's outputs (`logits`, `prediction`: the only
/// output where absent) and of the arrays of the data (`labels`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Loss {
    /// The mean over samples of the cross entropy of softmax.
    CrossEntropy {
        /// The output, classes along `class_axis`.
        logits: Option<Located<String>>,
        /// Class indices in the shape of the logits without `class_axis`.
        labels: Located<String>,
        /// The label of samples that do not count.
        ignore_index: Option<i64>,
        /// The share of each target spread evenly over the classes, 0 to 1.
        label_smoothing: f64,
        /// The dimension of classes; negative counts from the end.
        class_axis: i64,
    },
    /// The mean of squared differences.
    Mse {
        /// The output.
        prediction: Option<Located<String>>,
        /// Targets of the same shape.
        labels: Located<String>,
    },
    /// The mean binary cross entropy of the sigmoid.
    BceWithLogits {
        /// The output.
        logits: Option<Located<String>>,
        /// Targets in 0 to 1, of the same shape.
        labels: Located<String>,
    },
    /// The model computes its own loss, a scalar.
    Output {
        /// The output.
        name: Located<String>,
    },
}

impl Loss {
    /// The name of the labels, where the model does not compute the loss itself.
    pub fn labels(&self) -> Option<&Located<String>> {
        match self {
            Loss::CrossEntropy { labels, .. } | Loss::Mse { labels, .. } | Loss::BceWithLogits { labels, .. } => Some(labels),
            Loss::Output { .. } => None,
        }
    }
}

/// `optimizer`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    /// The learning rate, at least 0.
    pub lr: f64,
    /// Weight decay, at least 0; see [`OptimizerRule::decay_is_decoupled`].
    pub weight_decay: f64,
    /// Which parameters decay.
    pub decay: Decayed,
    /// The update.
    pub rule: OptimizerRule,
}

/// Which parameters weight decay reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decayed {
    /// Those of rank 2 and more.
    Matrices,
    /// Every one.
    All,
}

/// The update of a parameter, and its constants.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum OptimizerRule {
    /// Stochastic gradient descent.
    Sgd {
        /// The share of the last update that stays, 0 to below 1.
        momentum: f64,
        /// Whether the gradient looks one momentum step ahead.
        nesterov: bool,
    },
    /// Adam (Kingma and Ba, 2015).
    Adam(Moments),
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
    AdamW(Moments),
    /// Layer-wise adaptive moments (You et al., 2020).
    Lamb(Moments),
}

/// The constants of the Adam family.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    /// The decay of the first moment, 0 to below 1.
    pub beta1: f64,
    /// The decay of the second moment, 0 to below 1.
    pub beta2: f64,
    /// Added to the denominator, above 0.
    pub eps: f64,
}

impl OptimizerRule {
    /// Whether weight decay shrinks the parameter itself, and is not added to the gradient.
    pub fn decay_is_decoupled(self) -> bool {
        matches!(self, OptimizerRule::AdamW(_) | OptimizerRule::Lamb(_))
    }
}

/// `schedule`: how the learning rate moves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Steps of linear warm-up.
    pub warmup: u64,
    /// The decay after warm-up; its `steps` are above `warmup`.
    pub decay: Decay,
}
