//! Elementwise programs: every scalar function, constants, casts, integers.

use crate::{check, launch, launch_over};
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::ops::update::{Adam, Sgd};
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

/// Updates of optimizers have the bits of their programs, in place and apart, whatever threads
/// share them.
#[test]
fn updates_have_the_bits_of_their_programs() {
    let adam = |weight_decay, decoupled| {
        let adam = Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay, decoupled, skips: false };
        (adam.program(), [0, 5, 6].to_vec())
    };
    let sgd = |nesterov, weight_decay| (Sgd { momentum: 0.9, nesterov, weight_decay, skips: false }.program(), [0, 3].to_vec());
    let updates =
        [adam(0.0, false), adam(0.1, false), adam(0.1, true), sgd(false, 0.0), sgd(false, 0.1), sgd(true, 0.0), sgd(true, 0.1)];
    for (update, states) in updates {
        for clips in [false, true] {
            let program = if clips { clipped(&update) } else { update.clone() };
            updates_like(&program, &states, DType::F32, |x| f64::from(x as f32));
            updates_like(&program, &states, DType::F64, |x| x);
        }
    }
}

/// The program, whose gradient is multiplied by one more operand.
fn clipped(program: &ScalarProgram) -> ScalarProgram {
    let count = usize::from(program.inputs);
    ProgramWriter::program(count + 1, |p, x| {
        let scaled = p.mul(x[1], x[count]);
        let arguments: Vec<_> = (0..count).map(|i| if i == 1 { scaled } else { x[i] }).collect();
        p.inline(program, &arguments, |dim| dim)
    })
}

/// Holds a program, whose operands `states` become its results, against its instructions one by
/// one, each rounded.
fn updates_like(program: &ScalarProgram, states: &[u64], dtype: DType, rounded: fn(f64) -> f64) {
    const COUNT: usize = 50_003;
    let is_whole = |operand: u64| operand == 1 || states.contains(&operand);
    let operands = 0..u64::from(program.inputs);
    let inputs = operands.clone().map(|i| MapInput { dtype, strides: vec![i64::from(is_whole(i))] }).collect();
    let outputs = vec![dtype; states.len()];
    let map = Map { compute: dtype, shape: vec![COUNT as u64], inputs, program: program.clone(), outputs, origins: vec![] };
    let mut random = Draw::new(5);
    let strange = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -1.5, 1e-40];
    let mut drawn = |count: usize| {
        let value = |_| match random.below(100) {
            strange_one if count > 1 && strange_one < 7 => rounded(strange[strange_one as usize]),
            _ => rounded(random.below(4096) as f64 / 1000.0 + 0.01),
        };
        (0..count).map(value).collect::<Vec<f64>>()
    };
    let reads: Vec<Vec<f64>> = operands.map(|i| drawn(if is_whole(i) { COUNT } else { 1 })).collect();
    let element = |at: usize| {
        let mut registers: Vec<f64> = reads.iter().map(|data| data[at % data.len()]).collect();
        for instr in &program.code {
            let r = |register: u16| registers[register as usize];
            registers.push(rounded(match *instr {
                Instr::Const(value) => value,
                Instr::Unary(Unary::Sqrt, a) => r(a).sqrt(),
                Instr::Binary(Binary::Add, a, b) => r(a) + r(b),
                Instr::Binary(Binary::Sub, a, b) => r(a) - r(b),
                Instr::Binary(Binary::Mul, a, b) => r(a) * r(b),
                Instr::Binary(Binary::Div, a, b) => r(a) / r(b),
                other => panic!("{other:?} in an update"),
            }));
        }
        program.outputs.iter().map(|register| registers[*register as usize]).collect::<Vec<f64>>()
    };
    let elements: Vec<Vec<f64>> = (0..COUNT).map(element).collect();
    let place = |operand: u64| states.iter().position(|state| *state == operand);
    let in_place: Vec<Option<usize>> = (0..reads.len() as u64).map(place).collect();
    for (in_place, threads) in [(&in_place, 1), (&in_place, 3), (&vec![None; reads.len()], 1), (&vec![None; reads.len()], 3)] {
        let found = launch_over(&Kernel::Map(map.clone()), &reads, in_place, &COORDINATES, Threads(threads));
        let bits = |value: f64| if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() };
        for (at, wanted) in elements.iter().enumerate() {
            let found: Vec<u64> = found.iter().map(|result| bits(result[at])).collect();
            assert_eq!(found, wanted.iter().map(|v| bits(*v)).collect::<Vec<_>>(), "element {at} of {program:?}");
        }
    }
}
