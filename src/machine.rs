//! What a job computes on: threads of this process, or GPUs.
//!
//! ```
//! use shardc::Machine;
//!
//! let two_cores = Machine { threads: Some(2), ..Machine::default() };
//! assert_eq!(two_cores.threads(), 2);
//! ```
//!
//! [`Machine::gpus`] takes a GPU for each rank. Libraries of CUDA are looked for when ranks start,
//! and what is missing is an [`Error::Machine`](crate::Error::Machine) that lists it.

use crate::cuda::run::How;
use shardc_executor::inject::Injections;
use shardc_executor::world::World;
use shardc_ir::plan::set::PlanSet;
use std::thread::available_parallelism;
use std::time::Duration;

/// What ranks compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Device {
    /// Threads of this process.
    #[default]
    Cpu,
    /// One NVIDIA GPU for each rank.
    Cuda(How),
}

/// How much of the machine a job may use, and how its ranks meet. The default is the CPU with all
/// its cores.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// What ranks compute on.
    pub device: Device,
    /// Threads of all ranks together; without a number one for each core.
    pub threads: Option<usize>,
    /// Random pauses of ranks wherever they meet, drawn by a seed, up to a longest one. They change
    /// no result.
    pub delays: Option<(u64, Duration)>,
    /// Whether the sender of a message waits until it is received, which changes no result.
    pub strict: bool,
    /// Whether each rank has a copy of its own of every state variable, so that replicas can be
    /// compared. Else CPU ranks of one process hold those in common that
    /// [can be](shardc_executor::common).
    pub apart: bool,
    /// Faults that are made on CPU ranks.
    pub faults: Injections,
}

impl Machine {
    /// GPUs, with what makes steps on them fast.
    pub fn gpus() -> Machine {
        Machine { device: Device::Cuda(How::default()), ..Machine::default() }
    }

    /// The world in which ranks meet.
    pub fn world(&self) -> World {
        let world = match self.delays {
            Some((seed, longest)) => World::with_delays(seed, longest),
            None => World::default(),
        };
        let world = if self.strict { world.strict() } else { world };
        let world = if self.apart { world } else { world.together() };
        world.with_faults(self.faults.clone())
    }

    /// The threads of all ranks together.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| available_parallelism().map_or(1, |n| n.get()))
    }

    /// The threads of each rank of `programs`.
    pub fn threads_per_rank(&self, programs: &PlanSet) -> usize {
        (self.threads() / programs.mesh().world_size() as usize).max(1)
    }
}
