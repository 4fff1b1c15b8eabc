//! `shardc reshard`: a checkpoint as the ranks of another plan would have written it.

use super::failure::Failure;
use super::job::JobArgs;
use super::output::print;
use crate::checkpoint::folder::{self, Folder};
use crate::checkpoint::read::Checkpoint;
use crate::checkpoint::reshard::reshard;
use crate::checkpoint::restore::compare;
use crate::report;
use clap::Args;
use shardc_ir::diagnostic::counted;
use shardc_ir::listing::units::bytes_text;
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct Reshard {
    /// A checkpoint, or a folder of checkpoints, of which the latest is taken
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    #[command(flatten)]
    job: JobArgs,
    /// The folder of checkpoints in which the new one is made
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

impl Reshard {
    /// Writes the checkpoint, and says where it is.
    ///
    /// # Errors
    /// If the checkpoint is damaged or of another model, the job is wrong, or the folder cannot be
    /// used.
    pub fn run(self) -> Result<(), Failure> {
        let checkpoint = Checkpoint::named(&self.checkpoint)?;
        let step = checkpoint.manifest.position.step;
        let made = self.output.join(folder::name(step));
        self.job.files().reads_checkpoint(&checkpoint).writes("--output", Some(&made)).check()?;
        folder::refuse_later(&self.output, step, "give the new one a folder of its own")?;
        let programs = self.job.training()?;
        report::print(&compare(&checkpoint, &programs)?.warnings(&checkpoint));
        let ranks = programs.mesh().world_size();
        let made = reshard(&checkpoint, programs, &Folder::claim(&self.output)?)?;
        let files = Checkpoint::open(&made)?.manifest.files;
        let bytes = bytes_text(files.iter().map(|file| file.bytes).sum());
        let (ranks, count) = (counted(ranks, "rank"), counted(files.len() as u64, "file"));
        print(&format!("{}: step {step} for {ranks}, {bytes} in {count}\n", made.display()))
    }
}
