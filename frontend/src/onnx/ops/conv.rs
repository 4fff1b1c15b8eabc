//! Convolutions. The bias is an addition of its own.

use crate::onnx::import::call::Call;
use crate::onnx::import::value::Value;
use crate::onnx::ops::window::{AutoPad, Moves, numbers, spatial};
use shardc_ir::ops::conv::{Conv, ConvInput};
use shardc_ir::ops::window::Window;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::scalar::Binary;

type Outputs = Result<Vec<Value>, Reason>;

/// A convolution, in groups or not
pub(in crate::onnx) fn conv(c: &mut Call<'_, '_>) -> Outputs {
    let operands = Operands::read(c)?;
    let window = operands.moves.window(&operands.sizes, &operands.kernel);
    let y = c.emit(Conv { window, groups: operands.groups }, &operands.values)?;
    Ok(vec![with_bias(c, y)?])
}

/// Its transpose: every input is spread over the outputs that would see it
pub(in crate::onnx) fn conv_transpose(c: &mut Call<'_, '_>) -> Outputs {
    let Operands { values, sizes, kernel, moves, groups } = Operands::read(c)?;
    let dims = sizes.len();
    let extra = numbers(c, "output_padding", dims, 0)?.unwrap_or_else(|| vec![0; dims]);
    let asked = numbers(c, "output_shape", dims, 1)?;
    let mut outputs = vec![];
    let mut pads = vec![];
    for d in 0..dims {
        let spread = i128::from(moves.strides[d]) * (i128::from(sizes[d]) - 1) + i128::from(moves.extent(d, &kernel));
        let full = spread + i128::from(extra[d]);
        let target = match (&asked, moves.auto) {
            (Some(asked), _) => Some(i128::from(asked[d])),
            (None, AutoPad::Given) => None,
            (None, _) => Some(i128::from(sizes[d]) * i128::from(moves.strides[d])),
        };
        let [before, after] = match target {
            Some(target) => moves.shared(u64::try_from(full - target).unwrap_or(0)),
            None => moves.pads[d],
        };
        let output = match &asked {
            Some(asked) => i128::from(asked[d]),
            None => full - i128::from(before) - i128::from(after),
        };
        // The pads with which a convolution of the output gives back exactly the input's size.
        let rest = i64::try_from(spread - output - i128::from(before)).map_err(|_| "its sizes are too large")?;
        outputs.push(
            u64::try_from(output).map_err(|_| reason!("its output would have {output} elements along dimension {}", d + 2))?,
        );
        pads.push([before, rest]);
    }
    let window = Window { strides: moves.strides, dilations: moves.dilations, pads };
    let y = c.emit(ConvInput { of: Conv { window, groups }, sizes: outputs }, &values)?;
    Ok(vec![with_bias(c, y)?])
}

/// Input and kernel with the attributes of both kinds of convolution.
struct Operands {
    values: [Value; 2],
    /// Spatial sizes of the input.
    sizes: Vec<u64>,
    /// Spatial sizes of the kernel.
    kernel: Vec<u64>,
    moves: Moves,
    groups: u64,
}

impl Operands {
    fn read(c: &mut Call<'_, '_>) -> Result<Operands, Reason> {
        let values = [c.input(0)?, c.input(1)?];
        let [x, w] = [c.shape(&values[0])?, c.shape(&values[1])?];
        let sizes = spatial(&x)?.to_vec();
        if w.len() != x.len() {
            return Err(reason!("its input has shape {x:?} and its kernel {w:?}"));
        }
        let kernel = w[2..].to_vec();
        if let Some(said) = numbers(c, "kernel_shape", sizes.len(), 1)?.filter(|said| *said != kernel) {
            return Err(reason!("attribute `kernel_shape` is {said:?}, but its kernel has shape {w:?}"));
        }
        let moves = Moves::read(c, sizes.len())?;
        let groups = c.attribute_int("group", 1)?;
        let groups = u64::try_from(groups).ok().filter(|g| *g > 0).ok_or_else(|| reason!("attribute `group` is {groups}"))?;
        Ok(Operands { values, sizes, kernel, moves, groups })
    }
}

/// Adds the third input, if it is there, to each channel.
fn with_bias(c: &mut Call<'_, '_>, y: Value) -> Result<Value, Reason> {
    let Some(bias) = c.optional(2) else { return Ok(y) };
    let (shape, channels) = (c.shape(&bias)?, c.shape(&y)?);
    if shape != channels[1..2] {
        return Err(reason!("its bias has shape {shape:?} for {} channels", channels[1]));
    }
    let mut column = vec![1; channels.len() - 1];
    column[0] = channels[1];
    let bias = c.reshape(&bias, column)?;
    c.binary(Binary::Add, &y, &bias)
}
