//! This machine as a cluster: small models are trained on it, kernels and calls timed as they run,
//! and the numbers written down for [`crate::simulation`].
//!
//! Ranks share a machine, so there is a device for each number of them: what each does while the
//! others do the same.
//!
//! ```no_run
//! use shardc::calibration::calibrate;
//!
//! let cluster = calibrate(2, &[1, 2], &[], |_| ()).unwrap();
//! println!("{}", cluster.text().unwrap());
//! ```

mod fit;
mod observed;
mod probes;
mod whole;

use crate::error::Error;
use crate::job::Job;
use crate::machine::Machine;
use crate::timing;
use fit::fit;
use observed::{Observed, median};
use shardc_executor::bench::Peaks;
use shardc_ir::diagnostic::counted;
use shardc_ir::kernel::Kernel;
use shardc_ir::mesh::Mesh;
use shardc_ir::reason::Reason;
use shardc_simulator::cluster::{Cluster, Device};
use shardc_simulator::kernels::Load;
use std::thread;
use std::time::Duration;

/// Steps that are timed of each job, and seconds for which they are at least.
const STEPS: usize = 24;
const AT_LEAST: Duration = Duration::from_millis(400);

/// Measures this machine with so many threads for each number of `ranks`, over models of its own
/// and over `jobs`, each of which is timed for its own number of ranks. `note` is told what is
/// going on.
///
/// # Errors
/// If a job cannot be trained, or the machine fails.
pub fn calibrate(threads: usize, ranks: &[u64], jobs: &[Job], note: impl Fn(&str)) -> Result<Cluster, Error> {
    let devices = ranks.iter().map(|ranks| {
        let of_ranks = |job: &&Job| job.programs.main().mesh().world_size() == *ranks;
        device(threads, *ranks, jobs.iter().filter(of_ranks), &note)
    });
    let name = format!("this machine with {}", counted(threads as u64, "thread"));
    Ok(Cluster { name, devices: devices.collect::<Result<_, _>>()? })
}

/// The device of each of so many ranks.
fn device<'j>(threads: usize, ranks: u64, jobs: impl Iterator<Item = &'j Job>, note: &impl Fn(&str)) -> Result<Device, Error> {
    let machine = Machine { threads: Some(threads), apart: true, ..Machine::default() };
    let mut observed = Observed::default();
    let of_machine = |why: Reason| Error::Machine(why.to_string());
    let peaks = Peaks::measure(threads).map_err(of_machine)?;
    note(&format!("timing kernels on {}", counted(ranks, "rank")));
    by_themselves(threads, ranks, &mut observed).map_err(of_machine)?;
    let mut own: Vec<(Job, String)> = vec![];
    for probe in probes::probes(ranks) {
        match probe.job() {
            Ok(job) => own.push((job, probe.name)),
            // A model of a few heads and channels does not take every number of ranks.
            Err(Error::User(why)) => note(&format!("left out: {}", why[0].message)),
            Err(error) => return Err(error),
        }
    }
    let own = own.iter().map(|(job, name)| (job, name.as_str()));
    let mut whole = vec![];
    for (job, name) in own.chain(jobs.map(|job| (job, "a plan"))) {
        note(&format!("timing steps of {name} on {}", counted(ranks, "rank")));
        let programs = job.training()?;
        let steps = timing::steps(&mut job.start(programs, &machine)?, STEPS, AT_LEAST)?;
        observed.add(programs, &steps);
        whole.push((programs, median(steps.iter().map(|step| step.time.as_secs_f64()).collect())));
    }
    Ok(whole::stretched(fit(ranks, peaks, observed), &whole))
}

/// Times kernels of everyday sizes while every rank runs the same.
fn by_themselves(threads: usize, ranks: u64, observed: &mut Observed) -> Result<(), Reason> {
    let of_rank = (threads / ranks as usize).max(1);
    for (_, kernel) in Kernel::everyday() {
        let Some(load) = Load::of(&kernel, &Mesh::single()) else { continue };
        let times: Result<Vec<f64>, Reason> = thread::scope(|scope| {
            let started: Vec<_> = (0..ranks).map(|_| scope.spawn(|| shardc_executor::bench::time(&kernel, of_rank))).collect();
            let joined = started.into_iter().map(|started| started.join().map_err(|_| Reason::from("a kernel failed"))?);
            joined.map(|time| time.map(|time| time.as_secs_f64())).collect()
        });
        let times = times?;
        observed.kernel(load, times.iter().sum::<f64>() / times.len() as f64);
    }
    Ok(())
}
