//! Formulas: activations and their slopes, and the parts of a cross entropy, which run as one loop
//! each.

use crate::launch_over;
use shardc_executor::cpu::prepare;
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Form, Kernel, Map, MapInput};
use shardc_ir::ops::functions::UnaryFn;
use shardc_ir::scalar::{Binary, Instr, ProgramWriter, Reg, ScalarProgram, Unary};
use shardc_testkit::reference::draw::{COORDINATES, Draw};

const ROWS: usize = 97;
const COLUMNS: usize = 301;

/// A program of four operands: the second has an element for each column, or the second and the
/// fourth, whole numbers, have one for each row.
#[derive(Clone)]
struct Case {
    name: String,
    program: ScalarProgram,
    by_rows: bool,
}

/// Each activation of x with a bias, and its slope, of y and the result's gradient too.
fn activations() -> Vec<Case> {
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
        let case = |name: String, program| Case { name, program, by_rows: false };
        [case(f.name().to_string(), value), case(format!("slope of {}", f.name()), slope)]
    };
    activations.into_iter().flat_map(pair).collect()
}

/// Parts of a cross entropy over rows: exponentials of logits below their largest one, the logit of
/// the label, where the label is, and the slope without that.
fn parts_of_entropy() -> Vec<Case> {
    let case = |name: &str, f: &dyn Fn(&mut ProgramWriter, [Reg; 4]) -> Reg| {
        let program = ProgramWriter::program(4, |p, x| vec![f(p, [x[0], x[1], x[2], x[3]])]);
        Case { name: name.to_string(), program, by_rows: true }
    };
    let exponential = |p: &mut ProgramWriter, x: Reg, largest: Reg| {
        let below = p.binary(Binary::Sub, x, largest);
        p.unary(Unary::Exp, below)
    };
    let is_label = |p: &mut ProgramWriter, label: Reg| {
        let index = p.push(Instr::Index(1));
        p.binary(Binary::Eq, index, label)
    };
    vec![
        case("exponential", &|p, [x, largest, ..]| exponential(p, x, largest)),
        case("slope", &|p, [x, largest, g, factor]| {
            let exponential = exponential(p, x, largest);
            let scaled = p.mul(factor, exponential);
            p.add(g, scaled)
        }),
        case("logit of the label", &|p, [x, _, _, label]| {
            let (is_label, zero) = (is_label(p, label), p.number(0.0));
            p.select(is_label, x, zero)
        }),
        case("label", &|p, [_, value, _, label]| {
            let (is_label, zero) = (is_label(p, label), p.number(0.0));
            p.select(is_label, value, zero)
        }),
    ]
}

fn map(case: &Case, dtype: DType) -> Map {
    let row = COLUMNS as i64;
    let input = |dtype, strides: [i64; 2]| MapInput { dtype, strides: strides.to_vec() };
    let (all, column) = (input(dtype, [row, 1]), input(dtype, [0, 1]));
    let inputs = match case.by_rows {
        false => vec![all.clone(), column, all.clone(), all],
        true => vec![all.clone(), input(dtype, [1, 0]), all, input(DType::I64, [1, 0])],
    };
    let outputs = vec![dtype; case.program.outputs.len()];
    let shape = vec![ROWS as u64, COLUMNS as u64];
    Map { compute: dtype, shape, inputs, program: case.program.clone(), outputs, origins: vec![] }
}

fn formulas(case: &Case) -> usize {
    let ready = prepare(&Kernel::Map(map(case, DType::F32)), &[None; 4]).expect("a good kernel");
    format!("{ready:?}").matches("Formula(").count()
}

/// The program, of which what each instruction computes is a result too.
fn step_by_step(case: &Case) -> Case {
    let program = &case.program;
    let is_step = |i: &u16| !matches!(program.code[*i as usize], Instr::Const(_) | Instr::Index(_));
    let steps = (0..program.code.len() as u16).filter(is_step).map(|i| program.inputs + i);
    let outputs = program.outputs.iter().copied().chain(steps).collect();
    Case { program: ScalarProgram { outputs, ..program.clone() }, ..case.clone() }
}

