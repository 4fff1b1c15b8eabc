//! What people give and are told: data, damaged files, mistakes, the terminal, curves.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod damage;
mod data_files;
#[path = "../support/mod.rs"]
mod support;
mod tensorboard;
mod terminal;
mod users_mistakes;
