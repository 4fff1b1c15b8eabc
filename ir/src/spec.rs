//! A job as its spec file says it: one typed field a statement, each with its place in the text.

mod dims;
mod layout;
mod state;
mod training;

pub use dims::{Blocks, DimSharding};
pub use layout::{Cut, Data, Pipeline, PipelineSchedule, Placement, Shard, Tensor, Zero, ZeroStage};
pub use state::{
    FloatType, INITIAL_SCALE, Init, InitRule, LossScale, NameRef, Precision, Recompute, SCALE_INTERVAL, StatisticsGroups, Tie,
};
pub use training::{Batch, Decayed, Loss, Moments, Optimizer, OptimizerRule, Schedule};

use crate::diagnostic::{Diagnostic, Diagnostics, Place};
use crate::mesh::{AxisId, Mesh, MeshAxis};
use crate::train::{Decay, LearningRate};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A place in the spec's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// The line, from 1.
    pub line: usize,
    /// Byte offsets `start..end` into the file's text.
    pub span: (usize, usize),
}

/// A statement or a part of one, with its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located<T> {
    /// The statement or part.
    pub value: T,
    /// Its place.
    pub source: Source,
}

/// A whole spec. Axes are resolved to the mesh, sizes are positive, and what statements say about
/// each other is consistent; names of the model are not yet compared with one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Spec {
    /// The file, as the user named it.
    pub file: PathBuf,
    /// `mesh`: the axes of ranks; none is one rank.
    pub mesh: Option<Located<Vec<MeshAxis>>>,
    /// `batch`.
    pub batch: Option<Located<Batch>>,
    /// `bind`: the sizes of symbolic dimensions by name.
    pub bind: BTreeMap<String, Located<u64>>,
    /// `loss`.
    pub loss: Option<Located<Loss>>,
    /// `optimizer`.
    pub optimizer: Option<Located<Optimizer>>,
    /// `schedule`.
    pub schedule: Option<Located<Schedule>>,
    /// `clip norm=`: the largest global norm of the gradients.
    pub clip: Option<Located<f64>>,
    /// `data`; of several that reach a value the last wins.
    pub data: Vec<Located<Data>>,
    /// `tensor`.
    pub tensor: Vec<Located<Tensor>>,
    /// `sequence axis=`.
    pub sequence: Option<Located<AxisId>>,
    /// `shard`; of several for a value the last wins.
    pub shard: Vec<Located<Shard>>,
    /// `zero`.
    pub zero: Vec<Located<Zero>>,
    /// `pipeline`.
    pub pipeline: Option<Located<Pipeline>>,
    /// `place`.
    pub place: Vec<Located<Placement>>,
    /// `precision`.
    pub precision: Option<Located<Precision>>,
    /// `recompute`; patterns of scopes, or one of the other forms alone.
    pub recompute: Vec<Located<Recompute>>,
    /// `batchnorm statistics=`; without it the statistics are over the whole batch.
    pub batchnorm: Option<Located<StatisticsGroups>>,
    /// `device memory=`: bytes that a rank may use; without it no limit.
    pub device_memory: Option<Located<u64>>,
    /// `init`.
    pub init: Vec<Located<Init>>,
    /// `freeze`: patterns of names.
    pub freeze: Vec<Located<String>>,
    /// `train`: patterns of names.
    pub train: Vec<Located<String>>,
    /// `tie`.
    pub tie: Vec<Located<Tie>>,
    /// `untie`: patterns of names.
    pub untie: Vec<Located<String>>,
    /// `replicate axis=`: axes that are meant to split nothing.
    pub replicate: Vec<Located<AxisId>>,
    /// `accept lost=parameters`: the model trains although its exporter's record lists parameters
    /// that the file lacks.
    pub accept_lost: Option<Located<()>>,
    /// `seed`.
    pub seed: Option<Located<u64>>,
}

