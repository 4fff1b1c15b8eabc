//! `--tensorboard`: the metrics as curves. Errors of the file do not end training.

use super::failure::Failure;
use super::metrics::Line;
use crate::tensorboard::Writer;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// A file of events, as far as it could be written.
pub struct Curves {
    writer: Writer,
    error: Option<io::Error>,
}

impl Curves {
    /// An empty one in `folder`.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(folder: &Path) -> Result<Curves, Failure> {
        let writer = Writer::create(folder);
        let writer = writer.map_err(|e| Failure::io(format!("cannot write curves to `{}`", folder.display()), &e))?;
        Ok(Curves { writer, error: None })
    }

    /// Adds the numbers of a step. After an error none follow.
    pub fn write(&mut self, line: &Line<'_>) {
        if self.error.is_some() {
            return;
        }
        let step = line.step;
        let numbers = [
            ("train/loss", step.loss),
            ("train/grad_norm", step.grad_norm),
            ("train/lr", Some(step.lr)),
            ("train/loss_scale", step.loss_scale),
            ("train/samples_per_second", Some(step.samples_per_second)),
            ("train/tokens_per_second", line.tokens_per_second),
            ("train/share_of_peak", line.share_of_peak),
            ("validation/loss", line.validation_loss),
            ("validation/accuracy", line.validation_accuracy),
            ("validation/perplexity", line.validation_perplexity),
        ];
        let now = SystemTime::now();
        let mut known = numbers.into_iter().filter_map(|(tag, value)| Some((tag, value?)));
        let written = known.try_for_each(|(tag, value)| self.writer.scalar(tag, step.step + 1, now, value));
        self.error = written.and_then(|()| self.writer.flush()).err();
    }

    /// Ends the file.
    ///
    /// # Errors
    /// If numbers are missing.
    pub fn finish(self) -> Result<(), Failure> {
        let path = self.writer.path().display().to_string();
        self.error.map_or(Ok(()), |error| Err(Failure::io(format!("cannot write curves to `{path}`"), &error)))
    }
}
