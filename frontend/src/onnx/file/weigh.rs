//! How much memory the messages of a model take once they are decoded, before they are: empty ones
//! cost hundreds of times their bytes.

use crate::onnx::file::schema::{self, Message};
use crate::onnx::file::wire::{self, Field};
use prost::Message as _;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;
use std::mem::size_of;
use tract_onnx::pb;

/// The bytes that any model may take.
const FREE: u64 = 64 << 20;
/// The bytes that each byte of a model adds to that.
const PER_BYTE: u64 = 20;

/// Lists begin with room for one element of more bytes, and for four of fewer.
const LARGE: usize = 1024;

/// The least that anything takes of the heap.
const BLOCK: u64 = 16;

/// What is noted of a node beside it (its source, its module path), of a value and of a tensor.
const NOTED: u64 = 128;

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
        Message::Training => size_of::<pb::TrainingInfoProto>(),
        Message::Type => size_of::<pb::TypeProto>(),
        Message::TensorType => size_of::<pb::type_proto::Tensor>(),
        Message::Shape => size_of::<pb::TensorShapeProto>(),
        Message::Dimension => size_of::<pb::tensor_shape_proto::Dimension>(),
        Message::Annotation => size_of::<pb::TensorAnnotation>(),
        Message::Pair => size_of::<pb::StringStringEntryProto>(),
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

/// The bytes that an element of the list in field `number` of `message` takes; `part` is the kind
/// of the message in it.
fn element(message: Message, number: u64, part: Option<Message>) -> usize {
    match (message, number) {
        (Message::Node, schema::node::INPUT | schema::node::OUTPUT) => size_of::<String>(),
        // What nothing is known of is strings, or entries of metadata.
        _ => size(part.unwrap_or(Message::Pair)),
    }
}

/// A list: how many elements it has, and for how many it has room.
#[derive(Default)]
struct List {
    elements: u64,
    room: u64,
}

/// What has been weighed so far, in bytes.
#[derive(Default)]
struct Weight {
    /// What stays.
    held: u64,
    /// The most that a list held once more while it grew.
    moved: u64,
}

impl Weight {
    /// Adds an element of `size` bytes to a list. Room doubles, from four elements on that are not
    /// large, as it does in the lists of Rust.
    fn add(&mut self, list: &mut List, size: usize) {
        list.elements += 1;
        if list.elements <= list.room {
            return;
        }
        let (before, least) = (list.room, if size > LARGE { 1 } else { 4 });
        list.room = (2 * before).max(least);
        self.held += (list.room - before) * size as u64;
        self.moved = self.moved.max(before * size as u64);
    }
}

/// Refuses the model in `bytes` if its messages take much more memory than its bytes.
pub(in crate::onnx) fn check(bytes: &[u8]) -> Result<(), Reason> {
    let limit = limit(bytes.len());
    let (mut weight, mut open) = (Weight::default(), vec![(Message::Model, 0..bytes.len())]);
    while let Some((message, range)) = open.pop() {
        let (mut lists, mut fields) = (BTreeMap::<u64, List>::new(), List::default());
        for field in wire::walk(bytes, range) {
            let field = field?;
            let part = message.of_field(field.number).filter(|_| field.delimited);
            if message == Message::Tensor {
                weight.add(&mut fields, size_of::<Field>());
            }
            weight.held += match part {
                Some(Message::Node | Message::Tensor | Message::Value) => NOTED,
                // What has bytes at all takes a block of the heap.
                None if field.delimited && !field.body.is_empty() => BLOCK,
                _ => 0,
            };
            let list = lists.entry(field.number).or_default();
            match part {
                Some(part) if message.is_single(field.number) => {
                    // The first stands in its message, and others are joined to it.
                    weight.held += if list.elements > 0 { size(part) as u64 } else { 0 };
                    list.elements += 1;
                }
                _ if field.delimited && !message.is_single(field.number) => {
                    weight.add(list, element(message, field.number, part));
                }
                _ => {}
            }
            if weight.held + weight.moved > limit {
                return Err(reason!("its messages are so many and so small that they take more than {} MiB", limit >> 20));
            }
            if let Some(part) = part {
                open.push((part, field.body));
            }
        }
    }
    Ok(())
}
