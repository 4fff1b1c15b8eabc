//! Reduce: a reduction of an elementwise program's result.

use super::form::{Form, Position};
use super::map::Map;
use super::signature::{Signature, counted, elements};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::reason::Reason;
use crate::reduce_kind::ReduceKind;
use crate::scalar::{Binary, Instr};
use serde::{Deserialize, Serialize};

/// A reduction of an elementwise program's one result. `map.outputs` holds the type of the result,
/// which is contiguous over the dimensions that are kept. Sums of f32 are exact to a few ulp
/// whatever the length (blocked), in an order that depends on the shape only, never on the number
/// of threads. Operands: the inputs, then the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    /// The elementwise program whose result is reduced.
    pub map: Map,
    /// How.
    pub kind: ReduceKind,
    /// For each dimension of `map.shape`, whether it is reduced away.
    pub reduced: Vec<bool>,
    /// The type in which partial results are held (f64 for the norm of gradients).
    pub accumulate: DType,
}

impl Form for Reduce {
    fn name(&self) -> &'static str {
        "reduce"
    }

    fn signature(&self, mesh: &Mesh) -> Result<Signature, Reason> {
        let mut signature = self.map.signature(mesh)?;
        if self.map.outputs.len() != 1 || self.reduced.len() != self.map.shape.len() {
            return Err("a reduction has one result and a flag for each dimension".into());
        }
        let kept: Vec<u64> = self.map.shape.iter().zip(&self.reduced).filter(|(_, r)| !**r).map(|(n, _)| *n).collect();
        signature.writes[0].elements = elements(&kept)?;
        Ok(signature)
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        false
    }

    /// Those of the program, and one that combines, for each element.
    fn flops(&self) -> u64 {
        counted(self.map.shape.iter().copied().chain([self.map.program.functions() + 1]))
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        self.map.numbers_mut()
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        self.map.sizes_mut()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        self.map.strides_mut()
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        self.map.positions_mut()
    }

    fn everyday() -> Vec<(String, Self)> {
        let sum = |map, reduced: &[bool]| {
            let (kind, accumulate) = (ReduceKind::Sum, DType::F32);
            Reduce { map, kind, reduced: reduced.to_vec(), accumulate }
        };
        let matrix = |shape: [u64; 2], reduced| sum(Map::of_f32(&shape, &[&[shape[1] as i64, 1]], vec![]), reduced);
        let (images, whole): (&[u64], &[i64]) = (&[16, 64, 1024], &[64 * 1024, 1024, 1]);
        let square = vec![Instr::Binary(Binary::Sub, 0, 1), Instr::Binary(Binary::Mul, 2, 2)];
        let (rows, columns, all, channels) = (&[false, true], &[true, false], &[true, true], &[true, false, true]);
        let named = [
            ("batch norm mean 16x64x1024", sum(Map::of_f32(images, &[whole], vec![]), channels)),
            ("batch norm variance 16x64x1024", sum(Map::of_f32(images, &[whole, &[0, 1, 0]], square), channels)),
            ("reduce columns 768x512", matrix([768, 512], columns)),
            ("reduce columns 768x128", matrix([768, 128], columns)),
            ("reduce rows 768x512", matrix([768, 512], rows)),
            ("reduce rows 768x128", matrix([768, 128], rows)),
            ("reduce all 768x512", matrix([768, 512], all)),
            ("reduce all 4096x4096", matrix([4096, 4096], all)),
            ("reduce rows 4096x4096", matrix([4096, 4096], rows)),
            ("reduce columns 4096x4096", matrix([4096, 4096], columns)),
        ];
        named.map(|(what, reduce)| (what.to_string(), reduce)).into()
    }
}
