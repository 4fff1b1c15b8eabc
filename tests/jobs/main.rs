//! Jobs that train and are evaluated on ranks as threads.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod evaluation;
mod executed;
mod gold;
mod losses;
mod recorded;
mod small_jobs;
#[path = "../support/mod.rs"]
mod support;
mod tour;
mod training;
mod validation;
mod way_in;

/// The program's, with which graphs are compiled twice as fast.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;
