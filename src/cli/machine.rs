//! What of the machine a job computes on: threads of this process, or GPUs.

use super::failure::Failure;
use crate::cuda::run::How;
use crate::machine::{Device, Machine};
use clap::{Args, ValueEnum};
use std::time::Duration;

/// `5` or `5ms`.
fn milliseconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix("ms").unwrap_or(text).parse();
    let number = number.ok().filter(|number| (1..=10_000).contains(number));
    number.map(Duration::from_millis).ok_or_else(|| "it is no number of milliseconds from 1 to 10000, such as `1ms`".to_string())
}

/// What ranks compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// Threads of this process.
    Cpu,
    /// One NVIDIA GPU for each rank.
    Cuda,
}

/// How much of the machine a job may use.
#[derive(Debug, Clone, Args)]
pub struct MachineArgs {
    /// What ranks compute on: threads of this process, or one GPU each
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: DeviceKind,
    /// Launch each kernel by itself on GPUs, and capture no graphs, which changes no result
    #[arg(long)]
    no_graph: bool,
    /// Time the algorithms that cuBLASLt has for each product, and keep the fastest with the plan
    #[arg(long)]
    tune: bool,
    /// Threads of all ranks together; by default one for each core
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..=4096))]
    threads: Option<u64>,
    /// Pause each rank for a random time up to this one, such as 1ms, wherever it meets others,
    /// which changes no result
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    delays: Option<Duration>,
    /// Draws the times of --delays
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "delays")]
    delay_seed: u64,
    /// Let the sender of a message wait until it is received, which changes no result
    #[arg(long)]
    strict: bool,
}

impl MachineArgs {
    /// The machine; flags that mean nothing on the device are refused, `flag` of the command's own
    /// among them where it was given.
    ///
    /// # Errors
    /// The first of them.
    pub fn read(&self, flag: Option<&str>) -> Result<Machine, Failure> {
        let of_cpu = [self.delays.map(|_| "--delays"), self.strict.then_some("--strict"), flag];
        let of_cuda = [self.no_graph.then_some("--no-graph"), self.tune.then_some("--tune")];
        let (wrong, needed) = match self.device {
            DeviceKind::Cuda => (of_cpu.into_iter().flatten().next(), "cpu"),
            DeviceKind::Cpu => (of_cuda.into_iter().flatten().next(), "cuda"),
        };
        if let Some(flag) = wrong {
            return Err(Failure::Usage(format!("`{flag}` needs `--device {needed}`")));
        }
        let device = match self.device {
            DeviceKind::Cpu => Device::Cpu,
            DeviceKind::Cuda => Device::Cuda(How { graphs: !self.no_graph, tune: self.tune }),
        };
        let (threads, delays) = (self.threads.map(|n| n as usize), self.delays.map(|longest| (self.delay_seed, longest)));
        Ok(Machine { device, threads, delays, strict: self.strict, ..Machine::default() })
    }

    /// Refuses what ranks that are processes cannot do.
    ///
    /// # Errors
    /// The argument that asks for it.
    pub fn allow_processes(&self) -> Result<(), Failure> {
        match self.device {
            DeviceKind::Cpu if self.strict => Err(Failure::Usage("ranks that are processes send no messages `--strict`".into())),
            DeviceKind::Cpu | DeviceKind::Cuda => Ok(()),
        }
    }
}
