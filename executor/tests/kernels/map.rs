//! Elementwise programs: every scalar function, constants, casts, integers.

use crate::{check, launch};
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::scalar::{Binary, Instr, ProgramWriter, ScalarProgram, Unary};
use shardc_testkit::reference::draw::{COORDINATES, Draw, tolerance};

/// The program of every function and activation gives its value by definition.
#[test]
fn functions_are_what_they_are_defined_as() {
    const POINTS: u64 = 401;
    for f in UnaryFn::ALL {
        let program = ProgramWriter::program(1, |w, x| vec![f.write(w, x[0])]);
        let outputs = vec![if f.is_logical() { DType::Bool } else { DType::F64 }];
        let inputs = vec![MapInput { dtype: DType::F64, strides: vec![1] }];
        let map = Map { compute: DType::F64, shape: vec![POINTS], inputs, program, outputs, origins: vec![] };
        let (low, high) = f.domain();
        let points: Vec<f64> = (0..POINTS).map(|i| low + (high - low) * i as f64 / (POINTS - 1) as f64).collect();
        let found = launch(&Kernel::Map(map), std::slice::from_ref(&points), &COORDINATES, Threads(1)).swap_remove(0);
        for (x, y) in points.into_iter().zip(found) {
            let wanted = f.value(x);
            assert!((y - wanted).abs() <= 1e-12 * wanted.abs().max(1.0), "`{}` of {x} is {y}, not {wanted}", f.name());
        }
    }
}

#[test]
fn map_functions_that_need_chosen_arguments() {
    let shape = vec![7, 300];
    for (code, low, high) in [
        (vec![Instr::Unary(Unary::Log, 0)], 0.1, 9.0),
        (vec![Instr::Unary(Unary::Sqrt, 0)], 0.0, 9.0),
        (vec![Instr::Unary(Unary::Reciprocal, 0)], 0.5, 9.0),
        (vec![Instr::Binary(Binary::Div, 1, 0)], 0.5, 9.0),
        (vec![Instr::Binary(Binary::Pow, 0, 1)], 0.5, 9.0),
        (vec![Instr::Const(2.0), Instr::Binary(Binary::Pow, 0, 2)], -3.0, 3.0),
        (vec![Instr::Const(3.0), Instr::Binary(Binary::Pow, 0, 2)], -3.0, 3.0),
        (vec![Instr::Const(0.5), Instr::Binary(Binary::Pow, 0, 2)], 0.0, 3.0),
        (vec![Instr::Const(3.0), Instr::Binary(Binary::Mod, 0, 2)], -9.0, 9.0),
        (vec![Instr::Const(-3.0), Instr::Binary(Binary::Mod, 0, 2)], -9.0, 9.0),
    ] {
        for dtype in [DType::F64, DType::F32] {
            let strides = vec![300, 1];
            let inputs = vec![MapInput { dtype, strides: strides.clone() }, MapInput { dtype, strides }];
            let last = 1 + code.len() as u16;
            let program = ScalarProgram { inputs: 2, code: code.clone(), outputs: vec![last] };
            let map = Map { compute: dtype, shape: shape.clone(), inputs, program, outputs: vec![dtype], origins: vec![] };
            let mut random = Draw::new(3);
            let fraction: Vec<f64> = (0..2100).map(|_| (random.below(1024) as f64 + 0.5) / 1024.0).collect();
            let first = fraction.iter().map(|f| f64::from((low + (high - low) * f) as f32)).collect();
            check(&Kernel::Map(map), &[first, random.values(dtype, 2100)], tolerance(dtype) * 4.0);
        }
    }
}

#[test]
fn integers_and_casts() {
    let run = |compute, from, to, code: Vec<Instr>, values: &[f64]| {
        let last = code.len() as u16;
        let program = ScalarProgram { inputs: 1, code, outputs: vec![last] };
        let inputs = vec![MapInput { dtype: from, strides: vec![1] }];
        let map = Map { compute, shape: vec![values.len() as u64], inputs, program, outputs: vec![to], origins: vec![] };
        launch(&Kernel::Map(map), &[values.to_vec()], &COORDINATES, Threads(1)).remove(0)
    };
    use DType::{Bool, F32, F64, I64};
    assert_eq!(run(F32, F32, I64, vec![], &[1.9, -1.9, 0.0]), [1.0, -1.0, 0.0]);
    assert_eq!(run(F32, F32, Bool, vec![], &[1.9, -0.5, 0.0]), [1.0, 1.0, 0.0]);
    assert_eq!(run(Bool, Bool, F64, vec![Instr::Unary(Unary::Not, 0)], &[1.0, 0.0]), [0.0, 1.0]);
    let div = |f, n| run(I64, I64, I64, vec![Instr::Const(n), Instr::Binary(f, 0, 1)], &[7.0, -7.0, 6.0, -6.0]);
    assert_eq!(div(Binary::Div, 2.0), [3.0, -3.0, 3.0, -3.0]);
    assert_eq!(div(Binary::Mod, 3.0), [1.0, 2.0, 0.0, 0.0]);
    assert_eq!(div(Binary::Pow, 2.0), [49.0, 49.0, 36.0, 36.0]);
}
