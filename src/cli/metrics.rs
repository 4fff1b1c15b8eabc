//! The metrics file: one JSON object a step. Errors of it do not end training.

use super::failure::Failure;
use super::output::note;
use crate::evaluation::Score;
use crate::training::Rates;
use serde::Serialize;
use serde_json::Value;
use shardc_executor::train::Metrics;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;

/// The file, as far as it could be written.
pub struct MetricsFile {
    path: PathBuf,
    file: File,
    error: Option<io::Error>,
}

/// A line: a step, and the validation behind it, if there was one.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    /// The step.
    #[serde(flatten)]
    pub step: &'a Metrics,
    /// Tokens of the global batch over the step's time, where the model reads rows of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// The step's floating point operations over its time and the machine's fastest products, 0 to
    /// 1, where those are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_peak: Option<f64>,
    /// The mean loss over the data of the validation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// The share of labels that were found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<f64>,
    /// e to the power of the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_perplexity: Option<f64>,
}

impl<'a> Line<'a> {
    /// A step, how fast it was, and the score behind it.
    pub fn new(step: &'a Metrics, rates: &Rates, score: &Score) -> Line<'a> {
        let Score { loss, accuracy, perplexity, .. } = *score;
        Line {
            step,
            tokens_per_second: rates.tokens_per_second(step.seconds),
            share_of_peak: rates.share_of_peak(step.seconds),
            validation_loss: loss,
            validation_accuracy: accuracy,
            validation_perplexity: perplexity,
        }
    }
}

impl MetricsFile {
    /// The file of a run that goes on after `step` steps: what it has of later ones, which are done
    /// again, goes.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn resume(path: PathBuf, step: u64) -> Result<MetricsFile, Failure> {
        if !path.is_file() {
            return MetricsFile::create(path);
        }
        let cut = || {
            let file = OpenOptions::new().read(true).append(true).open(&path)?;
            let (mut lines, mut line, mut kept) = (BufReader::new(&file), String::new(), 0);
            while lines.read_line(&mut line)? > 0 {
                let of = serde_json::from_str::<Value>(&line).ok().and_then(|line| line["step"].as_u64());
                if !line.ends_with('\n') || of.is_none_or(|of| of >= step) {
                    break;
                }
                kept += line.len() as u64;
                line.clear();
            }
            file.set_len(kept)?;
            Ok(file)
        };
        let file = cut().map_err(|e: io::Error| Failure::io(format!("cannot go on with `{}`", path.display()), &e))?;
        Ok(MetricsFile { path, file, error: None })
    }

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
    pub fn write(&mut self, metrics: &Line<'_>) {
        if self.error.is_some() {
            return;
        }
        let line = serde_json::to_string(metrics).map_err(io::Error::other);
        if let Err(error) = line.and_then(|line| self.file.write_all((line + "\n").as_bytes())) {
            let (path, step) = (self.path.display(), metrics.step.step + 1);
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
