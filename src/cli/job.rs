//! The job of a command line: a plan directory, or a model and a spec; and its data.

use super::failure::Failure;
use super::overwrite::Files;
use crate::job::{Batches, Job};
use crate::plan_dir::{self, PlanDir, Trust};
use crate::report;
use clap::Args;
use shardc_executor::data::{Dataset, InputSpec};
use shardc_ir::plan::set::PlanSet;
use std::path::PathBuf;

/// The source of a job.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// A plan directory, or an ONNX model together with --spec
    #[arg(value_name = "PLAN|MODEL.onnx")]
    source: PathBuf,
    /// The sharding spec of the model
    #[arg(long, value_name = "JOB.shard")]
    spec: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
}

/// The source of a job, which may be left out.
#[derive(Debug, Clone, Args)]
pub struct MaybeJobArgs {
    /// A plan directory, or an ONNX model together with --spec
    #[arg(value_name = "PLAN|MODEL.onnx")]
    source: Option<PathBuf>,
    /// The sharding spec of the model
    #[arg(long, value_name = "JOB.shard", requires = "source")]
    spec: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
}

impl MaybeJobArgs {
    /// The arguments of the job, if there is one.
    pub fn job(self) -> Option<JobArgs> {
        let MaybeJobArgs { source, spec, trust } = self;
        source.map(|source| JobArgs { source, spec, trust })
    }
}

/// What is believed of a plan directory.
#[derive(Debug, Clone, Args)]
pub struct TrustArgs {
    /// Believe a plan directory's graphs, and do not compile its model and spec again
    #[arg(long)]
    trust_graphs: bool,
}

impl TrustArgs {
    /// What is believed.
    pub fn trust(&self) -> Trust {
        if self.trust_graphs { Trust::Graphs } else { Trust::Nothing }
    }
}

/// The data of a job.
#[derive(Debug, Args)]
pub struct DataArgs {
    /// `.npz`, a folder of `.npy`, `.safetensors`, or tokens: `.txt` (bytes), `.bin` (u16); several
    /// times, or a folder, for several files of one kind
    #[arg(long = "data", value_name = "DATA", required = true)]
    pub path: Vec<PathBuf>,
    /// Tokens in a window of text; by default what the model says
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..))]
    pub context: Option<u64>,
}

impl JobArgs {
    /// The files that are read to open the job.
    pub fn files(&self) -> Files {
        let files = match self.source.is_dir() {
            true => Files::default().reads_plan(&self.source),
            false => Files::default().reads_model(&self.source),
        };
        self.spec.iter().fold(files, |files, spec| files.reads("the spec", spec))
    }

    /// Opens the plan directory, or compiles the model; `train` says whether training is wanted.
    ///
    /// # Errors
    /// All that is wrong with what is named.
    pub fn open(&self, train: bool) -> Result<Job, Failure> {
        let plan = || Job::open_plan(&self.source, self.trust.trust());
        let job = match (&self.spec, self.source.is_dir()) {
            (Some(_), true) => {
                let source = self.source.display();
                let message = format!("`{source}` is a folder: a plan directory has its own spec, leave out --spec");
                return Err(Failure::Usage(message));
            }
            (None, true) => plan()?,
            (Some(_), false) if self.trust.trust_graphs => {
                let message = format!("`--trust-graphs` is about plan directories, and `{}` is a model", self.source.display());
                return Err(Failure::Usage(message));
            }
            (Some(spec), false) if train => Job::open(&self.source, spec)?,
            (Some(spec), false) => Job::open_to_evaluate(&self.source, spec)?,
            (None, false) if self.source.extension().is_some_and(|e| e == "onnx") => {
                return Err(Failure::Usage("a model needs a spec: add `--spec JOB.shard`".to_string()));
            }
            // Says that there is no plan directory.
            (None, false) => plan()?,
        };
        report::print(&job.warnings);
        Ok(job)
    }
}

impl JobArgs {
    /// The programs of training; the weights of a plan directory are not read for them.
    ///
    /// # Errors
    /// As [`JobArgs::open`].
    pub fn training(&self) -> Result<PlanSet, Failure> {
        if self.spec.is_some() || !self.source.is_dir() {
            return Ok(self.open(true)?.training()?.clone());
        }
        let PlanDir { programs, spec, .. } = plan_dir::read(&self.source, self.trust.trust())?;
        programs.training.ok_or_else(|| Failure::User(spec.require_training().err().unwrap_or_default()))
    }
}

impl DataArgs {
    /// Reads the data for `inputs`.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn open(&self, inputs: Vec<InputSpec>, batches: Batches) -> Result<Dataset, Failure> {
        Ok(batches.of(&self.path, self.context, inputs)?)
    }
}
