//! The library: compiles a model and a spec to plans, and trains them. The command line is a layer
//! on it.
//!
//! | what | where |
//! |---|---|
//! | a job: opened, started, exported | [`job`], [`Job`] |
//! | its training: steps, validation, checkpoints | [`training`] |
//! | what it computes on | [`machine`], [`Machine`] |
//! | compile a job, or watch the passes at it | [`compile()`], [`trace`] |
//! | from the model's file to the graph that the spec asks for | [`import`] |
//! | the graphs against what they were made from | [`certify`], [`certificate`] |
//! | the loss and more over data, with programs that run | [`evaluation`] |
//! | the best validation so far, and when to stop | [`early_stopping`] |
//! | event files of TensorBoard | [`tensorboard`] |
//! | the proof of plans, and its words | [`proof`] |
//! | what fits a device where a job does not | [`fitting`] |
//! | checkpoints: written, read, under another mesh | [`checkpoint`] |
//! | plan directories: written, read, replaced as one | [`plan_dir`], [`replace`] |
//! | two plans beside each other | [`difference`] |
//! | this machine as a cluster, measured | [`calibration`] |
//! | the best way to spread a job over ranks | [`search`] |
//! | how long a plan takes on a cluster | [`simulation`] |
//! | why a tensor lies as it does | [`explanation`] |
//! | errors, and how they are printed | [`error`], [`report`] |
//! | the texts of CUDA kernels, and what NVRTC makes of them | [`cuda`] |
//! | the commands | [`cli`] |
//!
//! Two features are there by default. `cli` is the command line, with what the program `shardc`
//! needs beside the library. `onnx` reads and writes models; without it a job is a plan directory,
//! which is trained, evaluated and saved all the same, and the library builds without protobuf.

#[cfg(feature = "onnx")]
mod beside;
#[cfg(feature = "onnx")]
pub mod calibration;
pub mod certificate;
#[cfg(feature = "onnx")]
pub mod certify;
pub mod checkpoint;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "onnx")]
mod compile;
pub mod cuda;
pub mod difference;
pub mod early_stopping;
pub mod error;
pub mod evaluation;
pub mod explanation;
#[cfg(feature = "onnx")]
pub mod fitting;
mod graphs;
#[cfg(feature = "onnx")]
pub mod import;
pub mod job;
pub mod machine;
pub mod plan_dir;
pub mod proof;
pub mod replace;
#[cfg(feature = "cli")]
pub mod report;
#[cfg(feature = "onnx")]
pub mod search;
pub mod simulation;
pub mod tensorboard;
#[cfg(feature = "onnx")]
mod timing;
pub mod training;

#[cfg(feature = "onnx")]
pub use compile::{Compiled, Graphs, Options, compile, derive, trace};
pub use error::Error;
pub use graphs::EvaluationFacts;
pub use job::Job;
pub use machine::Machine;
