//! Gather and ScatterAdd: plain loops, random instances, other sizes.

use super::draw::{Draw, tolerance};
use super::{Judged, Try, indices, product};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Gather, Kernel, ScatterAdd};
use shardc_ir::mesh::AxisId;
use shardc_ir::position::*;

impl Judged for Gather {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], coordinates: &[u64]) {
        out[0][..product(&[self.batch, self.outer, self.count, self.inner])].fill(0.0);
        for index in indices(&[self.batch, self.outer, self.count, self.inner]) {
            if let Some((row, listed)) = indexed(self, &index, &reads[1], coordinates) {
                out[0][listed] = reads[0][row];
            }
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        // A table that is whole stays so.
        self.inner = to(self.inner);
        self.count = to(self.count);
        if self.rows == self.total_rows && self.origin == Origin::whole(self.rows) {
            self.rows = to(self.rows);
            self.total_rows = self.rows;
            self.origin = Origin::whole(self.rows);
        }
    }

    fn instances(each: &mut Try<'_>) {
        pairs(|gather, reads, _| each(&Kernel::Gather(gather.clone()), reads, 0.0));
    }
}

impl Judged for ScatterAdd {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], coordinates: &[u64]) {
        let g = &self.gather;
        let tables = &mut out[0][..product(&[g.batch, g.outer, g.rows, g.inner])];
        if self.onto {
            tables.copy_from_slice(&reads[2][..tables.len()])
        } else {
            tables.fill(0.0)
        }
        for index in indices(&[g.batch, g.outer, g.count, g.inner]) {
            if let Some((row, listed)) = indexed(g, &index, &reads[0], coordinates) {
                tables[row] += reads[1][listed];
            }
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        self.gather.resize(to);
    }

    fn instances(each: &mut Try<'_>) {
        pairs(|gather, [table, _], [indices, source]| {
            let mut sums = |onto: bool, reads: &[Vec<f64>]| {
                each(&Kernel::ScatterAdd(ScatterAdd { gather: gather.clone(), onto }), reads, tolerance(gather.dtype));
            };
            sums(false, &[indices.clone(), source.clone()]);
            sums(true, &[indices.clone(), source.clone(), table.clone()]);
        });
    }
}

/// Random gathers, with the operands of each and those of the sum that is its gradient.
fn pairs(mut each: impl FnMut(&Gather, &[Vec<f64>; 2], &[Vec<f64>; 2])) {
    let mut random = Draw::new(8);
    for case in 0..300 {
        let dtype = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let rows = random.pick(&[4, 6, 12]);
        // Whole; the middle third; or blocks of two, every third one ours.
        let (total_rows, origin) = match case % 3 {
            0 => (rows, Origin::whole(rows)),
            1 => (rows * 3, Origin { offset: Offset { base: 0, terms: vec![(AxisId(1), rows as i64)] }, ..Origin::whole(rows) }),
            _ => {
                let digits =
                    vec![OriginDigit { divisor: 2, size: rows / 2, stride: 6 }, OriginDigit { divisor: 1, size: 2, stride: 1 }];
                (rows * 3, Origin { offset: Offset { base: 0, terms: vec![(AxisId(1), 2)] }, digits })
            }
        };
        let gather = Gather {
            dtype,
            batch: random.pick(&[1, 3]),
            outer: random.pick(&[1, 3]),
            rows,
            total_rows,
            inner: random.size(),
            count: random.size(),
            origin,
        };
        let indices = |random: &mut Draw| -> Vec<f64> {
            (0..gather.batch * gather.count).map(|_| random.below(2 * total_rows) as f64 - total_rows as f64).collect()
        };
        let table = random.values(dtype, gather.batch * gather.outer * gather.rows * gather.inner);
        let reads = [table, indices(&mut random)];
        let source = random.values(dtype, gather.batch * gather.outer * gather.count * gather.inner);
        each(&gather, &reads, &[indices(&mut random), source]);
    }
}

/// For a position over (batch, outer, count, inner): the element of the table that its index names
/// and the element of the list of rows; none where another rank holds the row, which is found by
/// looking.
fn indexed(g: &Gather, position: &[u64], indices: &[f64], coordinates: &[u64]) -> Option<(usize, usize)> {
    let [b, o, i, k] = position[..] else { panic!("four dimensions") };
    let index = indices[(b * g.count + i) as usize];
    let global = if index < 0.0 { index as i64 + g.total_rows as i64 } else { index as i64 };
    let row = (0..g.rows).find(|row| g.origin.global(*row, coordinates) == global)?;
    let element = |rows: u64, row: u64| (((b * g.outer + o) * rows + row) * g.inner + k) as usize;
    Some((element(g.rows, row), element(g.count, i)))
}
