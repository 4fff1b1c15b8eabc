//! Bundles: rows, members side by side, and what is refused.

use crate::{COORDINATES, Random, check, launch, mesh, operands, tolerance};
use shardc_executor::bench::kernels::softmax;
use shardc_executor::cpu::element::{Slice, SliceMut};
use shardc_executor::cpu::threads::Threads;
use shardc_executor::cpu::{Arguments, prepare};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::scalar::{Binary, Instr, Reg, ScalarProgram};

fn map(shape: &[u64], strides: &[&[i64]], code: Vec<Instr>) -> Map {
    let input = |strides: &&[i64]| MapInput { dtype: DType::F32, strides: strides.to_vec() };
    let outputs = vec![(strides.len() + code.len() - 1) as Reg];
    Map {
        compute: DType::F32,
        shape: shape.to_vec(),
        inputs: strides.iter().map(input).collect(),
        program: ScalarProgram { inputs: strides.len() as u16, code, outputs },
        outputs: vec![DType::F32],
        origins: vec![],
    }
}

#[test]
fn rows() {
    let mut random = Random::new(31);
    for (rows, width) in [(1, 1), (1, 70_000), (5, 3), (7, 20_000), (300, 17), (5_000, 9), (129, 513)] {
        let kernel = Kernel::Bundle(softmax(rows, width));
        let reads = operands(&mut random, &kernel);
        check(&kernel, &reads, &COORDINATES, 1e-6 * width as f64);
        let one = launch(&kernel, &reads, &COORDINATES, Threads(1));
        assert_eq!(one, launch(&kernel, &reads, &COORDINATES, Threads(4)), "threads change {rows} x {width}");
    }
}

#[test]
fn the_last_member_may_write_over_what_all_have_read() {
    for (rows, width) in [(3, 5), (700, 31), (2, 30_000)] {
        let bundle = softmax(rows, width);
        assert!(bundle.in_place(0, 2) && !bundle.in_place(0, 0) && !bundle.in_place(0, 1));
        let kernel = Kernel::Bundle(bundle);
        let reads = operands(&mut Random::new(32), &kernel);
        let want = launch(&kernel, &reads, &COORDINATES, Threads(1));
        let mut x: Vec<f32> = reads[0].iter().map(|value| *value as f32).collect();
        let (mut top, mut sum) = (vec![0f32; rows as usize], vec![0f32; rows as usize]);
        let prepared = prepare(&kernel, &[Some(2)]).unwrap();
        let writes = vec![SliceMut::F32(&mut top), SliceMut::F32(&mut sum), SliceMut::F32(&mut x)];
        let reads = [Slice::F32(&[])];
        prepared.launch(Arguments { reads: &reads, writes, coordinates: &COORDINATES, threads: Threads(2) }).unwrap();
        for (want, got) in want.iter().zip([top, sum, x]) {
            assert_eq!(*want, got.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), "{rows} x {width}");
        }
    }
}

#[test]
fn members_side_by_side() {
    let step = |n: u64, at: u32| Member {
        kernel: MemberKernel::Map(map(
            &[n],
            &[&[1], &[1], &[0]],
            vec![Instr::Binary(Binary::Mul, 1, 2), Instr::Binary(Binary::Sub, 0, 3)],
        )),
        reads: vec![Source::Read(at), Source::Read(at + 1), Source::Read(4)],
    };
    let bundle = Bundle { rows: 1, members: vec![step(70_001, 0), step(3, 2)] };
    assert!(bundle.in_place(0, 0) && bundle.in_place(2, 1) && !bundle.in_place(0, 1) && !bundle.in_place(4, 0));
    let kernel = Kernel::Bundle(bundle);
    let reads = operands(&mut Random::new(33), &kernel);
    check(&kernel, &reads, &COORDINATES, tolerance(DType::F32));
}

#[test]
fn bundles_that_are_none_are_refused() {
    let good = softmax(4, 6);
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
