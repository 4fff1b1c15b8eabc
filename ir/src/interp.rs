//! The meaning of each op on whole tensors: a naive evaluator, used to fold constants and as an
//! oracle that shares no code with kernels.
//!
//! Integers are computed in i64. Floats are computed in f64 and rounded to the element type after
//! each op. A communication op changes where elements are, not what they are, so here it is the
//! identity.

mod attention;
mod contract;
mod conv;
mod elementwise;
mod layout;
mod random;
mod rows;
mod update;
pub mod work;

use crate::dtype::DType;
use crate::graph::{Graph, ValueId};
use crate::kernel::signature::row_major;
use crate::ops::Op;
use crate::plan::HostScalar;
use crate::reason;
use crate::reason::Reason;
use crate::types::{Tensor, Type, checked_elements};
use half::{bf16, f16};
use std::collections::BTreeMap;

/// The most elements that a result may have.
pub const MAX_ELEMENTS: u64 = 1 << 31;

/// The results of `op` on `operands`. An error if it does not take them, or for leaves, whose value
/// the graph does not know.
pub fn evaluate(op: &Op, operands: &[Tensor]) -> Result<Vec<Tensor>, Reason> {
    let types: Vec<Type> = operands.iter().map(|t| t.ty.clone()).collect();
    let results = op.rules().result(&types)?;
    for ty in &results {
        if checked_elements(&ty.shape).is_none_or(|n| n > MAX_ELEMENTS) {
            return Err(reason!("a result of {ty} is too large"));
        }
    }
    match op {
        Op::Input(_) | Op::State(_) | Op::Host(_) => Err(reason!("`{}` is a leaf", op.name())),
        Op::Constant(op) => Ok(vec![op.value.clone()]),
        Op::Detach(_) | Op::Reshard(_) | Op::Accumulate(_) | Op::Transfer(_) => Ok(vec![operands[0].clone()]),
        Op::AllReduce(_) | Op::AllGather(_) | Op::ReduceScatter(_) | Op::AllToAll(_) => Ok(vec![operands[0].clone()]),
        Op::ShardSlice(_) | Op::FlatGather(_) | Op::FlatScatter(_) | Op::FlatSlice(_) => Ok(vec![operands[0].clone()]),
        Op::Unary(op) => elementwise::unary(op.f, &operands[0], &results[0]).map(one),
        Op::Binary(op) => elementwise::binary(op.f, &operands[0], &operands[1], &results[0]).map(one),
        Op::Where(_) => Ok(one(elementwise::select([&operands[0], &operands[1], &operands[2]], &results[0]))),
        Op::RoundTo(op) => Ok(one(elementwise::round_to(op.format, &operands[0]))),
        Op::Cast(op) => Ok(one(elementwise::cast(&operands[0], op.dtype))),
        Op::Contract(op) => Ok(one(contract::contract(op, &operands[0], &operands[1], &results[0]))),
        Op::Reduce(op) => Ok(one(contract::reduce(op.f.0, &op.axes, &operands[0], &results[0]))),
        Op::SquareSum(_) => Ok(one(contract::square_sum(&operands[0]))),
        Op::Conv(op) => Ok(one(conv::output(op, &operands[0], &operands[1], &results[0]))),
        Op::ConvInput(op) => Ok(one(conv::input(&op.of, &operands[0], &operands[1], &results[0]))),
        Op::ConvWeight(op) => Ok(one(conv::weight(&op.of, &operands[0], &operands[1], &results[0]))),
        Op::MaxPool(op) => Ok(one(conv::max_pool(op, &operands[0], &results[0]))),
        Op::MaxPoolGrad(op) => Ok(one(conv::max_pool_grad(&op.of, &operands[0], &operands[1]))),
        Op::Reshape(_) => Ok(one(Tensor { ty: results[0].clone(), bytes: operands[0].bytes.clone() })),
        Op::Transpose(op) => Ok(one(layout::transpose(&op.perm, &operands[0], &results[0]))),
        Op::Broadcast(_) => Ok(one(layout::broadcast(&operands[0], &results[0]))),
        Op::Slice(op) => Ok(one(layout::slice(op, &operands[0], &results[0]))),
        Op::Pad(op) => Ok(one(layout::pad(op, &operands[0], &results[0]))),
        Op::Concat(op) => Ok(one(layout::concat(op.axis, operands, &results[0]))),
        Op::Gather(op) => layout::gather(op, &operands[0], &operands[1], &results[0]).map(one),
        Op::ScatterAdd(op) => layout::scatter_add(op, &operands[0], &operands[1], &results[0]).map(one),
        Op::OneHot(_) => Ok(one(layout::one_hot(&operands[0], &results[0]))),
        Op::Range(op) => Ok(one(from_i64(&results[0], 0..op.size as i64))),
        Op::Softmax(_) => Ok(rows::softmax(operands, &results)),
        Op::SoftmaxGrad(_) => Ok(rows::softmax_grad(operands, &results)),
        Op::LayerNorm(op) => Ok(rows::layer_norm(op.eps, operands, &results)),
        Op::LayerNormGrad(_) => Ok(rows::layer_norm_grad(operands, &results)),
        Op::RmsNorm(op) => Ok(rows::rms_norm(op.eps, operands, &results)),
        Op::BatchNorm(op) => Ok(one(elementwise::batch_norm(op.eps, operands))),
        Op::Dropout(_) => Ok(random::dropout(&operands[0])),
        Op::KeepMask(op) => Ok(one(random::keep_mask(op, operands))),
        Op::Rotary(op) => Ok(one(rows::rotary(op, operands))),
        Op::RmsNormGrad(_) => Ok(rows::rms_norm_grad(operands, &results)),
        Op::Attention(op) => Ok(attention::forward(op, operands, &results)),
        Op::AttentionGrad(op) => Ok(attention::gradient(&op.of, operands, &results)),
        Op::Sgd(op) => Ok(update::sgd(op, operands)),
        Op::Adam(op) => Ok(update::adam(op, operands)),
    }
}

