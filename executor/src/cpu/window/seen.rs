//! What every single output sees at every single tap.

use super::{Axis, Window};

impl Axis {
    /// The output that sees the input `position` at `tap`.
    fn target(&self, position: usize, tap: usize) -> Option<usize> {
        let distance = position.checked_add_signed(-self.offset(tap))?;
        Some(distance / self.stride).filter(|at| distance % self.stride == 0 && *at < self.output)
    }
}

impl Window {
    /// The input that an output sees at a tap, each of them by its number.
    pub fn source(&self, output: usize, tap: usize) -> Option<usize> {
        self.mapped(output, tap, |a| a.output, Axis::source, |a| a.input)
    }

    /// The output that sees an input at a tap, each of them by its number.
    pub fn target(&self, input: usize, tap: usize) -> Option<usize> {
        self.mapped(input, tap, |a| a.input, Axis::target, |a| a.output)
    }

    fn mapped(
        &self,
        position: usize,
        tap: usize,
        from: fn(&Axis) -> usize,
        map: fn(&Axis, usize, usize) -> Option<usize>,
        to: fn(&Axis) -> usize,
    ) -> Option<usize> {
        let (at, taps) = (digits(position, self.axes.each_ref().map(from)), digits(tap, self.axes.map(|a| a.kernel)));
        let axes = self.axes.iter().zip(at.into_iter().zip(taps));
        axes.map(|(axis, (at, tap))| Some((map(axis, at, tap)?, to(axis))))
            .try_fold(0, |sum, found| found.map(|(at, size)| sum * size + at))
    }
}

/// The position of a number along three dimensions.
pub(super) fn digits(number: usize, [_, height, width]: [usize; 3]) -> [usize; 3] {
    [number / width / height, number / width % height, number % width]
}
