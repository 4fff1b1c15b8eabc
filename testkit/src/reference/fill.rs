//! Fill: plain loops, random instances, other sizes.

use super::draw::Draw;
use super::{Judged, Try};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Fill, Kernel};

impl Judged for Fill {
    fn run(&self, _reads: &[Vec<f64>], out: &mut [Vec<f64>], _coordinates: &[u64]) {
        out[0][..self.count as usize].fill(self.value);
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        self.count = to(self.count);
    }

    fn instances(each: &mut Try<'_>) {
        let mut random = Draw::new(10);
        for _ in 0..100 {
            let dtype = random.pick(&DType::ALL);
            let fill = Fill { dtype, count: random.below(4000), value: random.values(dtype, 1)[0] };
            each(&Kernel::Fill(fill), &[], 0.0);
        }
    }
}
