//! Move: plain loops, random instances, other sizes.

use super::draw::Draw;
use super::sizes::{moved, scaled};
use super::{Judged, Try, at, indices};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Kernel, Move};
use shardc_ir::mesh::AxisId;
use shardc_ir::position::*;

impl Judged for Move {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], coordinates: &[u64]) {
        let (src, dst) = (self.src_offset.at(coordinates), self.dst_offset.at(coordinates));
        for index in indices(&self.shape) {
            let from = index.iter().zip(&self.src_strides).fold(src, |sum, (i, s)| sum + *i as i64 * s);
            out[0][(dst as usize) + at(&index, &self.dst_strides)] = reads[0][from as usize];
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        // A side that is read backwards keeps its strides.
        let old = self.shape.clone();
        self.shape = old.iter().copied().map(to).collect();
        let sides = [(&mut self.src_strides, &mut self.src_offset), (&mut self.dst_strides, &mut self.dst_offset)];
        for (strides, offset) in sides.into_iter().filter(|(strides, _)| strides.iter().all(|stride| *stride >= 0)) {
            let dims: Vec<_> = (0..old.len()).map(|d| (old[d], self.shape[d], strides[d])).collect();
            let new = scaled(&dims);
            for distance in offset.terms.iter_mut().map(|(_, by)| by).chain([&mut offset.base]) {
                *distance = moved(*distance, strides, &new);
            }
            *strides = new;
        }
    }

    fn instances(each: &mut Try<'_>) {
        let mut random = Draw::new(7);
        for case in 0..600 {
            let shape = random.shape();
            let (mut src_strides, dst_strides) = (random.permuted_strides(&shape), random.permuted_strides(&shape));
            let mut base = 0;
            for (stride, size) in src_strides.iter_mut().zip(&shape) {
                match random.below(6) {
                    0 => *stride = 0,
                    1 => {
                        base += *stride * (*size as i64 - 1);
                        *stride = -*stride;
                    }
                    _ => {}
                }
            }
            let src_offset = Offset { base, terms: vec![(AxisId(1), 5)] };
            let gap = if case % 3 == 0 { 2 } else { 1 };
            let kernel = Kernel::Move(Move {
                dtype: random.pick(&DType::ALL),
                shape,
                src_offset,
                src_strides,
                dst_offset: Offset { base: 3, terms: vec![(AxisId(2), 4)] },
                dst_strides: dst_strides.iter().map(|s| s * gap).collect(),
            });
            let reads = random.operands(&kernel);
            each(&kernel, &reads, 0.0);
        }
    }
}
