//! Plans on GPUs, without one: the executor runs on a software CUDA that does work as late as it
//! may, in an order drawn from a seed, and reports what a GPU would only sometimes show.
//!
//! `SHARDC_GPU=all` takes every model, mesh and seed (`tests/gpu.sh`), else a few of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod damage;
mod fake;
mod faults;
#[path = "../support/job.rs"]
mod job;
mod jobs;
mod mutants;
mod processes;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod trains;
