//! What a stream can be given to do.

use crate::kernel::Launch;
use crate::matmul::Call as Product;
use crate::nccl::Group;
use std::sync::Arc;

/// An operation.
#[derive(Debug, Clone)]
pub enum Work {
    /// What came before on this stream has happened.
    Record(u64),
    /// Waits for that.
    Wait(u64),
    /// Copies bytes.
    Copy { to: End, from: End, bytes: u64 },
    /// Fills bytes.
    Set { to: u64, value: u8, bytes: u64 },
    /// A kernel.
    Kernel(Arc<Launch>),
    /// A product of matrices.
    Product(Arc<Product>),
    /// Calls of communicators that go together.
    Nccl(Group),
}

/// One end of a copy.
#[derive(Debug, Clone)]
pub enum End {
    /// Memory of the device.
    Device(u64),
    /// Pinned memory of the host, read or written when the copy happens.
    Pinned(u64),
    /// Memory of the host whose call waits for the copy.
    Waiting(u64),
    /// What was taken from the host when the copy was asked for.
    Taken(Arc<Vec<u8>>),
}

impl Work {
    /// Whether it is calls of NCCL, one of them of that communicator.
    pub fn is_call_of(&self, comm: u64) -> bool {
        matches!(self, Work::Nccl(group) if group.calls.iter().any(|call| call.comm == comm))
    }

    /// Its name in reports.
    pub fn name(&self) -> String {
        match self {
            Work::Record(_) => "an event".into(),
            Work::Wait(_) => "a wait".into(),
            Work::Copy { from: End::Device(_), to: End::Device(_), .. } => "a copy on the device".into(),
            Work::Copy { from: End::Device(_), .. } => "a copy to the host".into(),
            Work::Copy { .. } => "a copy to the device".into(),
            Work::Set { .. } => "a memset".into(),
            Work::Kernel(launch) => format!("kernel {}", launch.entry.name),
            Work::Product(_) => "a product of cuBLASLt".into(),
            Work::Nccl(group) => group.name(),
        }
    }
}
