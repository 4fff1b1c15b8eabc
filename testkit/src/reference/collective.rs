//! Collective: it is tried among ranks.

use super::{Judged, Try};
use shardc_ir::kernel::Collective;

impl Judged for Collective {
    fn run(&self, _reads: &[Vec<f64>], _out: &mut [Vec<f64>], _coordinates: &[u64]) {
        panic!("a collective has no reference here");
    }

    fn resize(&mut self, _to: &mut dyn FnMut(u64) -> u64) {}

    fn instances(_each: &mut Try<'_>) {}
}
