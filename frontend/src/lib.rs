//! From the files of a job to the IR: ONNX models to graphs, specs to [`shardc_ir::spec::Spec`].

pub mod onnx;
pub mod spec;
