//! Programs: buffers, steps and the order of tasks, with nothing left to decide. A program with the
//! graph that it carries out is a [`crate::programs::Plan`].

pub mod lives;
mod order;
pub mod overlaps;
pub mod set;
mod stream;
pub mod tables;
mod turns;

pub use stream::{Stream, Way};
pub use turns::{Launch, Turn};

use crate::dtype::DType;
use crate::kernel::Kernel;
use crate::mesh::{AxisId, Mesh};
use crate::sharding::Sharding;
use crate::train::{LearningRate, StateInit};
use crate::types::checked_elements;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A buffer of a program, by position in [`Program::buffers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferId(pub u32);

impl BufferId {
    /// The position in [`Program::buffers`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why a buffer exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BufferKind {
    /// A state variable (parameter, moment): an index into [`Program::states`].
    State(u32),
    /// The gradient of the parameter with that index, complete at the end of a step.
    Gradient(u32),
    /// A model input or label: an index into [`Program::inputs`]; all micro-batches of a step, one
    /// slot each.
    Input(u32),
    /// A constant of the program: an index into [`Program::constants`].
    Constant(u32),
    /// A number that the host writes before each step.
    Scalar(HostScalar),
    /// A result that the host reads: an index into [`Program::outputs`]; a slot for each
    /// micro-batch where time splits it.
    Output(u32),
    /// Anything that lives within a step.
    Activation,
    /// Scratch of a collective.
    Communication,
}

/// A number that changes from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostScalar {
    /// The learning rate of this step.
    LearningRate,
    /// The number of this step, from 1.
    StepCount,
    /// The seed of randomness, the same at every step.
    Seed,
}

impl HostScalar {
    /// The type in which ops read it.
    pub fn dtype(self) -> DType {
        match self {
            HostScalar::LearningRate | HostScalar::StepCount => DType::F64,
            HostScalar::Seed => DType::I64,
        }
    }

    /// The name in listings.
    pub fn name(self) -> &'static str {
        match self {
            HostScalar::LearningRate => "learning_rate",
            HostScalar::StepCount => "step_count",
            HostScalar::Seed => "seed",
        }
    }
}

/// A range of the arena with its meaning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// The name of its value, for people.
    pub name: String,
    /// Why it exists.
    pub kind: BufferKind,
    /// Element type.
    pub dtype: DType,
    /// The global shape of the value.
    pub shape: Vec<u64>,
    /// Its sharding.
    pub sharding: Sharding,
    /// The local shape of one slot.
    pub local: Vec<u64>,
    /// Slots, at least one. Buffers that the host fills or reads by micro-batch have one for each.
    pub slots: u64,
    /// First byte in the arena, a multiple of 64.
    pub offset: u64,
    /// Bytes of one slot, a multiple of 64; slots follow one another.
    pub slot_bytes: u64,
}

/// Slots of the arena begin at multiples of so many bytes.
pub const ALIGNMENT: u64 = 64;

/// Rounded up to where the next slot may begin; more than nothing.
pub fn aligned(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGNMENT).max(1) * ALIGNMENT
}

/// A part of a buffer that a step reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The buffer; where it has several slots, micro-batch `t` is in slot `t` modulo their number.
    pub buffer: BufferId,
    /// Bytes from the slot's start.
    pub offset: u64,
    /// Bytes that may be touched.
    pub bytes: u64,
}

/// The origin of a step.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Provenance {
    /// The ops of the global graph that it carries out, by value name.
    pub ops: Vec<String>,
    /// Why it is there, for people: `for "fc2.weight" {-, tp}`.
    pub reason: Option<String>,
    /// The line of the spec that asked for it, from 1.
    pub spec_line: Option<u32>,
    /// The module of the model that it belongs to, for people: `h.0.attn`.
    pub scope: Option<String>,
}

/// One kernel launch or communicator call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The queue.
    pub stream: Stream,
    /// The kernel.
    pub kernel: Kernel,
    /// Operands read, in the kernel's order.
    pub reads: Vec<View>,
    /// Operands written, in the kernel's order.
    pub writes: Vec<View>,
    /// The op with its attributes, for people: `contract bk,nk->bn`.
    pub op: String,
    /// For each operand written, the name of what it then holds, for people.
    pub results: Vec<String>,
    /// Its origin.
    pub provenance: Provenance,
    /// With which micro-batches it runs.
    pub when: When,
}

impl Step {
    /// What it computes, without its operands: `%y = contract bk,nk->bn`.
    pub fn text(&self) -> String {
        match &self.results[..] {
            [] => self.op.clone(),
            [only] => format!("%{only} = {}", self.op),
            [first, ..] => format!("%{first}, … = {}", self.op),
        }
    }
}

/// With which micro-batches of its task a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// With each.
    Each,
    /// With the last of the mesh alone: what needs all micro-batches, as soon as it is there.
    Last,
}

/// A body of steps, stored once however often it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// `prepare`, `prologue`, `settle`, `F`, `B`, `update`.
    pub name: String,
    /// The stage of the pipeline that it is of.
    pub stage: u32,
    /// Its steps, in order.
    pub steps: Vec<Step>,
}

/// One end of a message between ranks that differ on one axis only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Whether this is the end that sends.
    pub sends: bool,
    /// The axis on which the two ranks differ.
    pub axis: AxisId,
    /// The position of the other end on it.
    pub peer: u64,
    /// What is sent, or where it is put: all of a value.
    pub view: View,
    /// The name of the value, for people.
    pub value: String,
    /// Its origin.
    pub provenance: Provenance,
}

/// A row of the order in which a rank works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    /// A task runs.
    Run {
        /// The position in [`Program::tasks`].
        task: u32,
        /// The micro-batch; 0 where there is one for the whole step.
        time: u64,
    },
    /// Messages, by position in [`Program::messages`], each of a micro-batch; they begin together,
    /// and the row ends when all that it receives is there.
    Exchange(Vec<(u32, u64)>),
}

/// A state variable: initialised, placed, updated once a step, checkpointed and exported as one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateVariable {
    /// The parameter's name in the model, or `NAME.m`, `NAME.v` for its moments.
    pub name: String,
    /// Its buffer.
    pub buffer: BufferId,
    /// Its role.
    pub role: StateRole,
    /// How it begins.
    pub init: StateInit,
    /// Which part of an initializer it is; `None` for all of it, and for moments.
    pub block: Option<Block>,
}

impl BufferKind {
    /// The name in listings, without what it is of.
    pub fn name(&self) -> &'static str {
        match self {
            BufferKind::State(_) => "state",
            BufferKind::Gradient(_) => "gradient",
            BufferKind::Input(_) => "input",
            BufferKind::Constant(_) => "constant",
            BufferKind::Scalar(_) => "scalar",
            BufferKind::Output(_) => "output",
            BufferKind::Activation => "activation",
            BufferKind::Communication => "communication",
        }
    }
}

impl StateVariable {
    /// The initializer that holds it, by its name in the model.
    pub fn initializer(&self) -> &str {
        self.block.as_ref().map_or(&self.name, |block| &block.of)
    }
}

/// A range of one dimension of an initializer, which is a state variable of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The initializer's name.
    pub of: String,
    /// Another name that the model has for it.
    pub alias: Option<String>,
    /// The dimension.
    pub axis: usize,
    /// The first index.
    pub start: u64,
    /// The size of the initializer along the dimension.
    pub whole: u64,
}

impl Block {
    /// Whether a block of `shape` lies inside its initializer.
    pub fn is_inside(&self, shape: &[u64]) -> bool {
        let end = shape.get(self.axis).and_then(|size| self.start.checked_add(*size));
        end.is_some_and(|end| end <= self.whole) && checked_elements(&self.whole_shape(shape)).is_some()
    }

    /// The initializer's shape, from that of the block.
    pub fn whole_shape(&self, shape: &[u64]) -> Vec<u64> {
        let mut whole = shape.to_vec();
        whole[self.axis] = self.whole;
        whole
    }

    /// `qkv.weight[:, 0:64]`, for a block of `shape`.
    pub fn name(&self, shape: &[u64]) -> String {
        let range = |dim: usize| match dim == self.axis {
            true => format!("{}:{}", self.start, self.start + shape[dim]),
            false => ":".to_string(),
        };
        format!("{}[{}]", self.of, (0..shape.len()).map(range).collect::<Vec<_>>().join(", "))
    }
}

/// The role of a state variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateRole {
    /// A trained initializer.
    Parameter,
    /// An initializer that training leaves alone.
    Frozen,
    /// A moment of the optimizer.
    Moment,
    /// A running statistic of a batch normalisation: an initializer that training moves without a
    /// gradient.
    Statistic,
    /// A number that the loss is scaled by, or how it comes to change.
    Scaling,
}

impl StateRole {
    /// Every role.
    pub const ALL: [StateRole; 5] =
        [StateRole::Parameter, StateRole::Frozen, StateRole::Moment, StateRole::Statistic, StateRole::Scaling];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            StateRole::Parameter => "parameter",
            StateRole::Frozen => "frozen",
            StateRole::Moment => "moment",
            StateRole::Statistic => "statistic",
            StateRole::Scaling => "scaling",
        }
    }

    /// Whether it is an initializer of the model.
    pub fn is_of_model(self) -> bool {
        !matches!(self, StateRole::Moment | StateRole::Scaling)
    }
}

/// A model input or a label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramInput {
    /// The array's name in the data.
    pub name: String,
    /// Its buffer.
    pub buffer: BufferId,
    /// Allowed values, from what reads it: `low..high` (class indices, token ids), if known; of
    /// floats `low` to `high - 1`.
    pub range: Option<(i64, i64)>,
    /// One value outside the range that is allowed (`ignore_index`).
    pub except: Option<i64>,
}

/// A constant's elements, whole; each rank keeps its part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramConstant {
    /// Its buffer.
    pub buffer: BufferId,
    /// Little-endian bytes of the global value.
    #[serde(with = "shared_bytes")]
    pub bytes: Arc<Vec<u8>>,
}

/// Bytes that several hold, written as if each had them.
mod shared_bytes {
    use super::Arc;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(bytes: &Arc<Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
        bytes.serialize(to)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Arc<Vec<u8>>, D::Error> {
        Vec::deserialize(from).map(Arc::new)
    }
}

/// A result that the host reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramOutput {
    /// `loss`, `grad_norm`, `loss_sum`, `labels`, or the name of a model's output.
    pub name: String,
    /// Its buffer.
    pub buffer: BufferId,
}

/// Everything that one rank runs; ranks that run the same program share it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The model's name.
    pub name: String,
    /// The mesh; offsets and groups are functions of a rank's coordinates on it.
    pub mesh: Mesh,
    /// Samples in the global batch.
    pub batch: u64,
    /// Every buffer.
    pub buffers: Vec<Buffer>,
    /// The size of the arena.
    pub arena_bytes: u64,
    /// State variables.
    pub states: Vec<StateVariable>,
    /// Inputs and labels.
    pub inputs: Vec<ProgramInput>,
    /// Constants.
    pub constants: Vec<ProgramConstant>,
    /// Results.
    pub outputs: Vec<ProgramOutput>,
    /// Bodies, each of which the order runs.
    pub tasks: Vec<Task>,
    /// Messages with other ranks.
    pub messages: Vec<Message>,
    /// When they run: `F0.0 B0.0 F0.1 B0.1 …`, where `F0.1` is the forward pass of stage 0 for
    /// micro-batch 1, and messages between them.
    #[serde(with = "order")]
    pub order: Vec<Row>,
    /// The learning rate of each step.
    pub learning_rate: LearningRate,
    /// Seeds initial weights and randomness.
    pub seed: u64,
}
