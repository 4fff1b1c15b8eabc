//! `recompute budget=`: as little is computed again as keeps the fullest rank, as planned, within
//! so many bytes.
//!
//! The layers of the model are the units, and each is treated in one of three ways: kept, as
//! `selective` treats it, or computed again as a whole. Where there are few units, every mix is
//! planned, the one with the fewest FLOPs first, until one fits. Where there are many, mixes come
//! from the [`frontier`] of a model of bytes that plans of one treatment for all calibrate
//! ([`profile`](super::profile)), and single units are then kept as far as plans say that they fit.

use super::again::{again, repeated};
use super::frontier::{self, Mix, TREATMENTS};
use super::keep::Forward;
use super::profile::Profile;
use crate::pass::Context;
use crate::planning;
use shardc_ir::diagnostic::{Diagnostic, Diagnostics};
use shardc_ir::graph::{Graph, NodeId};
use shardc_ir::listing::layer;
use shardc_ir::listing::units::{bytes_text, count_text};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::spec::Located;
use std::collections::{BTreeSet, HashMap};

/// Where there are no more mixes than this, each is planned until one fits.
const FEW: usize = 243;

/// So many mixes beyond what the model of bytes finds are planned.
const MORE: usize = 24;

/// The graph that computes least again of those that fit into `limit` bytes.
///
/// # Errors
/// If none fits, with the least that a rank needs; what planning refuses.
pub fn built(forward: &Forward<'_>, limit: &Located<u64>, cx: &Context<'_>) -> Result<Graph, Diagnostics> {
    let line = limit.source.line as u32;
    let mut search = Search::of(forward, line, cx, FEW);
    match search.best(limit.value)? {
        Some(mix) => Ok(search.graph(&mix.treatments)),
        None => {
            let least = search.least();
            let message = format!(
                "`recompute` cannot keep every rank within {}: the least that was found is {} ({} bytes)",
                bytes_text(limit.value),
                bytes_text(least),
                count_text(least)
            );
            let help = "use a larger budget, more micro-batches, a higher stage of `zero`, or more ranks";
            Err(Diagnostic::error(message).at(cx.spec.place_of(limit.source)).help(help).into())
        }
    }
}

/// The search, with all that was planned.
pub struct Search<'a, 'g> {
    forward: &'a Forward<'g>,
    cx: &'a Context<'a>,
    line: u32,
    few: usize,
    /// For each node its unit.
    units: Vec<Option<u32>>,
    names: HashMap<&'g str, u32>,
    /// FLOPs of each node.
    flops: Vec<u64>,
    /// The planned bytes of the fullest rank by mix.
    planned: HashMap<Vec<u8>, u64>,
}

impl<'a, 'g> Search<'a, 'g> {
    /// Over the layers of the model that can be computed again; all mixes are planned where there
    /// are no more than `few`.
    pub fn of(forward: &'a Forward<'g>, line: u32, cx: &'a Context<'a>, few: usize) -> Search<'a, 'g> {
        let graph = forward.graph;
        let mut names: HashMap<&'g str, u32> = HashMap::new();
        let unit = |(id, node): (NodeId, &'g shardc_ir::graph::Node)| {
            let path = node.origin.scope.as_deref().filter(|_| forward.repeats[id.index()])?;
            let next = names.len() as u32;
            Some(*names.entry(layer(path)).or_insert(next))
        };
        let units = graph.nodes().map(unit).collect();
        let flops = graph.nodes().map(|(id, _)| forward.lowered.work(id).flops).collect();
        Search { forward, cx, line, few, units, names, flops, planned: HashMap::new() }
    }

