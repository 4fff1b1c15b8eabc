//! Communication of values that are cut as a line of elements: `flat(dp)` of
//! [`Sharding`](crate::sharding::Sharding).
//!
//! Where the ranges do not divide the line, it is filled up with zeros before it is cut, and what
//! filled it is dropped where ranges are gathered. Source: Rajbhandari et al., ZeRO: Memory
//! Optimizations Toward Training Trillion Parameter Models (2020); Zhao et al., PyTorch FSDP
//! (2023).

use super::comm::comm_rules;
use super::{Backward, Linear, NoGradient, Rules, named};
use crate::kernel::{Collective, CollectiveKind, Fill, Kernel, Move};
use crate::letters::{Letters, Role};
use crate::lower::{Extent, Launch, LowerContext, Lowered, Slot};
use crate::mesh::{AxisId, Mesh};
use crate::position::Offset;
use crate::reason::Reason;
use crate::reduce_kind::ReduceKind;
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// Makes a rank's part whole from the ranges of the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlatGather {
    /// The axes that cut it.
    pub axes: Vec<AxisId>,
    /// Whether it stays whole for the step, and is not gathered by each task that reads it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
}
named!(FlatGather, "flat_gather");

/// Combines partial values over axes and leaves each rank its range of the line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlatScatter {
    /// How they combine.
    pub kind: ReduceKind,
    /// The axes that cut it.
    pub axes: Vec<AxisId>,
}
named!(FlatScatter, "flat_scatter");

/// Keeps each rank's range of the line; no communication.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlatSlice {
    /// The axes that cut it.
    pub axes: Vec<AxisId>,
}
named!(FlatSlice, "flat_slice");

comm_rules!(FlatGather, Linear::Together, |op, cx| {
    let line = Line::of(&cx.results[0], &cx.operands[0], &op.axes, cx.mesh);
    let call = line.call(CollectiveKind::AllGather, ReduceKind::Sum, &op.axes);
    if !line.is_padded() {
        return Lowered::launch(call, 1, 1);
    }
    line.through_scratch(vec![
        launch(call, Slot::Operand(0), Slot::Scratch(0)),
        launch(line.copy(line.elements, Offset::default()), Slot::Scratch(0), Slot::Result(0)),
    ])
});

comm_rules!(FlatScatter, Linear::Together, |op, cx| {
    let line = Line::of(&cx.operands[0], &cx.results[0], &op.axes, cx.mesh);
    let call = line.call(CollectiveKind::ReduceScatter, op.kind, &op.axes);
    if !line.is_padded() {
        return Lowered::launch(call, 1, 1);
    }
    let mut launches = line.fill_up();
    launches.push(launch(call, Slot::Scratch(0), Slot::Result(0)));
    line.through_scratch(launches)
});

comm_rules!(FlatSlice, Linear::Together, |op, cx| {
    let line = Line::of(&cx.operands[0], &cx.results[0], &op.axes, cx.mesh);
    let mut weight = line.range as i64;
    let mut terms = vec![];
    for axis in op.axes.iter().rev() {
        terms.push((*axis, weight));
        weight *= cx.mesh.size(*axis) as i64;
    }
    terms.reverse();
    let cut = line.copy(line.range, Offset { base: 0, terms });
    if !line.is_padded() {
        return Lowered::launch(cut, 1, 1);
    }
    let mut launches = line.fill_up();
    launches.push(launch(cut, Slot::Scratch(0), Slot::Result(0)));
    line.through_scratch(launches)
});

fn launch(kernel: Kernel, read: Slot, write: Slot) -> Launch {
    Launch { kernel, reads: vec![read], writes: vec![write] }
}

/// A rank's part as a line of elements, and the ranges that it is cut into.
struct Line {
    dtype: crate::dtype::DType,
    /// Elements of the line.
    elements: u64,
    /// Elements of a range.
    range: u64,
    /// How many ranges there are.
    ranges: u64,
}

impl Line {
    fn of(whole: &Extent, range: &Extent, axes: &[AxisId], mesh: &Mesh) -> Line {
        let ranges = axes.iter().map(|axis| mesh.size(*axis)).product();
        Line { dtype: whole.ty.dtype, elements: whole.elements(), range: range.elements(), ranges }
    }

    fn is_padded(&self) -> bool {
        self.range * self.ranges != self.elements
    }

    fn call(&self, kind: CollectiveKind, op: ReduceKind, axes: &[AxisId]) -> Kernel {
        Kernel::Collective(Collective { kind, op, axes: axes.to_vec(), dtype: self.dtype, counts: vec![self.range] })
    }

    /// Copies `count` elements from `src_offset` on.
    fn copy(&self, count: u64, src_offset: Offset) -> Kernel {
        Kernel::Move(Move {
            dtype: self.dtype,
            shape: vec![count],
            src_offset,
            src_strides: vec![1],
            dst_offset: Offset::default(),
            dst_strides: vec![1],
        })
    }

    /// Puts the line into scratch, with zeros behind it.
    fn fill_up(&self) -> Vec<Launch> {
        let zero = Kernel::Fill(Fill { dtype: self.dtype, count: self.range * self.ranges, value: 0.0 });
        vec![
            Launch { kernel: zero, reads: vec![], writes: vec![Slot::Scratch(0)] },
            launch(self.copy(self.elements, Offset::default()), Slot::Operand(0), Slot::Scratch(0)),
        ]
    }

    fn through_scratch(&self, launches: Vec<Launch>) -> Lowered {
        Lowered::Launches { launches, scratch: vec![(self.dtype, self.range * self.ranges)] }
    }
}
