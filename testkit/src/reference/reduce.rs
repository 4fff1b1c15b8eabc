//! Reduce: plain loops, random instances, other sizes.

use super::draw::Draw;
use super::map::{self, element};
use super::scalar::binary;
use super::{Judged, Try, indices};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Kernel, Reduce};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::Binary;

impl Judged for Reduce {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], coordinates: &[u64]) {
        let kept = self.map.shape.iter().zip(&self.reduced).filter(|(_, reduced)| !**reduced);
        let results = kept.map(|(n, _)| n).product::<u64>() as usize;
        out[0][..results].fill(match self.kind {
            ReduceKind::Sum => 0.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        });
        for index in indices(&self.map.shape) {
            let kept = index.iter().zip(&self.map.shape).zip(&self.reduced).filter(|(_, reduced)| !**reduced);
            let position = kept.fold(0, |position, ((i, n), _)| position * n + i) as usize;
            let value = element(&self.map, reads, &index, coordinates)[0];
            out[0][position] = match self.kind {
                ReduceKind::Sum => out[0][position] + value,
                ReduceKind::Max => binary(Binary::Max, out[0][position], value),
                ReduceKind::Min => binary(Binary::Min, out[0][position], value),
            };
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        self.map.resize(to);
    }

    fn instances(each: &mut Try<'_>) {
        let mut random = Draw::new(2);
        for case in 0..1500 {
            let compute = if case % 2 == 0 { DType::F64 } else { DType::F32 };
            let mut shape = random.shape();
            if case % 10 == 0 {
                shape.push(random.pick(&[1, 600, 1100, 5000]));
            }
            if case % 50 == 7 {
                shape = vec![random.pick(&[300, 700]), random.pick(&[40, 1300])];
            }
            let mut map = map::drawn(&mut random, compute, shape.clone());
            map.program.outputs.truncate(1);
            map.outputs.truncate(1);
            let kind = random.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min]);
            let reduced: Vec<bool> = shape.iter().map(|_| random.below(2) == 0).collect();
            let accumulate = if random.below(4) == 0 { DType::F64 } else { compute };
            let terms: u64 = shape.iter().zip(&reduced).filter(|(_, r)| **r).map(|(n, _)| *n).product();
            let kernel = Kernel::Reduce(Reduce { map, kind, reduced, accumulate });
            let reads = random.operands(&kernel);
            let scale = if kind == ReduceKind::Sum { terms as f64 * 30.0 } else { 30.0 };
            each(&kernel, &reads, if compute == DType::F64 { 1e-14 } else { 1e-7 } * scale.max(30.0));
        }
    }
}
