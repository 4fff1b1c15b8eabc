//! The jobs that a machine is measured with: a small GPT and a small residual net, over batches of
//! several sizes and meshes that make every kind of call.

use crate::compile::Options;
use crate::error::Error;
use crate::job::Job;
use shardc_frontend::spec;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A job of a calibration.
pub struct Probe {
    /// Its name, for people.
    pub name: String,
    model: &'static [u8],
    spec: String,
}

const GPT: &[u8] = include_bytes!("../../examples/tiny-gpt/model.onnx");
const RESIDUAL: &[u8] = include_bytes!("../../tests/models/resnet/model.onnx");

const OF_GPT: &str = "loss cross_entropy logits=logits labels=labels\noptimizer adamw lr=1e-4\nclip norm=1.0\n";
const OF_RESIDUAL: &str = "loss cross_entropy logits=logits labels=labels\noptimizer sgd lr=1e-4 momentum=0.9\n";

/// Those for so many ranks.
pub fn probes(ranks: u64) -> Vec<Probe> {
    let mut probes = vec![];
    for (name, model, lines, statistics) in
        [("a small GPT", GPT, OF_GPT, ""), ("a small residual net", RESIDUAL, OF_RESIDUAL, "batchnorm statistics=microbatch\n")]
    {
        for samples in [4, 8, 32] {
            let batch = samples * ranks;
            let mut add = |words: &str, mesh: String| {
                let name = format!("{name}, {batch} samples{words}");
                probes.push(Probe { name, model, spec: mesh + lines });
            };
            if ranks == 1 {
                add("", format!("batch {batch}\n"));
                continue;
            }
            add(", split over ranks", format!("mesh dp={ranks}\nbatch {batch}\ndata axis=dp\n"));
            if samples == 8 {
                add(" and layers", format!("mesh tp={ranks}\nbatch {batch}\ntensor axis=tp\n"));
                add(" and states", format!("mesh dp={ranks}\nbatch {batch}\ndata axis=dp\nzero stage=3 axis=dp\n"));
                let parts = 2 * ranks;
                add(
                    " in a pipeline",
                    format!("mesh pp={ranks}\nbatch {batch} microbatches={parts}\n{statistics}pipeline axis=pp\n"),
                );
            }
        }
    }
    probes
}

impl Probe {
    /// The compiled job.
    ///
    /// # Errors
    /// If the model cannot be put into a temporary file.
    pub fn job(&self) -> Result<Job, Error> {
        let file = Temporary::new(self.model)?;
        let spec = spec::parse(Path::new("probe.shard"), &self.spec)?;
        Job::compile(&file.0, spec, &Options::default())
    }
}

/// A file that is gone when it is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(bytes: &[u8]) -> Result<Temporary, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("shardc-probe-{}-{number}.onnx", std::process::id()));
        std::fs::write(&path, bytes).map_err(|error| Error::io(format!("cannot write `{}`", path.display()), &error))?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
