//! Kernel forms: the narrow waist between ops and backends.
//!
//! A kernel is data: sizes, strides and small programs, never the name of an op. A backend implements these forms and nothing
//! else; the CPU backend is their definition. Sizes and strides count elements; a view (see [`crate::plan::View`]) says where a
//! buffer begins. Unless a form has strides, its operands are contiguous and row-major.

use crate::dtype::DType;
use crate::mesh::AxisId;
use crate::scalar::ScalarProgram;
use serde::{Deserialize, Serialize};

/// A number that depends on where a rank stands: `base + sum of coordinate(axis) * factor`. `time` counts as an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Offset {
    /// The part that all ranks share.
    pub base: i64,
    /// The parts that move with a coordinate.
    pub terms: Vec<(AxisId, i64)>,
}

impl Offset {
    /// The same number on every rank.
    pub fn constant(base: i64) -> Offset {
        Offset { base, terms: vec![] }
    }

    /// Its value at `coordinates` (one for each axis of the mesh, `time` last).
    pub fn at(&self, coordinates: &[u64]) -> i64 {
        self.terms.iter().fold(self.base, |sum, (axis, factor)| sum + coordinates[axis.index()] as i64 * factor)
    }
}

/// How one index of an iteration space maps to a global position: digits of the local index, outer to inner, interleaved with
/// the digits that mesh coordinates hold. Global = `offset + sum over digits of ((local / divisor) % size) * stride`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// What the coordinates add.
    pub offset: Offset,
    /// The digits of the local index; one digit `(1, size, 1)` where the split is outermost or absent.
    pub digits: Vec<OriginDigit>,
}

/// One digit of a local index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OriginDigit {
    /// The weight of the digit in the local index.
    pub divisor: u64,
    /// The number of values of the digit.
    pub size: u64,
    /// The weight of the digit in the global index.
    pub stride: u64,
}

impl Origin {
    /// Local and global index are the same, for a dimension of `size`.
    pub fn whole(size: u64) -> Origin {
        Origin { offset: Offset::default(), digits: vec![OriginDigit { divisor: 1, size, stride: 1 }] }
    }

    /// The global index of `local` at `coordinates`.
    pub fn global(&self, local: u64, coordinates: &[u64]) -> i64 {
        self.digits.iter().fold(self.offset.at(coordinates), |sum, d| sum + ((local / d.divisor % d.size) * d.stride) as i64)
    }
}

/// An input of an elementwise program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapInput {
    /// Its element type; converted to the program's compute type as it is read.
    pub dtype: DType,
    /// Its stride along each iteration dimension; 0 broadcasts.
    pub strides: Vec<i64>,
}

/// A fused elementwise program over broadcast inputs. Operands: the inputs, then the outputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Map {
    /// The type of the registers. Truth values are 0 and 1 in it.
    pub compute: DType,
    /// The iteration space.
    pub shape: Vec<u64>,
    /// What is read.
    pub inputs: Vec<MapInput>,
    /// The program; as many outputs as `outputs`.
    pub program: ScalarProgram,
    /// The element types of the results, each contiguous over `shape`. An output may be the same memory as an input with the
    /// same strides (an update in place).
    pub outputs: Vec<DType>,
    /// For each dimension that [`crate::scalar::Instr::Index`] reads, its origin; empty if none does.
    pub origins: Vec<(u16, Origin)>,
}

/// How elements are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceKind {
    /// The sum; of nothing 0.
    Sum,
    /// The largest; of nothing -infinity.
    Max,
    /// The smallest; of nothing +infinity.
    Min,
}

impl ReduceKind {
    /// What combines to nothing.
    pub fn neutral(self) -> f64 {
        match self {
            ReduceKind::Sum => 0.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        }
    }
}

/// A reduction of an elementwise program's one result. `map.outputs` holds the type of the result, which is contiguous over the
/// dimensions that are kept. Sums of f32 are exact to a few ulp whatever the length (blocked), in an order that depends on the
/// shape only, never on the number of threads. Operands: the inputs, then the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    /// What is reduced.
    pub map: Map,
    /// How.
    pub kind: ReduceKind,
    /// For each dimension of `map.shape`, whether it is reduced away.
    pub reduced: Vec<bool>,
    /// The type in which partial results are held (f64 for the norm of gradients).
    pub accumulate: DType,
}

