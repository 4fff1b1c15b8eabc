//! Plans on GPUs, without one: the executor runs on a software CUDA that does work as late as it
//! may, in an order drawn from a seed, and reports what a GPU would only sometimes show.
//!
//! `SHARDC_GPU=all` takes every model, mesh and seed, else a few of them. `SHARDC_GPU_DEVICE=real`
//! takes the GPU of this machine, as `tests/gpu.sh` does; what damages the software is not for it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod card;
#[path = "../support/kernels/mod.rs"]
mod cases;
mod damage;
mod expected;
mod fake;
mod faults;
#[path = "../support/hosts.rs"]
mod hosts;
#[path = "../support/job.rs"]
mod job;
mod jobs;
mod kernels;
mod mutants;
mod prelude;
mod processes;
mod products;
mod speed;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod trains;
