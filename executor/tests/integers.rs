//! Integers that have no quotient fail the kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use shardc_executor::cpu::element::{Slice, SliceMut};
use shardc_executor::cpu::threads::Threads;
use shardc_executor::cpu::{Arguments, prepare};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Kernel, Map, MapInput, Reduce};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Instr, ScalarProgram};

/// `f(a, b) + a` over elements of `a` and `b`, or of `a` and one `b` for all.
fn map(f: Binary, count: u64, stride: i64) -> Map {
    let input = |stride| MapInput { dtype: DType::I64, strides: vec![stride] };
    let code = vec![Instr::Binary(f, 0, 1), Instr::Binary(Binary::Add, 2, 0)];
    Map {
        compute: DType::I64,
        shape: vec![count],
        inputs: vec![input(1), input(stride)],
        program: ScalarProgram { inputs: 2, code, outputs: vec![3] },
        outputs: vec![DType::I64],
        origins: vec![],
    }
}

fn launch(kernel: &Kernel, a: &[i64], b: &[i64], results: usize) -> Result<Vec<i64>, String> {
    let mut out = vec![0; results];
    let prepared = prepare(kernel, &[None, None]).unwrap();
    let (reads, writes) = ([Slice::I64(a), Slice::I64(b)], vec![SliceMut::I64(&mut out)]);
    prepared.launch(Arguments { reads: &reads, writes, coordinates: &[], threads: Threads(1) })?;
    Ok(out)
}

#[test]
fn a_division_by_zero_fails_wherever_it_stands() {
    let count = 5000;
    let a: Vec<i64> = (0..count).map(|i| i - 40).collect();
    for f in [Binary::Div, Binary::Mod] {
        for place in [None, Some(0), Some(4321)] {
            let b: Vec<i64> = (0..count).map(|i| if Some(i) == place { 0 } else { i % 5 + 1 }).collect();
            let all = Kernel::Map(map(f, count as u64, 1));
            let sum = Kernel::Reduce(Reduce {
                map: map(f, count as u64, 1),
                reduced: vec![true],
                kind: ReduceKind::Sum,
                accumulate: DType::I64,
            });
            for (kernel, results) in [(all, count as usize), (sum, 1)] {
                let outcome = launch(&kernel, &a, &b, results);
                match place {
                    None => assert_eq!(outcome.unwrap().len(), results),
                    Some(_) => assert_eq!(outcome.unwrap_err(), "an integer is divided by 0"),
                }
            }
        }
        let one_for_all = Kernel::Map(map(f, count as u64, 0));
        assert!(launch(&one_for_all, &a, &[3], count as usize).is_ok());
        assert!(launch(&one_for_all, &a, &[0], count as usize).is_err());
    }
    let quotients = launch(&Kernel::Map(map(Binary::Div, 3, 1)), &[-7, i64::MIN, 9], &[2, -1, 4], 3).unwrap();
    assert_eq!(quotients, [-10, 0, 11]);
}
