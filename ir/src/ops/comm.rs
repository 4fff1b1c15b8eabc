//! Communication: what a reshard becomes. Operand and result are the same value under different shardings.

use super::{Backward, Linear, NoGradient, Rules, named};
use crate::kernel::{self, Collective, CollectiveKind, Kernel, MapInput, Move, Offset, ReduceKind};
use crate::letters::{Letters, Role};
use crate::lower::{Extent, Launch, LowerContext, Lowered, ProgramWriter, Slot, row_major};
use crate::mesh::{AxisId, Mesh};
use crate::scalar::Binary;
use crate::sharding::{Split, free_digits};
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// The same value under another sharding; lowered to the ops below.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reshard {}
named!(Reshard, "reshard");

/// Combines the parts of all micro-batches, in their order, into one value that is read after the last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accumulate {
    /// How they combine.
    pub kind: ReduceKind,
}
named!(Accumulate, "accumulate");

/// Combines partial values over axes of ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AllReduce {
    /// How they combine.
    pub kind: ReduceKind,
    /// The axes.
    pub axes: Vec<AxisId>,
}
named!(AllReduce, "all_reduce");

/// Makes dimension `dim` whole over one axis that splits it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AllGather {
    /// The dimension.
    pub dim: usize,
    /// The axis and its digit.
    pub split: Split,
}
named!(AllGather, "all_gather");

/// Keeps each rank's part of dimension `dim` over one axis; no communication.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardSlice {
    /// The dimension.
    pub dim: usize,
    /// The axis and its digit.
    pub split: Split,
}
named!(ShardSlice, "shard_slice");

macro_rules! comm_rules {
    ($ty:ty, $linear:expr, $lower:expr) => {
        impl Rules for $ty {
            fn result(&self, operands: &[Type]) -> Result<Vec<Type>, String> {
                match operands {
                    [x] => Ok(vec![x.clone()]),
                    _ => Err("takes one operand".into()),
                }
            }
            fn letters(&self, operands: &[Type], _: &[Type]) -> Letters {
                let mut letters = Letters::new();
                let dims: Vec<Vec<usize>> = operands[0].shape.iter().map(|n| vec![letters.letter(*n, Role::Kept)]).collect();
                letters.operands.push(dims.clone());
                letters.results.push(dims);
                letters
            }
            fn linear(&self) -> Linear {
                $linear
            }
            fn gradient(&self, _: &mut Backward<'_>) -> Result<(), NoGradient> {
                Err(NoGradient::NotOfModels)
            }
            fn positions(&self) -> bool {
                false
            }
            fn lower(&self, cx: &LowerContext<'_>) -> Lowered {
                let lower: fn(&$ty, &LowerContext<'_>) -> Lowered = $lower;
                lower(self, cx)
            }
        }
    };
}

comm_rules!(Reshard, Linear::Together, |_, _| Lowered::Alias(0));

comm_rules!(Accumulate, Linear::Together, |op, cx| {
    let dtype = cx.results[0].ty.dtype;
    let count = cx.results[0].elements();
    let f = combine(op.kind);
    let map = kernel::Map {
        compute: dtype,
        shape: vec![count],
        inputs: vec![MapInput { dtype, strides: vec![1] }; 2],
        program: ProgramWriter::program(2, |w, x| vec![w.binary(f, x[0], x[1])]),
        outputs: vec![dtype],
        origins: vec![],
    };
    let reads = vec![Slot::Result(0), Slot::Operand(0)];
    Lowered::sequence(vec![Launch { kernel: Kernel::Map(map), reads, writes: vec![Slot::Result(0)] }])
});

fn combine(kind: ReduceKind) -> Binary {
    match kind {
        ReduceKind::Sum => Binary::Add,
        ReduceKind::Max => Binary::Max,
        ReduceKind::Min => Binary::Min,
    }
}

comm_rules!(AllReduce, Linear::Together, |op, cx| {
    let result = &cx.results[0];
    let (dtype, count) = (result.ty.dtype, result.elements());
    let call = Collective { kind: CollectiveKind::AllReduce, op: op.kind, axes: op.axes.clone(), dtype, count };
    Lowered::launch(Kernel::Collective(call), 1, 1)
});

comm_rules!(AllGather, Linear::Together, |op, cx| {
    let (from, to) = (&cx.operands[0], &cx.results[0]);
    let (dtype, count, members) = (from.ty.dtype, from.elements(), cx.mesh.size(op.split.axis));
    let call = Kernel::Collective(Collective {
        kind: CollectiveKind::AllGather,
        op: ReduceKind::Sum,
        axes: vec![op.split.axis],
        dtype,
        count,
    });
    let parts = Digit::of(from, op.dim, op.split, cx.mesh);
    if parts.outer * parts.high == 1 {
        return Lowered::launch(call, 1, 1);
    }
    let [outer, high, low, inner] = parts.sizes();
    let mut shape = vec![members];
    shape.extend([outer, high, low * inner]);
    let block = low * inner;
    let interleave = Kernel::Move(Move {
        dtype,
        src_strides: row_major(&shape),
        shape,
        src_offset: Offset::default(),
        dst_offset: Offset::default(),
        dst_strides: [block, high * members * block, members * block, 1].map(|s| s as i64).to_vec(),
    });
    Lowered::Launches {
        launches: vec![
            Launch { kernel: call, reads: vec![Slot::Operand(0)], writes: vec![Slot::Scratch(0)] },
            Launch { kernel: interleave, reads: vec![Slot::Scratch(0)], writes: vec![Slot::Result(0)] },
        ],
        scratch: vec![(dtype, to.elements())],
    }
});

comm_rules!(ShardSlice, Linear::Together, |op, cx| {
    let to = &cx.results[0];
    let members = cx.mesh.size(op.split.axis);
    let parts = Digit::of(to, op.dim, op.split, cx.mesh);
    let block = parts.low * parts.inner;
    let kernel = Kernel::Move(Move {
        dtype: to.ty.dtype,
        shape: vec![parts.outer, parts.high, block],
        src_offset: Offset { base: 0, terms: vec![(op.split.axis, block as i64)] },
        src_strides: [parts.high * members * block, members * block, 1].map(|s| s as i64).to_vec(),
        dst_offset: Offset::default(),
        dst_strides: [parts.high * block, block, 1].map(|s| s as i64).to_vec(),
    });
    Lowered::launch(kernel, 1, 1)
});

/// A split part of a value seen around the digit of one axis: `[outer, high, (the digit), low, inner]`, where high and low are
/// the local digits of the split dimension above and below it.
struct Digit {
    outer: u64,
    high: u64,
    low: u64,
    inner: u64,
}

impl Digit {
    fn of(part: &Extent, dim: usize, split: Split, mesh: &Mesh) -> Digit {
        let free = free_digits(&part.sharding.dims[dim], part.ty.shape[dim], mesh);
        let low = free.iter().filter(|(weight, _)| *weight < split.stride).map(|(_, n)| n).product();
        Digit {
            outer: part.local[..dim].iter().product(),
            high: part.local[dim] / low,
            low,
            inner: part.local[dim + 1..].iter().product(),
        }
    }

    fn sizes(&self) -> [u64; 4] {
        [self.outer, self.high, self.low, self.inner]
    }
}
