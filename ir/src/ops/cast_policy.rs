//! In which element type each op computes under a `precision` line.

use super::Op;
use super::elementwise::UnaryFn;
use super::norm::{LayerNorm, RmsNorm};
use crate::dtype::DType;
use crate::scalar::{Binary, Unary};

/// What narrow numbers do to an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CastPolicy {
    /// A sum of products: operands are rounded to the narrow type, sums are wide, and results are
    /// narrow.
    Product,
    /// A lookup in a table, which may be a rounded copy; the result is wide.
    Table,
    /// It is computed in the widest type of its operands; where all are narrow, so is the result.
    Widest,
    /// It selects elements, and its gradient adds up what flows back to them: both in the widest
    /// type of its operands.
    Selects,
    /// Its elements are its operands', under another shape or order: in their widest type.
    Moves,
    /// It is computed in the wide type: functions that cancel or grow, norms, and sums.
    Wide,
    /// It is computed in the wide type, and its result has the type of its first operand.
    WideAsFirst,
    /// It has no floats to round, or says itself of which type its results are.
    Own,
}

impl Op {
    /// Whether most of its work is products of matrices.
    pub fn is_product(&self) -> bool {
        self.cast_policy() == CastPolicy::Product
    }

    /// The policy of the op. PyTorch's autocast, which it follows, has the same three lists.
    pub fn cast_policy(&self) -> CastPolicy {
        match self {
            Op::Contract(_) | Op::Conv(_) | Op::ConvInput(_) | Op::ConvWeight(_) | Op::Attention(_) | Op::AttentionGrad(_) => {
                CastPolicy::Product
            }
            Op::Gather(_) => CastPolicy::Table,
            Op::Unary(op) => unary(op.f),
            Op::Binary(op) if op.f == Binary::Pow => CastPolicy::Wide,
            Op::Binary(_) | Op::Where(_) | Op::Dropout(_) => CastPolicy::Widest,
            Op::MaxPool(_) => CastPolicy::Selects,
            Op::Reshape(_) | Op::Transpose(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Pad(_) | Op::Concat(_) | Op::Detach(_) => {
                CastPolicy::Moves
            }
            Op::BatchNorm(_) => CastPolicy::WideAsFirst,
            Op::Reduce(_)
            | Op::SquareSum(_)
            | Op::MaxPoolGrad(_)
            | Op::ScatterAdd(_)
            | Op::Softmax(_)
            | Op::SoftmaxGrad(_)
            | Op::LayerNorm(_)
            | Op::LayerNormGrad(_)
            | Op::RmsNorm(_)
            | Op::RmsNormGrad(_)
            | Op::Rotary(_)
            | Op::Sgd(_)
            | Op::Adam(_) => CastPolicy::Wide,
            Op::Input(_)
            | Op::State(_)
            | Op::Constant(_)
            | Op::Host(_)
            | Op::Cast(_)
            | Op::RoundTo(_)
            | Op::OneHot(_)
            | Op::Range(_)
            | Op::KeepMask(_)
            | Op::Reshard(_)
            | Op::Accumulate(_)
            | Op::AllReduce(_)
            | Op::AllGather(_)
            | Op::ReduceScatter(_)
            | Op::AllToAll(_)
            | Op::ShardSlice(_)
            | Op::FlatGather(_)
            | Op::FlatScatter(_)
            | Op::FlatSlice(_)
            | Op::Transfer(_) => CastPolicy::Own,
        }
    }
}

impl Op {
    /// A norm whose first result is written in a type of 16 bits, of an op that may write it so.
    pub fn rounded(&self, dtype: DType) -> Option<Op> {
        match self {
            Op::LayerNorm(op) => Some(LayerNorm { dtype: Some(dtype), ..op.clone() }.into()),
            Op::RmsNorm(op) => Some(RmsNorm { dtype: Some(dtype), ..op.clone() }.into()),
            _ => None,
        }
    }

    /// The operand that may have 16 bits where the others are wide.
    pub fn narrow_operand(&self) -> Option<usize> {
        match self {
            Op::LayerNormGrad(_) => Some(4),
            Op::RmsNormGrad(_) => Some(3),
            _ => None,
        }
    }

    /// The type that it converts its operand to, if that is all that it does.
    pub fn converts_to(&self) -> Option<DType> {
        if let Op::Cast(cast) = self { Some(cast.dtype) } else { None }
    }
}

fn unary(f: UnaryFn) -> CastPolicy {
    match f {
        UnaryFn::Scalar(Unary::Exp | Unary::Log | Unary::Sqrt | Unary::Reciprocal | Unary::Sin | Unary::Cos | Unary::Atan) => {
            CastPolicy::Wide
        }
        _ => CastPolicy::Widest,
    }
}
