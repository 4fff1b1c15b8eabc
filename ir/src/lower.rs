//! The inputs and results of lowering rules: a rank's part of each operand, and kernel forms over
//! it; and the lowering of whole graphs and of nodes that are fused.

pub mod bundled;
pub mod fused;
pub mod graph;
pub mod onto;
mod strides;

use crate::dtype::DType;
use crate::kernel::Kernel;
use crate::kernel::signature::row_major;
use crate::mesh::Mesh;
use crate::position::Origin;
use crate::reduce_kind::ReduceKind;
use crate::scalar::{ProgramWriter, Reg, ScalarProgram};
use crate::sharding::{Sharding, origin};
use crate::types::Type;

/// A value as one rank holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Extent {
    /// Its global type.
    pub ty: Type,
    /// Its sharding.
    pub sharding: Sharding,
    /// The shape that the rank holds.
    pub local: Vec<u64>,
}

impl Extent {
    /// The rank's part of a value.
    pub fn new(ty: &Type, sharding: &Sharding, mesh: &Mesh) -> Extent {
        Extent { ty: ty.clone(), sharding: sharding.clone(), local: sharding.local(&ty.shape, mesh) }
    }

    /// The rank's part of a value that is cut as a line, as a tensor of its own.
    pub fn line(&self) -> Extent {
        let ty = Type::new(self.ty.dtype, self.local.clone());
        Extent { sharding: Sharding::replicated(ty.rank()), local: self.local.clone(), ty }
    }

    /// Elements that the rank holds.
    pub fn elements(&self) -> u64 {
        self.local.iter().product()
    }

    /// Row-major strides of the part.
    pub fn strides(&self) -> Vec<i64> {
        row_major(&self.local)
    }
}

/// A node on one rank.
pub struct LowerContext<'a> {
    /// The mesh.
    pub mesh: &'a Mesh,
    /// The operands' parts.
    pub operands: &'a [Extent],
    /// The results' parts.
    pub results: &'a [Extent],
}

impl LowerContext<'_> {
    /// How positions in dimension `dim` of result `result` map to global ones.
    pub fn result_origin(&self, result: usize, dim: usize) -> Origin {
        let extent = &self.results[result];
        origin(&extent.sharding.dims[dim], extent.ty.shape[dim], self.mesh)
    }

    /// How positions in dimension `dim` of operand `operand` map to global ones.
    pub fn operand_origin(&self, operand: usize, dim: usize) -> Origin {
        let extent = &self.operands[operand];
        origin(&extent.sharding.dims[dim], extent.ty.shape[dim], self.mesh)
    }
}

/// An operand, result or scratch tensor of a node, by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Slot {
    /// Operand `i`.
    Operand(usize),
    /// Result `i`.
    Result(usize),
    /// Scratch tensor `i` of the node.
    Scratch(usize),
}

/// One kernel over a node's operands and results.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// The form.
    pub kernel: Kernel,
    /// The tensors that it reads, in the form's order.
    pub reads: Vec<Slot>,
    /// The tensors that it writes, in the form's order.
    pub writes: Vec<Slot>,
}

/// A scalar program over all operands (broadcast as numpy does to the shape of the iteration),
/// which can be fused with others.
#[derive(Debug, Clone, PartialEq)]
pub struct Elementwise {
    /// The type of the registers; `None` where any float type will do.
    pub compute: Option<DType>,
    /// One input register for each operand, one output for each result.
    pub program: ScalarProgram,
    /// For each iteration dimension that the program asks the index of, its origin.
    pub origins: Vec<(u16, Origin)>,
}

/// The lowering of an op on a rank.
#[derive(Debug, Clone, PartialEq)]
pub enum Lowered {
    /// An elementwise program over the shape of the results.
    Map(Elementwise),
    /// A reduction of the one operand.
    Reduce {
        /// How.
        kind: ReduceKind,
        /// The program that is applied to each element first.
        before: ScalarProgram,
        /// For each dimension of the operand, whether it is reduced away.
        reduced: Vec<bool>,
        /// The type of partial results.
        accumulate: DType,
    },
    /// Kernels in order, with scratch tensors (element type, elements) that live for this node
    /// only.
    Launches {
        /// The kernels.
        launches: Vec<Launch>,
        /// Their scratch.
        scratch: Vec<(DType, u64)>,
    },
    /// The result is operand `i` under another shape: no kernel, the same memory.
    Alias(usize),
    /// A leaf: its buffer is filled from outside.
    Leaf,
}

impl Lowered {
    /// The same where kernels do not compute in the types of operands and results: in the type that
    /// they compute in, each result rounded to what memory holds.
    fn rounded(mut self, operands: &[Extent], results: &[Extent]) -> Lowered {
        match &mut self {
            Lowered::Map(map) => {
                map.compute = map.compute.map(DType::computed);
                let outputs = map.program.outputs.iter().zip(results);
                let roundings: Vec<_> = outputs
                    .map(|(output, result)| {
                        // What is given on as it was read is rounded already.
                        let read = operands.get(usize::from(*output)).map(|operand| operand.ty.dtype);
                        result.ty.dtype.rounding().filter(|_| read != Some(result.ty.dtype))
                    })
                    .collect();
                map.program.round(&roundings);
            }
            Lowered::Reduce { accumulate, .. } => *accumulate = accumulate.computed(),
            Lowered::Launches { .. } | Lowered::Alias(_) | Lowered::Leaf => {}
        }
        self
    }

    /// One kernel that reads all `operands` and writes all `results`.
    pub fn launch(kernel: Kernel, operands: usize, results: usize) -> Lowered {
        Lowered::sequence(vec![Launch {
            kernel,
            reads: (0..operands).map(Slot::Operand).collect(),
            writes: (0..results).map(Slot::Result).collect(),
        }])
    }

    /// Kernels in order, without scratch.
    pub fn sequence(launches: Vec<Launch>) -> Lowered {
        Lowered::Launches { launches, scratch: vec![] }
    }

    /// An elementwise program, written by `write`, which gets the operands' registers and returns
    /// the results'.
    pub fn map(compute: Option<DType>, operands: usize, write: impl FnOnce(&mut ProgramWriter, &[Reg]) -> Vec<Reg>) -> Lowered {
        Lowered::program(compute, ProgramWriter::program(operands, write))
    }

    /// An elementwise program over the operands.
    pub fn program(compute: Option<DType>, program: ScalarProgram) -> Lowered {
        Lowered::Map(Elementwise { compute, program, origins: vec![] })
    }
}