fn one(tensor: Tensor) -> Vec<Tensor> {
    vec![tensor]
}

/// The values of a graph's leaves.
#[derive(Debug, Clone, Default)]
pub struct Feed {
    /// Inputs and labels, by the name of the array.
    pub inputs: BTreeMap<String, Tensor>,
    /// State variables at the start of the step, by name.
    pub states: BTreeMap<String, Tensor>,
    /// The learning rate.
    pub learning_rate: f64,
    /// The number of the step, from 1.
    pub step_count: u64,
    /// The seed of randomness.
    pub seed: u64,
}

/// Every value of `graph`, by [`ValueId`]; an error where a leaf is missing or has another type.
pub fn run(graph: &Graph, feed: &Feed) -> Result<Vec<Tensor>, Reason> {
    let mut values: Vec<Option<Tensor>> = vec![None; graph.value_count()];
    for (_, node) in graph.nodes() {
        let operands: Vec<Tensor> =
            node.operands.iter().map(|v| values[v.index()].clone().expect("operands come first")).collect();
        let results = match leaf(graph, &node.op, feed) {
            Some(value) => one(value?),
            None => evaluate(&node.op, &operands)?,
        };
        for (id, result) in node.results.iter().zip(results) {
            if result.ty != *graph.ty(*id) {
                return Err(reason!("`{}` is {}, not {}", graph.value(*id).name, graph.ty(*id), result.ty));
            }
            values[id.index()] = Some(result);
        }
    }
    Ok(values.into_iter().map(|v| v.expect("every node ran")).collect())
}

/// The outputs of `graph`, by name.
pub fn outputs(graph: &Graph, feed: &Feed) -> Result<BTreeMap<String, Tensor>, Reason> {
    let values = run(graph, feed)?;
    let value = |id: ValueId| values[id.index()].clone();
    Ok(graph.outputs.iter().map(|o| (o.name.clone(), value(o.value))).collect())
}

fn leaf(graph: &Graph, op: &Op, feed: &Feed) -> Option<Result<Tensor, Reason>> {
    let named = |table: &BTreeMap<String, Tensor>, name: &str| {
        table.get(name).cloned().ok_or_else(|| reason!("no value is given for `{name}`"))
    };
    match op {
        Op::Input(op) => Some(named(&feed.inputs, &op.name)),
        Op::State(op) => Some(named(&feed.states, &graph.states[op.state.index()].name)),
        Op::Host(op) => Some(Ok(match op.scalar {
            HostScalar::LearningRate => Tensor::scalar(DType::F64, feed.learning_rate),
            HostScalar::StepCount => Tensor::scalar(DType::F64, feed.step_count as f64),
            HostScalar::Seed => Tensor::from_i64([], &[feed.seed as i64]),
        })),
        _ => None,
    }
}

/// The element numbers that a walk over `shape` in row-major order visits, with `strides` from
/// `start` on. Dimensions that follow one another are walked as one.
fn positions(shape: &[u64], strides: &[i64], start: i64) -> Positions {
    let left = shape.iter().product();
    let mut dims: Vec<(u64, i64)> = vec![];
    for (size, stride) in shape.iter().zip(strides).filter(|(size, _)| left > 0 && **size != 1) {
        match dims.last_mut() {
            Some((outer, apart)) if *apart == *stride * *size as i64 => (*outer, *apart) = (*outer * size, *stride),
            _ => dims.push((*size, *stride)),
        }
    }
    let row = dims.pop().unwrap_or((1, 0));
    Positions { index: vec![0; dims.len()], outer: dims, row, along: 0, at: start, left }
}

