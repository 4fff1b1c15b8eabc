//! The fields of ONNX's messages, as far as they matter to what reads or edits a model's bytes, and
//! which of them hold messages.
//! Source: the ONNX standard's `onnx.proto`.

/// Fields of `ModelProto`.
pub(in crate::onnx) mod model {
    pub const GRAPH: u64 = 7;
    pub const OPSET_IMPORT: u64 = 8;
    pub const METADATA_PROPS: u64 = 14;
    pub const TRAINING_INFO: u64 = 20;
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
    pub const OUTPUT: u64 = 2;
    pub const ATTRIBUTE: u64 = 5;
}

/// Fields of `AttributeProto`.
pub(in crate::onnx) mod attribute {
    pub const T: u64 = 5;
    pub const G: u64 = 6;
    pub const TENSORS: u64 = 10;
    pub const GRAPHS: u64 = 11;
    pub const TYPE_PROTOS: u64 = 15;
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

/// Fields of `TrainingInfoProto`.
mod training {
    pub const INITIALIZATION: u64 = 1;
    pub const ALGORITHM: u64 = 2;
    pub const INITIALIZATION_BINDING: u64 = 3;
    pub const UPDATE_BINDING: u64 = 4;
}

/// Fields of `ValueInfoProto`, `TensorAnnotation`, `TypeProto`, `TypeProto.Tensor` and
/// `TensorShapeProto`.
mod value {
    pub const TYPE: u64 = 2;
    pub const QUANT_PARAMETER_TENSOR_NAMES: u64 = 2;
    pub const TENSOR_TYPE: u64 = 1;
    pub const SHAPE: u64 = 2;
    pub const DIM: u64 = 1;
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
    /// A training that nothing is read of.
    Training,
    /// A value's name and type.
    Value,
    Type,
    TensorType,
    Shape,
    Dimension,
    /// A note of quantization.
    Annotation,
    /// An op set or an entry of metadata: two short fields.
    Pair,
}

impl Message {
    /// The kind of the message in field `number`, if it holds one.
    pub fn of_field(self, number: u64) -> Option<Message> {
        Some(match (self, number) {
            (Message::Model, model::GRAPH)
            | (Message::Attribute, attribute::G | attribute::GRAPHS)
            | (Message::Training, training::INITIALIZATION | training::ALGORITHM) => Message::Graph,
            (Message::Model, model::TRAINING_INFO) => Message::Training,
            (Message::Model, model::FUNCTIONS) => Message::Function,
            (Message::Graph, graph::NODE) | (Message::Function, function::NODE) => Message::Node,
            (Message::Node, node::ATTRIBUTE) | (Message::Function, function::ATTRIBUTE_PROTO) => Message::Attribute,
            (Message::Graph, graph::INITIALIZER)
            | (Message::Attribute, attribute::T | attribute::TENSORS)
            | (Message::SparseTensor, sparse_tensor::VALUES | sparse_tensor::INDICES) => Message::Tensor,
            (Message::Graph, graph::SPARSE_INITIALIZER)
            | (Message::Attribute, attribute::SPARSE_TENSOR | attribute::SPARSE_TENSORS) => Message::SparseTensor,
            (Message::Graph, graph::INPUT | graph::OUTPUT | graph::VALUE_INFO) => Message::Value,
            (Message::Graph, graph::QUANTIZATION_ANNOTATION) => Message::Annotation,
            (Message::Value, value::TYPE) | (Message::Attribute, attribute::TYPE_PROTOS) => Message::Type,
            (Message::Type, value::TENSOR_TYPE) => Message::TensorType,
            (Message::TensorType, value::SHAPE) => Message::Shape,
            (Message::Shape, value::DIM) => Message::Dimension,
            (Message::Model, model::OPSET_IMPORT | model::METADATA_PROPS)
            | (Message::Annotation, value::QUANT_PARAMETER_TENSOR_NAMES)
            | (Message::Training, training::INITIALIZATION_BINDING | training::UPDATE_BINDING)
            | (Message::Function, function::OPSET_IMPORT | function::METADATA_PROPS) => Message::Pair,
            _ => return None,
        })
    }

    /// Whether field `number` of the message is one value or a packed list, and no list of strings
    /// or messages.
    pub fn is_single(self, number: u64) -> bool {
        let single: &[u64] = match self {
            Message::Model => &[2, 3, 4, 6, 7],
            Message::Graph => &[2, 10],
            Message::Node => &[3, 4, 6, 7, 8],
            Message::Attribute => &[1, 4, 5, 6, 7, 8, 13, 21, 22],
            Message::Function => &[1, 8, 10, 13],
            Message::Tensor => &[1, 3, 4, 5, 7, 8, 9, 10, 11, 12],
            Message::SparseTensor | Message::Value => &[1, 2, 3],
            Message::Training | Message::Pair => &[1, 2],
            Message::Type => &[1, 6],
            Message::TensorType => &[2],
            Message::Shape => &[],
            Message::Dimension => &[2, 3],
            Message::Annotation => &[1],
        };
        single.contains(&number)
    }
}
