//! Collective: one call of a communicator.

use super::form::{Form, Position};
use super::signature::{Signature, product};
use crate::dtype::DType;
use crate::mesh::{AxisId, Mesh};
use crate::reason::Reason;
use crate::reduce_kind::ReduceKind;
use serde::{Deserialize, Serialize};

/// One call of a communicator. Operands: source, then destination (the same memory for an
/// all-reduce).
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

/// What one collective does. Roots do not appear: every collective here is symmetric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveKind {
    /// Every member ends with the combination of all, in place: `count` elements in and out.
    AllReduce,
    /// Every member ends with all members' `count` elements, in the order of the group: `count` in,
    /// `count * group` out.
    AllGather,
    /// Every member ends with its part of the combination: `count * group` in, `count` out.
    ReduceScatter,
    /// Member `i` sends its part `j` to member `j`: `count * group` in and out, `count` to each.
    AllToAll,
}

impl Collective {
    /// Elements of the source and of the destination on each of `members`.
    ///
    /// # Errors
    /// If memory could not hold them.
    pub fn operands(&self, members: u64) -> Result<(u64, u64), Reason> {
        let all = product(&[members, self.count])?;
        Ok(match self.kind {
            CollectiveKind::AllReduce => (self.count, self.count),
            CollectiveKind::AllGather => (self.count, all),
            CollectiveKind::ReduceScatter => (all, self.count),
            CollectiveKind::AllToAll => (all, all),
        })
    }

    /// Bytes that each of `members` sends: the closed forms of the ring algorithms, the lower
    /// bounds for bandwidth. Source: Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms
    /// (2009).
    pub fn bytes_sent(&self, members: u64) -> u64 {
        let (bytes, members) = (u128::from(self.count) * u128::from(self.dtype.bytes()), u128::from(members));
        let sent = match self.kind {
            CollectiveKind::AllReduce => 2 * (members - 1) * bytes / members,
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => (members - 1) * bytes,
        };
        u64::try_from(sent).unwrap_or(u64::MAX)
    }
}

impl Form for Collective {
    fn name(&self) -> &'static str {
        "collective"
    }

    fn signature(&self, mesh: &Mesh) -> Result<Signature, Reason> {
        let axes = &self.axes;
        if axes.iter().any(|axis| axis.index() >= mesh.rank_axes().len()) {
            return Err("it names an axis that the mesh does not have".into());
        }
        if axes.is_empty() || (1..axes.len()).any(|i| axes[..i].contains(&axes[i])) {
            return Err("its group is no product of axes".into());
        }
        let (source, destination) = self.operands(axes.iter().map(|axis| mesh.size(*axis)).product())?;
        Ok(Signature::default().reads(self.dtype, source).writes(self.dtype, destination))
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        self.kind == CollectiveKind::AllReduce
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        vec![&mut self.count]
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        vec![]
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        vec![]
    }
}
