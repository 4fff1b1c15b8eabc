//! Planes with their pads, in which all that some output sees is an element.

use super::seen::digits;
use super::{Axis, Window};
use crate::cpu::number::Number;

impl Window {
    /// The residue of an input modulo the stride: inputs of one residue are seen at the same taps.
    pub fn residue(&self, input: usize) -> [usize; 3] {
        let at = digits(input, self.axes.map(|a| a.input));
        std::array::from_fn(|i| at[i] % self.axes[i].stride)
    }

    /// How many residues inputs have.
    pub fn residues(&self) -> usize {
        self.axes.iter().fold(1, |n, axis| n * axis.stride.min(axis.input))
    }

    /// The distance between the inputs that neighbouring outputs see.
    pub fn step(&self) -> usize {
        self.axes[2].stride
    }

    /// The plane with all positions, inside or outside, that some output sees; `None` where it
    /// would be much larger than the planes.
    pub fn padded(&self) -> Option<Padded> {
        let sizes = self.axes.map(|a| (a.output - 1) * a.stride + (a.kernel - 1) * a.dilation + 1);
        let room = 8 * (self.inputs() + self.outputs()) + 4096;
        let size = sizes.iter().fold(1usize, |n, size| n.saturating_mul(*size));
        (size <= room).then_some(Padded { axes: self.axes, sizes })
    }
}

/// The plane with all positions, inside or outside, that some output sees.
#[derive(Debug)]
pub struct Padded {
    axes: [Axis; 3],
    sizes: [usize; 3],
}

impl Padded {
    /// Elements of a plane.
    pub fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// How far from what it sees first an output sees a tap, each by its number.
    pub fn tap(&self, tap: usize) -> usize {
        let taps = digits(tap, self.axes.map(|a| a.kernel));
        self.number(std::array::from_fn(|i| taps[i] * self.axes[i].dilation))
    }

    /// What an output sees first.
    pub fn output(&self, output: usize) -> usize {
        let at = digits(output, self.axes.map(|a| a.output));
        self.number(std::array::from_fn(|i| at[i] * self.axes[i].stride))
    }

    fn number(&self, [d, h, w]: [usize; 3]) -> usize {
        (d * self.sizes[1] + h) * self.sizes[2] + w
    }

    /// Copies a plane, with 0 outside of it.
    pub fn lay<T: Number>(&self, plane: &[T], out: &mut [T]) {
        let [depth, height, width] = &self.axes;
        let inside = |axis: &Axis, at: usize| at.checked_add_signed(-axis.pad).filter(|at| *at < axis.input);
        let before = width.pad.clamp(0, self.sizes[2] as isize) as usize;
        let first = width.pad.min(0).unsigned_abs().min(width.input);
        let len = width.input.saturating_sub(first).min(self.sizes[2] - before);
        for (row, out) in out.chunks_exact_mut(self.sizes[2]).enumerate() {
            let source = inside(depth, row / self.sizes[1]).zip(inside(height, row % self.sizes[1]));
            let Some((z, y)) = source else {
                out.fill(T::ZERO);
                continue;
            };
            out[..before].fill(T::ZERO);
            out[before..before + len].copy_from_slice(&plane[(z * height.input + y) * width.input + first..][..len]);
            out[before + len..].fill(T::ZERO);
        }
    }
}