#[test]
fn these_are_formulas() {
    for case in activations().into_iter().chain(parts_of_entropy()) {
        assert_eq!(formulas(&case), 1, "{}", case.name);
        assert_eq!(formulas(&step_by_step(&case)), 0, "{}", case.name);
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
    let case = |program| Case { name: String::new(), program, by_rows: false };
    let read = case(ProgramWriter::program(4, |p, x| {
        let sigmoid = p.unary(Unary::Sigmoid, x[0]);
        let silu = p.mul(x[0], sigmoid);
        vec![p.add(silu, sigmoid)]
    }));
    assert_eq!(formulas(&read), 0);
    let twice = case(ProgramWriter::program(4, |p, x| {
        let (one, other) = (f.write(p, x[0]), f.write(p, x[2]));
        vec![p.add(one, other), one]
    }));
    assert_eq!(formulas(&twice), 2);
}

/// What a formula reads is there, where that is a step of its own.
#[test]
fn a_formula_does_not_read_what_it_stands_for() {
    let own_shift = ProgramWriter::program(4, |p, x| {
        let one = p.number(1.0);
        let below = p.binary(Binary::Sub, x[0], one);
        let exponential = p.unary(Unary::Exp, below);
        let half = p.scale(exponential, 0.5);
        vec![p.add(below, half)]
    });
    let own_sigmoid = ProgramWriter::program(4, |p, x| {
        let s = p.unary(Unary::Sigmoid, x[0]);
        let (sum, square) = (p.add(s, s), p.mul(s, s));
        let slope = p.binary(Binary::Sub, sum, square);
        vec![p.mul(x[2], slope)]
    });
    let squared = ProgramWriter::program(4, |p, x| {
        let slope = UnaryFn::Gelu.derivative().expect("it has one")(p, [x[0], x[2], x[3]]);
        vec![p.mul(slope, slope)]
    });
    for (program, found) in [(own_shift, 0), (own_sigmoid, 0), (squared, 1)] {
        let case = Case { name: format!("{program:?}"), program, by_rows: false };
        assert_eq!(formulas(&case), found, "{}", case.name);
        same_bits(&case, DType::F32);
    }
}

#[test]
fn formulas_have_the_bits_of_their_instructions() {
    for case in activations().into_iter().chain(parts_of_entropy()) {
        same_bits(&case, DType::F32);
        same_bits(&case, DType::F64);
    }
}

/// Programs that differ from a formula in one instruction, or in the order of two operands, compute
/// what they say.
#[test]
fn other_programs_keep_their_bits() {
    for case in activations().into_iter().chain(parts_of_entropy()) {
        for at in 0..case.program.code.len() {
            let changed = match case.program.code[at] {
                Instr::Const(_) | Instr::Index(_) => continue,
                Instr::Binary(Binary::Mul, a, b) => vec![Instr::Binary(Binary::Mul, b, a), Instr::Binary(Binary::Max, a, b)],
                Instr::Binary(f, a, b) => vec![Instr::Binary(f, b, a), Instr::Binary(Binary::Mul, a, b)],
                Instr::Unary(_, a) => vec![Instr::Unary(Unary::Atan, a), Instr::Unary(Unary::Abs, a)],
                Instr::Select(a, b, c) => vec![Instr::Select(a, c, b), Instr::Binary(Binary::Add, b, c)],
                Instr::Round(..) => panic!("nothing is rounded in {}", case.name),
            };
            for instr in changed {
                let mut other = case.clone();
                other.name += &format!(" with {instr:?} at {at}");
                other.program.code[at] = instr;
                same_bits(&other, DType::F32);
            }
        }
    }
}

/// Holds a program against itself where each instruction is a result too.
fn same_bits(case: &Case, dtype: DType) {
    let mut random = Draw::new(9);
    let strange = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 30.0, -30.0, 1e-40];
    let mut drawn = |count: usize| -> Vec<f64> {
        let mut value = || match random.below(60) {
            one if one < strange.len() as u64 => strange[one as usize],
            _ => (random.below(8192) as f64 - 4096.0) / 700.0,
        };
        (0..count).map(|_| value()).collect()
    };
    let few = if case.by_rows { ROWS } else { COLUMNS };
    let mut reads: Vec<Vec<f64>> = [ROWS * COLUMNS, few, ROWS * COLUMNS, ROWS * COLUMNS].map(&mut drawn).into();
    if case.by_rows {
        reads[3] = (0..ROWS).map(|row| (row * 8 % COLUMNS) as f64).collect();
    }
    let bits = |case: &Case, in_place: Option<usize>, threads: usize| -> Vec<u64> {
        let kernel = Kernel::Map(map(case, dtype));
        let results = launch_over(&kernel, &reads, &[in_place, None, None, None], &COORDINATES, Threads(threads));
        results[0].iter().map(|value| if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() }).collect()
    };
    let wanted = bits(&step_by_step(case), None, 1);
    for (in_place, threads) in [(None, 1), (None, 3), (Some(0), 1), (Some(0), 3)] {
        let found = bits(case, in_place, threads);
        let at = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        assert_eq!(at, None, "{} in {dtype} by {threads} threads, in place {in_place:?}", case.name);
    }
}
