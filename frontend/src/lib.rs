//! From the files of a job to the IR: ONNX models to graphs, specs to [`shardc_ir::spec::Spec`].

#[cfg(feature = "onnx")]
pub mod onnx;
pub mod spec;
