//! `shardc export`: the weights of a checkpoint, or the model with them, as `train --export` writes
//! it.

use super::failure::Failure;
use super::job::{JobArgs, MaybeJobArgs};
use super::output::{note, writable};
use super::overwrite::Files;
use crate::checkpoint::read::Checkpoint;
use crate::checkpoint::restore::{Differences, compare};
use crate::checkpoint::weights::Weights;
use crate::replace::write_pieces;
use crate::report;
use clap::Args;
use std::path::{Path, PathBuf};

/// The arguments.
#[derive(Debug, Args)]
pub struct Export {
    /// A checkpoint, or a folder of checkpoints, of which the latest is taken
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    #[command(flatten)]
    job: MaybeJobArgs,
    /// The file to write: `.onnx` for the model, `.safetensors` for its parameters and statistics
    #[arg(short, long, value_name = "OUT.onnx|OUT.safetensors")]
    output: PathBuf,
}

impl Export {
    /// Writes the file that was asked for, and says what it is.
    ///
    /// # Errors
    /// If the checkpoint is damaged or of another model, or the file cannot be written.
    pub fn run(self) -> Result<(), Failure> {
        let Export { checkpoint, job, output } = self;
        let job = job.job();
        let to = output.display();
        match (output.extension().and_then(|ending| ending.to_str()), job) {
            (Some("onnx"), Some(job)) => model(&Checkpoint::named(&checkpoint)?, &job, &output),
            (Some("onnx"), None) => Err(Failure::Usage(format!(
                "`{to}` needs the model: name a plan directory, or `MODEL.onnx --spec JOB.shard`, behind the checkpoint"
            ))),
            (Some("safetensors"), None) => weights(&Checkpoint::named(&checkpoint)?, &output),
            (Some("safetensors"), Some(_)) => {
                Err(Failure::Usage(format!("`{to}` has what the checkpoint has: leave the plan or model out")))
            }
            _ => Err(Failure::Usage(format!(
                "what `{to}` is to hold is not clear: let it end in `.onnx` for the model, or `.safetensors` for its weights"
            ))),
        }
    }
}

/// Writes the parameters and statistics.
fn weights(checkpoint: &Checkpoint, output: &Path) -> Result<(), Failure> {
    Files::default().reads_checkpoint(checkpoint).writes("--output", Some(output)).check()?;
    writable(output)?;
    let weights = Weights::of(checkpoint)?;
    write_pieces(output, |out| weights.write(out))?;
    note(&format!("weights after step {} in `{}`", checkpoint.manifest.position.step, output.display()));
    Ok(())
}

/// Writes the model of a job.
fn model(checkpoint: &Checkpoint, job: &JobArgs, output: &Path) -> Result<(), Failure> {
    job.files().reads_checkpoint(checkpoint).writes("--output", Some(output)).check()?;
    writable(output)?;
    let weights = Weights::of(checkpoint)?;
    let mut job = job.open(true)?;
    let programs = job.training()?.clone();
    report::print(&lost(compare(checkpoint, &programs)?, checkpoint).warnings(checkpoint));
    job.look_at_weights();
    job.forget_weights(true)?;
    job.check_weights(&programs, |state, each| each(checkpoint.tensor(state)?))?;
    let data = job.export_from(&programs, |name, each| each(weights.get(name)?), output)?;
    let data = data.map(|data| format!(" and `{}`", data.display())).unwrap_or_default();
    note(&format!("model after step {} in `{}`{data}", checkpoint.manifest.position.step, output.display()));
    Ok(())
}

/// Of differences those that an export has: weights that the model does not.
fn lost(differences: Differences, checkpoint: &Checkpoint) -> Differences {
    let is_weight = |name: &String| checkpoint.manifest.states.get(name).is_some_and(|record| record.role.is_of_model());
    Differences { fresh: vec![], left_out: differences.left_out.into_iter().filter(is_weight).collect() }
}