/// A walk over a strided tensor.
#[derive(Clone)]
struct Positions {
    /// Size and stride of each dimension but the innermost.
    outer: Vec<(u64, i64)>,
    /// The place along each of these.
    index: Vec<u64>,
    /// Size and stride of the innermost dimension.
    row: (u64, i64),
    /// The place along it.
    along: u64,
    at: i64,
    left: u64,
}

impl Positions {
    /// Takes away the innermost dimensions that are contiguous: how many elements each position
    /// then stands for.
    fn take_run(&mut self) -> usize {
        let mut run = 1;
        loop {
            let (size, stride) = self.row;
            if size == 0 || (stride != run as i64 && size != 1) {
                break;
            }
            run *= size;
            self.left /= size;
            let next = self.outer.pop();
            self.row = next.unwrap_or((1, 0));
            self.index.pop();
            if next.is_none() {
                break;
            }
        }
        run as usize
    }

    /// Goes on behind the end of a row.
    fn turn(&mut self) {
        self.at -= self.row.1 * self.row.0 as i64;
        self.along = 0;
        for (index, (size, stride)) in self.index.iter_mut().zip(&self.outer).rev() {
            *index += 1;
            self.at += stride;
            if *index < *size {
                break;
            }
            self.at -= stride * *size as i64;
            *index = 0;
        }
    }
}

impl Iterator for Positions {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let here = self.at;
        self.at += self.row.1;
        self.along += 1;
        if self.along == self.row.0 {
            self.turn();
        }
        Some(here as usize)
    }
}

/// For each element of `to` in row-major order, the element of a tensor of shape `from` that
/// broadcasts there.
fn broadcast_positions(from: &[u64], to: &[u64]) -> Positions {
    let skip = to.len() - from.len();
    let own = row_major(from);
    let strides: Vec<i64> = (0..to.len()).map(|d| if d < skip || from[d - skip] == 1 { 0 } else { own[d - skip] }).collect();
    positions(to, &strides, 0)
}

/// Reads the elements of a tensor as numbers.
#[derive(Clone, Copy)]
struct Numbers<'a> {
    dtype: DType,
    bytes: &'a [u8],
}

impl<'a> Numbers<'a> {
    fn of(x: &'a Tensor) -> Self {
        Numbers { dtype: x.ty.dtype, bytes: &x.bytes }
    }

    #[inline]
    fn word<const N: usize>(self, i: usize) -> [u8; N] {
        self.bytes[i * N..][..N].try_into().expect("a slice of that length")
    }

    #[inline]
    fn f64(self, i: usize) -> f64 {
        match self.dtype {
            DType::F64 => f64::from_le_bytes(self.word(i)),
            DType::F32 => f64::from(f32::from_le_bytes(self.word(i))),
            DType::BF16 => bf16::from_le_bytes(self.word(i)).to_f64(),
            DType::F16 => f16::from_le_bytes(self.word(i)).to_f64(),
            DType::I64 => i64::from_le_bytes(self.word(i)) as f64,
            DType::Bool => f64::from(u8::from(self.bytes[i] != 0)),
        }
    }

    /// Floats are truncated.
    #[inline]
    fn i64(self, i: usize) -> i64 {
        match self.dtype {
            DType::I64 => i64::from_le_bytes(self.word(i)),
            DType::Bool => i64::from(self.bytes[i] != 0),
            _ => self.f64(i) as i64,
        }
    }
}

/// The tensor of those numbers, rounded to its element type.
fn from_f64(ty: &Type, values: impl Iterator<Item = f64>) -> Tensor {
    let mut bytes = Vec::with_capacity((ty.elements() * ty.dtype.bytes()) as usize);
    match ty.dtype {
        DType::F64 => values.for_each(|v| bytes.extend(v.to_le_bytes())),
        DType::F32 => values.for_each(|v| bytes.extend((v as f32).to_le_bytes())),
        DType::BF16 => values.for_each(|v| bytes.extend(bf16::from_f32(v as f32).to_le_bytes())),
        DType::F16 => values.for_each(|v| bytes.extend(f16::from_f32(v as f32).to_le_bytes())),
        DType::I64 => values.for_each(|v| bytes.extend((v as i64).to_le_bytes())),
        DType::Bool => values.for_each(|v| bytes.push(u8::from(v != 0.0))),
    }
    Tensor { ty: ty.clone(), bytes: bytes.into() }
}

/// The tensor of those integers or truth values.
fn from_i64(ty: &Type, values: impl Iterator<Item = i64>) -> Tensor {
    let mut bytes = Vec::with_capacity((ty.elements() * ty.dtype.bytes()) as usize);
    match ty.dtype {
        DType::Bool => values.for_each(|v| bytes.push(u8::from(v != 0))),
        _ => values.for_each(|v| bytes.extend(v.to_le_bytes())),
    }
    Tensor { ty: ty.clone(), bytes: bytes.into() }
}
