//! What is asked of a training.

use crate::checkpoint::read::Checkpoint;
use crate::checkpoint::saver::Keep;
use crate::machine::Machine;
use std::path::{Path, PathBuf};

/// What is asked of a training. [`Options::over`] has what is usual.
#[derive(Debug)]
pub struct Options {
    /// Files or folders of one kind: `.npz`, folders of `.npy`, `.safetensors`, `.txt`, `.bin`.
    pub data: Vec<PathBuf>,
    /// Tokens in a window of text; by default what the model says.
    pub context: Option<u64>,
    /// Whether samples come in random order.
    pub shuffle: bool,
    /// Seeds initial weights and the order of samples, instead of the spec's seed.
    pub seed: Option<u64>,
    /// How many steps in all, those before a checkpoint among them.
    pub steps: Option<u64>,
    /// How many passes over the data, where no steps are given. Without either there are the steps
    /// of the spec's schedule, or one pass.
    pub epochs: Option<u64>,
    /// Validation now and then.
    pub validating: Option<Validating>,
    /// Checkpoints.
    pub saving: Option<Saving>,
    /// The checkpoint that training goes on from.
    pub resume: Option<Checkpoint>,
    /// After each so many steps all replicas of the state are compared bit by bit.
    pub check_replicas: Option<u64>,
    /// Whether the model may be exported afterwards. Without that its file is not kept in memory.
    pub exports: bool,
    /// What the ranks compute on.
    pub machine: Machine,
}

/// Validation while a model trains.
#[derive(Debug, Clone)]
pub struct Validating {
    /// As [`Options::data`].
    pub data: Vec<PathBuf>,
    /// After each so many steps, and at the end.
    pub every: Option<u64>,
    /// With at most so many samples, spread evenly over the data.
    pub samples: Option<u64>,
    /// Training ends when so many validations in a row were not the best.
    pub patience: Option<u64>,
}

impl Validating {
    /// Validation at the end, with all samples of the data at `data`.
    pub fn with(data: impl AsRef<Path>) -> Validating {
        Validating { data: vec![data.as_ref().to_path_buf()], every: None, samples: None, patience: None }
    }
}

/// Checkpoints of a training: one at the end, and others.
#[derive(Debug, Clone)]
pub struct Saving {
    /// The folder that has them.
    pub folder: PathBuf,
    /// After each so many steps.
    pub every: Option<u64>,
    /// Which of them stay.
    pub keep: Keep,
}

impl Options {
    /// Training over the data at `data`, from the beginning, with the CPU.
    pub fn over(data: impl AsRef<Path>) -> Options {
        Options {
            data: vec![data.as_ref().to_path_buf()],
            context: None,
            shuffle: false,
            seed: None,
            steps: None,
            epochs: None,
            validating: None,
            saving: None,
            resume: None,
            check_replicas: None,
            exports: true,
            machine: Machine::default(),
        }
    }
}

impl Saving {
    /// A checkpoint at the end in the folder `folder`; the latest three stay.
    pub fn to(folder: impl AsRef<Path>) -> Saving {
        Saving { folder: folder.as_ref().to_path_buf(), every: None, keep: Keep { latest: 3, best: false } }
    }
}
