//! Moves, gathers and scatters.

use crate::{launch, run};
use shardc_executor::cpu::element::{Slice, SliceMut};
use shardc_executor::cpu::prepare;
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::position::*;
use shardc_testkit::reference::draw::COORDINATES;

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

/// A matrix becomes its transposed: squares of it by vector instructions where it is of f32.
#[test]
fn transpositions_of_any_size() {
    for (rows, cols) in [(16, 16), (67, 45), (45, 130), (15, 40)] {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let copy = Move {
                dtype,
                shape: vec![rows, cols],
                src_offset: Offset::default(),
                src_strides: vec![1, rows as i64],
                dst_offset: Offset::default(),
                dst_strides: vec![cols as i64, 1],
            };
            let reads = [(0..rows * cols).map(|i| (i % 251) as f64).collect::<Vec<f64>>()];
            let wanted: Vec<f64> = (0..rows * cols).map(|i| reads[0][(i % cols * rows + i / cols) as usize]).collect();
            for threads in [1, 3] {
                let found = launch(&Kernel::Move(copy.clone()), &reads, &COORDINATES, Threads(threads));
                assert_eq!(found[0], wanted, "{rows} x {cols} of {dtype:?}");
            }
        }
    }
}
