//! NCCL: communicators whose ranks are threads of this process, or processes that meet over a
//! socket. Calls of one communicator are matched by their order.

mod calls;
mod comms;
mod hub;
mod line;
mod reduce;
mod server;
mod thread;
mod wire;

pub use calls::{Call, Group};
pub use comms::{Comm, Nccl, State, destroyed, flushed, group_end, has_split, made, unique_id};
pub use line::has_come;
pub use reduce::reduce;
pub use thread::{begin as group_start, is_open as in_group, join as group_join};

use serde::{Deserialize, Serialize};

/// `ncclUnhandledCudaError`
pub const CUDA: u32 = 1;
pub const SYSTEM: u32 = 2;
pub const INTERNAL: u32 = 3;
pub const INVALID_ARGUMENT: u32 = 4;
pub const INVALID_USAGE: u32 = 5;
pub const REMOTE: u32 = 6;
pub const IN_PROGRESS: u32 = 7;

/// A call. Messages name the other rank, and a broadcast its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast(usize),
    Send(usize),
    Recv(usize),
}

/// An element type (`ncclDataType_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of NCCL")]
pub enum Dtype {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    BF16,
}

/// A reduction (`ncclRedOp_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of NCCL")]
pub enum Op {
    Sum,
    Max,
    Min,
}

impl Kind {
    /// The name in reports and in the trace.
    pub fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce",
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::Broadcast(_) => "broadcast",
            Kind::Send(_) => "send",
            Kind::Recv(_) => "recv",
        }
    }

    /// The other rank, or the root.
    pub fn peer(self) -> Option<usize> {
        match self {
            Kind::Broadcast(peer) | Kind::Send(peer) | Kind::Recv(peer) => Some(peer),
            Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter => None,
        }
    }
}

impl Dtype {
    /// The type that NCCL numbers so.
    pub fn of(number: u32) -> Result<Dtype, u32> {
        use Dtype::{BF16, F16, F32, F64, I8, I32, I64, U8, U32, U64};
        let all = [I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16];
        all.get(number as usize).copied().ok_or(INVALID_ARGUMENT)
    }

    /// Bytes of one.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::I8 | Dtype::U8 => 1,
            Dtype::F16 | Dtype::BF16 => 2,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
            Dtype::I64 | Dtype::U64 | Dtype::F64 => 8,
        }
    }
}

impl Op {
    /// The reduction that NCCL numbers so; products and means are not there.
    pub fn of(number: u32) -> Result<Op, u32> {
        match number {
            0 => Ok(Op::Sum),
            2 => Ok(Op::Max),
            3 => Ok(Op::Min),
            _ => Err(INVALID_ARGUMENT),
        }
    }
}
