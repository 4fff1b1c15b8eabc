//! Move: a copy between two strided layouts.

use super::form::{Form, Position};
use super::signature::{Signature, distinct, extent};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::position::Offset;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// A copy between two strided layouts. Operands: source, then destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The element type of both sides.
    pub dtype: DType,
    /// The iteration space.
    pub shape: Vec<u64>,
    /// First element of the source.
    pub src_offset: Offset,
    /// Strides of the source; may be 0 or negative.
    pub src_strides: Vec<i64>,
    /// First element of the destination.
    pub dst_offset: Offset,
    /// Strides of the destination; all elements distinct.
    pub dst_strides: Vec<i64>,
}

impl Form for Move {
    fn name(&self) -> &'static str {
        "move"
    }

    fn signature(&self, mesh: &Mesh) -> Result<Signature, Reason> {
        let source = extent(&self.shape, &self.src_strides, self.src_offset.range(mesh)?)?;
        let destination = extent(&self.shape, &self.dst_strides, self.dst_offset.range(mesh)?)?;
        if self.dst_strides.iter().any(|s| *s < 0) {
            return Err("a copy has negative strides in its destination".into());
        }
        if !distinct(&self.shape, &self.dst_strides) {
            return Err("destinations of a copy share elements".into());
        }
        Ok(Signature::default().reads(self.dtype, source).writes(self.dtype, destination))
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        false
    }

    fn flops(&self) -> u64 {
        0
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        vec![]
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        self.shape.iter_mut().collect()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        self.src_strides.iter_mut().chain(&mut self.dst_strides).collect()
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        [&mut self.src_offset, &mut self.dst_offset].map(|offset| Position { offset, digits: None }).into()
    }

    fn everyday() -> Vec<(String, Self)> {
        let transpose = Move {
            dtype: DType::F32,
            shape: vec![1024, 1024],
            src_offset: Offset::default(),
            src_strides: vec![1, 1024],
            dst_offset: Offset::default(),
            dst_strides: vec![1024, 1],
        };
        vec![("transpose 1024x1024".to_string(), transpose)]
    }
}
