//! What the match of a [`crate::pattern`] found.

use crate::graph::ValueId;
use std::collections::BTreeMap;

/// What a match found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Captures {
    /// Values by name.
    pub values: BTreeMap<String, ValueId>,
    /// Scalar constants by name, without `$`.
    pub numbers: BTreeMap<String, f64>,
}
