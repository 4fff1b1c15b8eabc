//! What passes make of graphs, and what proves it.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod dropout;
mod example;
mod factors;
mod holes;
mod in_place;
mod long_chains;
mod proof;
mod repeats;

/// The program's, with which graphs are compiled twice as fast.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;
