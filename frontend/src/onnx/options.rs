//! The options of an import, which the spec gives.

use crate::onnx::trained::{Tie, Untie};
use shardc_ir::dtype::DType;
use std::collections::BTreeMap;

/// The options that the spec gives for the model.
pub struct ImportOptions<'a> {
    /// Sizes of symbolic dimensions.
    pub bindings: BTreeMap<String, u64>,
    /// The size of dimension 0 of every input.
    pub batch: Option<u64>,
    /// Initializers that are trained whatever the rule says; stronger than `freeze`.
    pub train: &'a dyn Fn(&str) -> bool,
    /// Initializers that are not trained.
    pub freeze: &'a dyn Fn(&str) -> bool,
    /// Parameters that are one: in several places on purpose, or written twice by the exporter.
    pub tie: &'a [Tie],
    /// Initializers that stand for several parameters, which the exporter merged because they were
    /// equal.
    pub untie: &'a [Untie],
    /// Initializers whose first values the spec makes: those of the file do not count.
    pub init: &'a dyn Fn(&str) -> bool,
    /// The element type of all floats, instead of the model's own.
    pub dtype: Option<DType>,
    /// Whether the values of trained initializers must be there.
    pub weights: Weights,
    /// Whether the model is to be trained: then it must be clear what of it is, and nothing of it
    /// may be lost.
    pub training: bool,
    /// Whether a model trains though its exporter's record lists parameters that the file lacks.
    pub accept_lost: bool,
}

/// Whether the values of trained initializers must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// Files with external data must exist.
    Needed,
    /// A plan is made without them.
    NotNeeded,
}

impl Default for ImportOptions<'_> {
    fn default() -> Self {
        ImportOptions {
            bindings: BTreeMap::new(),
            batch: None,
            train: &|_| false,
            freeze: &|_| false,
            tie: &[],
            untie: &[],
            init: &|_| false,
            dtype: None,
            weights: Weights::Needed,
            training: true,
            accept_lost: false,
        }
    }
}
