//! `shardc calibrate [PLAN/ …]`: this machine as a cluster, for `simulate` and `plan`.

use super::failure::Failure;
use super::machine::MachineArgs;
use super::output::{note, write};
use super::overwrite::Files;
use crate::calibration::calibrate;
use crate::error::Error;
use crate::job::Job;
use crate::plan_dir::Trust;
use clap::Args;
use shardc_ir::reason::Reason;
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct Calibrate {
    /// Plan directories whose kernels and calls are timed too, for their own numbers of ranks
    #[arg(value_name = "PLAN")]
    plans: Vec<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    /// For so many ranks; by default for 1, 2, 4 and so on, up to a rank for each thread
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=64))]
    ranks: Vec<u64>,
    /// Write the cluster to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Calibrate {
    /// Measures, and writes the file.
    ///
    /// # Errors
    /// All that is wrong with the plans; a machine without memory for it.
    pub fn run(self) -> Result<(), Failure> {
        let machine = self.machine.read(Some("calibrate"))?;
        let files = self.plans.iter().fold(Files::default(), |files, plan| files.reads_plan(plan));
        files.writes("--output", self.output.as_deref()).check()?;
        let jobs = self.plans.iter().map(|plan| Job::open_plan(plan, Trust::Graphs)).collect::<Result<Vec<Job>, Error>>()?;
        let threads = machine.threads();
        let mut ranks = self.ranks.clone();
        if ranks.is_empty() {
            ranks.extend((0..).map(|power| 1 << power).take_while(|ranks| *ranks <= threads as u64));
        }
        ranks.extend(jobs.iter().map(|job| job.programs.main().mesh().world_size()));
        ranks.sort_unstable();
        ranks.dedup();
        let cluster = calibrate(threads, &ranks, &jobs, note)?;
        let text = cluster.text().map_err(|why: Reason| Failure::Machine(why.to_string()))?;
        write(&text, self.output.as_deref())
    }
}
