//! Joins pairs of additions, subtractions and multiplications, so that the intermediate result
//! stays in a register of the machine: `t = a * b; u = t + c` becomes one pass over the block. Both
//! roundings remain, so no bit changes.

use crate::cpu::lanes::Then;
use crate::cpu::map::program::Op;
use shardc_ir::scalar::Binary;

/// Joins instructions (with the register that each defines) where the first one's result is read by
/// the second alone. Registers that are `kept` are results. With `uniform` operands it sees to it
/// that the first operand of a pair is none.
pub(super) fn join(code: Vec<(usize, Op<usize>)>, uniform: &[bool], kept: &[usize]) -> Vec<(usize, Op<usize>)> {
    let mut uses = vec![0; uniform.len()];
    for register in code.iter().flat_map(|(_, op)| op.operands()).chain(kept.iter().copied()) {
        uses[register] += 1;
    }
    let mut joined: Vec<Option<(usize, Op<usize>)>> = vec![];
    for (register, op) in code {
        let mut op = op;
        if let Op::Binary(second, left, right) = op {
            for (inner, other, then) in [(left, right, then(second, true)), (right, left, then(second, false))] {
                let Some(then) = then.filter(|_| uses[inner] == 1) else { continue };
                let Some(at) = joined.iter().position(|j| j.is_some_and(|(defines, _)| defines == inner)) else { continue };
                if let Some((_, Op::Binary(first, a, b))) = joined[at]
                    && let Some((a, b)) = varying_first(first, a, b, uniform)
                {
                    joined[at] = None;
                    op = Op::Chain(first, then, a, b, other);
                    break;
                }
            }
        }
        joined.push(Some((register, op)));
    }
    joined.into_iter().flatten().collect()
}

/// The second of two joined instructions, which has the first one's result at its left (or right).
fn then(second: Binary, left: bool) -> Option<Then> {
    match second {
        Binary::Add => Some(Then::Add),
        Binary::Mul => Some(Then::Mul),
        Binary::Sub => Some(if left { Then::Sub } else { Then::SubFrom }),
        _ => None,
    }
}

/// The operands of a first instruction, one that varies in front; `None` if it cannot be a first
/// one.
fn varying_first(first: Binary, a: usize, b: usize, uniform: &[bool]) -> Option<(usize, usize)> {
    match first {
        Binary::Add | Binary::Mul => Some(if uniform[a] { (b, a) } else { (a, b) }),
        Binary::Sub if !uniform[a] => Some((a, b)),
        _ => None,
    }
}
