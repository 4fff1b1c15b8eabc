//! The tools that the tests of several crates share, each once: those that draw cases, those that
//! judge them, and those that make them by hand. No crate depends on it outside of its tests.
//!
//! | module | what it has |
//! |---|---|
//! | [`onnx`] | small ONNX models built node by node, and the recorded cases of single ops |
//! | [`gpt`] | GPTs of any size, without weights |
//! | [`random_graphs`], [`random_specs`] | models and their specs, from a list of choices |
//! | [`random`] | numbers that are the same in every run, and the damage that they do to bytes |
//! | [`mod@reference`] | every kernel form as plain loops in f64, which judges the kernels |
//! | [`step`] | one training step of a graph under a spec, compiled, proven and run on CPU ranks |
//! | [`damage`] | damage of texts in C++, which tests should find |
//! | [`parallel`] | independent jobs over all cores |
//! | [`counted`] | the bytes that ranks send and hold, compared with what the plan says |

#![allow(clippy::unwrap_used, reason = "tests may fail")]

pub mod counted;
pub mod damage;
pub mod feed;
pub mod gpt;
pub mod onnx;
pub mod parallel;
pub mod random;
pub mod random_graphs;
pub mod random_specs;
pub mod reference;
pub mod step;
