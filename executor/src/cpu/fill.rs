//! Fill: one value everywhere.

use crate::cpu::element::{SliceMut, each_type};
use crate::cpu::lanes::{self, Lanes};

/// Writes `value`, converted, to the first `count` elements.
pub fn launch(value: f64, count: usize, write: SliceMut<'_>) {
    each_type!(SliceMut, write, out => lanes::store(Lanes::All(value), &mut out[..count]));
}
