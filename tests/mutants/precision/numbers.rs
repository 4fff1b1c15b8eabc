//! Mutants of what kernels compute: roundings, the loss scale, the flag of a step that counts.

use crate::mutate::{places, step};
use shardc_ir::kernel::{Kernel, Map};
use shardc_ir::plan::{BufferKind, Program, StateRole, Step};
use shardc_ir::scalar::{Binary, Instr, Reg, Rounding, ScalarProgram, Unary};
use shardc_testkit::random::Random;

/// The constants that gradients are multiplied by where the loss scale is constant.
const INVERSE: f64 = 1.0 / 64.0;

/// What a step computes element by element.
fn map_of(step: &mut Step) -> Option<&mut Map> {
    match &mut step.kernel {
        Kernel::Map(map) => Some(map),
        Kernel::Reduce(reduce) => Some(&mut reduce.map),
        Kernel::Bundle(bundle) => bundle.members.last_mut().map(|member| member.kernel.map_mut()),
        _ => None,
    }
}

fn code(step: &Step) -> &[Instr] {
    match &step.kernel {
        Kernel::Map(map) => &map.program.code,
        Kernel::Reduce(reduce) => &reduce.map.program.code,
        Kernel::Bundle(bundle) => bundle.members.last().map_or(&[], |member| &member.kernel.map().program.code),
        _ => &[],
    }
}

/// Everything that reads a register reads another.
fn redirect(program: &mut ScalarProgram, from: Reg, to: Reg) {
    let moved = |register: Reg| if register == from { to } else { register };
    let later = (from + 1 - program.inputs) as usize;
    program.code[later..].iter_mut().for_each(|instr| *instr = instr.map(moved, |dim| dim));
    program.outputs.iter_mut().for_each(|output| *output = moved(*output));
}

/// An instruction is put in behind another, whose readers read it.
fn insert(program: &mut ScalarProgram, behind: usize, instr: impl Fn(Reg) -> Instr) {
    let own = program.inputs + behind as Reg;
    let moved = |register: Reg| if register >= own { register + 1 } else { register };
    program.code[behind + 1..].iter_mut().for_each(|instr| *instr = instr.map(moved, |dim| dim));
    program.outputs.iter_mut().for_each(|output| *output = moved(*output));
    program.code.insert(behind + 1, instr(own));
}

/// Whether a step writes a state variable of a role that `of` holds for.
pub fn writes_state(program: &Program, step: &Step, of: impl Fn(StateRole) -> bool) -> bool {
    step.writes.iter().any(|view| match program.buffers.get(view.buffer.index()).map(|buffer| &buffer.kind) {
        Some(BufferKind::State(state)) => program.states.get(*state as usize).is_some_and(|state| of(state.role)),
        _ => false,
    })
}

/// A step and its instruction, of those that `of` holds for.
fn instruction(program: &Program, random: &mut Random, of: impl Fn(&Step, Instr) -> bool) -> Option<(usize, usize, usize)> {
    let all = places(program, |step| code(step).iter().any(|instr| of(step, *instr)));
    let (t, s) = random.pick(&all)?;
    let step = &program.tasks[t].steps[s];
    let fitting: Vec<usize> = (0..code(step).len()).filter(|i| of(step, code(step)[*i])).collect();
    Some((t, s, random.pick(&fitting)?))
}

/// A rounding is left out, or is of another format.
pub fn rounding(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s, i) = instruction(program, random, |_, instr| matches!(instr, Instr::Round(..)))?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let code = &mut map_of(step)?.program;
    let Instr::Round(format, from) = code.code[i] else { return None };
    if random.below(2) == 0 {
        let own = code.inputs + i as Reg;
        redirect(code, own, from);
        return Some(format!("`{text}` {t}.{s} is not rounded at {i}"));
    }
    let other = random.pick(&Rounding::ALL).filter(|other| *other != format)?;
    code.code[i] = Instr::Round(other, from);
    Some(format!("`{text}` {t}.{s} is rounded to {other:?} at {i}"))
}

fn is_unscaling(step: &Step, instr: Instr) -> bool {
    match instr {
        Instr::Const(value) => value == INVERSE,
        Instr::Unary(Unary::Reciprocal, _) => step.text().contains("reciprocal"),
        _ => false,
    }
}

/// Gradients are divided by another number than the loss scale, or twice by it, or not at all.
pub fn unscaling(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s, i) = instruction(program, random, is_unscaling)?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let code = &mut map_of(step)?.program;
    let how = random.below(3);
    match (how, code.code[i]) {
        (0, Instr::Const(_)) => code.code[i] = Instr::Const(1.0),
        (1, Instr::Const(value)) => code.code[i] = Instr::Const(2.0 * value),
        (0, _) => code.code[i] = Instr::Const(1.0),
        (1, Instr::Unary(_, a)) => code.code[i] = Instr::Unary(Unary::Sqrt, a),
        _ => insert(code, i, |own| Instr::Binary(Binary::Mul, own, own)),
    }
    Some(format!("`{text}` {t}.{s}, way {how} at {i}"))
}

