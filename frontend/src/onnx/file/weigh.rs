//! How much memory the messages of a model take once they are decoded, before they are: empty ones
//! cost hundreds of times their bytes.

use crate::onnx::file::schema::Message;
use crate::onnx::file::wire::{self, Field};
use prost::Message as _;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::mem::size_of;
use tract_onnx::pb;

/// The bytes that any model may take.
const FREE: u64 = 64 << 20;
/// The bytes that each byte of a model adds to that.
const PER_BYTE: u64 = 20;

/// A list that grows holds its elements twice for a moment.
const GROWTH: u64 = 2;

/// The bytes that a message takes when it is decoded, without the messages in it.
fn size(message: Message) -> usize {
    match message {
        Message::Model => size_of::<pb::ModelProto>(),
        Message::Graph => size_of::<pb::GraphProto>(),
        Message::Node => size_of::<pb::NodeProto>(),
        Message::Attribute => size_of::<pb::AttributeProto>(),
        Message::Function => size_of::<pb::FunctionProto>(),
        Message::Tensor => size_of::<pb::TensorProto>(),
        Message::SparseTensor => size_of::<pb::SparseTensorProto>(),
        Message::Value => size_of::<pb::ValueInfoProto>(),
        Message::Pair => size_of::<pb::OperatorSetIdProto>(),
    }
}

/// The bytes that what is made of a model of so many bytes may take.
pub(in crate::onnx) fn limit(bytes: usize) -> u64 {
    (bytes as u64).saturating_mul(PER_BYTE).saturating_add(FREE)
}

/// That functions and branches come to more than [`limit`].
pub(in crate::onnx) fn too_much_made() -> Reason {
    reason!("functions and branches make more than {PER_BYTE} times the bytes of the model and {} MiB", FREE >> 20)
}

/// The bytes that a node takes, about.
pub(in crate::onnx) fn node(node: &pb::NodeProto) -> u64 {
    let attributes = node.attribute.len() * size_of::<pb::AttributeProto>();
    let names = (node.input.len() + node.output.len()) * size_of::<String>();
    (size_of::<pb::NodeProto>() + attributes + names + node.encoded_len()) as u64
}

/// Refuses the model in `bytes` if its messages take much more memory than its bytes.
pub(in crate::onnx) fn check(bytes: &[u8]) -> Result<(), Reason> {
    let limit = limit(bytes.len());
    let (mut total, mut open) = (0, vec![(Message::Model, 0..bytes.len())]);
    while let Some((message, range)) = open.pop() {
        for field in wire::walk(bytes, range) {
            let field = field?;
            let part = message.of_field(field.number).filter(|_| field.delimited);
            // The fields of tensors are listed.
            let listed = if message == Message::Tensor { size_of::<Field>() } else { 0 };
            let held = match part {
                Some(part) => size(part),
                None if field.delimited => size_of::<String>(),
                None => 0,
            };
            total += (listed + held) as u64 * GROWTH;
            if total > limit {
                return Err(reason!("its messages are so many and so small that they take more than {} MiB", limit >> 20));
            }
            if let Some(part) = part {
                open.push((part, field.body));
            }
        }
    }
    Ok(())
}
