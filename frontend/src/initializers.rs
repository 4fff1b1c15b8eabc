//! What a job remembers of its model's initializers, wherever its model is.

use serde::{Deserialize, Serialize};
use shardc_ir::interp;
use shardc_ir::ops::layout::Transpose;
use shardc_ir::reason::Reason;
use shardc_ir::types::{Tensor, Type};

/// The decision about a float initializer, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The initializer's name.
    pub name: String,
    /// A name after its scope, for an initializer whose name the exporter invented.
    pub alias: Option<String>,
    /// Whether it is trained.
    pub trained: bool,
    /// The reason, as a phrase.
    pub why: String,
    /// Its shape as stored.
    pub shape: Vec<u64>,
}

/// An initializer that is another one's view, and is written with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredCopy {
    /// The initializer.
    pub name: String,
    /// The one that it is a view of.
    pub of: String,
    /// Whether it is that one's transpose.
    pub transposed: bool,
}

impl StoredCopy {
    /// The type of the copy where that of the original is `of`.
    pub fn ty(&self, of: &Type) -> Type {
        let turned = || of.shape.iter().rev().copied().collect::<Vec<u64>>();
        Type::new(of.dtype, if self.transposed { turned() } else { of.shape.clone() })
    }

    /// The elements of the copy where those of the original are `of`.
    ///
    /// # Errors
    /// If `of` is no matrix and the copy its transpose.
    pub fn elements(&self, of: &Tensor) -> Result<Tensor, Reason> {
        if !self.transposed {
            return Ok(of.clone());
        }
        let turned = interp::evaluate(&Transpose { perm: vec![1, 0] }.into(), std::slice::from_ref(of))?;
        turned.into_iter().next().ok_or_else(|| "a transpose has no result".into())
    }
}
