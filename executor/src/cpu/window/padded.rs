//! Planes with their pads, so that every tap of every output is an element.

use super::{Axis, digits};
use crate::cpu::number::Number;

/// The plane with all positions, inside or outside, that some output sees.
#[derive(Debug)]
pub struct Padded {
    pub(super) axes: [Axis; 3],
    pub(super) sizes: [usize; 3],
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
        let first = width.pad.min(0).unsigned_abs();
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
