//! The attributes that say how a convolution's or a pool's window moves.

use crate::onnx::import::call::Call;
use shardc_ir::limits::MAX_PLANE;
use shardc_ir::ops::window::Window;
use shardc_ir::reason;
use shardc_ir::reason::Reason;

/// How pads are found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::onnx) enum AutoPad {
    /// They are given, or 0.
    Given,
    /// So that there are as many outputs as strides in the input; an odd one comes last.
    SameUpper,
    /// The same, an odd one first.
    SameLower,
}

/// The attributes of a window.
#[derive(Debug, Clone)]
pub(in crate::onnx) struct Moves {
    /// Inputs from one output to the next, by spatial dimension.
    pub strides: Vec<u64>,
    /// Inputs from one tap to the next.
    pub dilations: Vec<u64>,
    /// The given pads before and after.
    pub pads: Vec<[i64; 2]>,
    /// Whether they count.
    pub auto: AutoPad,
}

impl Moves {
    /// Reads `strides`, `dilations`, `pads` and `auto_pad` of a node with `dims` spatial
    /// dimensions.
    pub fn read(c: &mut Call<'_, '_>, dims: usize) -> Result<Moves, Reason> {
        let strides = numbers(c, "strides", dims, 1)?.unwrap_or_else(|| vec![1; dims]);
        let dilations = numbers(c, "dilations", dims, 1)?.unwrap_or_else(|| vec![1; dims]);
        let pads = numbers(c, "pads", 2 * dims, 0)?.unwrap_or_else(|| vec![0; 2 * dims]);
        let auto = match c.attribute_string("auto_pad", "NOTSET")?.as_str() {
            "NOTSET" => AutoPad::Given,
            "SAME_UPPER" => AutoPad::SameUpper,
            "SAME_LOWER" => AutoPad::SameLower,
            "VALID" if pads.iter().all(|p| *p == 0) => AutoPad::Given,
            "VALID" => return Err("it has `pads` beside `auto_pad` VALID".into()),
            other => return Err(reason!("`auto_pad` is `{other}`")),
        };
        let pads = (0..dims).map(|d| [pads[d] as i64, pads[dims + d] as i64]).collect();
        Ok(Moves { strides, dilations, pads, auto })
    }

    /// The window over `input` with `kernel` taps.
    pub fn window(&self, input: &[u64], kernel: &[u64]) -> Window {
        let same = |d: usize| {
            let reach = (input[d].div_ceil(self.strides[d]).max(1) - 1) * self.strides[d] + self.extent(d, kernel);
            self.shared(reach.saturating_sub(input[d]))
        };
        let pads = match self.auto {
            AutoPad::Given => self.pads.clone(),
            AutoPad::SameUpper | AutoPad::SameLower => (0..input.len()).map(same).collect(),
        };
        Window { strides: self.strides.clone(), dilations: self.dilations.clone(), pads }
    }

    /// Positions that the window spans along spatial dimension `d`.
    pub fn extent(&self, d: usize, kernel: &[u64]) -> u64 {
        (kernel[d].max(1) - 1) * self.dilations[d] + 1
    }

    /// `total` pads before and after: as many on both sides, an odd one first unless the node says
    /// otherwise.
    pub fn shared(&self, total: u64) -> [i64; 2] {
        let (less, more) = ((total / 2) as i64, total.div_ceil(2) as i64);
        if self.auto == AutoPad::SameUpper { [less, more] } else { [more, less] }
    }
}

/// An attribute of `count` numbers, none below `least`.
pub(in crate::onnx) fn numbers(
    c: &mut Call<'_, '_>,
    name: &'static str,
    count: usize,
    least: i64,
) -> Result<Option<Vec<u64>>, Reason> {
    let Some(values) = c.attribute_ints(name)? else { return Ok(None) };
    if values.len() != count || values.iter().any(|v| !(least..MAX_PLANE as i64).contains(v)) {
        return Err(reason!("attribute `{name}` is {values:?} for {count} numbers from {least} on"));
    }
    Ok(Some(values.iter().map(|v| *v as u64).collect()))
}

/// The sizes after batch and channels, of which there must be some.
pub(in crate::onnx) fn spatial(shape: &[u64]) -> Result<&[u64], Reason> {
    match shape {
        [_, _, spatial @ ..] if !spatial.is_empty() => Ok(spatial),
        _ => Err(reason!("its input has shape {shape:?}, without spatial dimensions")),
    }
}
