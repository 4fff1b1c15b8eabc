//! Updates of parameters: programs of optimizers, which run in one pass.

use crate::launch_over;
use shardc_executor::cpu::prepare;
use shardc_executor::cpu::threads::Threads;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Form, Kernel, Map, MapInput};
use shardc_ir::ops::update::{Adam, Sgd};
use shardc_ir::scalar::{Binary, Instr, ProgramWriter, ScalarProgram, Unary};
use shardc_testkit::reference::draw::{COORDINATES, Draw};

/// Whether a map is made ready as an update.
fn runs_in_one_pass(map: Map, in_place: &[Option<usize>]) -> bool {
    let ready = prepare(&Kernel::Map(map), in_place).expect("a good kernel");
    format!("{ready:?}").contains("update: Some(")
}

/// Whether a program over one moment or two is run in one pass; `whole` says of its operands
/// which have an element for each of the parameter.
fn is_known(program: ScalarProgram, whole: &[bool]) -> bool {
    let outputs = vec![DType::F32; program.outputs.len()];
    let input = |whole: &bool| MapInput { dtype: DType::F32, strides: vec![i64::from(*whole)] };
    let inputs: Vec<MapInput> = whole.iter().map(input).collect();
    let in_place = vec![None; inputs.len()];
    let map = Map { compute: DType::F32, shape: vec![100], inputs, program, outputs, origins: vec![] };
    runs_in_one_pass(map, &in_place)
}

const ADAM: [bool; 7] = [true, true, false, false, false, true, true];
const SGD: [bool; 4] = [true, true, false, true];

#[test]
fn updates_of_optimizers_are_known() {
    for (weight_decay, decoupled) in [(0.0, false), (0.1, false), (0.1, true)] {
        let adam = Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay, decoupled, skips: false };
        assert!(is_known(adam.program(), &ADAM), "{adam:?}");
        assert!(is_known(clipped(&adam.program()), &[&ADAM[..], &[false]].concat()), "{adam:?}, clipped");
    }
    for (nesterov, weight_decay) in [(false, 0.0), (false, 0.1), (true, 0.0), (true, 0.1)] {
        let sgd = Sgd { momentum: 0.9, nesterov, weight_decay, skips: false };
        assert!(is_known(sgd.program(), &SGD), "{sgd:?}");
        assert!(is_known(clipped(&sgd.program()), &[&SGD[..], &[false]].concat()), "{sgd:?}, clipped");
    }
}

#[test]
fn what_is_measured_is_an_update() {
    let (_, adam) = Map::everyday().into_iter().find(|(what, _)| what == "adam 800k").unwrap();
    let in_place = [Some(0), Some(1), Some(2), None, None, None, None];
    assert!(runs_in_one_pass(adam.clone(), &in_place));
    assert!(!runs_in_one_pass(adam, &[None, Some(2), Some(1), None, None, None, None]));
}

/// Each program differs from an update in one point.
#[test]
fn other_programs_run_as_they_stand() {
    let adam = Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, decoupled: true, skips: false };
    let update = adam.program();
    assert!(!is_known(update.clone(), &[true, true, false, false, false, true, false]), "one second moment for all");
    for (i, j) in [(0, 1), (0, 2), (1, 2)] {
        let mut other = update.clone();
        other.outputs.swap(i, j);
        assert!(!is_known(other, &ADAM), "results {i} and {j}");
    }
    let mut swapped = 0;
    for at in 0..update.code.len() {
        let mut other = update.clone();
        let Instr::Binary(Binary::Sub | Binary::Div, a, b) = &mut other.code[at] else { continue };
        (*a, *b) = (*b, *a);
        // What is the same for all elements may be computed from anything.
        let is_of_elements = (*a).max(*b) >= other.inputs + 4;
        swapped += usize::from(is_of_elements);
        assert!(!is_of_elements || !is_known(other, &ADAM), "instruction {at}");
    }
    assert_eq!(swapped, 4, "two corrections, the direction and the step");
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
