//! The values and numbers that a match of a [`crate::pattern`] captured.

use crate::graph::ValueId;
use std::collections::BTreeMap;

/// The captures of a match.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Captures {
    /// Values by name.
    pub values: BTreeMap<String, ValueId>,
    /// Scalar constants by name, without `$`.
    pub numbers: BTreeMap<String, f64>,
}
