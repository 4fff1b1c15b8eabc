//! How much memory the messages of a model take once they are decoded, before they are: empty ones cost hundreds of times their bytes.

use super::wire::{self, Field};
use std::mem::size_of;
use tract_onnx::pb;

/// What any model may take.
const FREE: u64 = 64 << 20;
/// What each of its bytes adds.
const PER_BYTE: u64 = 20;

/// A kind of message whose parts are messages, as far as it matters here.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Function,
    /// Its fields are listed.
    Tensor,
    /// One whose parts are small.
    Other(usize),
}

impl Kind {
    /// The kind of the message in field `number`, if it is one.
    fn of_part(self, number: u64) -> Option<Kind> {
        let part = match (self, number) {
            (Kind::Model, 7) | (Kind::Attribute, 6 | 11) => Kind::Graph,
            (Kind::Model, 25) => Kind::Function,
            (Kind::Graph, 1) | (Kind::Function, 7) => Kind::Node,
            (Kind::Node, 5) | (Kind::Function, 11) => Kind::Attribute,
            (Kind::Graph, 5) | (Kind::Attribute, 5 | 10) => Kind::Tensor,
            (Kind::Graph, 11..=13) => Kind::Other(size_of::<pb::ValueInfoProto>()),
            (Kind::Graph, 14 | 15) | (Kind::Attribute, 22 | 23) => Kind::Other(size_of::<pb::SparseTensorProto>()),
            (Kind::Model | Kind::Function, 8 | 9 | 14) => Kind::Other(size_of::<pb::OperatorSetIdProto>()),
            _ => return None,
        };
        Some(part)
    }

    fn bytes(self) -> usize {
        match self {
            Kind::Model => size_of::<pb::ModelProto>(),
            Kind::Graph => size_of::<pb::GraphProto>(),
            Kind::Node => size_of::<pb::NodeProto>(),
            Kind::Attribute => size_of::<pb::AttributeProto>(),
            Kind::Function => size_of::<pb::FunctionProto>(),
            Kind::Tensor => size_of::<pb::TensorProto>(),
            Kind::Other(bytes) => bytes,
        }
    }
}

/// Refuses the model in `bytes` if its messages take much more memory than its bytes.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let limit = (bytes.len() as u64).saturating_mul(PER_BYTE).saturating_add(FREE);
    let (mut total, mut open) = (0, vec![(Kind::Model, 0..bytes.len())]);
    while let Some((kind, range)) = open.pop() {
        for field in wire::walk(bytes, range) {
            let Field { number, body, delimited, .. } = field?;
            let part = kind.of_part(number).filter(|_| delimited);
            total += if kind == Kind::Tensor { size_of::<Field>() } else { part.map_or(0, Kind::bytes) } as u64;
            if total > limit {
                return Err(format!("its messages are so many and so small that they take more than {} MiB", limit >> 20));
            }
            if let Some(part) = part.filter(|part| !matches!(part, Kind::Other(_))) {
                open.push((part, body));
            }
        }
    }
    Ok(())
}
