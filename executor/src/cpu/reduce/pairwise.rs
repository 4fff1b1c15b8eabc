//! Sums whose error grows with the logarithm of their length.

use super::{combine, identity};
use crate::cpu::number::Number;
use shardc_ir::reduce_kind::ReduceKind;

/// Combines equal parts in a balanced tree: part `i` of 2^k waits for its neighbour.
pub struct Pairwise<A> {
    kind: ReduceKind,
    width: usize,
    /// How many parts there were: level `l` waits where this number has the bit `2^l`.
    count: usize,
    levels: Vec<Vec<A>>,
    carry: Vec<A>,
}

impl<A: Number> Pairwise<A> {
    /// For parts of `width` elements.
    pub fn new(kind: ReduceKind, width: usize) -> Pairwise<A> {
        Pairwise { kind, width, count: 0, levels: vec![], carry: vec![A::ZERO; width] }
    }

    pub fn push(&mut self, part: &[A]) {
        self.carry.copy_from_slice(part);
        let full = self.count.trailing_ones() as usize;
        for level in &mut self.levels[..full] {
            combine(self.kind, level, &self.carry);
            std::mem::swap(level, &mut self.carry);
        }
        match self.levels.get_mut(full) {
            Some(level) => level.copy_from_slice(&self.carry),
            None => self.levels.push(self.carry.clone()),
        }
        self.count += 1;
    }

    pub fn finish(self, out: &mut [A]) {
        let Pairwise { kind, width, count, levels, .. } = self;
        let mut waiting = levels.into_iter().enumerate().filter(|(level, _)| count >> level & 1 > 0).map(|(_, part)| part);
        match waiting.next() {
            Some(last) => out.copy_from_slice(&last),
            None => out[..width].fill(identity(kind)),
        }
        for mut earlier in waiting {
            combine(kind, &mut earlier, out);
            out.copy_from_slice(&earlier);
        }
    }
}
