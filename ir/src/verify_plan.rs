//! What is proven of a program before it runs.

pub mod tables;
