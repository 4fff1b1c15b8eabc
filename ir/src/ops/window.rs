//! Windows that move over spatial dimensions: what convolutions and pools have in common.

use crate::kernel::WindowDim;
use crate::kernel::window::MAX_DIMS;
use crate::limits::MAX_PLANE;
use crate::reason;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// A window has at most this many taps.
const MOST_TAPS: u64 = 1 << 24;

/// How a window moves; one entry for each spatial dimension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Inputs from one output to the next.
    pub strides: Vec<u64>,
    /// Inputs from one tap to the next.
    pub dilations: Vec<u64>,
    /// Absent elements before and after the input; negative counts leave some of it out.
    pub pads: Vec<[i64; 2]>,
}

impl Window {
    /// A window that moves by one over `dims` dimensions, without pads.
    pub fn plain(dims: usize) -> Window {
        Window { strides: vec![1; dims], dilations: vec![1; dims], pads: vec![[0, 0]; dims] }
    }

    /// Every spatial dimension with the number of its outputs: the positions at which the window
    /// with `kernel` taps lies in the padded input.
    ///
    /// # Errors
    /// If there is no such position, or a number makes no sense.
    pub fn over(&self, input: &[u64], kernel: &[u64]) -> Result<Vec<WindowDim>, Reason> {
        let dims = input.len();
        if dims == 0 || dims > MAX_DIMS {
            return Err(reason!("{dims} spatial dimensions; one to {MAX_DIMS} are supported"));
        }
        if [kernel.len(), self.strides.len(), self.dilations.len(), self.pads.len()].iter().any(|n| *n != dims) {
            let (k, s, d, p) = (kernel.len(), self.strides.len(), self.dilations.len(), self.pads.len());
            return Err(reason!(
                "{k} kernel sizes, {s} strides, {d} dilations and {p} pairs of pads for {dims} spatial dimensions"
            ));
        }
        if kernel.iter().try_fold(1u64, |n, size| n.checked_mul(*size)).is_none_or(|taps| taps > MOST_TAPS) {
            return Err(reason!("a window of {kernel:?} has too many taps"));
        }
        (0..dims).map(|d| window_dim(input[d], kernel[d], self.strides[d], self.dilations[d], self.pads[d])).collect()
    }
}

fn window_dim(input: u64, kernel: u64, stride: u64, dilation: u64, [before, after]: [i64; 2]) -> Result<WindowDim, Reason> {
    let sizes = [("a spatial size", input), ("a kernel size", kernel), ("a stride", stride), ("a dilation", dilation)];
    for (what, number) in sizes {
        if number == 0 || number >= MAX_PLANE {
            return Err(reason!("{what} is {number}"));
        }
    }
    if before.unsigned_abs() >= MAX_PLANE || after.unsigned_abs() >= MAX_PLANE {
        return Err(reason!("pads of {before} and {after}"));
    }
    let extent = i128::from(kernel - 1) * i128::from(dilation) + 1;
    let room = i128::from(input) + i128::from(before) + i128::from(after) - extent;
    let place = format!("a window that spans {extent} elements on {input} with pads {before} and {after}");
    let room = u64::try_from(room).map_err(|_| reason!("{place} fits nowhere"))?;
    let output = room / stride + 1;
    if output >= MAX_PLANE {
        return Err(reason!("{place} has {output} positions, which are too many"));
    }
    Ok(WindowDim { input, output, kernel, stride, dilation, pad: before })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_the_positions_that_fit() {
        let window = |stride, dilation, pads| Window { strides: vec![stride], dilations: vec![dilation], pads: vec![pads] };
        let outputs = |w: Window, input, kernel| w.over(&[input], &[kernel]).map(|dims| dims[0].output);
        assert_eq!(outputs(window(1, 1, [0, 0]), 5, 3), Ok(3));
        assert_eq!(outputs(window(2, 1, [1, 1]), 5, 3), Ok(3));
        assert_eq!(outputs(window(2, 2, [0, 1]), 8, 3), Ok(3));
        assert_eq!(outputs(window(1, 1, [-1, -1]), 5, 1), Ok(3));
        assert!(outputs(window(0, 1, [0, 0]), 5, 3).is_err());
        assert!(outputs(window(1, 0, [0, 0]), 5, 3).is_err());
        assert!(outputs(window(1, 1, [0, 0]), 5, 0).is_err());
        assert!(outputs(window(1, 1, [0, 0]), 2, 3).is_err());
        assert!(outputs(window(1, 1, [i64::MAX, 0]), 2, 3).is_err());
        assert!(outputs(window(1, u64::MAX, [0, 0]), 2, 3).is_err());
    }
}
