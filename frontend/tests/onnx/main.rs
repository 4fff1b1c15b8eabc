//! What becomes of ONNX files: ops, numbers, records, bounds, damage and exports.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod bounds;
mod broken;
mod export;
mod inline;
mod intact;
mod merged;
mod models;
mod numbers;
mod ops;
mod recorded;
mod trained;
