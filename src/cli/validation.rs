//! The arguments about validation.

use crate::training::Validating;
use clap::Args;
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct ValidationArgs {
    /// Validate with this data, after each --every steps and at the end
    #[arg(long, value_name = "DATA")]
    pub validate: Vec<PathBuf>,
    /// Validate after each N steps, whatever --every says
    #[arg(long, value_name = "N", requires = "validate", value_parser = clap::value_parser!(u64).range(1..))]
    validate_every: Option<u64>,
    /// Validate with N samples, spread evenly over the data, instead of all
    #[arg(long, value_name = "N", requires = "validate", value_parser = clap::value_parser!(u64).range(1..))]
    validate_samples: Option<u64>,
    /// Save and keep the checkpoint with the least validation loss too
    #[arg(long, requires = "validate", requires = "checkpoint")]
    pub keep_best: bool,
    /// Stop once so many validations in a row were not the best
    #[arg(long, value_name = "N", requires = "validate", value_parser = clap::value_parser!(u64).range(1..))]
    patience: Option<u64>,
}

impl ValidationArgs {
    /// What is wanted, with what `--every` says.
    pub fn read(&self, every: Option<u64>) -> Option<Validating> {
        let (data, every) = (self.validate.clone(), self.validate_every.or(every));
        let (samples, patience) = (self.validate_samples, self.patience);
        (!data.is_empty()).then_some(Validating { data, every, samples, patience })
    }
}
