//! All candidates for a number of ranks.

use super::candidate::{Again, Candidate, Order};
use shardc_ir::spec::ZeroStage;

/// What the candidates of a job have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// Ranks.
    pub ranks: u64,
    /// Neighbours that reach one another over the fastest link: layers are shared within them.
    pub near: u64,
    /// Samples of a step.
    pub batch: u64,
    /// Equal blocks of the model; 1 where it has none.
    pub blocks: u64,
    /// Whether the blocks have scopes that a `recompute` line can name.
    pub has_scopes: bool,
    /// Whether the model's batch normalisation needs the whole batch at once.
    pub whole_batch: bool,
}

/// Over more ranks than these there are so many ways that those go which hardly ever win: tokens
/// that are whole beside split layers, and micro-batches whose samples are no power of two.
const MANY: u64 = 64;

/// More micro-batches than so many times the pipeline's positions gain nothing that matters.
const MOST_PARTS: u64 = 64;

/// More chunks on a position send more than they save.
const MOST_CHUNKS: u64 = 4;

const STAGES: [ZeroStage; 4] = [ZeroStage::Replicated, ZeroStage::Optimizer, ZeroStage::Gradients, ZeroStage::Parameters];

impl Space {
    /// Every candidate, in an order of its own.
    pub fn candidates(&self) -> Vec<Candidate> {
        let mut all = vec![];
        for tp in divisors(self.ranks).filter(|tp| *tp <= self.near) {
            for pp in divisors(self.ranks / tp).filter(|pp| *pp <= self.blocks) {
                let replicas = self.ranks / tp / pp;
                if !self.batch.is_multiple_of(replicas) {
                    continue;
                }
                for (dp, fsdp, zero) in self.shares(replicas, tp) {
                    let may = |sequence: &bool| if *sequence { tp > 1 } else { tp == 1 || self.ranks <= MANY };
                    for sequence in [false, true].into_iter().filter(may) {
                        let whole = Candidate { pp, dp, fsdp, tp, sequence, zero, ..Candidate::ONE_RANK };
                        self.times(whole, &mut all);
                    }
                }
            }
        }
        all
    }

    /// How replicas share states: all of them, or those that are near one another.
    fn shares(&self, replicas: u64, tp: u64) -> Vec<(u64, u64, ZeroStage)> {
        let stages = STAGES.iter().filter(|stage| replicas > 1 || **stage == ZeroStage::Replicated);
        let mut shares: Vec<_> = stages.map(|stage| (replicas, 1, *stage)).collect();
        let near = self.near / tp;
        if near > 1 && replicas > near && replicas.is_multiple_of(near) {
            shares.push((replicas / near, near, ZeroStage::Parameters));
        }
        shares
    }

    /// The candidate with every number of micro-batches, schedule and recomputation.
    fn times(&self, whole: Candidate, all: &mut Vec<Candidate>) {
        let samples = self.batch / whole.replicas();
        for microbatches in divisors(samples).filter(|parts| *parts >= whole.pp && *parts <= MOST_PARTS * whole.pp) {
            let is_odd = self.ranks > MANY && !(samples / microbatches).is_power_of_two();
            if is_odd || self.whole_batch && microbatches > 1 {
                continue;
            }
            for order in self.orders(whole.pp, microbatches) {
                for again in [Again::Nothing, Again::Selective, Again::Blocks] {
                    if again != Again::Blocks || self.has_scopes {
                        all.push(Candidate { microbatches, order, again, ..whole });
                    }
                }
            }
        }
    }

    fn orders(&self, pp: u64, microbatches: u64) -> Vec<Order> {
        let mut orders = vec![Order::Plain];
        if pp > 1 {
            let fits = |chunks: &u64| pp * chunks <= self.blocks && microbatches.is_multiple_of(pp);
            orders.extend((2..=MOST_CHUNKS).filter(fits).map(Order::Interleaved));
            orders.push(Order::ZeroBubble);
        }
        orders
    }
}

fn divisors(number: u64) -> impl Iterator<Item = u64> {
    (1..=number).filter(move |divisor| number.is_multiple_of(*divisor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn candidates_use_all_ranks_and_differ() {
        let space = Space { ranks: 8, near: 4, batch: 16, blocks: 6, has_scopes: true, whole_batch: false };
        let all = space.candidates();
        assert!(all.iter().all(|c| c.pp * c.dp * c.fsdp * c.tp == 8 && c.tp <= 4 && c.pp <= 6));
        assert!(all.iter().all(|c| 16 % (c.replicas() * c.microbatches) == 0 && c.microbatches >= c.pp));
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let has = |is: &dyn Fn(&Candidate) -> bool| all.iter().any(is);
        assert!(has(&|c| c.fsdp > 1) && has(&|c| c.sequence) && has(&|c| c.order == Order::Interleaved(3)));
    }
}
