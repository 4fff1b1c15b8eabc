//! The PTX that NVRTC makes of kernels, run in an interpreter: what it computes, and how well its
//! accesses use the memory.
//!
//! The lanes of a warp run together. Where they part, those at the least place in the code go
//! first, and they join where they meet again. An instruction that needs other lanes waits for
//! them. Warps run one after another from barrier to barrier, and blocks one after another.

mod arithmetic;
mod compare;
mod convert;
mod counts;
mod decode;
pub(crate) mod exact;
mod kinds;
mod lanes;
mod launch;
mod memory;
mod names;
mod parse;
mod text;
mod together;
mod warp;

pub use counts::{Counts, Sectors};

use crate::job::Job;
use launch::{Data, Kernel};
use std::collections::BTreeSet;

/// A parsed text, whose entries can be run.
pub struct Module {
    kernels: Vec<Kernel>,
    data: Data,
}

/// What a launch left.
#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    /// The bytes of the operands, in the order of the job.
    pub operands: Vec<Vec<u8>>,
    /// What the launch did.
    pub counts: Counts,
}

impl Module {
    /// The module of a text. The error names every instruction that is not known.
    pub fn parse(text: &str) -> Result<Module, String> {
        let parts = parse::parts(&text::without_comments(text))?;
        let mut unknown = BTreeSet::new();
        let (data, addresses) = Data::of(&parts.variables);
        let mut kernels = Vec::new();
        for entry in &parts.entries {
            let kernel = Kernel::of(entry, &parts.variables, &addresses, &mut unknown);
            kernels.push(kernel.map_err(|e| format!("entry '{}': {e}", entry.name))?);
        }
        if unknown.is_empty() {
            Ok(Module { kernels, data })
        } else {
            let all: Vec<String> = unknown.into_iter().collect();
            Err(format!("unknown instructions: {}", all.join(", ")))
        }
    }

    /// The names of the functions that can be launched.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|k| k.name.as_str())
    }

    /// Runs a launch.
    ///
    /// An access that its operand does not allow is an error, and so are one that is outside or
    /// not aligned, a barrier that a thread of the block does not reach, an operation of a warp
    /// without one of its lanes, and a launch that does not end.
    pub fn run(&self, job: &Job) -> Result<Ran, String> {
        self.run_at_most(job, launch::MOST)
    }

    /// The same, with so many instructions of lanes at most.
    pub fn run_at_most(&self, job: &Job, most: u64) -> Result<Ran, String> {
        let kernel = self.kernels.iter().find(|k| k.name == job.entry);
        let kernel = kernel.ok_or_else(|| format!("there is no entry '{}'", job.entry))?;
        launch::run(kernel, &self.data, job, most).map_err(|e| format!("entry '{}'{e}", job.entry))
    }
}
