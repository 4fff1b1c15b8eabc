//! This process as one rank of several, each a process: who started it, and what the ranks agree on
//! before the first step and between steps.

use super::failure::Failure;
use super::interrupt::Interrupt;
use clap::Args;
use sha2::{Digest, Sha256};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan_file;
use shardc_launch::control::{Control, Settings};
use shardc_launch::environment::Environment;
use shardc_launch::rendezvous::Rendezvous;
use std::sync::Arc;
use std::time::Duration;

/// The arguments.
#[derive(Debug, Args)]
pub struct RankArgs {
    /// Where rank 0 waits for the other ranks, where each is a process that torchrun, Slurm or
    /// OpenMPI has started; `shardc launch` says it by itself
    #[arg(long, value_name = "HOST:PORT")]
    rendezvous: Option<String>,
    /// For how many seconds such ranks wait for one another at first
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    rendezvous_timeout: Option<u64>,
}

impl RankArgs {
    /// The rank that this process is; `None` if all ranks are here.
    ///
    /// # Errors
    /// If the variables that say so make no sense.
    pub fn read(&self) -> Result<Option<Environment>, Failure> {
        let found = Environment::of_process().map_err(Failure::Usage)?.filter(|rank| rank.world_size > 1);
        Ok(found.map(|found| Environment {
            rendezvous: self.rendezvous.clone().or(found.rendezvous),
            timeout: self.rendezvous_timeout.map_or(found.timeout, Duration::from_secs),
            ..found
        }))
    }
}

/// Meets the other ranks, all of which want to run `programs`, and whatever else `job` says.
///
/// # Errors
/// If the plan is for another number of ranks, or the ranks do not meet; a signal that asks for the
/// end.
pub fn meet(rank: &Environment, programs: &PlanSet, job: &str, interrupt: &Interrupt) -> Result<Arc<Control>, Failure> {
    let Environment { rank: number, world_size, starter, timeout, .. } = *rank;
    let wanted = programs.mesh().world_size();
    if wanted != world_size {
        return Err(Failure::Usage(format!("the plan has {wanted} ranks, and {starter} has started {world_size} processes")));
    }
    let address = rank.rendezvous.as_deref().ok_or_else(|| {
        Failure::Usage(format!(
            "{starter} does not say where rank 0 is: add `--rendezvous HOST:PORT` to the command of all ranks"
        ))
    })?;
    let (key, settings) = (rank.key.clone(), Settings::default());
    let (plans, stop) = (hash(programs, job)?, interrupt.number());
    let wish = Rendezvous { rank: number, world_size, key, plans, timeout, settings, stop };
    let met = wish.meet(address, &[]).map_err(|why| interrupt.signal().map_or(Failure::Machine(why), Failure::Interrupted))?;
    Ok(Arc::new(met.control))
}

/// The signal that asked any of the ranks to end, the same on all.
pub fn agreed(control: &Control, own: Option<i32>) -> Option<i32> {
    let own = own.map_or(0, |signal| signal as u8);
    // A failure ends the next step, with words.
    let all = control.all_gather(&[own], 1).unwrap_or_default();
    all.iter().flatten().copied().max().filter(|signal| *signal > 0).map(i32::from)
}

/// The same for ranks that run the same.
fn hash(programs: &PlanSet, job: &str) -> Result<[u8; 32], Failure> {
    let text = format!("{} {} {job}", env!("CARGO_PKG_VERSION"), plan_file::hash(&plan_file::encode(programs)?));
    Ok(Sha256::digest(text.as_bytes()).into())
}
