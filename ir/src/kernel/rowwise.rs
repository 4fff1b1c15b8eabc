//! Rowwise: programs over rows of contiguous elements.

use super::form::{Form, Position};
use super::signature::{Signature, counted, float, product};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::reason;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// A program over rows: `rows` independent rows of `width` contiguous elements of `dtype`;
/// statistics are of the same type. What flows from a norm, and back to its gradient, may be of 16
/// bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rowwise {
    /// The element type, f32 or f64.
    pub dtype: DType,
    /// The type of the result of a norm, and of `dy` of its gradient; other programs have none.
    pub flow: DType,
    /// How many rows.
    pub rows: u64,
    /// Elements in a row.
    pub width: u64,
    /// The program that runs over each row.
    pub program: RowProgram,
}

/// The function that a row kernel computes. `x`, `y`, `dy`, `dx` are `[rows, width]`; `scale`,
/// `bias` are `[width]`; statistics are `[rows]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum RowProgram {
    /// `x -> y = exp(x - max x) / sum exp(x - max x)`; a row of -infinity gives not-a-number
    Softmax,
    /// `y, dy -> dx = y * (dy - sum(y * dy))`
    SoftmaxGrad,
    /// `x, scale, bias -> y, mean, rstd`: `y = (x - mean) * rstd * scale + bias`,
    /// `rstd = 1/sqrt(variance + eps)`, biased variance
    LayerNorm {
        /// Added to the variance.
        eps: f64,
    },
    /// `x, scale, mean, rstd, dy -> dx`
    LayerNormGrad,
    /// `x, scale -> y, rstd`: `y = x * rstd * scale`, `rstd = 1/sqrt(mean(x^2) + eps)`
    RmsNorm {
        /// Added to the mean square.
        eps: f64,
    },
    /// `x, scale, rstd, dy -> dx`
    RmsNormGrad,
    /// `x, cos, sin -> y` with tables `[period, width]`, of which row `r` reads row
    /// `(r / repeat) % period`: `y = x * cos + turn(x) * sin`,
    /// `turn(x) = (-second half, first half)`; transposed, `y = x * cos - turn(x * sin)`
    Rotary {
        /// Neighbouring rows that read the same row of the tables.
        repeat: u64,
        /// Rows of the tables.
        period: u64,
        /// Whether the transpose is applied.
        transposed: bool,
    },
}

/// How many elements an operand of a row program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowExtent {
    /// `[rows, width]`
    All,
    /// `[rows, width]` of the type `flow`
    Flow,
    /// `[width]`
    Width,
    /// `[rows]`
    Rows,
    /// `[period, width]`
    Table,
}

impl RowProgram {
    /// Functions for each element of a row, as the formulas above have them; those that are taken
    /// once a row are not counted.
    fn functions(self) -> u64 {
        match self {
            // Maximum; difference, exponential, sum; quotient.
            RowProgram::Softmax => 5,
            // Product and sum; difference, product.
            RowProgram::SoftmaxGrad => 4,
            // Sum; difference, square, sum; difference, product, product, sum.
            RowProgram::LayerNorm { .. } => 8,
            // Difference, two products; two sums, one of products; two products, two differences,
            // product.
            RowProgram::LayerNormGrad => 11,
            // Square, sum; two products.
            RowProgram::RmsNorm { .. } => 4,
            // Two products; product and sum; product, difference, product.
            RowProgram::RmsNormGrad => 7,
            // Two products and a sum.
            RowProgram::Rotary { .. } => 3,
        }
    }

    /// The operands read and the operands written.
    pub fn operands(self) -> (&'static [RowExtent], &'static [RowExtent]) {
        use RowExtent::{All, Flow, Rows, Table, Width};
        match self {
            RowProgram::Softmax => (&[All], &[All]),
            RowProgram::SoftmaxGrad => (&[All, All], &[All]),
            RowProgram::LayerNorm { .. } => (&[All, Width, Width], &[Flow, Rows, Rows]),
            RowProgram::LayerNormGrad => (&[All, Width, Rows, Rows, Flow], &[All]),
            RowProgram::RmsNorm { .. } => (&[All, Width], &[Flow, Rows]),
            RowProgram::RmsNormGrad => (&[All, Width, Rows, Flow], &[All]),
            RowProgram::Rotary { .. } => (&[All, Table, Table], &[All]),
        }
    }
}

impl Form for Rowwise {
    fn name(&self) -> &'static str {
        "rowwise"
    }

    fn signature(&self, _mesh: &Mesh) -> Result<Signature, Reason> {
        float(self.dtype)?;
        if self.flow != self.dtype && !(self.flow.is_half() && self.flow.computed() == self.dtype) {
            return Err(reason!("{} is no rounding of {}", self.flow, self.dtype));
        }
        let all = product(&[self.rows, self.width])?;
        let table = match self.program {
            RowProgram::Rotary { repeat, period, .. } if self.rows > 0 && (repeat == 0 || period == 0) => {
                return Err("a table of no rows".into());
            }
            RowProgram::Rotary { .. } if !self.width.is_multiple_of(2) => return Err("an odd row has no halves".into()),
            RowProgram::Rotary { period, .. } => product(&[period, self.width])?,
            _ => 0,
        };
        let (reads, writes) = self.program.operands();
        let elements = |extent: &RowExtent| match extent {
            RowExtent::All | RowExtent::Flow => all,
            RowExtent::Width => self.width,
            RowExtent::Rows => self.rows,
            RowExtent::Table => table,
        };
        let dtype = |extent: &RowExtent| if *extent == RowExtent::Flow { self.flow } else { self.dtype };
        let signature = reads.iter().fold(Signature::default(), |s, extent| s.reads(dtype(extent), elements(extent)));
        Ok(writes.iter().fold(signature, |s, extent| s.writes(dtype(extent), elements(extent))))
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        false
    }

    fn flops(&self) -> u64 {
        counted([self.rows, self.width, self.program.functions()])
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        match &mut self.program {
            RowProgram::LayerNorm { eps } | RowProgram::RmsNorm { eps } => vec![eps],
            _ => vec![],
        }
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        match &mut self.program {
            RowProgram::Rotary { repeat, period, .. } => vec![&mut self.rows, &mut self.width, repeat, period],
            _ => vec![&mut self.rows, &mut self.width],
        }
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        vec![]
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        vec![]
    }

    fn everyday() -> Vec<(String, Self)> {
        let named = [
            ("layer norm 768x128", RowProgram::LayerNorm { eps: 1e-5 }),
            ("layer norm grad 768x128", RowProgram::LayerNormGrad),
            ("softmax 768x128", RowProgram::Softmax),
        ];
        let of = |program| Rowwise { dtype: DType::F32, flow: DType::F32, rows: 768, width: 128, program };
        named.map(|(what, program)| (what.to_string(), of(program))).into()
    }
}
