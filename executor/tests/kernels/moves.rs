//! Moves, gathers and scatters.

use crate::{COORDINATES, Random, check, launch, mesh, operands, random_shape, run, tolerance};
use shardc_executor::cpu::element::{Slice, SliceMut};
use shardc_executor::cpu::prepare;
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::mesh::AxisId;
use shardc_ir::position::*;
use shardc_testkit::reference;

#[test]
fn moves() {
    let mut random = Random::new(7);
    for case in 0..600 {
        let shape = random_shape(&mut random);
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
        let reads = operands(&mut random, &kernel);
        let signature = kernel.signature(&mesh()).unwrap();
        let want = reference::run(&kernel, &reads, vec![vec![0.0; signature.writes[0].elements as usize]], &COORDINATES);
        let got = launch(&kernel, &reads, &COORDINATES, Threads(1));
        let Kernel::Move(m) = &kernel else { unreachable!() };
        for index in reference::indices(&m.shape) {
            let to = index.iter().zip(&m.dst_strides).map(|(i, s)| *i as i64 * s).sum::<i64>() + m.dst_offset.at(&COORDINATES);
            assert_eq!(want[0][to as usize], got[0][to as usize], "{kernel:?}");
        }
    }
}

#[test]
fn gather_and_scatter() {
    let mut random = Random::new(8);
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
        let indices = |random: &mut Random| -> Vec<f64> {
            (0..gather.batch * gather.count).map(|_| random.below(2 * total_rows) as f64 - total_rows as f64).collect()
        };
        let table = random.values(dtype, gather.batch * gather.outer * gather.rows * gather.inner);
        let reads = [table, indices(&mut random)];
        check(&Kernel::Gather(gather.clone()), &reads, &COORDINATES, 0.0);
        let source = random.values(dtype, gather.batch * gather.outer * gather.count * gather.inner);
        check(&Kernel::ScatterAdd(ScatterAdd(gather.clone())), &[indices(&mut random), source], &COORDINATES, tolerance(dtype));
    }
}

#[test]
fn an_index_outside_the_table_is_an_error() {
    let gather =
        Gather { dtype: DType::F32, batch: 1, outer: 1, rows: 4, total_rows: 4, inner: 2, count: 2, origin: Origin::whole(4) };
    for (bad, found) in
        [(4i64, "index 4 at position 1"), (-5, "index -5 at position 1"), (i64::MIN, "is outside a table of 4 rows")]
    {
        let prepared = prepare(&Kernel::Gather(gather.clone()), &[None, None]).unwrap();
        let mut out = [0f32; 4];
        let reads = [Slice::F32(&[0.0; 8]), Slice::I64(&[1, bad])];
        let error = prepared.launch(run(&reads, vec![SliceMut::F32(&mut out)])).unwrap_err();
        assert!(error.to_string().contains(found), "{error}");
    }
}
