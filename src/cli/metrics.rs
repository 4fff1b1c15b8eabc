//! The metrics file: one JSON object a step. Errors of it do not end training.

use super::output::note;
use crate::failure::Failure;
use shardc_executor::train::Metrics;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

/// The file, as far as it could be written.
pub struct MetricsFile {
    path: PathBuf,
    file: File,
    error: Option<io::Error>,
}

impl MetricsFile {
    /// An empty one.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(path: PathBuf) -> Result<MetricsFile, Failure> {
        match File::create(&path) {
            Ok(file) => Ok(MetricsFile { path, file, error: None }),
            Err(error) => Err(Failure::io(format!("cannot write `{}`", path.display()), &error)),
        }
    }

    /// Adds a line. After an error, which is told, none follows.
    pub fn write(&mut self, metrics: &Metrics) {
        if self.error.is_some() {
            return;
        }
        let line = serde_json::to_string(metrics).map_err(io::Error::other);
        if let Err(error) = line.and_then(|line| self.file.write_all((line + "\n").as_bytes())) {
            let (path, step) = (self.path.display(), metrics.step + 1);
            note(&format!(
                "warning: cannot write metrics to `{path}` from step {step} on: {error}; training goes on without them"
            ));
            self.error = Some(error);
        }
    }

    /// Whether it has all lines so far.
    pub fn is_whole(&self) -> bool {
        self.error.is_none()
    }

    /// Ends the file.
    ///
    /// # Errors
    /// If lines are missing.
    pub fn finish(self) -> Result<(), Failure> {
        match self.error {
            Some(error) => Err(Failure::io(format!("cannot write metrics to `{}`", self.path.display()), &error)),
            None => Ok(()),
        }
    }
}
