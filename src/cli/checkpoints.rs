//! The arguments about checkpoints, and the one that a run goes on from.

use super::failure::Failure;
use crate::checkpoint::read::Checkpoint;
use crate::checkpoint::saver::Keep;
use crate::training::Saving;
use clap::Args;
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// Keep checkpoints in this folder: one at the end, on Ctrl-C too, and those of --every
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Save a checkpoint and validate after each N steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: Option<u64>,
    /// Save a checkpoint after each N steps, whatever --every says
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: Option<u64>,
    /// How many of the latest checkpoints stay
    #[arg(long, value_name = "K", requires = "checkpoint", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    keep: u64,
    /// Go on from a checkpoint: the latest of --checkpoint, the latest of another folder, or this
    /// one
    #[arg(long, value_name = "CHECKPOINT", num_args = 0..=1, default_missing_value = LATEST)]
    resume: Option<PathBuf>,
}

/// What `--resume` says by itself: the latest checkpoint of `--checkpoint`.
const LATEST: &str = "latest";

impl CheckpointArgs {
    /// The checkpoints that are wanted.
    pub fn read(&self, keep_best: bool) -> Option<Saving> {
        let keep = Keep { latest: self.keep as usize, best: keep_best };
        self.checkpoint.clone().map(|folder| Saving { folder, every: self.checkpoint_every.or(self.every), keep })
    }

    /// The checkpoint that training goes on from; `None` where it begins.
    ///
    /// # Errors
    /// If there is none where one is named, or it is damaged.
    pub fn resumed(&self) -> Result<Option<Checkpoint>, Failure> {
        let path = match (&self.resume, &self.checkpoint) {
            (Some(path), Some(own)) if path.as_os_str() == LATEST => own,
            (Some(path), None) if path.as_os_str() == LATEST => {
                return Err(Failure::Usage("`--resume` needs a checkpoint, or `--checkpoint DIR` with some".into()));
            }
            (Some(path), _) if Some(path) != self.checkpoint.as_ref() => return Ok(Some(Checkpoint::named(path)?)),
            (Some(path), _) => path,
            (None, _) => return Ok(None),
        };
        Ok(Checkpoint::find(path)?)
    }
}
