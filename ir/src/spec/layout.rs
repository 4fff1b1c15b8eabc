//! The statements of the spec about the places of values and ops: data, tensor, shard, zero,
//! pipeline, place.

use super::{DimSharding, Located};
use crate::mesh::{AxisId, Mesh};
use serde::{Deserialize, Serialize};

/// `data axis=dp`: the batch of every input and label is split.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    /// The axes that split it, outer to inner.
    pub axes: Vec<AxisId>,
    /// Only what enters or is read in the scopes of this pattern.
    pub on: Option<Located<String>>,
}

/// `tensor axis=tp`: attention and MLP blocks are split by column and row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// The axis that splits them.
    pub axis: AxisId,
    /// Only in the scopes of this pattern.
    pub on: Option<Located<String>>,
}

/// `shard "w1" [-, tp]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Names of parameters, inputs or values.
    pub pattern: Located<String>,
    /// For each dimension as the model's file stores it; no axis comes twice.
    pub dims: Vec<Located<DimSharding>>,
}

/// `zero stage=3 axis=dp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zero {
    /// The state that is split.
    pub stage: ZeroStage,
    /// The axes that split it, outer to inner.
    pub axes: Vec<AxisId>,
    /// Only parameters read in the scopes of this pattern.
    pub on: Option<Located<String>>,
}

/// The part of a parameter's state that the data ranks split, each stage with those before it
/// (Rajbhandari et al., 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ZeroStage {
    /// 0: nothing.
    Replicated,
    /// 1: the optimizer's moments and the update.
    Optimizer,
    /// 2: the gradients of each micro-batch.
    Gradients,
    /// 3: the parameters.
    Parameters,
}

/// `pipeline axis=pp schedule=1f1b cut=balance`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipeline {
    /// The axis of stages.
    pub axis: AxisId,
    /// The order of tasks.
    pub schedule: PipelineSchedule,
    /// A file, beside the spec, with a table that takes the place of the schedule's; that says how
    /// many stages a rank has.
    pub custom: Option<Located<String>>,
    /// The cut between stages.
    pub cut: Cut,
}

impl Pipeline {
    /// The number of stages.
    pub fn stages(&self, mesh: &Mesh) -> u64 {
        mesh.size(self.axis).saturating_mul(self.schedule.chunks())
    }
}

/// The order of a pipeline's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PipelineSchedule {
    /// All forward, then all backward (Huang et al., 2019).
    Gpipe,
    /// One forward, one backward (Narayanan et al., 2019).
    OneForwardOneBackward,
    /// 1F1B over several stages a rank (Narayanan et al., 2021).
    Interleaved {
        /// Stages a rank, at least 1.
        chunks: u64,
    },
    /// Zero bubble, H1 (Qi et al., 2024).
    ZeroBubbleH1,
}

impl PipelineSchedule {
    /// The number of stages on each rank of the pipeline's axis.
    pub fn chunks(self) -> u64 {
        match self {
            PipelineSchedule::Interleaved { chunks } => chunks,
            _ => 1,
        }
    }
}

/// The places at which the stages of a pipeline end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cut {
    /// The places that make the work of the stages most even.
    Balance,
    /// After the scopes of these patterns, in order.
    After(Vec<Located<String>>),
}

/// `place "*.branch3" stage=1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Scopes.
    pub pattern: Located<String>,
    /// Their stage, below the number of stages.
    pub stage: u64,
}