/// A product with what one number says for all elements is left out or is made twice.
pub fn factor(program: &mut Program, random: &mut Random) -> Option<String> {
    let is_single = |map: &Map, register: Reg| {
        map.inputs.get(register as usize).is_some_and(|input| input.strides.iter().all(|stride| *stride == 0))
    };
    let fits = |step: &Step, instr: Instr| {
        let map = match &step.kernel {
            Kernel::Map(map) => map,
            Kernel::Reduce(reduce) => &reduce.map,
            Kernel::Bundle(bundle) => match bundle.members.last() {
                Some(member) => member.kernel.map(),
                None => return false,
            },
            _ => return false,
        };
        let is_large = map.shape.iter().product::<u64>() > 1;
        matches!(instr, Instr::Binary(Binary::Mul, a, b) if is_large && is_single(map, a) != is_single(map, b))
    };
    let (t, s, i) = instruction(program, random, fits)?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let map = map_of(step)?;
    let Instr::Binary(_, a, b) = map.program.code[i] else { return None };
    let (number, rest) = if is_single(map, a) { (a, b) } else { (b, a) };
    let twice = random.below(2) == 0;
    if twice {
        insert(&mut map.program, i, |own| Instr::Binary(Binary::Mul, own, number));
    } else {
        let own = map.program.inputs + i as Reg;
        redirect(&mut map.program, own, rest);
    }
    Some(format!("`{text}` {t}.{s} at {i}, {}", if twice { "twice" } else { "not" }))
}

fn is_flag(step: &Step, instr: Instr) -> bool {
    matches!(instr, Instr::Binary(Binary::Lt, ..)) && code(step).contains(&Instr::Const(f64::INFINITY))
}

/// The flag says the opposite, or compares with another number, or is not what was compared.
pub fn flag(program: &mut Program, random: &mut Random) -> Option<String> {
    let (t, s, i) = instruction(program, random, is_flag)?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let code = &mut map_of(step)?.program;
    let Instr::Binary(_, a, b) = code.code[i] else { return None };
    let infinite = code.code.iter().position(|instr| *instr == Instr::Const(f64::INFINITY))?;
    let how = random.below(5);
    match how {
        0 => code.code[i] = Instr::Binary(Binary::Lt, b, a),
        1 => code.code[i] = Instr::Binary(Binary::Le, a, b),
        2 => code.code[i] = Instr::Const(random.below(2) as f64),
        3 => code.code[infinite] = Instr::Const([0.0, 1e-3, f64::NEG_INFINITY][random.below(3)]),
        _ => code.code[i] = Instr::Binary(Binary::Eq, a, b),
    }
    Some(format!("`{text}` {t}.{s}, way {how} at {i}"))
}

/// A choice is left out, or is between other values, where a step writes states that `of` holds
/// for.
fn choice(program: &mut Program, random: &mut Random, of: fn(StateRole) -> bool) -> Option<String> {
    let known = program.clone();
    let fits = |step: &Step, instr: Instr| matches!(instr, Instr::Select(..)) && writes_state(&known, step, of);
    let (t, s, i) = instruction(program, random, fits)?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let code = &mut map_of(step)?.program;
    let Instr::Select(flag, new, old) = code.code[i] else { return None };
    let (own, how) = (code.inputs + i as Reg, random.below(3));
    match how {
        0 => redirect(code, own, new),
        1 => redirect(code, own, old),
        _ => code.code[i] = Instr::Select(flag, old, new),
    }
    Some(format!("`{text}` {t}.{s}, way {how} at {i}"))
}

/// A state variable ignores the flag, never changes, or changes where the step does not count.
pub fn ignores(program: &mut Program, random: &mut Random) -> Option<String> {
    choice(program, random, |role| role != StateRole::Scaling)
}

/// The scale, the streak or the count of good steps changes otherwise.
pub fn scale(program: &mut Program, random: &mut Random) -> Option<String> {
    let is_scaling = |role| role == StateRole::Scaling;
    if random.below(2) == 0 {
        return choice(program, random, is_scaling);
    }
    let known = program.clone();
    let fits = |step: &Step, instr: Instr| {
        matches!(instr, Instr::Const(_) | Instr::Binary(..)) && writes_state(&known, step, is_scaling)
    };
    let (t, s, i) = instruction(program, random, fits)?;
    let step = &mut program.tasks[t].steps[s];
    let text = step.text();
    let code = &mut map_of(step)?.program;
    let before = code.code[i];
    code.code[i] = match before {
        Instr::Const(value) => Instr::Const([1.0, 2.0, 0.5, 0.0, value + 1.0][random.below(5)]),
        Instr::Binary(f, a, b) => Instr::Binary(random.pick(&Binary::ALL).filter(|other| *other != f)?, a, b),
        _ => return None,
    };
    let after = code.code[i];
    Some(format!("`{text}` {t}.{s} at {i}: {before:?} is {after:?}"))
}

/// A step that writes one of the numbers of the loss scale is left out.
pub fn scale_left(program: &mut Program, random: &mut Random) -> Option<String> {
    let known = program.clone();
    let (t, s) = random.pick(&places(program, |step| writes_state(&known, step, |role| role == StateRole::Scaling)))?;
    let step = program.tasks[t].steps.remove(s);
    Some(format!("`{}` {t}.{s}", step.text()))
}

/// Products have another type, or read one, and in half of all cases so has what they write.
pub fn product(program: &mut Program, random: &mut Random) -> Option<String> {
    use shardc_ir::dtype::DType::{BF16, F16, F32};
    let step = step(program, random, |step| matches!(step.kernel, Kernel::Contract(_)))?;
    let Kernel::Contract(contract) = &mut step.kernel else { return None };
    let before = (contract.dtype, contract.result);
    if random.below(2) == 0 {
        contract.result = random.pick(&[BF16, F16, F32])?;
    } else {
        contract.dtype = random.pick(&[BF16, F16, F32])?;
    }
    let after = (contract.dtype, contract.result);
    let write = &mut step.writes[0];
    write.bytes = write.bytes / before.1.bytes() * after.1.bytes();
    let (id, text) = (write.buffer, step.text());
    if random.below(2) == 0 {
        let buffer = &mut program.buffers[id.index()];
        buffer.dtype = after.1;
    }
    (before != after).then(|| format!("`{text}`: {after:?} for {before:?}"))
}
