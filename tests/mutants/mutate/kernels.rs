//! Mutations of what a kernel computes: sizes, strides, numbers, instructions, positions.

use super::{resize, step};
use shardc_ir::kernel::{AttentionGrad, AttentionMask, Kernel, Map, Position, RowProgram, Source};
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::{Program, Step};
use shardc_ir::position::Origin;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Instr, Rounding, ScalarProgram, Unary};
use shardc_testkit::random::Random;

pub(super) fn resize_kernel(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| !matches!(s.kernel, Kernel::Collective(_)))?;
    let mut sizes = step.kernel.form_mut().sizes_mut();
    if sizes.is_empty() {
        return None;
    }
    let i = random.below(sizes.len());
    let change = resize(sizes[i], random)?;
    Some(format!("size {i} of `{}`: {change}", step.text()))
}

pub(super) fn change_stride(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| !s.kernel.clone().form_mut().strides_mut().is_empty())?;
    let mut strides = step.kernel.form_mut().strides_mut();
    let i = random.below(strides.len());
    let other = random.below(strides.len());
    let before = *strides[i];
    *strides[i] = match random.below(4) {
        0 => 0,
        1 => before + 1,
        2 => *strides[other],
        _ => before * 2,
    };
    let after = *strides[i];
    (after != before).then(|| format!("stride {i} of `{}`: {before} to {after}", step.text()))
}

/// The scalar program of a step, if it has one.
fn scalar(step: &mut Step) -> Option<&mut Map> {
    match &mut step.kernel {
        Kernel::Map(map) => Some(map),
        Kernel::Reduce(reduce) => Some(&mut reduce.map),
        Kernel::Bundle(bundle) => bundle.members.last_mut().map(|member| member.kernel.map_mut()),
        _ => None,
    }
}

pub(super) fn changed(value: f64, random: &mut Random) -> f64 {
    match random.below(6) {
        0 => value * 2.0,
        1 => value / 2.0,
        2 => value + 1e-3,
        3 => -value,
        4 => 0.0,
        _ => 1.0,
    }
}

/// All numbers of a kernel.
pub fn constants(kernel: &mut Kernel) -> Vec<&mut f64> {
    kernel.form_mut().numbers_mut()
}

pub(super) fn change_constant(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| !constants(&mut s.kernel.clone()).is_empty())?;
    let mut constants = constants(&mut step.kernel);
    let i = random.below(constants.len());
    let before = *constants[i];
    *constants[i] = changed(before, random);
    let after = *constants[i];
    (after != before).then(|| format!("constant {i} of `{}`: {before} to {after}", step.text()))
}

pub(super) fn change_instruction(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| scalar(&mut s.clone()).is_some())?;
    let text = step.text().clone();
    let map = scalar(step)?;
    let registers = map.program.registers();
    let inputs = map.program.inputs as usize;
    let ScalarProgram { code, outputs, .. } = &mut map.program;
    let i = random.below(code.len() + outputs.len());
    if i >= code.len() {
        let output = &mut outputs[i - code.len()];
        let before = std::mem::replace(output, random.below(registers) as u16);
        return (*output != before).then(|| format!("result of `{text}`: {before} to {output}"));
    }
    let before = code[i];
    let other = random.below(inputs + i) as u16;
    code[i] = match (before, random.below(3)) {
        (Instr::Unary(_, a), 0 | 1) => {
            let f = random.pick(&[Unary::Neg, Unary::Abs, Unary::Exp, Unary::Sqrt, Unary::Tanh, Unary::Sigmoid, Unary::Erf])?;
            Instr::Unary(f, a)
        }
        (Instr::Unary(f, _), _) => Instr::Unary(f, other),
        (Instr::Binary(_, a, b), 0) => Instr::Binary(random.pick(&Binary::ALL)?, a, b),
        (Instr::Binary(f, a, b), 1) => Instr::Binary(f, b, a),
        (Instr::Binary(f, a, _), _) => Instr::Binary(f, a, other),
        (Instr::Select(a, b, c), 0) => Instr::Select(a, c, b),
        (Instr::Select(_, b, c), 1) => Instr::Select(other, b, c),
        (Instr::Select(a, b, _), _) => Instr::Select(a, b, other),
        (Instr::Round(_, a), 0) => Instr::Round(random.pick(&Rounding::ALL)?, a),
        (Instr::Round(to, _), _) => Instr::Round(to, other),
        (Instr::Index(d), _) => Instr::Index(d + 1),
        (Instr::Const(v), _) => Instr::Const(v + 1.0),
    };
    let commuted = matches!((before, code[i]), (Instr::Binary(f, a, b), Instr::Binary(g, c, d))
        if f == g && f.commutes() && (a, b) == (d, c));
    (code[i] != before && !commuted).then(|| format!("instruction {i} of `{text}`: {before:?} to {:?}", code[i]))
}

