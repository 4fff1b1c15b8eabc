//! Communication: what a reshard becomes. Operand and result are the same value under different
//! shardings.

use super::{Backward, Linear, NoGradient, Rules, named};
use crate::kernel::signature::row_major;
use crate::kernel::{self, Collective, CollectiveKind, Kernel, MapInput, Move};
use crate::letters::{Letters, Role};
use crate::lower::{Extent, Launch, LowerContext, Lowered, Slot};
use crate::mesh::{AxisId, Mesh};
use crate::position::Offset;
use crate::reason::Reason;
use crate::reduce_kind::ReduceKind;
use crate::scalar::{Binary, ProgramWriter};
use crate::sharding::{Split, free_digits, inserted};
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// The same value under another sharding; lowered to the ops below.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Reshard {
    /// Whether what it gathers stays whole for the step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
}
named!(Reshard, "reshard");

/// Combines the parts of all micro-batches, in their order, into one value that is read after the
/// last.
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

/// Combines partial values over one axis and leaves each rank its part of dimension `dim`: an
/// all-reduce and a slice at half the price.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReduceScatter {
    /// How they combine.
    pub kind: ReduceKind,
    /// The dimension.
    pub dim: usize,
    /// The axis and its digit.
    pub split: Split,
}
named!(ReduceScatter, "reduce_scatter");

/// Moves an axis from one digit to another: a gather and a slice at the price of one part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AllToAll {
    /// The dimension that becomes whole.
    pub dim: usize,
    /// The axis and its digit there.
    pub split: Split,
    /// The dimension that is split.
    pub to_dim: usize,
    /// The axis and its digit there.
    pub to_split: Split,
}
named!(AllToAll, "all_to_all");

/// Keeps each rank's part of dimension `dim` over one axis; no communication.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardSlice {
    /// The dimension.
    pub dim: usize,
    /// The axis and its digit.
    pub split: Split,
}
named!(ShardSlice, "shard_slice");

/// Sends a value from one position of an axis to others: ranks whose other coordinates are equal
/// hold the same part of it. It is then held at `to`, which may name `from` too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// The axis.
    pub axis: AxisId,
    /// The position that sends.
    pub from: u64,
    /// The positions that have it afterwards, ascending.
    pub to: Vec<u64>,
}
named!(Transfer, "transfer");

