//! Finds instructions that are a formula together, and makes one of them.

use crate::cpu::formulas::{Formula, NUMBERS, Node, OPERANDS};
use crate::cpu::map::program::{Call, Op};
use shardc_ir::scalar::Binary;
use std::collections::HashMap;

/// Puts formulas in the place of the instructions (with the register that each defines) that they
/// stand for, where no other reads what comes between. Registers that are `kept` are results.
pub(super) fn known(mut code: Vec<(usize, Op<usize>)>, uniform: &[bool], kept: &[usize]) -> Vec<(usize, Op<usize>)> {
    for formula in Formula::ALL {
        let nodes = formula.terms();
        let mut at = code.len();
        while at > 0 {
            at -= 1;
            let defined = code.iter().copied().collect();
            let found = Found { operands: [None; OPERANDS], numbers: [None; NUMBERS], within: vec![] };
            let sought = Sought { nodes: &nodes, defined: &defined, uniform };
            let Some(found) = sought.at(nodes.len() - 1, code[at].0, found) else { continue };
            let root = code[at].0;
            let is_within = |register: &usize| *register != root && found.within.contains(register);
            let others = code.iter().filter(|(register, _)| !found.within.contains(register));
            if others.flat_map(|(_, op)| op.operands()).chain(kept.iter().copied()).any(|register| is_within(&register)) {
                continue;
            }
            code[at].1 = Op::Formula(found.call(*formula));
            code.retain(|(register, _)| !is_within(register));
            at = at.min(code.len());
        }
    }
    code
}

/// The registers of a formula: its operands and numbers, and those that its instructions define.
#[derive(Clone)]
struct Found {
    operands: [Option<usize>; OPERANDS],
    numbers: [Option<usize>; NUMBERS],
    within: Vec<usize>,
}

impl Found {
    fn call(&self, formula: Formula) -> Call<usize> {
        Call { formula, operands: self.operands, numbers: self.numbers }
    }
}

struct Sought<'a> {
    nodes: &'a [Node],
    defined: &'a HashMap<usize, Op<usize>>,
    uniform: &'a [bool],
}

impl Sought<'_> {
    /// What is found if `register` is that node, beside what is `found` before.
    fn at(&self, node: usize, register: usize, mut found: Found) -> Option<Found> {
        let (place, is_uniform) = match self.nodes[node] {
            Node::Operand(i) => (&mut found.operands[i], false),
            Node::Number(i) => (&mut found.numbers[i], true),
            Node::Unary(f, a) => match *self.defined.get(&register)? {
                Op::Unary(g, b) if f == g => {
                    found.within.push(register);
                    return self.at(a, b, found);
                }
                _ => return None,
            },
            Node::Binary(f, a, b) => match *self.defined.get(&register)? {
                Op::Binary(g, c, d) if f == g => {
                    found.within.push(register);
                    let straight = self.both((a, c), (b, d), found.clone());
                    return straight.or_else(|| self.both((a, d), (b, c), found).filter(|_| is_commutative(f)));
                }
                _ => return None,
            },
        };
        let fits = self.uniform[register] == is_uniform && place.is_none_or(|other| other == register);
        *place = Some(register);
        fits.then_some(found)
    }

    fn both(&self, one: (usize, usize), other: (usize, usize), found: Found) -> Option<Found> {
        self.at(one.0, one.1, found).and_then(|found| self.at(other.0, other.1, found))
    }
}

fn is_commutative(f: Binary) -> bool {
    matches!(f, Binary::Add | Binary::Mul)
}
