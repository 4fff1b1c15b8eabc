//! The fields of ONNX's messages, as far as they matter to what reads or edits a model's bytes, and
//! which of them hold messages.
//! Source: the ONNX standard's `onnx.proto`.

/// Fields of `ModelProto`.
pub(in crate::onnx) mod model {
    pub const GRAPH: u64 = 7;
    pub const OPSET_IMPORT: u64 = 8;
    pub const METADATA_PROPS: u64 = 14;
    pub const FUNCTIONS: u64 = 25;
}

/// Fields of `GraphProto`.
pub(in crate::onnx) mod graph {
    pub const NODE: u64 = 1;
    pub const INITIALIZER: u64 = 5;
    pub const INPUT: u64 = 11;
    pub const OUTPUT: u64 = 12;
    pub const VALUE_INFO: u64 = 13;
    pub const QUANTIZATION_ANNOTATION: u64 = 14;
    pub const SPARSE_INITIALIZER: u64 = 15;
}

/// Fields of `NodeProto`.
pub(in crate::onnx) mod node {
    pub const INPUT: u64 = 1;
    pub const ATTRIBUTE: u64 = 5;
}

/// Fields of `AttributeProto`.
pub(in crate::onnx) mod attribute {
    pub const T: u64 = 5;
    pub const G: u64 = 6;
    pub const TENSORS: u64 = 10;
    pub const GRAPHS: u64 = 11;
    pub const SPARSE_TENSOR: u64 = 22;
    pub const SPARSE_TENSORS: u64 = 23;
}

/// Fields of `FunctionProto`.
pub(in crate::onnx) mod function {
    pub const NODE: u64 = 7;
    pub const OPSET_IMPORT: u64 = 9;
    pub const ATTRIBUTE_PROTO: u64 = 11;
    pub const METADATA_PROPS: u64 = 14;
}

/// Fields of `TensorProto`.
pub(in crate::onnx) mod tensor {
    pub const NAME: u64 = 8;
    /// Packed or single elements of each kind.
    pub const TYPED_DATA: [u64; 6] = [4, 5, 6, 7, 10, 11];
    /// All elements as bytes.
    pub const RAW_DATA: u64 = 9;
    /// Entries that name an external file.
    pub const EXTERNAL_DATA: u64 = 13;
    /// Whether the data is external.
    pub const DATA_LOCATION: u64 = 14;
}

/// Fields of `SparseTensorProto`.
pub(in crate::onnx) mod sparse_tensor {
    pub const VALUES: u64 = 1;
    pub const INDICES: u64 = 2;
}

/// Fields of `StringStringEntryProto`.
pub(in crate::onnx) mod entry {
    pub const KEY: u64 = 1;
    pub const VALUE: u64 = 2;
}

/// A kind of message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::onnx) enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Function,
    Tensor,
    SparseTensor,
    /// The types of values, notes of quantization: what holds no tensors and no graphs.
    Value,
    /// An op set or an entry of metadata: two short fields.
    Pair,
}

impl Message {
    /// The kind of the message in field `number`, if it holds one.
    pub fn of_field(self, number: u64) -> Option<Message> {
        Some(match (self, number) {
            (Message::Model, model::GRAPH) | (Message::Attribute, attribute::G | attribute::GRAPHS) => Message::Graph,
            (Message::Model, model::FUNCTIONS) => Message::Function,
            (Message::Graph, graph::NODE) | (Message::Function, function::NODE) => Message::Node,
            (Message::Node, node::ATTRIBUTE) | (Message::Function, function::ATTRIBUTE_PROTO) => Message::Attribute,
            (Message::Graph, graph::INITIALIZER)
            | (Message::Attribute, attribute::T | attribute::TENSORS)
            | (Message::SparseTensor, sparse_tensor::VALUES | sparse_tensor::INDICES) => Message::Tensor,
            (Message::Graph, graph::SPARSE_INITIALIZER)
            | (Message::Attribute, attribute::SPARSE_TENSOR | attribute::SPARSE_TENSORS) => Message::SparseTensor,
            (Message::Graph, graph::INPUT | graph::OUTPUT | graph::VALUE_INFO | graph::QUANTIZATION_ANNOTATION) => Message::Value,
            (Message::Model, model::OPSET_IMPORT | model::METADATA_PROPS)
            | (Message::Function, function::OPSET_IMPORT | function::METADATA_PROPS) => Message::Pair,
            _ => return None,
        })
    }
}
