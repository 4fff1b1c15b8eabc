//! Map: a fused elementwise program over broadcast inputs.

use super::form::{Form, Position};
use super::signature::{Signature, counted, elements, extent, row_major};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::position::Origin;
use crate::reason;
use crate::reason::Reason;
use crate::scalar::ScalarProgram;
use serde::{Deserialize, Serialize};

/// A fused elementwise program over broadcast inputs. Operands: the inputs, then the outputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Map {
    /// The type of the registers. Truth values are 0 and 1 in it.
    pub compute: DType,
    /// The iteration space.
    pub shape: Vec<u64>,
    /// The inputs.
    pub inputs: Vec<MapInput>,
    /// The program; as many outputs as `outputs`.
    pub program: ScalarProgram,
    /// The element types of the results, each contiguous over `shape`. An output may be the same
    /// memory as an input with the same strides (an update in place).
    pub outputs: Vec<DType>,
    /// For each dimension that [`crate::scalar::Instr::Index`] reads, its origin; empty if none
    /// does.
    pub origins: Vec<(u16, Origin)>,
}

/// An input of an elementwise program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapInput {
    /// Its element type; converted to the program's compute type as it is read.
    pub dtype: DType,
    /// Its stride along each iteration dimension; 0 broadcasts.
    pub strides: Vec<i64>,
}

impl Map {
    /// The same over one dimension, where each input lies from end to end or is a number; `None` if
    /// one lies otherwise, or positions count.
    pub fn flat(&self) -> Option<Map> {
        let all = row_major(&self.shape);
        let step = |input: &MapInput| {
            let is = |of: &dyn Fn(usize) -> i64| (0..all.len()).all(|d| self.shape[d] == 1 || input.strides[d] == of(d));
            if is(&|d| all[d]) { Some(1) } else { is(&|_| 0).then_some(0) }
        };
        let inputs = self.inputs.iter().map(|input| Some(MapInput { dtype: input.dtype, strides: vec![step(input)?] }));
        let inputs = inputs.collect::<Option<_>>()?;
        self.origins.is_empty().then(|| Map { shape: vec![self.shape.iter().product()], inputs, ..self.clone() })
    }
}

impl Form for Map {
    fn name(&self) -> &'static str {
        "map"
    }

    fn signature(&self, mesh: &Mesh) -> Result<Signature, Reason> {
        if self.compute.is_half() {
            return Err(reason!("registers of {}, which kernels do not compute in", self.compute));
        }
        let total = elements(&self.shape)?;
        let mut signature = Signature::default();
        for input in &self.inputs {
            signature = signature.reads(input.dtype, extent(&self.shape, &input.strides, (0, 0))?);
        }
        for output in &self.outputs {
            signature = signature.writes(*output, total);
        }
        if self.program.inputs as usize != self.inputs.len() || self.program.outputs.len() != self.outputs.len() {
            return Err("the program's inputs or outputs are not the kernel's".into());
        }
        for (dimension, origin) in &self.origins {
            let size = *self.shape.get(*dimension as usize).ok_or("an origin for a dimension that is not there")?;
            origin.check(size, mesh)?;
        }
        Ok(signature)
    }

    /// An input may be the same memory as an output of its type that is stepped through alike.
    fn in_place(&self, read: usize, write: usize) -> bool {
        let (Some(input), Some(output)) = (self.inputs.get(read), self.outputs.get(write)) else { return false };
        let steps = row_major(&self.shape);
        let alike = |((size, step), own): ((&u64, &i64), &i64)| *size == 1 || step == own;
        input.dtype == *output && (self.shape.contains(&0) || self.shape.iter().zip(&steps).zip(&input.strides).all(alike))
    }

    /// The functions of the program for each element.
    fn flops(&self) -> u64 {
        counted(self.shape.iter().copied().chain([self.program.functions()]))
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        self.shape.iter_mut().collect()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        self.inputs.iter_mut().flat_map(|input| &mut input.strides).collect()
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        self.origins.iter_mut().map(|(_, origin)| Position::of(origin)).collect()
    }
}
