//! A window that moves over a tensor: what convolutions and pools share.

use super::signature::product;
use crate::limits::MAX_PLANE;
use crate::reason;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// The most spatial dimensions.
pub const MAX_DIMS: usize = 3;

/// One spatial dimension of a window that moves over a tensor: output `p` sees, for each tap `k`,
/// the input at `p * stride + k * dilation - pad`. Inputs outside the tensor are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowDim {
    /// Positions of the input.
    pub input: u64,
    /// Positions of the output.
    pub output: u64,
    /// Taps.
    pub kernel: u64,
    /// Inputs from one output to the next.
    pub stride: u64,
    /// Inputs from one tap to the next.
    pub dilation: u64,
    /// How far the first output's first tap lies before the first input; negative where it lies
    /// behind it.
    pub pad: i64,
}

/// The same window over both dimensions of a square, whose results are as many as its elements
/// where steps are of 1.
pub(super) fn square(input: u64, kernel: u64, stride: u64) -> Vec<WindowDim> {
    let pad = kernel / 2;
    let output = (input + 2 * pad - kernel) / stride + 1;
    vec![WindowDim { input, output, kernel, stride, dilation: 1, pad: pad as i64 }; 2]
}

impl WindowDim {
    /// The input that output `p` sees at tap `k`.
    pub fn source(&self, p: u64, k: u64) -> Option<u64> {
        let at = i128::from(p) * i128::from(self.stride) + i128::from(k) * i128::from(self.dilation) - i128::from(self.pad);
        u64::try_from(at).ok().filter(|at| *at < self.input)
    }

    pub(super) fn sizes_mut(&mut self) -> [&mut u64; 3] {
        [&mut self.input, &mut self.output, &mut self.kernel]
    }
}

/// Elements of an input plane, of an output plane, and taps.
///
/// # Errors
/// If a number is 0, or so large that positions do not fit 32 bits.
pub fn planes(window: &[WindowDim]) -> Result<[u64; 3], Reason> {
    if window.is_empty() || window.len() > MAX_DIMS {
        return Err(reason!("a window over {} dimensions", window.len()));
    }
    for dim in window {
        let numbers = [dim.input, dim.output, dim.kernel, dim.stride, dim.dilation];
        if numbers.iter().any(|n| *n == 0 || *n >= MAX_PLANE) || dim.pad.unsigned_abs() >= MAX_PLANE {
            return Err(reason!("a window dimension of {dim:?}"));
        }
    }
    let sizes: [fn(&WindowDim) -> u64; 3] = [|d| d.input, |d| d.output, |d| d.kernel];
    let mut planes = [0; 3];
    for (plane, size) in planes.iter_mut().zip(sizes) {
        *plane = product(&window.iter().map(size).collect::<Vec<_>>())?;
    }
    if planes.iter().any(|n| *n >= MAX_PLANE) {
        return Err("a plane of more than 2^31 elements".into());
    }
    Ok(planes)
}
