//! Running programs: devices, communicators, the training loop and its data.
//!
//! A [`run::Executor`] owns the ranks of one process. Each rank has one [`arena`] with all its buffers, runs the [`cpu`] backend's
//! kernels over it, and meets the others in [`comm`].

pub mod arena;
pub mod comm;
pub mod cpu;
pub mod data;
pub mod init;
pub mod load;
pub mod random;
pub mod rank;
pub mod run;
pub mod shard;
pub mod tensor;
pub mod train;
pub mod world;
