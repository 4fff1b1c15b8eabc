//! `shardc check PLAN/`: one step of the plan against the same step of its reference, from equal
//! states; with `--replay` also against all its ranks in lockstep in one thread, to the bit.

use super::compare::{self, Row, table};
use super::failure::Failure;
use super::held;
use super::job::{DataArgs, JobArgs};
use super::machine::MachineArgs;
use super::output::print;
use super::traffic;
use crate::job::Job;
use crate::machine::Machine;
use clap::Args;
use shardc_executor::data::{Dataset, input_specs};
use shardc_executor::replay::{Compared, Replay};
use shardc_ir::diagnostic::{Diagnostic, Place, counted};
use shardc_ir::plan::set::PlanSet;

/// Gradients and states that the table shows, the worst first.
const SHOWN: usize = 10;

/// The arguments.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// How many batches, each from the initial parameters
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    batches: u64,
    /// Show every gradient and every state
    #[arg(long)]
    verbose: bool,
    /// Also run all ranks in turn, in one thread, and demand the same bits
    #[arg(long)]
    replay: bool,
}

impl Check {
    /// Prints the differences.
    ///
    /// # Errors
    /// If one is beyond tolerance; all that is wrong with the plan or its data.
    pub fn run(self) -> Result<(), Failure> {
        let machine = Machine { apart: true, ..self.machine.read(self.replay.then_some("--replay"))? };
        let job = self.job.open(true)?;
        let training = job.training()?;
        let data = self.data.open(input_specs(training), job.batches(training))?;
        let there = data.steps_per_epoch();
        if self.batches > there {
            let error = Diagnostic::error(format!("the data has {}, not {}", counted(there, "batch"), self.batches));
            return Err(error.at_opt(self.data.path.first().cloned().map(Place::File)).help("use a smaller `--batches`").into());
        }
        let mut plan = job.start(training, &machine)?;
        let mut reference = job.start_on_cpu(&job.reference()?, &machine)?;
        let mut holds = true;
        for batch in 0..self.batches {
            if batch > 0 {
                job.reset(&mut plan)?;
                job.reset(&mut reference)?;
            }
            let mut rows = compare::step(&mut plan, &mut reference, &data.batch(batch))?;
            holds &= rows.iter().all(Row::holds);
            let all = rows.len() - 2;
            if !self.verbose {
                rows[2..].sort_by(|a, b| b.share().total_cmp(&a.share()));
                rows.truncate(2 + SHOWN);
            }
            let more = if rows.len() < all + 2 {
                format!(", the {} worst of {} and states", rows.len() - 2, counted(all, "gradient"))
            } else {
                String::new()
            };
            let ranks = counted(training.mesh().world_size(), "rank");
            print(&format!("batch {}: {ranks} against one{more}\n{}", batch + 1, table(&rows)))?;
        }
        let (sent, as_planned) = traffic::text(&plan, self.batches)?;
        holds &= as_planned;
        print(&sent)?;
        let (held, as_planned) = held::text(&plan)?;
        holds &= as_planned;
        print(&held)?;
        drop((plan, reference));
        if self.replay {
            holds &= self.replays(&job, (training, &machine), &data)?;
        }
        if holds {
            print("the plan computes what its reference computes\n")
        } else {
            print("the plan does not compute what it should\n")?;
            Err(Failure::Disproved)
        }
    }

    /// Runs each batch at once and in turn, and prints what was compared; whether all bits are the
    /// same.
    fn replays(&self, job: &Job, (programs, machine): (&PlanSet, &Machine), data: &Dataset) -> Result<bool, Failure> {
        let mut executor = job.start(programs, machine)?;
        for batch in 0..self.batches {
            if batch > 0 {
                job.reset(&mut executor)?;
            }
            executor.set_next_step(0);
            let mut replay = Replay::of(&executor)?;
            let arrays = data.batch(batch);
            executor.step(arrays.clone())?;
            replay.step(0, &arrays)?;
            match replay.compare(&executor)? {
                Ok(Compared { ranks, outputs, gradients, states, elements }) => print(&format!(
                    "batch {}: the replay of {} in one thread has the same bits: {}, {}, {} after the step; {} on all ranks\n",
                    batch + 1,
                    counted(ranks, "rank"),
                    counted(outputs, "output"),
                    counted(gradients, "gradient"),
                    counted(states, "state"),
                    counted(elements, "element"),
                ))?,
                Err(difference) => {
                    print(&format!("batch {}: the replay differs: {difference}\n", batch + 1))?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
