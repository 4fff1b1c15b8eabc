//! Collective: one call of a communicator.

use super::form::{Form, Position};
use super::signature::{Signature, product};
use crate::dtype::DType;
use crate::mesh::{AxisId, Mesh};
use crate::reason::Reason;
use crate::reduce_kind::ReduceKind;
use serde::{Deserialize, Serialize};

/// One call of a communicator over one or several operands: of each a source, read, and a
/// destination, written (the same memory for an all-reduce).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collective {
    /// The kind of collective.
    pub kind: CollectiveKind,
    /// How elements combine; `Sum` where nothing does.
    pub op: ReduceKind,
    /// The axes of the group, in the order of its members.
    pub axes: Vec<AxisId>,
    /// The element type.
    pub dtype: DType,
    /// Elements of each operand, as the kind counts them.
    pub counts: Vec<u64>,
}

/// The kind of a collective. Roots do not appear: every collective here is symmetric.
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

/// What a rank sends with: one of the collectives, or messages to single ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "those of collectives are documented there")]
pub enum CommunicationKind {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    /// A message to one rank.
    Send,
}

impl CommunicationKind {
    /// The name in listings: `all_reduce`.
    pub fn name(self) -> &'static str {
        match self {
            CommunicationKind::AllReduce => "all_reduce",
            CommunicationKind::AllGather => "all_gather",
            CommunicationKind::ReduceScatter => "reduce_scatter",
            CommunicationKind::AllToAll => "all_to_all",
            CommunicationKind::Send => "send",
        }
    }
}

impl From<CollectiveKind> for CommunicationKind {
    fn from(kind: CollectiveKind) -> CommunicationKind {
        match kind {
            CollectiveKind::AllReduce => CommunicationKind::AllReduce,
            CollectiveKind::AllGather => CommunicationKind::AllGather,
            CollectiveKind::ReduceScatter => CommunicationKind::ReduceScatter,
            CollectiveKind::AllToAll => CommunicationKind::AllToAll,
        }
    }
}

impl Collective {
    /// Elements of each source and its destination on each of `members`.
    ///
    /// # Errors
    /// If memory could not hold them.
    pub fn operands(&self, members: u64) -> Result<Vec<(u64, u64)>, Reason> {
        let of = |count: &u64| {
            let (one, all) = (*count, product(&[members, *count])?);
            Ok(match self.kind {
                CollectiveKind::AllReduce => (one, one),
                CollectiveKind::AllGather => (one, all),
                CollectiveKind::ReduceScatter => (all, one),
                CollectiveKind::AllToAll => (all, all),
            })
        };
        self.counts.iter().map(of).collect()
    }

    /// Elements of all operands together, as the kind counts them.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Bytes that each of `members` sends: the closed forms of the ring algorithms, the lower
    /// bounds for bandwidth. Source: Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms
    /// (2009).
    pub fn bytes_sent(&self, members: u64) -> u64 {
        let (bytes, members) = (u128::from(self.count()) * u128::from(self.dtype.bytes()), u128::from(members));
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
        if self.counts.is_empty() {
            return Err("it has no operands".into());
        }
        let operands = self.operands(axes.iter().map(|axis| mesh.size(*axis)).product())?;
        let add = |signature: Signature, (source, destination): (u64, u64)| {
            signature.reads(self.dtype, source).writes(self.dtype, destination)
        };
        Ok(operands.into_iter().fold(Signature::default(), add))
    }

    fn in_place(&self, read: usize, write: usize) -> bool {
        self.kind == CollectiveKind::AllReduce && read == write
    }

    fn flops(&self) -> u64 {
        0
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        vec![]
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        self.counts.iter_mut().collect()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        vec![]
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        vec![]
    }

    fn everyday() -> Vec<(String, Self)> {
        vec![]
    }
}
