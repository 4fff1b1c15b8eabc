//! Which mixes of treatments are worth planning: for each number of bytes the one that computes
//! least again.
//!
//! Units are decided one after another. Of all ways to decide those so far, one is kept for each
//! (bytes that wait, bytes in flight, most bytes that were live), in steps of a part of the range:
//! the one with the fewest FLOPs, and no other can become better by what follows. It is the
//! knapsack by bytes of Bellman (1957), with the most live bytes beside the sum.

use super::profile::{Held, Profile};
use std::collections::BTreeMap;

/// The treatments of a unit, by what they keep, the most first.
pub const TREATMENTS: usize = 3;

/// The bytes that may wait at most are divided into so many steps.
const STEPS: u64 = 192;

/// A mix of treatments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix {
    /// For each unit its treatment.
    pub treatments: Vec<u8>,
    /// FLOPs that it computes again.
    pub flops: u64,
    /// The most bytes that are live.
    pub peak: u64,
}

/// Ways to decide the first units that are alike from now on.
#[derive(Clone, Copy)]
struct Way {
    flops: u64,
    waits: u64,
    flies: u64,
    /// The most that was live, without what is in flight.
    top: u64,
    /// The way that it goes on from, and the last decision.
    before: usize,
    treatment: u8,
}

/// Mixes worth planning, the fewest FLOPs first; `profiles` are those of plans with one treatment
/// for all, `flops` what each treatment of a unit computes again.
pub fn mixes(profiles: &[Profile; TREATMENTS], flops: &[[u64; TREATMENTS]]) -> Vec<Mix> {
    let of = |treatment: usize, unit: usize| profiles[treatment].units[unit];
    let range: u64 = (0..flops.len()).map(|unit| most(profiles, unit)).sum();
    let step = (range / STEPS).max(1);
    let mut layers: Vec<Vec<Way>> = vec![vec![Way { flops: 0, waits: 0, flies: 0, top: 0, before: 0, treatment: 0 }]];
    for (unit, flops) in flops.iter().enumerate() {
        let mut best: BTreeMap<(u64, u64, u64), Way> = BTreeMap::new();
        for (before, way) in layers[unit].iter().enumerate() {
            for (treatment, flops) in flops.iter().enumerate() {
                let held = of(treatment, unit);
                let waits = way.waits + held.waits;
                let next = Way {
                    flops: way.flops.saturating_add(*flops),
                    waits,
                    flies: way.flies + held.flies,
                    top: way.top.max(waits + held.works),
                    before,
                    treatment: treatment as u8,
                };
                let key = (next.waits / step, next.flies / step, next.top / step);
                let rank = |way: &Way| (way.flops, way.top + way.flies, way.waits);
                let known = best.entry(key).or_insert(next);
                if rank(&next) < rank(known) {
                    *known = next;
                }
            }
        }
        layers.push(best.into_values().collect());
    }
    let (floor, rest) = (profiles[0].floor, profiles.iter().map(|profile| profile.rest).max().unwrap_or(0));
    let last = layers.last().expect("there is the first");
    let mix = |(at, way): (usize, &Way)| {
        let peak = floor + way.flies + way.top.max(way.waits + rest);
        Mix { treatments: decisions(&layers, at), flops: way.flops, peak }
    };
    let mut all: Vec<Mix> = last.iter().enumerate().map(mix).collect();
    all.sort_by_key(|mix| (mix.flops, mix.peak));
    all
}

/// The bytes of those mixes than which none is both less work and less memory.
pub fn best_peaks(mixes: &[Mix]) -> Vec<u64> {
    let mut peaks: Vec<u64> = vec![];
    for mix in mixes {
        if peaks.last().is_none_or(|least| mix.peak < *least) {
            peaks.push(mix.peak);
        }
    }
    peaks
}

/// What waits of a unit at most.
fn most(profiles: &[Profile; TREATMENTS], unit: usize) -> u64 {
    let waits = |Held { waits, flies, .. }: Held| waits + flies;
    profiles.iter().map(|profile| waits(profile.units[unit])).max().unwrap_or(0)
}

/// The treatments that lead to a way.
fn decisions(layers: &[Vec<Way>], mut at: usize) -> Vec<u8> {
    let mut treatments: Vec<u8> = vec![];
    for layer in layers[1..].iter().rev() {
        treatments.push(layer[at].treatment);
        at = layer[at].before;
    }
    treatments.reverse();
    treatments
}
