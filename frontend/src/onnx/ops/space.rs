//! Blocks of neighbouring pixels as channels, and back.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use shardc_ir::reason;
use shardc_ir::reason::Reason;

type Outputs = Result<Vec<Value>, Reason>;

/// Each block of pixels becomes channels of one pixel
pub(in crate::onnx) fn space_to_depth(c: &mut Call<'_, '_>) -> Outputs {
    let (x, b) = (c.input(0)?, block(c)?);
    let [n, channels, h, w] = image(c, &x)?;
    if !h.is_multiple_of(b) || !w.is_multiple_of(b) {
        return Err(reason!("{h} x {w} pixels in blocks of {b} x {b}"));
    }
    let apart = c.reshape(&x, vec![n, channels, h / b, b, w / b, b])?;
    let moved = c.transpose(&apart, vec![0, 3, 5, 1, 2, 4])?;
    Ok(vec![c.reshape(&moved, vec![n, channels * b * b, h / b, w / b])?])
}

/// Channels of a pixel become a block of pixels
pub(in crate::onnx) fn depth_to_space(c: &mut Call<'_, '_>) -> Outputs {
    let (x, b) = (c.input(0)?, block(c)?);
    let [n, channels, h, w] = image(c, &x)?;
    let depth = b.checked_mul(b).filter(|square| channels.is_multiple_of(*square)).map(|square| channels / square);
    let depth = depth.ok_or_else(|| reason!("{channels} channels in blocks of {b} x {b}"))?;
    let (sizes, perm) = match c.attribute_string("mode", "DCR")?.as_str() {
        "DCR" => (vec![n, b, b, depth, h, w], vec![0, 3, 4, 1, 5, 2]),
        "CRD" => (vec![n, depth, b, b, h, w], vec![0, 1, 4, 2, 5, 3]),
        other => return Err(reason!("mode `{other}` is not supported")),
    };
    let apart = c.reshape(&x, sizes)?;
    let moved = c.transpose(&apart, perm)?;
    Ok(vec![c.reshape(&moved, vec![n, depth, h * b, w * b])?])
}

fn block(c: &mut Call<'_, '_>) -> Result<u64, Reason> {
    let size = c.attribute_int("blocksize", 0)?;
    u64::try_from(size).ok().filter(|b| *b > 0).ok_or_else(|| reason!("attribute `blocksize` is {size}"))
}

fn image(c: &Call<'_, '_>, x: &Value) -> Result<[u64; 4], Reason> {
    let shape = c.shape(x)?;
    <[u64; 4]>::try_from(shape).map_err(|shape| reason!("its input has shape {shape:?}, not batch, channels, height, width"))
}
