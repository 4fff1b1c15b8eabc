//! What was found of a job's graphs when they were held against its model and its spec. Plan
//! directories keep it.
//!
//! `certified` is what holds, with how that was seen; `not_certified` what could be held against
//! nothing, and why; `doubted` what another program finds otherwise. A graph that is seen to be
//! wrong has no certificate: compiling it is an error.

use serde::{Deserialize, Serialize};

/// What was found of the graphs of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Certificate {
    /// What holds, and against what it was held.
    pub certified: Vec<Finding>,
    /// What was held against nothing, and why.
    pub not_certified: Vec<Finding>,
    /// What another program finds otherwise, which may be right or wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubted: Vec<Finding>,
}

/// A part of the step, and words about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// `gradients`, `updates`, `loss`, …
    pub what: String,
    /// How it was found, or why not.
    pub how: String,
}
