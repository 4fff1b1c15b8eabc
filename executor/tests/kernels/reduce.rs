//! Reductions and row programs.

use crate::launch;
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::*;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Instr, ScalarProgram};
use shardc_testkit::reference;
use shardc_testkit::reference::draw::{COORDINATES, mesh};

#[test]
fn reductions_of_single_elements_along_rows() {
    for (rows, width) in [(3, 1280), (128, 300), (700, 50)] {
        single_elements(rows, width);
    }
}

/// The rows of the first operand have room behind them.
fn single_elements(rows: u64, width: u64) {
    let pitch = width + 7;
    let map = Map {
        compute: DType::F32,
        shape: vec![rows, width, 1],
        inputs: [pitch as i64, 0].map(|stride| MapInput { dtype: DType::F32, strides: vec![stride, 1, 1] }).to_vec(),
        program: ScalarProgram { inputs: 2, code: vec![Instr::Binary(Binary::Add, 0, 1)], outputs: vec![2] },
        outputs: vec![DType::F32],
        origins: vec![],
    };
    let kernel = Kernel::Reduce(Reduce { map, kind: ReduceKind::Sum, reduced: vec![false, false, true], accumulate: DType::F32 });
    let x: Vec<f64> = (0..rows * pitch).map(|i| i as f64).collect();
    let row: Vec<f64> = (0..width).map(|i| 0.5 * i as f64).collect();
    let at = |i: u64| x[(i / width * pitch + i % width) as usize] + row[(i % width) as usize];
    let want: Vec<f64> = (0..rows * width).map(at).collect();
    assert_eq!(launch(&kernel, &[x, row], &COORDINATES, Threads(2))[0], want);
}

#[test]
fn reductions_of_nothing() {
    for (kind, want) in [(ReduceKind::Sum, 0.0), (ReduceKind::Max, f64::NEG_INFINITY), (ReduceKind::Min, f64::INFINITY)] {
        let map = Map {
            compute: DType::F32,
            shape: vec![3, 0],
            inputs: vec![MapInput { dtype: DType::F32, strides: vec![0, 1] }],
            program: ScalarProgram::identity(),
            outputs: vec![DType::F32],
            origins: vec![],
        };
        let kernel = Kernel::Reduce(Reduce { map, kind, reduced: vec![false, true], accumulate: DType::F32 });
        assert_eq!(launch(&kernel, &[vec![]], &COORDINATES, Threads(1))[0], [want; 3]);
    }
}

/// The sum of many equal numbers that f32 cannot hold exactly: adding them one by one would be off
/// by thousands of ulps.
#[test]
fn long_sums_are_exact_to_a_few_ulp() {
    for (shape, reduced) in
        [(vec![1 << 20], vec![true]), (vec![1 << 17, 8], vec![true, false]), (vec![8, 1 << 17], vec![false, true])]
    {
        let strides = if shape.len() == 1 { vec![1] } else { vec![shape[1] as i64, 1] };
        let map = Map {
            compute: DType::F32,
            shape: shape.clone(),
            inputs: vec![MapInput { dtype: DType::F32, strides }],
            program: ScalarProgram::identity(),
            outputs: vec![DType::F32],
            origins: vec![],
        };
        let terms: u64 = shape.iter().zip(&reduced).filter(|(_, r)| **r).map(|(n, _)| *n).product();
        let kernel = Kernel::Reduce(Reduce { map, kind: ReduceKind::Sum, reduced, accumulate: DType::F32 });
        let value = f64::from(0.1f32);
        for got in &launch(&kernel, &[vec![value; shape.iter().product::<u64>() as usize]], &COORDINATES, Threads(1))[0] {
            let want = value * terms as f64;
            assert!((got / want - 1.0).abs() < 4.0 * f64::from(f32::EPSILON), "{shape:?}: {got}, not {want}");
        }
    }
}

/// Statistics of empty rows are written too: what the memory held before is not theirs.
#[test]
fn the_mean_of_nothing_is_not_a_number() {
    for program in [RowProgram::LayerNorm { eps: 1e-5 }, RowProgram::RmsNorm { eps: 1e-5 }] {
        let kernel = Kernel::Rowwise(Rowwise { dtype: DType::F64, flow: DType::F64, rows: 3, width: 0, program });
        let results = launch(&kernel, &[vec![], vec![], vec![]][..program.operands().0.len()], &COORDINATES, Threads(1));
        for statistics in &results[1..] {
            let is_written = |v: &f64| v.is_nan() && v.to_bits() != u64::MAX;
            assert!(statistics.len() == 3 && statistics.iter().all(is_written), "{program:?}");
        }
    }
}

/// If there are no rows, the tables may have none either.
#[test]
fn no_rows_need_no_tables() {
    let program = |period| RowProgram::Rotary { repeat: 1, period, transposed: false };
    let kernel =
        |rows, period| Kernel::Rowwise(Rowwise { dtype: DType::F32, flow: DType::F32, rows, width: 4, program: program(period) });
    assert_eq!(launch(&kernel(0, 0), &[vec![], vec![], vec![]], &COORDINATES, Threads(1)), [vec![0.0; 0]]);
    assert!(kernel(2, 0).signature(&mesh()).is_err());
}

