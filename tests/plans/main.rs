//! Plans as they are proven, explained, searched, simulated and forged.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod explained;
mod forged;
#[path = "../support/job.rs"]
mod job;
mod plan_files;
mod published;
mod searched;
mod simulated;
#[path = "../support/mod.rs"]
mod support;
mod tensor;
mod verify_plan;

/// The program's, with which graphs are compiled twice as fast.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;