/// A kernel changes in something besides sizes, strides and numbers.
pub(super) fn change_reduction(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| {
        matches!(
            s.kernel,
            Kernel::Reduce(_)
                | Kernel::Attention(_)
                | Kernel::AttentionGrad(_)
                | Kernel::Gather(_)
                | Kernel::Rowwise(_)
                | Kernel::Conv(_)
                | Kernel::Bundle(_)
        )
    })?;
    let before = step.kernel.clone();
    match &mut step.kernel {
        Kernel::Reduce(reduce) if random.below(2) == 0 => {
            reduce.kind = random.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min])?;
        }
        Kernel::Reduce(reduce) => {
            let d = random.below(reduce.reduced.len());
            let is_reduced = reduce.reduced.get_mut(d)?;
            *is_reduced = !*is_reduced;
        }
        Kernel::Attention(a) | Kernel::AttentionGrad(AttentionGrad(a)) => {
            a.mask = if a.mask == AttentionMask::None { AttentionMask::Causal } else { AttentionMask::None };
        }
        Kernel::Gather(g) => g.origin = Origin::whole(g.rows),
        Kernel::Rowwise(r) => match &mut r.program {
            RowProgram::Rotary { transposed, .. } => *transposed = !*transposed,
            RowProgram::SoftmaxGrad => return None,
            _ => std::mem::swap(&mut r.rows, &mut r.width),
        },
        Kernel::Conv(c) => {
            let d = random.below(c.window.len());
            c.window[d].stride += 1;
        }
        Kernel::Bundle(bundle) => {
            let of = random.below(bundle.members.len());
            let sources: Vec<Source> = bundle.members.iter().flat_map(|member| &member.reads).copied().collect();
            let at = random.below(bundle.members[of].reads.len());
            bundle.members[of].reads[at] = random.pick(&sources)?;
        }
        _ => return None,
    }
    let text = step.text().clone();
    (step.kernel != before).then(|| format!("`{text}`"))
}

pub(super) fn change_origin(program: &mut Program, random: &mut Random) -> Option<String> {
    let axes = program.mesh.axes().len();
    let step = step(program, random, |s| !s.kernel.clone().form_mut().positions_mut().is_empty())?;
    let before = step.kernel.clone();
    let mut positions = step.kernel.form_mut().positions_mut();
    let i = random.below(positions.len());
    let Position { offset, digits } = &mut positions[i];
    let term = random.below(offset.terms.len().max(1));
    let how = random.below(6);
    match (how, offset.terms.get_mut(term), digits) {
        (0, _, _) => offset.base += 1,
        (1, Some((axis, _)), _) => *axis = AxisId(random.below(axes) as u8),
        (2, Some((_, factor)), _) => *factor += 1,
        (3, Some(_), _) => {
            offset.terms.remove(term);
        }
        (4, _, _) => offset.terms.push((AxisId(random.below(axes) as u8), 1)),
        (5, _, Some(digits)) if !digits.is_empty() => {
            let digit = random.below(digits.len());
            match random.below(3) {
                0 => digits[digit].stride += 1,
                1 => digits[digit].divisor += 1,
                _ => digits[digit].size = (digits[digit].size - 1).max(1),
            }
        }
        _ => return None,
    }
    (step.kernel != before).then(|| format!("origin {i} of `{}`, way {how}.{term}", step.text()))
}

pub(super) fn change_random(program: &mut Program, random: &mut Random) -> Option<String> {
    let step = step(program, random, |s| matches!(s.kernel, Kernel::Random(_)))?;
    let Kernel::Random(r) = &mut step.kernel else { return None };
    let how = random.below(4);
    match how {
        0 => r.stream += 1 + random.below(3) as u32,
        1 => r.threshold = r.threshold.wrapping_add(1 << 28).wrapping_mul(1 + random.below(9) as u32),
        2 => {
            let d = random.below(r.strides.len());
            r.strides[d] += 1 + random.below(4) as u64;
        }
        _ => step.reads.swap(0, 1),
    }
    Some(format!("`{}`, way {how}", step.text()))
}
