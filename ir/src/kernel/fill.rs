//! Fill: elements of one value.

use super::form::{Form, Position};
use super::signature::{Signature, product};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// `count` elements of one value. Operand: the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fill {
    /// The element type.
    pub dtype: DType,
    /// How many.
    pub count: u64,
    /// The value.
    pub value: f64,
}

impl Form for Fill {
    fn name(&self) -> &'static str {
        "fill"
    }

    fn signature(&self, _mesh: &Mesh) -> Result<Signature, Reason> {
        Ok(Signature::default().writes(self.dtype, product(&[self.count])?))
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        false
    }

    fn flops(&self) -> u64 {
        0
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        vec![&mut self.value]
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        vec![&mut self.count]
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        vec![]
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        vec![]
    }

    fn everyday() -> Vec<(String, Self)> {
        vec![("fill 4M".to_string(), Fill { dtype: DType::F32, count: 4 << 20, value: 0.0 })]
    }
}