macro_rules! comm_rules {
    ($ty:ty, $linear:expr, $lower:expr) => {
        impl Rules for $ty {
            fn result(&self, operands: &[Type]) -> Result<Vec<Type>, Reason> {
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
            fn linear(&self, _: &[Type]) -> Linear {
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

pub(super) use comm_rules;

comm_rules!(Reshard, Linear::Together, |_, _| Lowered::Alias(0));

// Ranks that receive it find it in a buffer that a message fills.
comm_rules!(Transfer, Linear::Together, |_, _| Lowered::Leaf);

comm_rules!(Accumulate, Linear::Together, |op, cx| {
    let dtype = cx.results[0].ty.dtype;
    let count = cx.results[0].elements();
    let f = combine(op.kind);
    let mut program = ProgramWriter::program(2, |w, x| vec![w.binary(f, x[0], x[1])]);
    program.round(&[dtype.rounding()]);
    let map = kernel::Map {
        compute: dtype.computed(),
        shape: vec![count],
        inputs: vec![MapInput { dtype, strides: vec![1] }; 2],
        program,
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
    let call = Collective { kind: CollectiveKind::AllReduce, op: op.kind, axes: op.axes.clone(), dtype, counts: vec![count] };
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
        counts: vec![count],
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

comm_rules!(ReduceScatter, Linear::Together, |op, cx| {
    let to = &cx.results[0];
    let (dtype, count, members) = (to.ty.dtype, to.elements(), cx.mesh.size(op.split.axis));
    let call = Kernel::Collective(Collective {
        kind: CollectiveKind::ReduceScatter,
        op: op.kind,
        axes: vec![op.split.axis],
        dtype,
        counts: vec![count],
    });
    let parts = Digit::of(to, op.dim, op.split, cx.mesh);
    let [outer, high, low, inner] = parts.sizes();
    if outer * high == 1 {
        return Lowered::launch(call, 1, 1);
    }
    let block = low * inner;
    let separate = Kernel::Move(Move {
        dtype,
        shape: vec![members, outer, high, block],
        src_offset: Offset::default(),
        src_strides: [block, high * members * block, members * block, 1].map(|s| s as i64).to_vec(),
        dst_offset: Offset::default(),
        dst_strides: row_major(&[members, outer, high, block]),
    });
    Lowered::Launches {
        launches: vec![
            Launch { kernel: separate, reads: vec![Slot::Operand(0)], writes: vec![Slot::Scratch(0)] },
            Launch { kernel: call, reads: vec![Slot::Scratch(0)], writes: vec![Slot::Result(0)] },
        ],
        scratch: vec![(dtype, count * members)],
    }
});

comm_rules!(AllToAll, Linear::Together, |op, cx| {
    let (from, to) = (&cx.operands[0], &cx.results[0]);
    let (dtype, elements, members) = (from.ty.dtype, from.elements(), cx.mesh.size(op.split.axis));
    let sent = Digits::of(from, op.to_dim, op.to_split, cx.mesh);
    let received = Digits::of(to, op.dim, op.split, cx.mesh);
    let packed = row_major(&sent.sizes);
    let copy = |src_strides: &[i64], dst_strides: &[i64]| {
        Kernel::Move(Move {
            dtype,
            shape: sent.sizes.clone(),
            src_offset: Offset::default(),
            src_strides: src_strides.to_vec(),
            dst_offset: Offset::default(),
            dst_strides: dst_strides.to_vec(),
        })
    };
    let call = Kernel::Collective(Collective {
        kind: CollectiveKind::AllToAll,
        op: ReduceKind::Sum,
        axes: vec![op.split.axis],
        dtype,
        counts: vec![elements / members],
    });
    let launch = |kernel, read, write| Launch { kernel, reads: vec![read], writes: vec![write] };
    Lowered::Launches {
        launches: vec![
            launch(copy(&sent.strides, &packed), Slot::Operand(0), Slot::Scratch(0)),
            launch(call, Slot::Scratch(0), Slot::Scratch(1)),
            launch(copy(&packed, &received.strides), Slot::Scratch(1), Slot::Result(0)),
        ],
        scratch: vec![(dtype, elements), (dtype, elements)],
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

/// A part of a value as a tensor of digits, that of the members of a group first, then the others
/// in the order of dimensions and weights. Digits are as fine as both sides of an exchange need, so
/// that the two sides differ in strides only.
struct Digits {
    sizes: Vec<u64>,
    strides: Vec<i64>,
}

impl Digits {
    /// Of `part`, which holds all values of the digit `split` of dimension `dim`, and one value of
    /// a digit of the same axis elsewhere.
    fn of(part: &Extent, dim: usize, split: Split, mesh: &Mesh) -> Digits {
        let mut digits: Vec<(u64, bool)> = vec![];
        for (d, splits) in part.sharding.dims.iter().enumerate() {
            let size = part.ty.shape[d];
            if d != dim {
                digits.extend(free_digits(splits, size, mesh).into_iter().map(|(_, n)| (n, false)));
                continue;
            }
            let mut here: Vec<(u64, u64, bool)> =
                free_digits(&inserted(splits, split), size, mesh).into_iter().map(|(weight, n)| (weight, n, false)).collect();
            here.push((split.stride, mesh.size(split.axis), true));
            here.sort_by_key(|(weight, ..)| std::cmp::Reverse(*weight));
            digits.extend(here.into_iter().map(|(_, n, exchanged)| (n, exchanged)));
        }
        let strides = row_major(&digits.iter().map(|(n, _)| *n).collect::<Vec<_>>());
        let mut order: Vec<usize> = (0..digits.len()).collect();
        order.sort_by_key(|i| !digits[*i].1);
        Digits { sizes: order.iter().map(|i| digits[*i].0).collect(), strides: order.iter().map(|i| strides[*i]).collect() }
    }
}

/// A split part of a value seen around the digit of one axis:
/// `[outer, high, (the digit), low, inner]`, where high and low are the local digits of the split
/// dimension above and below it.
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
