//! Conv: convolutions and their gradients.

use super::form::{Form, Position};
use super::signature::{Signature, counted, float, product};
use super::window::{WindowDim, planes, square};
use crate::dtype::DType;
use crate::mesh::Mesh;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// A convolution between `x[batch, groups, inputs, input…]`, `w[groups, outputs, inputs, kernel…]`
/// and `y[batch, groups, outputs, output…]`: `result` is the sum, over everything that it lacks, of
/// products of the other two's elements, where output, tap and input belong together as the window
/// says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv {
    /// The element type, a float. Sums of 16-bit elements are f32, and rounded once.
    pub dtype: DType,
    /// The tensor that is computed.
    pub result: ConvResult,
    /// Samples.
    pub batch: u64,
    /// Independent groups of channels.
    pub groups: u64,
    /// Input channels of a group.
    pub inputs: u64,
    /// Output channels of a group.
    pub outputs: u64,
    /// The spatial dimensions, one to three.
    pub window: Vec<WindowDim>,
}

/// Which of a convolution's three tensors is computed from the other two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConvResult {
    /// The convolution. Operands: `x`, `w`, then `y`.
    Output,
    /// Its transpose, the gradient of the input. Operands: `y`, `w`, then `x`.
    Input,
    /// The gradient of the weight. Operands: `x`, `y`, then `w`.
    Weight,
}

impl Form for Conv {
    fn name(&self) -> &'static str {
        "conv"
    }

    fn signature(&self, _mesh: &Mesh) -> Result<Signature, Reason> {
        float(self.dtype)?;
        let [input, output, taps] = planes(&self.window)?;
        let x = product(&[self.batch, self.groups, self.inputs, input])?;
        let w = product(&[self.groups, self.outputs, self.inputs, taps])?;
        let y = product(&[self.batch, self.groups, self.outputs, output])?;
        let (first, second, result) = match self.result {
            ConvResult::Output => (x, w, y),
            ConvResult::Input => (y, w, x),
            ConvResult::Weight => (x, y, w),
        };
        Ok(Signature::default().reads(self.dtype, first).reads(self.dtype, second).writes(self.dtype, result))
    }

    fn in_place(&self, _read: usize, _write: usize) -> bool {
        false
    }

    /// A product and an addition for each output, channel and tap; padding is counted too.
    fn flops(&self) -> u64 {
        let seen = self.window.iter().map(|dim| dim.output.saturating_mul(dim.kernel));
        counted([self.batch, self.groups, self.inputs, self.outputs, 2].into_iter().chain(seen))
    }

    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        vec![]
    }

    fn sizes_mut(&mut self) -> Vec<&mut u64> {
        let Conv { batch, groups, inputs, outputs, window, .. } = self;
        [batch, groups, inputs, outputs].into_iter().chain(window.iter_mut().flat_map(WindowDim::sizes_mut)).collect()
    }

    fn strides_mut(&mut self) -> Vec<&mut i64> {
        self.window.iter_mut().map(|d| &mut d.pad).collect()
    }

    fn positions_mut(&mut self) -> Vec<Position<'_>> {
        vec![]
    }

    fn everyday() -> Vec<(String, Self)> {
        // Groups, channels of a group, window.
        let cases = [
            ("3>64 7x7/2 64", 1, [3, 64], square(64, 7, 2)),
            ("64>64 3x3 16", 1, [64, 64], square(16, 3, 1)),
            ("64>128 3x3/2 16", 1, [64, 128], square(16, 3, 2)),
            ("64>128 1x1/2 16", 1, [64, 128], square(16, 1, 2)),
            ("128>128 3x3 8", 1, [128, 128], square(8, 3, 1)),
            ("256>256 3x3 4", 1, [256, 256], square(4, 3, 1)),
            ("512>512 3x3 2", 1, [512, 512], square(2, 3, 1)),
            ("128>512 1x1 28", 1, [128, 512], square(28, 1, 1)),
            ("depthwise 960 3x3 2", 960, [1, 1], square(2, 3, 1)),
            ("depthwise 384 3x3 4", 384, [1, 1], square(4, 3, 1)),
            ("depthwise 192 3x3 8", 192, [1, 1], square(8, 3, 1)),
            ("depthwise 96 3x3 28", 96, [1, 1], square(28, 3, 1)),
            ("depthwise 96 3x3/2 28", 96, [1, 1], square(28, 3, 2)),
            ("depthwise 96 7x7 28", 96, [1, 1], square(28, 7, 1)),
            ("grouped 32x4 3x3 14", 32, [4, 4], square(14, 3, 1)),
        ];
        let results = [("", ConvResult::Output), (" dx", ConvResult::Input), (" dw", ConvResult::Weight)];
        let each = |(name, groups, [inputs, outputs], window): (&str, u64, [u64; 2], Vec<WindowDim>)| {
            let of = |result| Conv { dtype: DType::F32, result, batch: 16, groups, inputs, outputs, window: window.clone() };
            results.map(|(what, result)| (format!("conv {name}{what}"), of(result)))
        };
        cases.into_iter().flat_map(each).collect()
    }
}
