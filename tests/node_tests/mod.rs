//! A node test of the `onnx` package, and how it is run.

pub mod case;
pub mod evaluate;
