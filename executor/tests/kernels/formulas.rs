//! Activations and their slopes, which run as one loop each.

use crate::launch;
use shardc_executor::cpu::prepare;
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Form, Kernel, Map, MapInput};
use shardc_ir::ops::functions::UnaryFn;
use shardc_ir::scalar::{Binary, Instr, ProgramWriter, ScalarProgram, Unary};
use shardc_testkit::reference::draw::{COORDINATES, Draw};

const ROWS: usize = 37;
const COLUMNS: usize = 301;

/// Of x with a bias, and of y and the result's gradient: each activation, and its slope.
fn activations() -> Vec<(String, ScalarProgram)> {
    let activations = [UnaryFn::Gelu, UnaryFn::GeluTanh, UnaryFn::Silu];
    let pair = |f: UnaryFn| {
        let value = ProgramWriter::program(4, |p, x| {
            let sum = p.add(x[0], x[1]);
            vec![f.write(p, sum)]
        });
        let slope = ProgramWriter::program(4, |p, x| {
            let sum = p.add(x[0], x[1]);
            vec![f.derivative().expect("it has one")(p, [sum, x[2], x[3]])]
        });
        [(f.name().to_string(), value), (format!("slope of {}", f.name()), slope)]
    };
    activations.into_iter().flat_map(pair).collect()
}

/// A map of four operands, of which the second is a row.
fn map(program: ScalarProgram, dtype: DType) -> Map {
    let input = |outer| MapInput { dtype, strides: vec![outer, 1] };
    let row = COLUMNS as i64;
    let inputs = [row, 0, row, row].map(input).to_vec();
    let outputs = vec![dtype; program.outputs.len()];
    Map { compute: dtype, shape: vec![ROWS as u64, COLUMNS as u64], inputs, program, outputs, origins: vec![] }
}

fn formulas(program: &ScalarProgram) -> usize {
    let ready = prepare(&Kernel::Map(map(program.clone(), DType::F32)), &[None; 4]).expect("a good kernel");
    format!("{ready:?}").matches("Formula(").count()
}

/// The program, of which what each instruction computes is a result too.
fn step_by_step(program: &ScalarProgram) -> ScalarProgram {
    let is_step = |i: &u16| !matches!(program.code[*i as usize], Instr::Const(_));
    let steps = (0..program.code.len() as u16).filter(is_step).map(|i| program.inputs + i);
    ScalarProgram { outputs: program.outputs.iter().copied().chain(steps).collect(), ..program.clone() }
}

#[test]
fn activations_are_formulas() {
    for (name, program) in activations() {
        assert_eq!(formulas(&program), 1, "{name}");
        assert_eq!(formulas(&step_by_step(&program)), 0, "{name}");
    }
    for name in ["map gelu tanh 768x512", "map gelu grad 768x512"] {
        let (_, measured) = Map::everyday().into_iter().find(|(what, _)| what == name).unwrap();
        let ready = prepare(&Kernel::Map(measured.clone()), &vec![None; measured.inputs.len()]).unwrap();
        assert!(format!("{ready:?}").contains("Formula("), "{name}");
    }
}

/// What is read besides is computed once.
#[test]
fn what_others_read_is_no_part_of_a_formula() {
    let f = UnaryFn::Silu;
    let program = ProgramWriter::program(4, |p, x| {
        let sigmoid = p.unary(Unary::Sigmoid, x[0]);
        let silu = p.mul(x[0], sigmoid);
        vec![p.add(silu, sigmoid)]
    });
    assert_eq!(formulas(&program), 0);
    let twice = ProgramWriter::program(4, |p, x| {
        let (one, other) = (f.write(p, x[0]), f.write(p, x[2]));
        vec![p.add(one, other), one]
    });
    assert_eq!(formulas(&twice), 2);
}

#[test]
fn formulas_have_the_bits_of_their_instructions() {
    for (name, program) in activations() {
        same_bits(&name, &program, DType::F32);
        same_bits(&name, &program, DType::F64);
    }
}

/// Programs that differ from an activation in one instruction, or in the order of two operands,
/// compute what they say.
#[test]
fn other_programs_keep_their_bits() {
    for (name, program) in activations() {
        for at in 0..program.code.len() {
            let changed = match program.code[at] {
                Instr::Const(_) | Instr::Index(_) => continue,
                Instr::Binary(Binary::Mul, a, b) => vec![Instr::Binary(Binary::Mul, b, a), Instr::Binary(Binary::Max, a, b)],
                Instr::Binary(f, a, b) => vec![Instr::Binary(f, b, a), Instr::Binary(Binary::Mul, a, b)],
                Instr::Unary(_, a) => vec![Instr::Unary(Unary::Atan, a), Instr::Unary(Unary::Abs, a)],
                other => panic!("{other:?} in an activation"),
            };
            for instr in changed {
                let mut other = program.clone();
                other.code[at] = instr;
                same_bits(&format!("{name} with {instr:?} at {at}"), &other, DType::F32);
            }
        }
    }
}

/// Holds a program against itself where each instruction is a result too.
fn same_bits(name: &str, program: &ScalarProgram, dtype: DType) {
    let mut random = Draw::new(9);
    let strange = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 30.0, -30.0, 1e-40];
    let mut drawn = |count: usize| -> Vec<f64> {
        let mut value = || match random.below(60) {
            one if one < strange.len() as u64 => strange[one as usize],
            _ => (random.below(8192) as f64 - 4096.0) / 700.0,
        };
        (0..count).map(|_| value()).collect()
    };
    let reads: Vec<Vec<f64>> = [ROWS * COLUMNS, COLUMNS, ROWS * COLUMNS, ROWS * COLUMNS].map(&mut drawn).into();
    let bits = |program: ScalarProgram, threads: usize| -> Vec<u64> {
        let results = launch(&Kernel::Map(map(program, dtype)), &reads, &COORDINATES, Threads(threads));
        results[0].iter().map(|value| if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() }).collect()
    };
    let wanted = bits(step_by_step(program), 1);
    for threads in [1, 3] {
        let found = bits(program.clone(), threads);
        let at = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        assert_eq!(at, None, "{name} in {dtype} by {threads} threads");
    }
}
