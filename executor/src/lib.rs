//! Running programs.

pub mod cpu;
