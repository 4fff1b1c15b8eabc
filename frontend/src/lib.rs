//! Placeholder.
pub mod onnx;