impl Spec {
    /// The mesh with the micro-batches as its axis of time.
    pub fn mesh(&self) -> Mesh {
        let axes = self.mesh.iter().flat_map(|mesh| &mesh.value);
        Mesh::new(axes.map(|axis| (axis.name.clone(), axis.size)), self.microbatches())
    }

    /// The micro-batches of a step.
    pub fn microbatches(&self) -> u64 {
        self.batch.as_ref().map_or(1, |batch| batch.value.microbatches)
    }

    /// The `data` line of inputs and labels: the one without `on`.
    pub fn data_everywhere(&self) -> Option<&Located<Data>> {
        self.data.iter().rev().find(|data| data.value.on.is_none())
    }

    /// The `zero` line of what no line with `on` is about.
    pub fn zero_everywhere(&self) -> Option<&Located<Zero>> {
        self.zero.iter().find(|zero| zero.value.on.is_none())
    }

    /// Whether the spec says that the axis may split nothing.
    pub fn may_be_idle(&self, axis: AxisId) -> bool {
        self.replicate.iter().any(|line| line.value == axis)
    }

    /// The groups of samples over which a batch normalisation computes statistics of their own.
    pub fn statistics_groups(&self) -> u64 {
        let mesh = self.mesh();
        let ranks = || self.data_everywhere().map_or(1, |data| data.value.axes.iter().map(|axis| mesh.size(*axis)).product());
        match self.batchnorm.as_ref().map(|groups| groups.value) {
            None => 1,
            Some(StatisticsGroups::Microbatch) => self.microbatches(),
            Some(StatisticsGroups::Rank) => self.microbatches() * ranks(),
            Some(StatisticsGroups::Parts(parts)) => parts,
        }
    }

    /// The spec of the reference: one rank on every axis, the same micro-batches and groups of
    /// statistics, without `pipeline`, `place`, `zero`, `recompute` and `device`.
    pub fn reference(&self) -> Spec {
        let (place, zero, recompute) = (vec![], vec![], vec![]);
        let mut reference = Spec { pipeline: None, place, zero, recompute, device_memory: None, ..self.clone() };
        if let Some(groups) = &mut reference.batchnorm {
            groups.value = StatisticsGroups::Parts(self.statistics_groups());
        }
        for axis in reference.mesh.iter_mut().flat_map(|mesh| &mut mesh.value) {
            axis.size = 1;
        }
        reference
    }

    /// Whether it is that of its own reference, so that a job is its reference.
    pub fn is_reference(&self) -> bool {
        self.reference() == *self
    }

    /// The spec for the model in a plan directory, in which what `untie` separates is apart
    /// already.
    pub fn of_plan(&self) -> Spec {
        Spec { untie: vec![], ..self.clone() }
    }

    /// The learning rate by step; constant without a `schedule`. `None` without an `optimizer`.
    pub fn learning_rate(&self) -> Option<LearningRate> {
        let lr = self.optimizer.as_ref()?.value.lr;
        let schedule = self.schedule.as_ref().map(|s| s.value).unwrap_or(Schedule { warmup: 0, decay: Decay::Constant });
        Some(LearningRate { lr, warmup: schedule.warmup, decay: schedule.decay })
    }

    /// The place of `source` for a diagnostic.
    pub fn place_of(&self, source: Source) -> Place {
        Place::Text { file: self.file.clone(), span: source.span }
    }

    /// Whether it asks for training.
    pub fn trains(&self) -> bool {
        self.loss.is_some() || self.optimizer.is_some()
    }

    /// The name of the labels of the loss, if it has some.
    pub fn labels(&self) -> Option<&Located<String>> {
        self.loss.as_ref().and_then(|loss| loss.value.labels())
    }

    /// The place of the line that says how values are split.
    pub fn place_of_line(&self, line: u32) -> Option<Place> {
        let shard = self.shard.iter().map(|s| s.source);
        let others = self.data.iter().map(|d| d.source).chain(self.tensor.iter().map(|t| t.source));
        let others = others.chain(self.sequence.iter().map(|s| s.source)).chain(self.batch.iter().map(|b| b.source));
        shard.chain(others).find(|source| source.line == line as usize).map(|source| self.place_of(source))
    }

