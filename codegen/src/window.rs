//! Windows that move over planes: loops over taps and over outputs, as text.

use crate::text::{Text, digit, plus, times};
use shardc_ir::kernel::WindowDim;

/// One side of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Input,
    Output,
}

fn size(dim: &WindowDim, side: Side) -> u64 {
    match side {
        Side::Input => dim.input,
        Side::Output => dim.output,
    }
}

/// Elements of a plane of that side.
pub fn positions(window: &[WindowDim], side: Side) -> u64 {
    window.iter().map(|dim| size(dim, side)).product()
}

/// The place in a plane of the indices `name0`, `name1`...
pub fn place(window: &[WindowDim], side: Side, name: &str) -> String {
    let mut below: u64 = positions(window, side);
    let mut terms = vec![];
    for (d, dim) in window.iter().enumerate() {
        below /= size(dim, side);
        terms.push(format!("{name}{d}{}", times(below)));
    }
    terms.join(" + ")
}

/// Lines that find the indices `name0`, `name1`... of a place in a plane.
pub fn indices(window: &[WindowDim], side: Side, place: &str, name: &str) -> Vec<String> {
    let mut below: u64 = positions(window, side);
    let index = |(d, dim): (usize, &WindowDim)| {
        let size = size(dim, side);
        below /= size;
        format!("i32 {name}{d} = {};", digit(place, below, size))
    };
    window.iter().enumerate().map(index).collect()
}

/// Opens loops over the taps `k` of output `p` that see an input, `s`. Returns how many brackets
/// are open.
pub fn taps(window: &[WindowDim], p: &str, k: &str, s: &str, text: &mut Text) -> usize {
    for (d, dim) in window.iter().enumerate() {
        text.line(format!("for (i32 {k}{d} = 0; {k}{d} < {}; {k}{d}++) {{", dim.kernel));
        text.lines(seen(d, dim, p, k, s));
    }
    window.len()
}

/// Lines that find the input `s` that output `p` sees at the tap `k`, along dimension `d`.
pub fn seen(d: usize, dim: &WindowDim, p: &str, k: &str, s: &str) -> [String; 2] {
    let (stride, dilation, pad) = (times(dim.stride), times(dim.dilation), plus(-i128::from(dim.pad)));
    [
        format!("i32 {s}{d} = {p}{d}{stride} + {k}{d}{dilation}{pad};"),
        format!("if ({s}{d} < 0 || {s}{d} >= {}) continue;", dim.input),
    ]
}

/// Opens loops over the taps `k` and the outputs `p` that see input `s` there. Returns how many
/// brackets are open.
pub fn seen_by(window: &[WindowDim], s: &str, k: &str, p: &str, text: &mut Text) -> usize {
    for (d, dim) in window.iter().enumerate() {
        // The last tap first: outputs come in order.
        text.line(format!("for (i32 {k}{d} = {}; {k}{d} >= 0; {k}{d}--) {{", dim.kernel - 1));
        text.line(format!("i32 {p}{d} = {s}{d}{} - {k}{d}{};", plus(dim.pad.into()), times(dim.dilation)));
        if dim.stride > 1 {
            text.line(format!("if ({p}{d} < 0 || {p}{d} % {} != 0) continue;", dim.stride));
            text.line(format!("{p}{d} /= {};", dim.stride));
            text.line(format!("if ({p}{d} >= {}) continue;", dim.output));
        } else {
            text.line(format!("if ({p}{d} < 0 || {p}{d} >= {}) continue;", dim.output));
        }
    }
    window.len()
}
