//! A model file: its bytes, its messages, its tensors and the record of its exporter, and the way
//! of trained weights back into it. Nothing here knows what an op means.

pub(in crate::onnx) mod export;
pub(in crate::onnx) mod external;
pub(in crate::onnx) mod inline;
pub(in crate::onnx) mod intact;
pub(in crate::onnx) mod metadata;
pub(in crate::onnx) mod model_file;
pub(in crate::onnx) mod namesakes;
pub(in crate::onnx) mod node;
pub(in crate::onnx) mod numbers;
pub(in crate::onnx) mod order;
pub(in crate::onnx) mod record;
pub(in crate::onnx) mod schema;
pub(in crate::onnx) mod scope;
pub(in crate::onnx) mod tensor;
pub(in crate::onnx) mod weigh;
pub(in crate::onnx) mod wire;
