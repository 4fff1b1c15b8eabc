//! Numbers that compare equal, or nearly: zeros of either sign, payloads of what is no number, what
//! leaves a maximum as it is.

use super::{Plan, with_ops};
use crate::jobs::Job;
use crate::mutate::{constants, places, step};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Fill, Kernel};
use shardc_ir::ops::Op;
use shardc_ir::ops::leaf::Constant;
use shardc_ir::plan::Step;
use shardc_ir::types::Tensor;
use shardc_testkit::random::Random;
use std::sync::Arc;

const OTHER_NAN: u64 = 0x7ff8_0000_0000_0001;

/// A number that is easily taken for another.
fn like(value: f64, random: &mut Random) -> f64 {
    match random.below(4) {
        0 => f64::from_bits(OTHER_NAN),
        1 if value == 0.0 => f64::MIN_POSITIVE,
        _ if value == 0.0 => -value,
        _ if value == f64::NEG_INFINITY => f64::MIN,
        _ if value == f64::INFINITY => f64::MAX,
        2 => -value,
        _ => f64::from_bits(value.to_bits() + 1),
    }
}

/// A number of a kernel.
pub fn of_kernel(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let special = |v: f64| v == 0.0 || v.is_infinite();
    let has = |s: &Step| constants(&mut s.kernel.clone()).iter().any(|v| special(**v));
    let step = step(&mut plan.program, random, has)?;
    let text = step.text();
    let mut all = constants(&mut step.kernel);
    all.retain(|v| special(**v));
    let i = random.below(all.len());
    let before = *all[i];
    *all[i] = like(before, random);
    Some(format!("number {i} of `{text}`: {before:?} is {:?}", all[i]))
}

/// What an accumulator, a sum or a maximum begins with.
pub fn neutral(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let step = step(&mut plan.program, random, |s| matches!(s.kernel, Kernel::Fill(_)))?;
    let text = step.text();
    let Kernel::Fill(Fill { value, .. }) = &mut step.kernel else { return None };
    let before = *value;
    *value = random.pick(&[-0.0, 0.0, f64::MIN, f64::MAX, f64::NEG_INFINITY, f64::INFINITY, f64::NAN, f64::MIN_POSITIVE])?;
    (value.to_bits() != before.to_bits()).then(|| format!("`{text}` begins with {value:?} for {before:?}"))
}

/// Bytes of a constant that stand for a number like it, in the program alone or in graph and
/// program.
pub fn of_constant(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let program = &mut plan.program;
    let at = random.below(program.constants.len());
    let buffer = &program.buffers[program.constants.get(at)?.buffer.index()];
    let (name, dtype) = (buffer.name.clone(), buffer.dtype);
    let shared = &mut program.constants[at].bytes;
    let bytes = Arc::make_mut(shared);
    let width = dtype.bytes() as usize;
    let place = random.below(bytes.len() / width) * width;
    let element = &mut bytes[place..place + width];
    match dtype {
        DType::F64 => {
            let before = f64::from_le_bytes(element.try_into().ok()?);
            element.copy_from_slice(&like(before, random).to_le_bytes());
        }
        DType::F32 => {
            let before = f32::from_le_bytes(element.try_into().ok()?);
            let after = if before == 0.0 { -before } else { f32::from_bits(before.to_bits() + 1) };
            element.copy_from_slice(&after.to_le_bytes());
        }
        DType::BF16 | DType::F16 | DType::I64 => element[0] ^= 1,
        DType::Bool => element[0] ^= 1 << random.below(2),
    }
    let bytes = shared.clone();
    let both = random.below(3) > 0;
    if both {
        let value = plan.graph.values().find(|(_, value)| *value.name == *name).map(|(_, value)| value.node)?;
        plan.graph = with_ops(&plan.graph, |id, op| match op {
            Op::Constant(constant) if id == value => {
                let ty = constant.value.ty.clone();
                Op::Constant(Constant { value: Tensor { ty, bytes: bytes.clone() } })
            }
            op => op.clone(),
        });
    }
    Some(format!("constant {at} at byte {place}{}", if both { ", in the graph too" } else { "" }))
}

/// A number of a kernel that is the number of another one.
pub fn exchanged(plan: &mut Plan, _: &Job, random: &mut Random) -> Option<String> {
    let has = |s: &Step| !constants(&mut s.kernel.clone()).is_empty();
    let all = places(&plan.program, has);
    let (a, b) = (random.pick(&all)?, random.pick(&all)?);
    let other = constants(&mut plan.program.tasks[b.0].steps[b.1].kernel).first().map(|v| **v)?;
    let step = &mut plan.program.tasks[a.0].steps[a.1];
    let mut numbers = constants(&mut step.kernel);
    let i = random.below(numbers.len());
    let before = std::mem::replace(numbers[i], other);
    (before.to_bits() != other.to_bits()).then(|| format!("number {i} of `{}`: {before:?} is {other:?}", step.text()))
}
