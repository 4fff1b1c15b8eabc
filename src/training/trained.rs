//! What a training has left.

use super::Summary;
use crate::Job;
use crate::checkpoint::saver::Saved;
#[cfg(feature = "onnx")]
use crate::error::Error;
use shardc_executor::run::Executor;
#[cfg(feature = "onnx")]
use std::path::{Path, PathBuf};

/// A training that has ended, with the ranks that hold the model.
pub struct Trained {
    /// The job.
    pub job: Job,
    /// The ranks.
    pub executor: Executor,
    /// What was done.
    pub summary: Summary,
    /// What became of the checkpoints that were not told of before, the last one at the end, if
    /// checkpoints are kept.
    pub saved: Vec<Saved>,
}

#[cfg(feature = "onnx")]
impl Trained {
    /// Writes the model with its parameters as they are now. Where its weights were in a file of
    /// their own, they are again, in the one that is given.
    ///
    /// # Errors
    /// Weights that are not finite; a file that cannot be written; a rank that failed.
    pub fn export(&self, to: impl AsRef<Path>) -> Result<Option<PathBuf>, Error> {
        self.job.check_weights(self.executor.programs(), |state, each| self.executor.state_in_pieces(state, each))?;
        self.job.export(&self.executor, to.as_ref())
    }
}
