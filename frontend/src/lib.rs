//! From the files of a job to the IR: ONNX models to graphs, specs to [`shardc_ir::spec::Spec`].
//!
//! | what | where |
//! |---|---|
//! | a spec: its statements, its errors, all at once | [`mod@spec`] |
//! | what is remembered of a model's initializers | [`initializers`] |
//! | a model: its bytes, what is trained, its graph, its export | [`onnx`] (feature `onnx`) |
//!
//! A spec, read; its mistakes are told together, each with its place:
//!
//! ```
//! use shardc_frontend::spec::parse;
//! use std::path::Path;
//!
//! let text = "mesh dp=2\nbatch 8\ndata axis=dp\nloss mse labels=t\noptimizer sgd lr=0.1\n";
//! let spec = parse(Path::new("job.shard"), text).unwrap();
//! assert_eq!(spec.mesh().world_size(), 2);
//!
//! let errors = parse(Path::new("job.shard"), "mesh dp=0\nbatch many\n").unwrap_err();
//! assert_eq!(errors.len(), 2);
//! ```

pub mod initializers;
#[cfg(feature = "onnx")]
pub mod onnx;
pub mod spec;
