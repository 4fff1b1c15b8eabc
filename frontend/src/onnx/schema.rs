//! Which fields of ONNX's messages hold which messages, as far as it matters to what reads a model's bytes.
//! Source: the ONNX standard's `onnx.proto`.

/// A kind of message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Function,
    Tensor,
    SparseTensor,
    /// The types of values, notes of quantization: what holds no tensors and no graphs.
    Value,
    OpSet,
}

impl Message {
    /// The kind of the message in field `number`, if it holds one.
    pub fn of_field(self, number: u64) -> Option<Message> {
        Some(match (self, number) {
            (Message::Model, 7) | (Message::Attribute, 6 | 11) => Message::Graph,
            (Message::Model, 25) => Message::Function,
            (Message::Graph, 1) | (Message::Function, 7) => Message::Node,
            (Message::Node, 5) | (Message::Function, 11) => Message::Attribute,
            (Message::Graph, 5) | (Message::Attribute, 5 | 10) | (Message::SparseTensor, 1 | 2) => Message::Tensor,
            (Message::Graph, 15) | (Message::Attribute, 22 | 23) => Message::SparseTensor,
            (Message::Graph, 11..=14) => Message::Value,
            (Message::Model, 8 | 14) | (Message::Function, 9 | 14) => Message::OpSet,
            _ => return None,
        })
    }
}
