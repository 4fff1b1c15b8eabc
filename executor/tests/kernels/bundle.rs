//! Bundles: rows, members side by side, and what is refused.

use crate::{check, launch, with_threads};
use shardc_executor::cpu::element::{Slice, SliceMut};
use shardc_executor::cpu::threads::Threads;
use shardc_executor::cpu::{Arguments, prepare};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::scalar::{Binary, Instr};
use shardc_testkit::reference::draw::{COORDINATES, Draw, mesh, tolerance};

#[test]
fn threads_change_no_row() {
    let mut random = Draw::new(31);
    for (rows, width) in [(1, 1), (1, 70_000), (5, 3), (7, 20_000), (300, 17), (5_000, 9), (129, 513)] {
        let kernel = Kernel::Bundle(Bundle::softmax(rows, width));
        let reads = random.operands(&kernel);
        let one = launch(&kernel, &reads, &COORDINATES, Threads(1));
        assert_eq!(one, launch(&kernel, &reads, &COORDINATES, Threads(4)), "threads change {rows} x {width}");
    }
}

#[test]
fn the_last_member_may_write_over_what_all_have_read() {
    for (rows, width) in [(3, 5), (700, 31), (2, 30_000)] {
        let bundle = Bundle::softmax(rows, width);
        assert!(bundle.in_place(0, 2) && !bundle.in_place(0, 0) && !bundle.in_place(0, 1));
        let kernel = Kernel::Bundle(bundle);
        let reads = Draw::new(32).operands(&kernel);
        let want = launch(&kernel, &reads, &COORDINATES, Threads(1));
        let mut x: Vec<f32> = reads[0].iter().map(|value| *value as f32).collect();
        let (mut top, mut sum) = (vec![0f32; rows as usize], vec![0f32; rows as usize]);
        let prepared = prepare(&kernel, &[Some(2)]).unwrap();
        let writes = vec![SliceMut::F32(&mut top), SliceMut::F32(&mut sum), SliceMut::F32(&mut x)];
        let reads = [Slice::F32(&[])];
        let arguments = Arguments { reads: &reads, writes, coordinates: &COORDINATES, threads: Threads(2) };
        with_threads(Threads(2), || prepared.launch(arguments)).unwrap();
        for (want, got) in want.iter().zip([top, sum, x]) {
            assert_eq!(*want, got.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), "{rows} x {width}");
        }
    }
}

#[test]
fn members_side_by_side() {
    let step = |n: u64, at: u32| Member {
        kernel: MemberKernel::Map(Map::of_f32(
            &[n],
            &[&[1], &[1], &[0]],
            vec![Instr::Binary(Binary::Mul, 1, 2), Instr::Binary(Binary::Sub, 0, 3)],
        )),
        reads: vec![Source::Read(at), Source::Read(at + 1), Source::Read(4)],
    };
    let bundle = Bundle { rows: 1, members: vec![step(70_001, 0), step(3, 2)] };
    assert!(bundle.in_place(0, 0) && bundle.in_place(2, 1) && !bundle.in_place(0, 1) && !bundle.in_place(4, 0));
    let kernel = Kernel::Bundle(bundle);
    let reads = Draw::new(33).operands(&kernel);
    check(&kernel, &reads, tolerance(DType::F32));
}

#[test]
fn bundles_that_are_none_are_refused() {
    let good = Bundle::softmax(4, 6);
    let refused = |change: &dyn Fn(&mut Bundle)| {
        let mut bundle = good.clone();
        change(&mut bundle);
        bundle.signature(&mesh()).expect_err("a bundle that is none").to_string()
    };
    assert!(good.signature(&mesh()).is_ok());
    assert!(refused(&|b| b.rows = 5).contains("does not begin with 5 rows"));
    assert!(refused(&|b| b.members.swap(0, 1)).contains("written later"));
    assert!(refused(&|b| b.members[1].reads.truncate(1)).contains("another number of operands"));
    assert!(refused(&|b| b.members[2].reads[0] = Source::Read(u32::MAX)).contains("no member reads"));
    assert!(refused(&|b| b.members[2].kernel.map_mut().inputs[1].strides = vec![0, 0]).contains("other rows"));
    assert!(refused(&|b| b.members[2].kernel.map_mut().inputs[2].dtype = DType::F64).contains("not such"));
}
