//! Gather and ScatterAdd: rows of tables by index.

use super::form::{Form, Position};
use super::signature::{Signature, counted, float, product};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::position::Origin;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// Rows of tables by index: `table[batch, outer, rows, inner], indices[batch, count] -> out[batch,
/// outer, count, inner]`. An index below 0 counts from `total_rows`. If the table is split,
/// `origin` maps its local rows to global ones, and an index of a row held elsewhere gives 0. An
/// index outside `0..total_rows` is an error of the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gather {
    /// The element type of table and result.
    pub dtype: DType,
    /// Tables, each with indices of its own.
    pub batch: u64,
    /// Elements of a table before the indexed dimension.
    pub outer: u64,
    /// Local rows.
    pub rows: u64,
    /// Rows of the whole table.
    pub total_rows: u64,
    /// Elements of a row.
    pub inner: u64,
    /// Number of indices into each table.
    pub count: u64,
    /// The global row of each local row.
    pub origin: Origin,
}

/// The transpose of a gather, in index order: `indices[batch, count], src[batch, outer, count,
/// inner] -> table[batch, outer, rows, inner]`. Sums begin with 0, or with the elements of a table
/// that is the third operand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScatterAdd {
    /// The gather whose transpose it is.
    pub gather: Gather,
    /// Whether it adds to a table, which the result may be written over.
    pub onto: bool,
}

/// The operand of a [`ScatterAdd`] that it adds to.
pub const ONTO: usize = 2;

impl Gather {
    /// Elements of the tables, of the indices and of the rows that they name.
    fn elements(&self, mesh: &Mesh) -> Result<[u64; 3], Reason> {
        self.origin.check(self.rows, mesh)?;
        let tables = product(&[self.batch, self.outer, self.rows, self.inner])?;
        Ok([tables, product(&[self.batch, self.count])?, product(&[self.batch, self.outer, self.count, self.inner])?])
    }
}

impl Form for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn signature(&self, mesh: &Mesh) -> Result<Signature, Reason> {
        let [tables, indices, rows] = self.elements(mesh)?;
        Ok(Signature::default().reads(self.dtype, tables).reads(DType::I64, indices).writes(self.dtype, rows))
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
        let Gather { batch, outer, rows, total_rows, inner, count, .. } = self;
        vec![batch, outer, rows, total_rows, inner, count]
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        vec![]
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        vec![Position::of(&mut self.origin)]
    }

    fn everyday() -> Vec<(String, Self)> {
        let origin = Origin::whole(65);
        let gather = Gather { dtype: DType::F32, batch: 1, outer: 1, rows: 65, total_rows: 65, inner: 128, count: 768, origin };
        vec![("gather 768x128".to_string(), gather)]
    }
}

impl Form for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn signature(&self, mesh: &Mesh) -> Result<Signature, Reason> {
        let [tables, indices, rows] = self.gather.elements(mesh)?;
        let dtype = self.gather.dtype;
        if dtype != DType::I64 {
            float(dtype)?;
        }
        let reads = Signature::default().reads(DType::I64, indices).reads(dtype, rows);
        let reads = if self.onto { reads.reads(dtype, tables) } else { reads };
        Ok(reads.writes(dtype, tables))
    }

    fn in_place(&self, read: usize, _write: usize) -> bool {
        read == ONTO
    }

    /// An addition for each element of a row.
    fn flops(&self) -> u64 {
        let Gather { batch, outer, count, inner, .. } = self.gather;
        counted([batch, outer, count, inner])
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        vec![]
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        self.gather.sizes_mut()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        vec![]
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        self.gather.positions_mut()
    }

    fn everyday() -> Vec<(String, Self)> {
        let of = |(_, gather)| ("scatter add 768x128".to_string(), ScatterAdd { gather, onto: false });
        Gather::everyday().into_iter().map(of).collect()
    }
}
