//! The statements of the spec about state and numbers: precision, initial values, ties.

use super::Located;
use crate::dtype::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// `precision`; what is absent follows the model and the other fields.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Precision {
    /// Of forward and backward ops.
    pub compute: Option<FloatType>,
    /// Of stored gradients.
    pub gradients: Option<FloatType>,
    /// Of the copy of the parameters that the optimizer updates.
    pub master: Option<FloatType>,
    /// Of sums over ranks.
    pub reduce: Option<FloatType>,
    /// The factor on the loss that keeps small gradients.
    pub loss_scale: Option<LossScale>,
}

impl Precision {
    /// How the loss is scaled: as the line says, by default dynamically where f16 is computed in.
    pub fn scaling(&self) -> Option<LossScale> {
        let default = LossScale::Dynamic { initial: INITIAL_SCALE, interval: SCALE_INTERVAL };
        (self.compute == Some(FloatType::F16)).then(|| self.loss_scale.unwrap_or(default))
    }
}

/// The first loss scale, as PyTorch's `GradScaler` has it.
pub const INITIAL_SCALE: f64 = 65_536.0;

/// How many good steps double the loss scale, as there.
pub const SCALE_INTERVAL: u64 = 2_000;

/// A float type that the spec can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FloatType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 16-bit float with the exponent of f32.
    Bf16,
    /// 16-bit float of IEEE 754.
    F16,
    /// 32-bit float with the mantissa of f16: only products are computed in it.
    Tf32,
}

impl FloatType {
    /// Every float type.
    pub const ALL: [FloatType; 5] = [FloatType::F64, FloatType::F32, FloatType::Bf16, FloatType::F16, FloatType::Tf32];

    /// The element type of values in memory.
    pub fn dtype(self) -> DType {
        match self {
            FloatType::F64 => DType::F64,
            FloatType::F32 | FloatType::Tf32 => DType::F32,
            FloatType::Bf16 => DType::BF16,
            FloatType::F16 => DType::F16,
        }
    }

    /// The name in specs and listings: `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            FloatType::F64 => "f64",
            FloatType::F32 => "f32",
            FloatType::Bf16 => "bf16",
            FloatType::F16 => "f16",
            FloatType::Tf32 => "tf32",
        }
    }
}

impl fmt::Display for FloatType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `loss_scale=`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum LossScale {
    /// Doubles after steps in a row whose gradients are finite, halves where they overflow: that
    /// step changes nothing.
    Dynamic {
        /// At the first step.
        initial: f64,
        /// How many steps in a row double it.
        interval: u64,
    },
    /// A constant above 0.
    Constant(f64),
}

/// `recompute`: what is not kept from the forward pass and computed again in the backward pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recompute {
    /// `"*.h.*"`: scopes of which only what goes in and out is kept.
    Scope(String),
    /// `selective`: all but the results of matrix products, convolutions and communication.
    Selective,
    /// `budget=`: as little as keeps every rank below so many bytes.
    Budget(u64),
}

/// `batchnorm statistics=`: the groups of samples over which statistics are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StatisticsGroups {
    /// Each micro-batch, over all data ranks.
    Microbatch,
    /// Each data rank's samples of one micro-batch.
    Rank,
    /// That many equal groups of neighbouring samples, whatever the mesh: what a reference has
    /// instead of the others.
    Parts(u64),
}

/// `init "*" auto`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Init {
    /// Names of parameters.
    pub pattern: Located<String>,
    /// Their values.
    pub rule: InitRule,
}

/// How a parameter without values begins.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum InitRule {
    /// Matrices normal with deviation 0.02, scales 1, biases 0.
    Auto,
    /// Normal around 0.
    Normal {
        /// Standard deviation, above 0.
        std: f64,
    },
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
}

/// `tie "wte.weight" "onnx::MatMul_364"^T`: one parameter that the exporter wrote twice, or merged
/// and meant so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tie {
    /// The first name.
    pub first: Located<NameRef>,
    /// The other; without it `first` names one merged initializer that stays shared.
    pub second: Option<Located<NameRef>>,
}

/// An initializer's name, perhaps transposed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRef {
    /// The name in the model.
    pub name: String,
    /// Whether `^T` follows: the parameter is its transpose.
    pub transposed: bool,
}