    /// The statements that training needs and the spec lacks: `batch`, `loss`, `optimizer`.
    ///
    /// # Errors
    /// One diagnostic for each missing statement, at the file.
    pub fn require_training(&self) -> Result<(), Diagnostics> {
        let needs = [
            (self.batch.is_none(), "a", "batch", "8"),
            (self.loss.is_none(), "a", "loss", "cross_entropy labels=y"),
            (self.optimizer.is_none(), "an", "optimizer", "adamw lr=1e-3"),
        ];
        let missing: Diagnostics = needs
            .into_iter()
            .filter(|(missing, ..)| *missing)
            .map(|(_, article, name, rest)| {
                Diagnostic::error(format!("training needs {article} `{name}` line"))
                    .at(Place::File(self.file.clone()))
                    .help(format!("add a line such as `{name} {rest}`; `shardc help spec {name}` describes it"))
            })
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(missing) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located<T>(value: T) -> Located<T> {
        Located { value, source: Source { line: 7, span: (10, 12) } }
    }

    fn axes() -> Vec<MeshAxis> {
        vec![MeshAxis { name: "dp".into(), size: 2 }, MeshAxis { name: "tp".into(), size: 4 }]
    }

    #[test]
    fn an_empty_spec_is_one_rank_that_cannot_train() {
        let spec = Spec { file: "a/job.shard".into(), ..Spec::default() };
        assert_eq!(spec.mesh(), Mesh::single());
        assert_eq!(spec.learning_rate(), None);
        let missing: Vec<String> = spec.require_training().unwrap_err().iter().map(|d| d.to_string()).collect();
        assert_eq!(
            missing,
            [
                "training needs a `batch` line (a/job.shard); help: add a line such as `batch 8`; `shardc help spec batch` describes it",
                "training needs a `loss` line (a/job.shard); help: add a line such as `loss cross_entropy labels=y`; `shardc help spec loss` describes it",
                "training needs an `optimizer` line (a/job.shard); help: add a line such as `optimizer adamw lr=1e-3`; `shardc help spec optimizer` describes it",
            ]
        );
    }

    #[test]
    fn the_reference_has_one_rank_and_the_same_microbatches() {
        let spec = Spec {
            mesh: Some(located(axes())),
            batch: Some(located(Batch { size: 8, microbatches: 2 })),
            zero: vec![located(Zero { stage: ZeroStage::Parameters, axes: vec![AxisId(0)], on: None })],
            device_memory: Some(located(1 << 30)),
            ..Spec::default()
        };
        assert_eq!((spec.mesh().world_size(), spec.mesh().microbatches()), (8, 2));
        let reference = spec.reference();
        assert_eq!(reference.mesh(), spec.mesh().reference());
        assert!(reference.zero.is_empty() && reference.device_memory.is_none());
        assert_eq!(reference.batch, spec.batch);
        assert!(reference.is_reference() && !spec.is_reference());
    }

    #[test]
    fn the_schedule_moves_the_rate() {
        let rule = OptimizerRule::Sgd { momentum: 0.0, nesterov: false };
        let optimizer = Optimizer { lr: 0.5, weight_decay: 0.0, decay: Decayed::All, rule };
        let mut spec = Spec { optimizer: Some(located(optimizer)), ..Spec::default() };
        assert_eq!(spec.learning_rate().unwrap().at(100), 0.5);
        spec.schedule = Some(located(Schedule { warmup: 4, decay: Decay::Linear { steps: 10, min_lr: 0.0 } }));
        assert_eq!(spec.learning_rate().unwrap().at(0), 0.1);
        assert_eq!(spec.learning_rate().unwrap().at(10), 0.0);
    }
}
