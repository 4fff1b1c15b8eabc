//! Convolutions of more than a tile: every result, with strides, dilations and padding, over one to
//! three dimensions, with groups of many and of few channels.

use super::{Case, case};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Conv, ConvResult, Kernel, WindowDim};
use shardc_ir::mesh::Mesh;

/// A dimension of a window: positions of the input, taps, stride, dilation, and padding in front
/// and behind.
fn dim(input: u64, kernel: u64, stride: u64, dilation: u64, [pad, behind]: [i64; 2]) -> WindowDim {
    let padded = input as i64 + pad + behind;
    let output = (padded - (dilation * (kernel - 1)) as i64 - 1) as u64 / stride + 1;
    WindowDim { input, output, kernel, stride, dilation, pad }
}

/// The same in every dimension.
fn all(inputs: &[u64], kernel: u64, stride: u64, dilation: u64, pad: i64) -> Vec<WindowDim> {
    inputs.iter().map(|input| dim(*input, kernel, stride, dilation, [pad, pad])).collect()
}

/// Sizes are samples, groups, input and output channels of a group.
fn conv(dtype: DType, [batch, groups, inputs, outputs]: [u64; 4], window: &[WindowDim]) -> Conv {
    Conv { dtype, result: ConvResult::Output, batch, groups, inputs, outputs, window: window.to_vec() }
}

/// Each result of convolutions whose tiles are several, whole or cut.
pub fn cases() -> Vec<Case> {
    use DType::{BF16, F16, F32, F64};
    let kinds = [
        conv(F32, [2, 1, 20, 70], &all(&[9, 11], 3, 1, 1, 1)),
        conv(F32, [3, 1, 10, 24], &all(&[9, 12], 3, 2, 1, 1)),
        conv(F32, [1, 2, 12, 16], &all(&[10, 10], 3, 1, 2, 2)),
        conv(F32, [2, 1, 40, 33], &all(&[7, 9], 1, 1, 1, 0)),
        conv(F32, [2, 1, 16, 32], &all(&[8, 8], 1, 2, 1, 0)),
        conv(F32, [2, 1, 9, 16], &all(&[18, 18], 7, 2, 1, 3)),
        conv(F32, [1, 1, 9, 11], &all(&[19, 17], 7, 1, 1, 3)),
        conv(F32, [2, 1, 24, 16], &all(&[70], 5, 1, 1, 2)),
        conv(F32, [1, 1, 8, 12], &all(&[5, 6, 7], 3, 2, 1, 1)),
        conv(F32, [2, 6, 1, 1], &all(&[12, 10], 3, 1, 1, 1)),
        conv(F32, [2, 5, 1, 2], &all(&[11, 9], 5, 2, 1, 2)),
        conv(F32, [2, 3, 4, 4], &all(&[8, 8], 3, 1, 1, 1)),
        conv(F32, [1, 1, 130, 140], &all(&[6, 6], 1, 1, 1, 0)),
        // Many enough for the largest tiles, as two gradients of weights are.
        conv(F32, [1, 1, 9, 127], &all(&[97, 97], 1, 1, 1, 0)),
        conv(BF16, [1, 1, 16, 128], &all(&[96, 96], 1, 1, 1, 0)),
        conv(F32, [2, 1, 8, 9], &[dim(7, 3, 3, 2, [2, 0]), dim(9, 2, 2, 3, [-1, 2])]),
        conv(F32, [1, 1, 8, 8], &all(&[16, 16], 4, 4, 1, 0)),
        conv(F64, [2, 1, 20, 34], &all(&[7, 8], 3, 1, 1, 1)),
        conv(F64, [1, 4, 1, 3], &all(&[20], 3, 2, 1, 1)),
        conv(BF16, [2, 1, 20, 40], &all(&[9, 11], 3, 1, 1, 1)),
        conv(BF16, [1, 2, 48, 17], &all(&[8, 8], 1, 1, 1, 0)),
        conv(BF16, [2, 4, 1, 1], &all(&[12, 10], 3, 1, 1, 1)),
        conv(F16, [2, 1, 16, 20], &all(&[9, 10], 3, 2, 1, 1)),
        conv(F16, [1, 1, 9, 130], &all(&[18, 18], 7, 2, 1, 3)),
    ];
    let weights = [F32, F16].map(|dtype| conv(dtype, [8, 1, 9210, 121], &all(&[1], 1, 1, 1, 0)));
    let weights = weights.map(|kind| Kernel::Conv(Conv { result: ConvResult::Weight, ..kind }));
    let results = [ConvResult::Output, ConvResult::Input, ConvResult::Weight];
    let each = kinds.iter().flat_map(|kind| results.map(|result| Kernel::Conv(Conv { result, ..kind.clone() })));
    let mesh = Mesh::new([], 1);
    let one = |kernel: Kernel, aligned| case(&format!("convolution {kernel:?}"), kernel, &[None; 2], &mesh, aligned);
    // Where alignment changes nothing, the text is that of the aligned case, which comes last.
    let both = |kernel: Kernel| [false, true].map(|aligned| one(kernel.clone(), aligned));
    each.chain(weights).flat_map(both).collect()
}