/// What a row kernel computes. `x`, `y`, `dy`, `dx` are `[rows, width]`; `scale`, `bias` are `[width]`; statistics are `[rows]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum RowProgram {
    /// `x -> y = exp(x - max x) / sum exp(x - max x)`; a row of -infinity gives not-a-number
    Softmax,
    /// `y, dy -> dx = y * (dy - sum(y * dy))`
    SoftmaxGrad,
    /// `x, scale, bias -> y, mean, rstd`: `y = (x - mean) * rstd * scale + bias`, `rstd = 1/sqrt(variance + eps)`, biased variance
    LayerNorm {
        /// Added to the variance.
        eps: f64,
    },
    /// `x, scale, mean, rstd, dy -> dx`
    LayerNormGrad,
    /// `x, scale -> y, rstd`: `y = x * rstd * scale`, `rstd = 1/sqrt(mean(x^2) + eps)`
    RmsNorm {
        /// Added to the mean square.
        eps: f64,
    },
    /// `x, scale, rstd, dy -> dx`
    RmsNormGrad,
    /// `x, cos, sin -> y` with tables `[period, width]`, of which row `r` reads row `(r / repeat) % period`:
    /// `y = x * cos + turn(x) * sin`, `turn(x) = (-second half, first half)`; transposed, `y = x * cos - turn(x * sin)`
    Rotary {
        /// Neighbouring rows that read the same row of the tables.
        repeat: u64,
        /// Rows of the tables.
        period: u64,
        /// Whether the transpose is applied.
        transposed: bool,
    },
}

/// A program over rows: `rows` independent rows of `width` contiguous elements of `dtype`; statistics are of the same type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rowwise {
    /// The element type, f32 or f64.
    pub dtype: DType,
    /// How many rows.
    pub rows: u64,
    /// Elements in a row.
    pub width: u64,
    /// What each row goes through.
    pub program: RowProgram,
}

/// One letter of a contraction: its size and its strides in the operands that hold it (0 in those that do not).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContractDim {
    /// The size.
    pub size: u64,
    /// The stride in `a`.
    pub a: i64,
    /// The stride in `b`.
    pub b: i64,
    /// The stride in `c`.
    pub c: i64,
}

/// `c[batch, m, n] (+)= sum over k of a[batch, m, k] * b[batch, k, n]`; any group may hold several letters or none.
/// Operands: `a`, `b`, then `c`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contract {
    /// f32 or f64.
    pub dtype: DType,
    /// Letters of all three operands, outer to inner as in `c`.
    pub batch: Vec<ContractDim>,
    /// Letters of `a` and `c`.
    pub m: Vec<ContractDim>,
    /// Letters of `b` and `c`.
    pub n: Vec<ContractDim>,
    /// Letters of `a` and `b`.
    pub k: Vec<ContractDim>,
}

/// Which keys a query sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttentionMask {
    /// All of them.
    None,
    /// Key `s` for query `t` where `s <= t + kv_len - q_len`.
    Causal,
    /// An extra operand after `v`: bool (false hides) or float (added to the scaled scores), with these strides over
    /// (batch, head, query, key).
    Operand {
        /// Its element type.
        dtype: DType,
        /// Strides over (batch, head, query, key); 0 broadcasts.
        strides: [i64; 4],
    },
}

/// Scaled dot-product attention with grouped key/value heads: query head `h` reads key head `h / (heads / kv_heads)`.
///
/// Each of q, k, v, o has strides over (batch, head, position); the last dimension is contiguous.
/// Operands: q, k, v, [mask], then o and `lse[batch, heads, q_len]`, the logarithm of the sum of exponentials of each query's
/// scores. A query that sees no key gives zeros, and `lse` of -infinity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// f32 or f64.
    pub dtype: DType,
    /// Independent batches.
    pub batch: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Queries.
    pub q_len: u64,
    /// Keys.
    pub kv_len: u64,
    /// Width of q and k.
    pub width: u64,
    /// Width of v and o.
    pub v_width: u64,
    /// Multiplies the scores.
    pub scale: f64,
    /// Which keys are seen.
    pub mask: AttentionMask,
    /// Strides of q over (batch, head, position).
    pub q: [i64; 3],
    /// Strides of k.
    pub k: [i64; 3],
    /// Strides of v.
    pub v: [i64; 3],
    /// Strides of o (in the gradient: of `o` and `do`).
    pub o: [i64; 3],
}

