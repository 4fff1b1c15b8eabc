//! Running programs: devices, communicators, the training loop and its data.
//!
//! | what | where |
//! |---|---|
//! | the ranks of one process, and the steps they run together | [`run::Executor`] |
//! | checks before anything runs | [`load::Loaded`] |
//! | what an executor asks of a rank, of any backend | [`worker::Worker`], [`memory::Memory`] |
//! | one rank on the CPU: its memory, threads and tasks | [`rank::Rank`], [`arena::Arena`] |
//! | kernels | [`cpu`], the definition of every form |
//! | what replicas of one process hold in common | [`common`] |
//! | collectives and messages | [`comm`], [`meeting`], [`transfer`], [`wires`], [`world::World`] |
//! | ranks that are processes | [`wires`], [`run::processes`] |
//! | all ranks in turn, to compare with | [`replay::Replay`] |
//! | numbers that are not finite, and the first of a step | [`oddity`], [`finite`] |
//! | whole arrays and parts of them | [`tensor::Tensor`], [`shard::Layout`] |
//! | faults made on purpose, and replicas compared | [`inject`], [`run::replicas`] |
//! | samples | [`data::Dataset`] |
//! | a step of training, and its metrics | [`train::step`] |
//!
//! A program that has been compiled, run for a step:
//!
//! ```
//! use shardc_executor::{run::Executor, tensor::Tensor};
//! use shardc_ir::plan::Program;
//! use std::{collections::BTreeMap, sync::Arc};
//!
//! /// The loss of a batch, from these weights.
//! fn loss(
//!     program: Program,
//!     weights: &BTreeMap<String, Tensor>,
//!     batch: Vec<Tensor>,
//! ) -> Result<f64, Box<dyn std::error::Error>> {
//!     let mut executor = Executor::new(program, 1)?;
//!     executor.initialise(|name| weights.get(name).cloned())?;
//!     let step = executor.step(Arc::new(batch))?;
//!     Ok(step.outputs["loss"].first().unwrap_or(f64::NAN))
//! }
//! ```
//!
//! **Invariant:** a program, whatever it claims, can do no harm: views become slices with checked
//! bounds, and what a step writes is disjoint from what it reads (`forged_programs_are_refused`).
//!
//! **Invariant:** the number of threads changes no bit of a result (`threads_change_nothing`).

pub mod arena;
pub mod bench;
pub mod comm;
pub mod common;
pub mod cpu;
pub mod data;
pub mod fault;
pub mod finite;
pub mod guard;
pub mod init;
pub mod inject;
mod joined;
pub mod load;
pub mod meeting;
pub mod memory;
pub mod oddity;
pub mod profile;
pub mod random;
pub mod rank;
pub mod replay;
pub mod run;
pub mod shard;
mod shown;
pub mod snapshot;
pub mod tensor;
pub mod train;
pub mod transfer;
pub mod wires;
pub mod worker;
pub mod world;
