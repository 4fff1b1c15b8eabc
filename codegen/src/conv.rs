//! Conv: convolutions and their gradients as products of matrices in tiles, whose unfolded operand
//! is never made (Chetlur et al., cuDNN: efficient primitives for deep learning, 2014); those of
//! few channels a group thread by thread.

mod axes;
mod direct;
mod positions;
mod tile;
mod weights;

use crate::Cuda;
use crate::function::Function;
use crate::generated::{Accesses, Generated};
use crate::text::times;
use axes::Axis;
use shardc_ir::kernel::signature::Signature;
use shardc_ir::kernel::{Conv, ConvResult, Form, Implements};
use shardc_ir::position::Offset;
use shardc_ir::reason::Reason;

/// Rows or columns of a group's product, fewer than which are too few for tiles.
const FEW: u64 = 8;

/// Elements of an operand below which 32 bits count what lies around them, too.
const NEAR: u64 = 1 << 30;

impl Implements<Conv> for Cuda {
    fn ready(&self, conv: &Conv, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = conv.signature(&self.mesh)?;
        let shape = Shape::of(conv, signature, self.aligned);
        let mut function = Function::new("conv");
        let is_empty = [conv.batch, conv.groups, conv.inputs, conv.outputs].contains(&0);
        if conv.result == ConvResult::Weight {
            if is_empty || conv.outputs.min(conv.inputs * shape.taps) < FEW {
                direct::weights(conv, &shape, &mut function)?;
            } else {
                weights::write(conv, &shape, &mut function)?;
            }
            return function.finish();
        }
        for (number, class) in axes::classes(conv).iter().enumerate() {
            if number > 0 {
                function.next()?;
            }
            let sees_none = class.iter().any(|axis| axis.taps == 0);
            if is_empty || sees_none || shape.channels[0] < FEW {
                direct::positions(conv, &shape, class, &mut function);
            } else {
                positions::write(conv, &shape, class, &mut function);
            }
        }
        function.finish()
    }
}

/// What the texts of a convolution have in common.
struct Shape {
    signature: Signature,
    /// The names of the operands.
    reads: [&'static str; 2],
    result: &'static str,
    /// Channels of a group in the result and in what it is made of.
    channels: [u64; 2],
    /// Taps of the kernel.
    taps: u64,
    /// The type of an index.
    index: &'static str,
    /// Whether every operand begins at a multiple of 16 bytes.
    aligned: bool,
}

impl Shape {
    fn of(conv: &Conv, signature: Signature, aligned: bool) -> Shape {
        let (reads, result, channels) = match conv.result {
            ConvResult::Output => (["x", "w"], "y", [conv.outputs, conv.inputs]),
            ConvResult::Input => (["y", "w"], "x", [conv.inputs, conv.outputs]),
            ConvResult::Weight => (["x", "y"], "w", [conv.outputs, conv.inputs]),
        };
        let far = signature.reads.iter().chain(&signature.writes).any(|operand| operand.elements >= NEAR);
        let taps = conv.window.iter().map(|dim| dim.kernel).product();
        Shape { signature, reads, result, channels, taps, index: if far { "i64" } else { "i32" }, aligned }
    }

    /// The number of a sample's group among those of all samples.
    fn image(&self, sample: &str, group: &str, groups: u64) -> String {
        if groups == 1 { sample.to_owned() } else { format!("({sample}{} + {group})", times(groups)) }
    }

    /// Bytes of an index.
    fn index_bytes(&self) -> u64 {
        if self.index == "i64" { 8 } else { 4 }
    }

    /// Declares what is read.
    fn reads(&self, conv: &Conv, function: &mut Function) {
        for (at, (name, operand)) in self.reads.iter().zip(&self.signature.reads).enumerate() {
            function.reads(name, at, conv.dtype, operand.elements, Accesses::over(&[(operand.elements, 1)]));
        }
    }

    /// Declares that the result is written whole.
    fn writes(&self, conv: &Conv, function: &mut Function) {
        let total = self.signature.writes[0].elements;
        function.writes(self.result, 0, conv.dtype, total, true, Accesses::over(&[(total, 1)]));
    }

    /// Declares what a function for a class of results reads and writes.
    fn class(&self, conv: &Conv, class: &[Axis], function: &mut Function) {
        self.reads(conv, function);
        if class.iter().all(|axis| axis.every == 1) {
            return self.writes(conv, function);
        }
        let total = self.signature.writes[0].elements;
        let plane = axes::all(class, |axis| axis.result);
        let strides = axes::strides(class, |axis| axis.result);
        let mut terms = vec![(conv.batch * conv.groups * self.channels[0], plane as i64)];
        terms.extend(class.iter().zip(&strides).map(|(axis, stride)| (axis.count, (axis.every * stride) as i64)));
        let first: u64 = class.iter().zip(&strides).map(|(axis, stride)| axis.first * stride).sum();
        let accesses = Accesses { start: Offset::constant(first as i64), ..Accesses::over(&terms) };
        function.writes(self.result, 0, conv.dtype, total, false, accesses);
    }
}
