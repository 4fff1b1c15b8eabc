//! An attack on everything that reads what others have made: for seven kinds of bytes, seeds,
//! mutants of them, and what must hold whatever the bytes are. `fuzz/` drives it by the code that
//! is reached, `tests/fuzzed.rs` by numbers alone.
//!
//! A crate that uses it says where the repository is in `crate::ROOT`.
#![allow(dead_code, reason = "each crate that attacks uses some of what is here")]

pub mod checks;
mod messages;
mod mutants;
pub mod seeds;

pub use shardc_testkit::random::Random;

use peak_alloc::PeakAlloc;
use std::time::{Duration, Instant};

/// Counts what is allocated.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// No input takes longer.
const LONGEST: Duration = Duration::from_secs(1);

/// How often an input is timed that took longer, on a machine that does other things too.
const TRIES: usize = 4;

/// No input takes more memory than that, and so much for each of its bytes.
const MEMORY: usize = 64 << 20;
const MEMORY_PER_BYTE: usize = 64;

/// The format that is attacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Bytes of a model.
    Onnx,
    /// The text of a spec.
    Spec,
    /// The text of a graph.
    Shir,
    /// A plan file, or what stands behind its header.
    Plan,
    /// The manifest of a plan directory.
    Manifest,
    /// Data in an archive.
    Npz,
    /// Data, or weights.
    Safetensors,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 7] =
        [Target::Onnx, Target::Spec, Target::Shir, Target::Plan, Target::Manifest, Target::Npz, Target::Safetensors];

    /// Does with `bytes` what the program would; panics if what must hold does not.
    fn check(self, bytes: &[u8]) {
        match self {
            Target::Onnx => checks::onnx(bytes),
            Target::Spec => checks::spec(bytes),
            Target::Shir => checks::shir(bytes),
            Target::Plan => checks::plan(bytes),
            Target::Manifest => checks::manifest(bytes),
            Target::Npz => checks::npz(bytes),
            Target::Safetensors => checks::safetensors(bytes),
        }
    }
}

/// An attack on one target.
pub struct Attack {
    target: Target,
    seeds: Vec<Vec<u8>>,
}

impl Attack {
    /// The attack on `target`.
    pub fn on(target: Target) -> Attack {
        Attack { target, seeds: seeds::of(target) }
    }

    /// One of the good inputs that mutants begin with.
    pub fn seed(&self, random: &mut Random) -> &[u8] {
        &self.seeds[random.below(self.seeds.len())]
    }

    /// `bytes` with a few things wrong, or right in another way.
    pub fn mutant(&self, bytes: &[u8], random: &mut Random) -> Vec<u8> {
        let other = self.seed(random);
        mutants::of(self.target, bytes, other, random)
    }

    /// Feeds `bytes` to the target; panics if it panics, or takes too much time or memory. Gives
    /// the time that it took.
    pub fn run(&self, bytes: &[u8]) -> Duration {
        let mut took = self.measured(bytes);
        for _ in 1..TRIES {
            if took > LONGEST {
                took = took.min(self.measured(bytes));
            }
        }
        assert!(took <= LONGEST, "{:?}: {} bytes take {took:?}", self.target, bytes.len());
        took
    }

    fn measured(&self, bytes: &[u8]) -> Duration {
        HEAP.reset_peak_usage();
        let (before, start) = (HEAP.current_usage(), Instant::now());
        self.target.check(bytes);
        let (took, memory) = (start.elapsed(), HEAP.peak_usage().saturating_sub(before));
        let allowed = MEMORY + MEMORY_PER_BYTE * bytes.len();
        assert!(memory <= allowed, "{:?}: {} bytes take {} KiB of memory", self.target, bytes.len(), memory >> 10);
        took
    }
}
