//! `shardc eval`: the mean loss over data, with accuracy or perplexity, and the model's outputs.

use super::failure::Failure;
use super::job::{DataArgs, JobArgs};
use super::machine::MachineArgs;
use super::output::{print, writable, write_whole};
use crate::evaluation::Score;
use crate::report;
use clap::Args;
use shardc_executor::data::npz_bytes;
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place, counted};
use std::path::{Path, PathBuf};

/// The arguments.
#[derive(Debug, Args)]
pub struct Eval {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// Write the model's outputs to this `.npz`
    #[arg(long, value_name = "OUT.npz")]
    outputs: Option<PathBuf>,
    /// Print `{"loss": …, "labels": …}`, with `accuracy` or `perplexity` where the loss has classes
    #[arg(long)]
    json: bool,
}

impl Eval {
    /// Evaluates all samples in order.
    ///
    /// # Errors
    /// All that is wrong with the job or its data; a failed rank.
    pub fn run(self) -> Result<(), Failure> {
        let machine = self.machine.read(None)?;
        let files = self.job.files().reads_data(&self.data.path);
        files.writes("--outputs", self.outputs.as_deref()).check()?;
        self.outputs.iter().try_for_each(|path| writable(path))?;
        let job = self.job.open(false)?;
        let evaluated = job.evaluate(&machine, &self.data.path, self.data.context, self.outputs.is_some())?;
        if let Some(path) = &self.outputs {
            report::print(&left_out(&evaluated.outputs.differing, path));
            write_whole(path, &npz_bytes(&evaluated.outputs.arrays)?)?;
        }
        print(&self.text(&evaluated.score, evaluated.samples)?)
    }

    fn text(&self, score: &Score, samples: u64) -> Result<String, Failure> {
        if self.json {
            let json = serde_json::to_string(score).map_err(|e| Failure::Machine(format!("cannot write JSON: {e}")))?;
            return Ok(json + "\n");
        }
        let written = self.outputs.iter().map(|path| format!(", outputs in `{}`", path.display())).collect::<String>();
        let samples = counted(samples, "sample");
        let (loss, labels) = match score {
            Score { loss: Some(loss), labels: Some(labels), .. } => (loss, labels),
            Score { labels: Some(_), .. } => return Ok(format!("no loss: none of the labels of {samples} counts{written}\n")),
            _ => return Ok(format!("{samples}, no loss: the spec has no `loss` line{written}\n")),
        };
        let mut rows =
            vec![["loss", &format!("{loss:.6} over {} of {samples}{written}", counted(*labels, "label"))].map(String::from)];
        rows.extend(score.accuracy.map(|share| ["accuracy".to_string(), format!("{:.2} %", 100.0 * share)]));
        rows.extend(score.perplexity.map(|perplexity| ["perplexity".to_string(), format!("{perplexity:.4}")]));
        Ok(align(&rows, [Column::after(""), Column::WORDS]))
    }
}

/// Warnings about outputs that belong to no sample and to no model, but to a batch.
fn left_out(names: &[String], path: &Path) -> Diagnostics {
    let warning = |name: &String| {
        let warning = Diagnostic::warning(format!("`{name}` has no dimension of samples, and differs from batch to batch"));
        let warning = warning.at(Place::File(path.to_path_buf())).label("it is left out");
        warning.help("evaluate all samples as one batch to have it: a `batch` line with as many as the data has")
    };
    names.iter().map(warning).collect()
}