/// One spatial dimension of a window that moves over a tensor: output `p` sees, for each tap `k`, the input at
/// `p * stride + k * dilation - pad`. Inputs outside the tensor are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowDim {
    /// Positions of the input.
    pub input: u64,
    /// Positions of the output.
    pub output: u64,
    /// Taps.
    pub kernel: u64,
    /// Inputs from one output to the next.
    pub stride: u64,
    /// Inputs from one tap to the next.
    pub dilation: u64,
    /// How far the first output's first tap lies before the first input; negative where it lies behind it.
    pub pad: i64,
}

impl WindowDim {
    /// The input that output `p` sees at tap `k`.
    pub fn source(&self, p: u64, k: u64) -> Option<u64> {
        let at = i128::from(p) * i128::from(self.stride) + i128::from(k) * i128::from(self.dilation) - i128::from(self.pad);
        u64::try_from(at).ok().filter(|at| *at < self.input)
    }
}

/// Which of a convolution's three tensors is computed from the other two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConvResult {
    /// The convolution. Operands: `x`, `w`, then `y`.
    Output,
    /// Its transpose, the gradient of the input. Operands: `y`, `w`, then `x`.
    Input,
    /// The gradient of the weight. Operands: `x`, `y`, then `w`.
    Weight,
}

/// A convolution between `x[batch, groups, inputs, input…]`, `w[groups, outputs, inputs, kernel…]` and
/// `y[batch, groups, outputs, output…]`: `result` is the sum, over everything that it lacks, of products of the other two's
/// elements, where output, tap and input belong together as the window says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv {
    /// f32 or f64.
    pub dtype: DType,
    /// What is computed.
    pub result: ConvResult,
    /// Samples.
    pub batch: u64,
    /// Independent groups of channels.
    pub groups: u64,
    /// Input channels of a group.
    pub inputs: u64,
    /// Output channels of a group.
    pub outputs: u64,
    /// The spatial dimensions, one to three.
    pub window: Vec<WindowDim>,
}

/// The largest element under a window: `x[planes, input…] -> y[planes, output…]`; of nothing -infinity, of not-a-number that.
/// The gradient, `x, dy -> dx`, gives each output's to the first of its largest elements in row-major order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaxPool {
    /// f32 or f64.
    pub dtype: DType,
    /// Independent planes.
    pub planes: u64,
    /// The spatial dimensions, one to three.
    pub window: Vec<WindowDim>,
}

/// A copy between two strided layouts. Operands: source, then destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The element type of both sides.
    pub dtype: DType,
    /// The iteration space.
    pub shape: Vec<u64>,
    /// First element of the source.
    pub src_offset: Offset,
    /// Strides of the source; may be 0 or negative.
    pub src_strides: Vec<i64>,
    /// First element of the destination.
    pub dst_offset: Offset,
    /// Strides of the destination; all elements distinct.
    pub dst_strides: Vec<i64>,
}

/// Rows of tables by index: `table[batch, outer, rows, inner], indices[batch, count] -> out[batch, outer, count, inner]`. An
/// index below 0 counts from `total_rows`. Where the table is split, `origin` maps its local rows to global ones, and an index of a row held
/// elsewhere gives 0. An index outside `0..total_rows` is an error of the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gather {
    /// The element type of table and result.
    pub dtype: DType,
    /// Tables, each with indices of its own.
    pub batch: u64,
    /// Elements of a table before the indexed dimension.
    pub outer: u64,
    /// Local rows.
    pub rows: u64,
    /// Rows of the whole table.
    pub total_rows: u64,
    /// Elements of a row.
    pub inner: u64,
    /// Number of indices into each table.
    pub count: u64,
    /// The global row of each local row.
    pub origin: Origin,
}

