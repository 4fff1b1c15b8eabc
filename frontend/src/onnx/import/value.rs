//! The values that names of the model stand for.

use shardc_ir::graph::ValueId;
use shardc_ir::types::Tensor;
use std::sync::Arc;

/// The value that a name of the model stands for.
#[derive(Debug, Clone)]
pub(in crate::onnx) enum Value {
    /// A tensor whose elements are known.
    Known(Tensor),
    /// A value of the graph.
    Graph(ValueId),
    /// A list of tensors, which exists in the model only.
    Sequence(Arc<Vec<Value>>),
}

impl Value {
    /// Its elements, if they are known.
    pub fn tensor(&self) -> Option<Tensor> {
        match self {
            Value::Known(tensor) => Some(tensor.clone()),
            _ => None,
        }
    }
}