    /// The number of units.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    fn kept(&self, treatments: &[u8]) -> Vec<bool> {
        self.forward.kept(|id| match self.units[id.index()].map(|unit| treatments[unit as usize]) {
            None | Some(0) => true,
            Some(1) => self.forward.is_dear(id),
            Some(_) => self.forward.leaves(id, &self.units),
        })
    }

    /// The graph that treats its units so.
    pub fn graph(&self, treatments: &[u8]) -> Graph {
        again(self.forward.graph, &self.kept(treatments), |_| self.line)
    }

    /// FLOPs that a mix computes again.
    pub fn extra(&self, treatments: &[u8]) -> u64 {
        repeated(self.forward.graph, &self.kept(treatments)).iter().map(|id| self.flops[id.index()]).fold(0, u64::saturating_add)
    }

    fn plan(&mut self, treatments: &[u8]) -> Result<PlanSet, Diagnostics> {
        let set = planning::plan(&self.graph(treatments), self.cx)?;
        self.planned.insert(treatments.to_vec(), set.fullest().arena_bytes);
        Ok(set)
    }

    /// The bytes that the fullest rank needs, as planned.
    pub fn peak(&mut self, treatments: &[u8]) -> Result<u64, Diagnostics> {
        match self.planned.get(treatments) {
            Some(bytes) => Ok(*bytes),
            None => Ok(self.plan(treatments)?.fullest().arena_bytes),
        }
    }

    /// The least bytes of all that was planned.
    pub fn least(&self) -> u64 {
        self.planned.values().copied().min().unwrap_or(0)
    }

    /// The mix with the fewest FLOPs that was found to need no more than `limit`.
    pub fn best(&mut self, limit: u64) -> Result<Option<Mix>, Diagnostics> {
        let count = self.count();
        let mixes = (0..count).try_fold(1usize, |mixes, _| mixes.checked_mul(TREATMENTS).filter(|mixes| *mixes <= self.few));
        match mixes {
            Some(mixes) => self.first_of_all(mixes, limit),
            None => self.searched(limit),
        }
    }

    /// Plans every mix until one fits.
    fn first_of_all(&mut self, mixes: usize, limit: u64) -> Result<Option<Mix>, Diagnostics> {
        let treatments = |mut number: usize| -> Vec<u8> {
            (0..self.count())
                .map(|_| {
                    let treatment = number % TREATMENTS;
                    number /= TREATMENTS;
                    treatment as u8
                })
                .collect()
        };
        let mut all: Vec<(u64, Vec<u8>)> = (0..mixes).map(treatments).map(|mix| (self.extra(&mix), mix)).collect();
        all.sort();
        for (flops, treatments) in all {
            let peak = self.peak(&treatments)?;
            if peak <= limit {
                return Ok(Some(Mix { treatments, flops, peak }));
            }
        }
        Ok(None)
    }

    fn searched(&mut self, limit: u64) -> Result<Option<Mix>, Diagnostics> {
        let count = self.count();
        let alike = |treatment: usize| vec![treatment as u8; count];
        let sets = (0..TREATMENTS).map(|treatment| self.plan(&alike(treatment))).collect::<Result<Vec<PlanSet>, _>>()?;
        if sets[0].fullest().arena_bytes <= limit {
            let peak = sets[0].fullest().arena_bytes;
            return Ok(Some(Mix { treatments: alike(0), flops: 0, peak }));
        }
        let single = |unit: usize, treatment: usize| {
            let mut mix = alike(0);
            mix[unit] = treatment as u8;
            self.extra(&mix)
        };
        let flops: Vec<[u64; TREATMENTS]> = (0..count).map(|unit| std::array::from_fn(|t| single(unit, t))).collect();
        let unit_of = |path: &str| self.names.get(layer(path)).map(|unit| *unit as usize);
        let frontiers: Vec<Vec<Mix>> = (0..sets[0].programs.len())
            .map(|program| {
                let profiles = std::array::from_fn(|t| Profile::of(&sets[t].programs[program], count, unit_of));
                frontier::mixes(&profiles, &flops)
            })
            .collect();
        let peaks: BTreeSet<u64> = frontiers.iter().flat_map(|mixes| frontier::best_peaks(mixes)).collect();
        let peaks: Vec<u64> = peaks.into_iter().collect();
        let mix_for = |bytes: u64| joined(&frontiers, bytes, count);
        // The largest target of the model with which the plan fits; plans may need a little more.
        let (mut low, mut high) = (0, peaks.len());
        let mut best: Option<Mix> = None;
        while low < high {
            let middle = (low + high) / 2;
            match self.fitting(mix_for(peaks[middle]), limit)? {
                Some(mix) => {
                    best = better(best, mix);
                    low = middle + 1;
                }
                None => high = middle,
            }
        }
        for at in (low..peaks.len()).take(MORE / 4) {
            if let Some(mix) = self.fitting(mix_for(peaks[at]), limit)? {
                best = better(best, mix);
            }
        }
        for treatment in (1..TREATMENTS).rev() {
            if let Some(mix) = self.fitting(alike(treatment), limit)? {
                best = better(best, mix);
            }
        }
        let Some(mut best) = best else { return Ok(None) };
        best = self.refined(best, &flops, limit)?;
        // Plans differ a little from the model: those that it says need not much more may fit.
        if let [mixes] = &frontiers[..] {
            let mut less: Vec<&Mix> = mixes.iter().filter(|mix| mix.flops < best.flops).collect();
            less.sort_by_key(|mix| (mix.peak, mix.flops));
            for mix in less.into_iter().take(MORE) {
                if let Some(mix) = self.fitting(mix.treatments.clone(), limit)? {
                    best = better(Some(best), mix).expect("there is one");
                }
            }
        }
        Ok(Some(best))
    }

    /// The mix with its FLOPs and planned bytes, if it fits.
    fn fitting(&mut self, treatments: Vec<u8>, limit: u64) -> Result<Option<Mix>, Diagnostics> {
        let peak = self.peak(&treatments)?;
        let flops = self.extra(&treatments);
        Ok((peak <= limit).then_some(Mix { treatments, flops, peak }))
    }

    /// Keeps more of single units as far as that fits, those first that save most.
    fn refined(&mut self, mut best: Mix, flops: &[[u64; TREATMENTS]], limit: u64) -> Result<Mix, Diagnostics> {
        let mut tries = MORE;
        let mut changes: Vec<(u64, usize, u8)> = vec![];
        for (unit, now) in best.treatments.iter().enumerate() {
            let saved = |less: u8| flops[unit][*now as usize].saturating_sub(flops[unit][less as usize]);
            changes.extend((0..*now).map(|less| (saved(less), unit, less)));
        }
        // Late units wait for the shortest time.
        changes.sort_by_key(|(saved, unit, _)| std::cmp::Reverse((*saved, *unit)));
        for (_, unit, less) in changes {
            let mut treatments = best.treatments.clone();
            if tries == 0 || treatments[unit] <= less {
                continue;
            }
            treatments[unit] = less;
            tries -= usize::from(!self.planned.contains_key(&treatments));
            if let Some(mix) = self.fitting(treatments, limit)? {
                best = better(Some(best), mix).expect("there is one");
            }
        }
        Ok(best)
    }
}

/// The one with fewer FLOPs.
fn better(known: Option<Mix>, other: Mix) -> Option<Mix> {
    Some(match known {
        Some(known) if known.flops <= other.flops => known,
        _ => other,
    })
}

/// For each program its best mix within so many bytes, or else that with the fewest bytes; a unit
/// of two programs is treated as the one says that keeps less.
fn joined(frontiers: &[Vec<Mix>], bytes: u64, count: usize) -> Vec<u8> {
    let mut treatments = vec![0; count];
    for mixes in frontiers {
        let Some(mix) = mixes.iter().find(|mix| mix.peak <= bytes).or(mixes.iter().min_by_key(|mix| mix.peak)) else { continue };
        for (own, of) in treatments.iter_mut().zip(&mix.treatments) {
            *own = (*own).max(*of);
        }
    }
    treatments
}