/// Truth values drawn from counters: element `i` of a tensor is true where word `i % 4` of Philox4x32-10 at counter (`i / 4` in two
/// words, step, stream) under the key `seed` is `threshold` or more, where `i` is its position in the whole tensor. Operands: the seed
/// (i64, one element) and the step (f64, one element), then the result. See [`crate::philox`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Random {
    /// The shape of the rank's part, contiguous.
    pub shape: Vec<u64>,
    /// For each dimension the stride in the whole tensor.
    pub strides: Vec<u64>,
    /// For each dimension the global index of each local one.
    pub origins: Vec<Origin>,
    /// The least word that gives true.
    pub threshold: u32,
    /// Which of the independent streams under one seed.
    pub stream: u32,
}

/// What one collective does. Roots do not appear: every collective here is symmetric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveKind {
    /// Every member ends with the combination of all, in place: `count` elements in and out.
    AllReduce,
    /// Every member ends with all members' `count` elements, in the order of the group: `count` in, `count * group` out.
    AllGather,
    /// Every member ends with its part of the combination: `count * group` in, `count` out.
    ReduceScatter,
    /// Member `i` sends its part `j` to member `j`: `count * group` in and out, `count` to each.
    AllToAll,
}

/// One call of a communicator. Operands: source, then destination (the same memory for an all-reduce).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collective {
    /// What it does.
    pub kind: CollectiveKind,
    /// How elements combine; `Sum` where nothing does.
    pub op: ReduceKind,
    /// The axes of the group, in the order of its members.
    pub axes: Vec<AxisId>,
    /// The element type.
    pub dtype: DType,
    /// Elements, as the kind counts them.
    pub count: u64,
}

impl Collective {
    /// Bytes that each of `members` sends: the closed forms of the ring algorithms, the lower bounds for bandwidth.
    /// Source: Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms (2009).
    pub fn bytes_sent(&self, members: u64) -> u64 {
        let (bytes, members) = (u128::from(self.count) * u128::from(self.dtype.bytes()), u128::from(members));
        let sent = match self.kind {
            CollectiveKind::AllReduce => 2 * (members - 1) * bytes / members,
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => (members - 1) * bytes,
        };
        u64::try_from(sent).unwrap_or(u64::MAX)
    }
}

/// One kernel form with its sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Kernel {
    /// A fused elementwise program.
    Map(Map),
    /// A reduction of one.
    Reduce(Reduce),
    /// A program over rows.
    Rowwise(Rowwise),
    /// A matrix product.
    Contract(Contract),
    /// Attention. Operands: q, k, v, [mask], then o, lse.
    Attention(Attention),
    /// Its gradient. Operands: q, k, v, [mask], o, lse, do, then dq, dk, dv, laid out as q, k, v are.
    AttentionGrad(Attention),
    /// A convolution, or one of its gradients.
    Conv(Conv),
    /// The largest element under a window. Operands: x, then y.
    MaxPool(MaxPool),
    /// Its gradient. Operands: x, dy, then dx.
    MaxPoolGrad(MaxPool),
    /// A strided copy.
    Move(Move),
    /// Rows by index.
    Gather(Gather),
    /// Its transpose, in index order: `indices[batch, count], src[batch, outer, count, inner] -> table[batch, outer, rows, inner]`,
    /// zeroed first.
    ScatterAdd(Gather),
    /// `count` elements of one value. Operand: the output.
    Fill {
        /// The element type.
        dtype: DType,
        /// How many.
        count: u64,
        /// The value.
        value: f64,
    },
    /// Truth values from counters.
    Random(Random),
    /// A call of a communicator.
    Collective(Collective),
}

impl Kernel {
    /// The form's name in listings.
    pub fn form(&self) -> &'static str {
        match self {
            Kernel::Map(_) => "map",
            Kernel::Reduce(_) => "reduce",
            Kernel::Rowwise(_) => "rowwise",
            Kernel::Contract(_) => "contract",
            Kernel::Attention(_) => "attention",
            Kernel::AttentionGrad(_) => "attention_grad",
            Kernel::Conv(_) => "conv",
            Kernel::MaxPool(_) => "max_pool",
            Kernel::MaxPoolGrad(_) => "max_pool_grad",
            Kernel::Move(_) => "move",
            Kernel::Gather(_) => "gather",
            Kernel::ScatterAdd(_) => "scatter_add",
            Kernel::Fill { .. } => "fill",
            Kernel::Random(_) => "random",
            Kernel::Collective(_) => "collective",
        }
    }
}
