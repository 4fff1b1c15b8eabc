//! The parts of training that plans carry: learning-rate schedules and initial values.

use serde::{Deserialize, Serialize};

/// The state variable that a dynamic loss scale is, and the output that tells it of a step.
pub const LOSS_SCALE: &str = "loss_scale";

/// The state variable that counts the steps that were not skipped.
pub const STEPS_TAKEN: &str = "optimizer.steps";

/// A dynamic loss scale does not fall below this: overflows at it are none of scaling.
pub const LEAST_LOSS_SCALE: f64 = 1.0;

/// The learning rate as a function of the step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LearningRate {
    /// The rate after warm-up.
    pub lr: f64,
    /// Steps of linear warm-up: step `i` uses `lr * (i + 1) / (warmup + 1)`.
    pub warmup: u64,
    /// The decay after warm-up.
    pub decay: Decay,
}

/// How the rate falls after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Decay {
    /// It stays.
    Constant,
    /// A half cosine to `min_lr` at step `steps`.
    Cosine {
        /// The step at which the end is reached.
        steps: u64,
        /// The end.
        min_lr: f64,
    },
    /// A line to `min_lr` at step `steps`.
    Linear {
        /// The step at which the end is reached.
        steps: u64,
        /// The end.
        min_lr: f64,
    },
}

impl LearningRate {
    /// The rate at `step`, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.lr * (step + 1) as f64 / (self.warmup + 1) as f64;
        }
        let progress = |steps: u64| {
            let span = steps.saturating_sub(self.warmup).max(1) as f64;
            (((step - self.warmup) as f64) / span).min(1.0)
        };
        match self.decay {
            Decay::Constant => self.lr,
            Decay::Cosine { steps, min_lr } => {
                min_lr + 0.5 * (1.0 + (std::f64::consts::PI * progress(steps)).cos()) * (self.lr - min_lr)
            }
            Decay::Linear { steps, min_lr } => self.lr + (min_lr - self.lr) * progress(steps),
        }
    }
}

/// How a state variable begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum StateInit {
    /// From the model's initializer of the state's name.
    Model,
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// All that number.
    Value(f64),
    /// Normal with that standard deviation, from the seed and the name.
    Normal {
        /// Standard deviation.
        std: f64,
    },
}
