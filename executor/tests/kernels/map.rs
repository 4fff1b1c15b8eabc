//! Elementwise programs: every scalar function, constants, casts, integers.

use crate::{COORDINATES, Random, check, launch, operands, random_shape, tolerance};
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::position::*;
use shardc_ir::scalar::unary::EVERYWHERE;
use shardc_ir::scalar::{Binary, Instr, ProgramWriter, ScalarProgram, Unary};

/// Functions that take any number.
fn unary() -> Vec<Unary> {
    Unary::ALL.into_iter().filter(|f| f.facts().domain == EVERYWHERE).collect()
}

const BINARY: [Binary; 11] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Max,
    Binary::Min,
    Binary::Eq,
    Binary::Lt,
    Binary::Le,
    Binary::And,
    Binary::Or,
    Binary::Xor,
];

/// A random elementwise kernel. Steps of a function (floor, comparisons) are only taken of exact
/// values: of inputs.
pub(crate) fn random_map(random: &mut Random, compute: DType, shape: Vec<u64>) -> Map {
    let inputs: Vec<MapInput> = (0..1 + random.below(3))
        .map(|_| {
            let dtype = if random.below(4) == 0 { random.pick(&DType::ALL) } else { compute };
            let dtype = if compute == DType::F32 && dtype == DType::F64 { DType::F32 } else { dtype };
            let mut strides = random.permuted_strides(&shape);
            if random.below(2) == 0 {
                strides = random.permuted_strides(&shape.iter().rev().copied().collect::<Vec<_>>());
                strides = shape
                    .iter()
                    .rev()
                    .scan(1, |s, n| {
                        let now = *s;
                        *s *= *n as i64;
                        Some(now)
                    })
                    .collect::<Vec<_>>();
                strides.reverse();
            }
            for stride in &mut strides {
                if random.below(4) == 0 {
                    *stride = 0;
                }
            }
            MapInput { dtype, strides }
        })
        .collect();
    let count = inputs.len() as u16;
    let mut code = vec![];
    let mut exact: Vec<u16> = (0..count).collect();
    for _ in 0..random.below(6) {
        let registers = count + code.len() as u16;
        let any = |random: &mut Random| random.below(u64::from(registers)) as u16;
        let instr = match random.below(8) {
            0 => Instr::Const(random.value()),
            1 if !shape.is_empty() => Instr::Index(random.below(shape.len() as u64) as u16),
            2 => Instr::Select(random.pick(&exact), any(random), any(random)),
            3 | 4 => {
                let f = random.pick(&unary());
                let stepped = matches!(f, Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Not);
                let of = if stepped || f == Unary::Exp { random.pick(&exact) } else { any(random) };
                Instr::Unary(f, of)
            }
            _ => {
                let f = random.pick(&BINARY);
                let stepped = f.is_logical();
                let mut operand = || if stepped { random.pick(&exact) } else { random.below(u64::from(registers)) as u16 };
                Instr::Binary(f, operand(), operand())
            }
        };
        if matches!(instr, Instr::Const(_) | Instr::Index(_)) {
            exact.push(registers);
        }
        code.push(instr);
    }
    let registers = count + code.len() as u16;
    let outputs: Vec<u16> = (0..1 + random.below(2)).map(|_| random.below(u64::from(registers)) as u16).collect();
    let dims: Vec<u16> = code.iter().filter_map(|i| if let Instr::Index(d) = i { Some(*d) } else { None }).collect();
    let mut origins: Vec<(u16, Origin)> = vec![];
    for d in dims {
        if random.below(2) == 0 && origins.iter().all(|(of, _)| *of != d) {
            let offset = Offset { base: 1, terms: vec![(AxisId(1), 40), (AxisId(2), 7)] };
            origins.push((d, Origin { offset, ..Origin::whole(shape[d as usize]) }));
        }
    }
    let results = outputs.len();
    Map {
        compute,
        shape,
        inputs,
        program: ScalarProgram { inputs: count, code, outputs },
        outputs: vec![compute; results],
        origins,
    }
}

#[test]
fn map() {
    let mut random = Random::new(1);
    for case in 0..1500 {
        let compute = if case % 2 == 0 { DType::F64 } else { DType::F32 };
        let shape = random_shape(&mut random);
        let kernel = Kernel::Map(random_map(&mut random, compute, shape));
        let reads = operands(&mut random, &kernel);
        check(&kernel, &reads, &COORDINATES, if compute == DType::F64 { 1e-12 } else { 1e-5 });
    }
}

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
            let mut random = Random::new(3);
            let fraction: Vec<f64> = (0..2100).map(|_| (random.below(1024) as f64 + 0.5) / 1024.0).collect();
            let first = fraction.iter().map(|f| f64::from((low + (high - low) * f) as f32)).collect();
            check(&Kernel::Map(map), &[first, random.values(dtype, 2100)], &COORDINATES, tolerance(dtype) * 4.0);
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