/// Rows that are wider than a block are added up by several blocks at a time, as many as threads
/// leave; the sums of these numbers are exact. Rows of the last one have room behind them.
#[test]
fn sums_of_wide_rows() {
    let cases: [(&[u64], &[i64], &[bool]); 3] = [
        (&[300, 5000], &[5000, 1], &[true, false]),
        (&[2, 200, 2500], &[500_000, 2500, 1], &[false, true, false]),
        (&[150, 3, 1500], &[3 * 1509, 1509, 1], &[true, false, false]),
    ];
    for (shape, strides, reduced) in cases {
        let map = Map {
            compute: DType::F32,
            shape: shape.to_vec(),
            inputs: vec![MapInput { dtype: DType::F32, strides: strides.to_vec() }],
            program: ScalarProgram { inputs: 1, code: vec![], outputs: vec![0] },
            outputs: vec![DType::F32],
            origins: vec![],
        };
        let sum = Reduce { map, kind: ReduceKind::Sum, reduced: reduced.to_vec(), accumulate: DType::F32 };
        let reads = [(0..shape[0] as i64 * strides[0]).map(|i| (i * 7919 % 1000) as f64).collect::<Vec<f64>>()];
        let kernel = Kernel::Reduce(sum);
        let count = kernel.signature(&mesh()).unwrap().writes[0].elements as usize;
        let wanted = reference::run(&kernel, &reads, vec![vec![0.0; count]], &COORDINATES);
        for threads in [1, 3, 16] {
            assert_eq!(launch(&kernel, &reads, &COORDINATES, Threads(threads)), wanted, "{shape:?}, {threads} threads");
        }
    }
}

/// A few last positions are reduced when all else is: of some kept dimensions before and between
/// others, in several chunks and blocks, of nothing, of every kind, and of f32 in f64.
#[test]
fn reductions_of_last_positions_apart() {
    let cases: [(&[u64], &[bool]); 7] = [
        (&[128, 64, 4, 4], &[true, false, true, true]),
        (&[3, 40, 600, 8], &[false, true, false, true]),
        (&[20, 5000, 4], &[true, false, true]),
        (&[2, 5, 3, 9, 80, 64], &[true, false, true, false, false, true]),
        (&[4, 256, 2], &[true, false, true]),
        (&[0, 600, 4], &[true, false, true]),
        (&[7, 0, 3], &[true, false, true]),
    ];
    let kinds = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min];
    let types = [(DType::F32, DType::F32), (DType::F32, DType::F64), (DType::F64, DType::F64), (DType::I64, DType::I64)];
    for ((shape, reduced), kind) in cases.into_iter().flat_map(|case| kinds.map(|kind| (case, kind))) {
        // The extremes of no integers are none that a float has.
        for (dtype, accumulate) in types.into_iter().filter(|(dtype, _)| *dtype != DType::I64 || !shape.contains(&0)) {
            let map = Map {
                compute: dtype,
                shape: shape.to_vec(),
                inputs: vec![MapInput { dtype, strides: row_major(shape) }],
                program: ScalarProgram { inputs: 1, code: vec![], outputs: vec![0] },
                outputs: vec![dtype],
                origins: vec![],
            };
            let kernel = Kernel::Reduce(Reduce { map, kind, reduced: reduced.to_vec(), accumulate });
            let has_nan = kind != ReduceKind::Sum && dtype != DType::I64;
            let value = |i: u64| if has_nan && i % 10_007 == 5 { f64::NAN } else { (i * 7919 % 1000) as f64 };
            let reads = [(0..shape.iter().product()).map(value).collect::<Vec<f64>>()];
            let count = kernel.signature(&mesh()).unwrap().writes[0].elements as usize;
            let wanted = reference::run(&kernel, &reads, vec![vec![0.0; count]], &COORDINATES);
            let bits = |results: &[Vec<f64>]| results[0].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            for threads in [1, 3] {
                let got = launch(&kernel, &reads, &COORDINATES, Threads(threads));
                assert!(bits(&got) == bits(&wanted), "{kind:?} of {shape:?} in {accumulate:?}, {threads} threads");
            }
        }
    }
}

/// The sum, if it is one, of the products of neighbouring elements of two operands; of one with
/// itself where there is only one.
fn sum_of_products(operands: &[Vec<f64>], is_sum: bool) -> Vec<f64> {
    let inputs = operands.len() as u16;
    let map = Map {
        compute: DType::F32,
        shape: vec![operands[0].len() as u64],
        inputs: vec![MapInput { dtype: DType::F32, strides: vec![1] }; operands.len()],
        program: ScalarProgram { inputs, code: vec![Instr::Binary(Binary::Mul, 0, inputs - 1)], outputs: vec![inputs] },
        outputs: vec![DType::F32],
        origins: vec![],
    };
    let kernel = Kernel::Reduce(Reduce { map, kind: ReduceKind::Sum, reduced: vec![is_sum], accumulate: DType::F64 });
    launch(&kernel, operands, &COORDINATES, Threads(2)).remove(0)
}

/// Squares of one operand are added up by a loop of their own, products of two by the one of all
/// reductions.
#[test]
fn sums_of_squares_have_the_bits_of_sums_of_products() {
    for elements in [2, 31, 1000, 1024, 5000, 70_001, 300_000] {
        let x: Vec<f64> = (0..elements).map(|i| f64::from(((i * 7919) % 10_007) as f32 * 1.1e-3 - 5.3)).collect();
        let [of_squares, of_products] = [vec![x.clone()], vec![x.clone(), x]].map(|x| sum_of_products(&x, true)[0]);
        assert_eq!(of_squares.to_bits(), of_products.to_bits(), "{elements} elements");
    }
}

#[test]
fn what_is_no_sum_of_squares_is_none() {
    let numbers = |modulo: u64| -> Vec<f64> { (0..5000).map(|i| (i % modulo) as f64).collect() };
    let (x, y) = (numbers(7), numbers(5));
    let products: Vec<f64> = x.iter().zip(&y).map(|(x, y)| x * y).collect();
    assert_eq!(sum_of_products(&[x.clone(), y], true), [products.iter().sum::<f64>()]);
    let squares: Vec<f64> = x.iter().map(|x| x * x).collect();
    assert_eq!(sum_of_products(&[x], false), squares);
}
