//! The command line: one file a command.

mod bench;
mod calibrate;
mod check;
mod checkpoint_export;
mod checkpoints;
mod compare;
mod compile;
mod curves;
mod data;
mod decisions;
mod diff;
mod doctor;
mod eval;
mod explain;
mod failure;
mod foot;
mod held;
mod help;
mod init;
mod inspect;
mod interrupt;
mod job;
mod launch;
mod machine;
mod metrics;
mod ops;
mod output;
mod overwrite;
mod page;
mod plan;
mod profile;
mod progress;
mod ranks;
mod reshard;
mod shown;
mod simulate;
mod told;
mod traffic;
mod train;
mod validation;
mod verify;

pub use interrupt::MACHINE;

use crate::report;
use clap::{CommandFactory, Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;

/// Trains exported ONNX models over many devices, from a plan that is proven before it runs.
#[derive(Debug, Parser)]
#[command(name = "shardc", version, max_term_width = 110, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a spec to begin with, and what the model has
    Init(init::Init),
    /// Compile a model and a spec to a plan directory
    Compile(compile::Compile),
    /// Print the steps, the memory and the messages of a plan
    Inspect(inspect::Inspect),
    /// Explain why a tensor of a plan lies as it does, and what is sent for it
    Explain(explain::Explain),
    /// Show what the ranks of two plans hold, send and wait for otherwise
    Diff(diff::Diff),
    /// Say how long a step of a plan takes on a cluster, and where the time goes
    Simulate(simulate::Simulate),
    /// Search the best ways to spread a job over ranks, and write the best as a spec
    Plan(Box<plan::Plan>),
    /// Measure this machine as a cluster, for `simulate` and `plan`
    Calibrate(calibrate::Calibrate),
    /// Prove a plan over all of its ranks
    Verify(verify::Verify),
    /// Train from a plan, or from a model and a spec
    Train(Box<train::Train>),
    /// Start several ranks of `train` on this machine, as processes
    Launch(launch::Launch),
    /// Write a checkpoint again as the ranks of another plan would have written it
    Reshard(reshard::Reshard),
    /// Write the weights of a checkpoint as `.safetensors`, or the model with them
    Export(checkpoint_export::Export),
    /// Compute the mean loss and the outputs of a model over data, without an update
    Eval(eval::Eval),
    /// Compare a plan with its reference: the same job on one rank
    Check(check::Check),
    /// Measure this machine, and beside that its kernels, or the steps of a job over made-up data
    Bench(bench::Bench),
    /// Show what a data file or folder holds
    Data(data::Data),
    /// Show which of NVIDIA's libraries are found for plans on GPUs, and link them
    Doctor(doctor::Doctor),
    /// Print every op: letters, linearity, gradient, kernel form
    Ops,
    /// Print this message, the help of a command, or with `spec` what a spec can say
    Help(help::Help),
}

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    shardc_launch::leash::hold();
    interrupt::end_without_memory();
    interrupt::survive_large_files();
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            match &failure {
                Failure::User(diagnostics) => report::print(diagnostics),
                Failure::Usage(message) => output::note(&format!("error: {message}\n\nFor more information, try '--help'.")),
                Failure::Machine(message) => output::note(&format!("failure of the machine: {message}")),
                Failure::Disproved | Failure::Interrupted(_) | Failure::Rank(_) => {}
            }
            ExitCode::from(failure.code())
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Init(command) => command.run(),
        Command::Compile(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Diff(command) => command.run(),
        Command::Simulate(command) => command.run(),
        Command::Calibrate(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Verify(command) => command.run(),
        Command::Train(command) => command.run(),
        Command::Launch(command) => command.run(),
        Command::Reshard(command) => command.run(),
        Command::Export(command) => command.run(),
        Command::Eval(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Data(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Ops => ops::run(),
        Command::Help(command) => command.run(Cli::command()),
    }
}
