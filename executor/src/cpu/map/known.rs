//! Finds instructions that are a formula together, and makes one of them.

use crate::cpu::formulas::{Formula, NUMBERS, Node, OPERANDS};
use crate::cpu::map::program::{Call, Op};
use shardc_ir::scalar::Binary;
use std::collections::HashMap;

/// Puts formulas in the place of the instructions (with the register that each defines) that they
/// stand for, where nothing else reads what comes between. Registers that are `kept` are results.
pub(super) fn known(mut code: Vec<(usize, Op<usize>)>, uniform: &[bool], kept: &[usize]) -> Vec<(usize, Op<usize>)> {
    let mut defined: HashMap<usize, Op<usize>> = code.iter().copied().collect();
    let registers: Vec<usize> = code.iter().rev().map(|(register, _)| *register).collect();
    for formula in Formula::ALL {
        let nodes = formula.terms();
        for root in &registers {
            let nothing = Found { operands: [None; OPERANDS], numbers: [None; NUMBERS], within: vec![] };
            let sought = Sought { nodes: &nodes, defined: &defined, uniform };
            let Some(found) = sought.at(nodes.len() - 1, *root, nothing) else { continue };
            let is_between = |register: &usize| register != root && found.within.contains(register);
            let call = Op::Formula(Call { formula: *formula, operands: found.operands, numbers: found.numbers });
            let others = code.iter().filter(|(register, _)| !found.within.contains(register));
            let mut read = others.flat_map(|(_, op)| op.operands()).chain(kept.iter().copied()).chain(call.operands());
            if read.any(|register| is_between(&register)) {
                continue;
            }
            defined.retain(|register, _| !is_between(register));
            defined.insert(*root, call);
            code.retain(|(register, _)| !is_between(register));
            code.iter_mut().filter(|(register, _)| register == root).for_each(|(_, op)| *op = call);
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
    fn with(mut self, register: usize) -> Found {
        self.within.push(register);
        self
    }
}

/// A formula's nodes, and the code in which they are sought.
struct Sought<'a> {
    nodes: &'a [Node],
    defined: &'a HashMap<usize, Op<usize>>,
    uniform: &'a [bool],
}

impl Sought<'_> {
    /// What is found if `register` is that node, beside what is `found` before.
    fn at(&self, node: usize, register: usize, mut found: Found) -> Option<Found> {
        let (place, is_uniform) = match (self.nodes[node], self.defined.get(&register)) {
            (Node::Operand(i), _) => (&mut found.operands[i], false),
            (Node::Number(i), _) => (&mut found.numbers[i], true),
            (Node::Unary(f, a), Some(Op::Unary(g, b))) if f == *g => return self.all(&[(a, *b)], found.with(register)),
            (Node::Binary(f, a, b), Some(Op::Binary(g, c, d))) if f == *g => {
                let found = found.with(register);
                let straight = self.all(&[(a, *c), (b, *d)], found.clone());
                let swapped = || is_commutative(f).then(|| self.all(&[(a, *d), (b, *c)], found)).flatten();
                return straight.or_else(swapped);
            }
            (Node::Select(a, b, c), Some(Op::Select(d, e, f))) => {
                return self.all(&[(a, *d), (b, *e), (c, *f)], found.with(register));
            }
            _ => return None,
        };
        let fits = self.uniform[register] == is_uniform && place.is_none_or(|other| other == register);
        *place = Some(register);
        fits.then_some(found)
    }

    /// What is found if each node is the register beside it.
    fn all(&self, pairs: &[(usize, usize)], found: Found) -> Option<Found> {
        pairs.iter().try_fold(found, |found, (node, register)| self.at(*node, *register, found))
    }
}

fn is_commutative(f: Binary) -> bool {
    matches!(f, Binary::Add | Binary::Mul)
}
