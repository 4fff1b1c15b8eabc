//! Plans on GPUs: what a launch table says is told to the CUDA driver, to cuBLASLt and to NCCL.
//!
//! | what | where |
//! |---|---|
//! | the calls that a rank makes of its GPU, and nothing else | [`device::Device`] |
//! | the same over NVIDIA's libraries, opened where they are found | [`cuda`] |
//! | a launch table with all addresses and handles of a rank | [`queue`] |
//! | what the host writes before a step and reads behind it | [`staging`] |
//! | one rank: its memory, its steps, graphs, and how it ends | [`rank::GpuRank`] |
//! | its communicators | [`groups`] |
//! | algorithms of cuBLASLt, the same on all ranks | [`choices`] |
//! | all ranks of a process | [`start::start`] |
//!
//! Nothing here decides what is launched, where or when: the table does, which was proven. The
//! trait is there so that tests can damage single calls, and see that each damage is found.

pub mod choices;
pub mod cuda;
pub mod device;
pub mod groups;
pub mod pinned;
pub mod queue;
pub mod rank;
pub mod staging;
pub mod start;
pub mod watch;
