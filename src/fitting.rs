//! Specs that fit a device where the one asked for does not: the same job with more micro-batches,
//! a higher stage of `zero`, both, or more ranks, each planned to say what it needs.
//!
//! [`crate::compile()`] asks for it when ranks need more than the spec's `device memory=` has, and
//! tells the two that change least as the help of that error.

use crate::compile::mode_of;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::Graph;
use shardc_ir::listing::report;
use shardc_ir::listing::units::bytes_text;
use shardc_ir::mesh::{AxisId, MeshAxis};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::programs::Programs;
use shardc_ir::spec::{Data, Located, Spec, Zero, ZeroStage};
use shardc_passes::{Context, planning, run};
use std::cell::RefCell;

/// So many specs are named.
const NAMED: usize = 2;

/// The data ranks are multiplied by up to this.
const MOST_RANKS: u64 = 64;

/// So many micro-batches are tried at most.
const MOST_PARTS: u64 = 1024;

const STAGES: [ZeroStage; 3] = [ZeroStage::Optimizer, ZeroStage::Gradients, ZeroStage::Parameters];

/// The change of a spec, in the order in which changes are tried: each dimension from what the spec
/// has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    /// The micro-batches.
    microbatches: u64,
    /// The stage of `zero`; `None` leaves it.
    stage: Option<ZeroStage>,
    /// The data ranks are so many times as many.
    ranks: u64,
}

/// What else there is to do.
const SPLIT: &str = "split the model with `tensor`, `shard` or `pipeline`";

/// A job that needs more bytes than `limit`, and the graph that it begins with.
struct Job<'j> {
    imported: &'j Graph,
    spec: &'j Spec,
    limit: &'j Located<u64>,
    /// The change that needs least of those tried, its bytes and what takes most of them.
    least: RefCell<Option<(Change, u64, String)>>,
}

/// Help for whoever needs more than the `limit` of `device memory=`: two specs that would fit, or
/// why none does.
pub fn help(imported: &Graph, spec: &Spec, limit: &Located<u64>) -> String {
    let job = Job { imported, spec, limit, least: RefCell::default() };
    let now = Change { microbatches: spec.microbatches(), stage: None, ranks: 1 };
    let mut fitting: Vec<(Change, u64)> = vec![];
    let more: Vec<u64> = job.microbatches(1).into_iter().filter(|parts| *parts > now.microbatches).collect();
    let most = more.last().copied().unwrap_or(now.microbatches);
    let last = job.stages().last().copied();
    let split = Change { microbatches: most, ..now };
    let both = Change { stage: last, ..split };
    let parts = || more.iter().map(|microbatches| Change { microbatches: *microbatches, ..now });
    let stages = |from: Change| job.stages().into_iter().map(move |stage| Change { stage: Some(stage), ..from });
    fitting.extend(job.first(split, parts()));
    fitting.extend(job.first(Change { stage: last, ..now }, stages(now)));
    if fitting.len() < NAMED {
        fitting.extend(job.first(both, stages(split)));
    }
    let factors: Vec<u64> = (2..=MOST_RANKS).filter(|ranks| !job.microbatches(*ranks).is_empty()).collect();
    let fits = |ranks: &u64| job.widened(*ranks).into_iter().find_map(|change| job.fitting(change));
    // Where the most ranks do not help, fewer do not either.
    if fitting.len() < NAMED && factors.last().and_then(fits).is_some() {
        fitting.extend(factors.iter().filter_map(fits).take(NAMED - fitting.len()));
    }
    let texts: Vec<String> = fitting.iter().take(NAMED).map(|(change, bytes)| job.text(*change, *bytes)).collect();
    let least = job.least.borrow();
    match (&texts[..], &*least) {
        ([], Some((change, bytes, what))) if *change != now => {
            let text = job.text(*change, *bytes);
            format!("nothing fits: {text} is the least that was found, {what} the largest part of it; {SPLIT}")
        }
        ([], _) => format!("nothing else that was tried fits; {SPLIT}"),
        ([one], _) => format!("this would fit: {one}; nothing else that was tried does"),
        _ => format!("these would fit: {}", texts.join("; or ")),
    }
}

impl Job<'_> {
    /// The change with what it needs, if it fits.
    fn fitting(&self, change: Change) -> Option<(Change, u64)> {
        self.need(change).filter(|bytes| *bytes <= self.limit.value).map(|bytes| (change, bytes))
    }

    /// The first of `changes` that fits, if `best`, which should need least, does.
    fn first(&self, best: Change, mut changes: impl Iterator<Item = Change>) -> Option<(Change, u64)> {
        self.fitting(best)?;
        changes.find_map(|change| self.fitting(change))
    }

    /// So many times as many data ranks, which share all there is: with micro-batches as now, or as
    /// near below as can be, and with the most.
    fn widened(&self, ranks: u64) -> Vec<Change> {
        let possible = self.microbatches(ranks);
        let as_now = possible.iter().rev().find(|parts| **parts <= self.spec.microbatches());
        let change = |parts: &u64| Change { microbatches: *parts, stage: Some(ZeroStage::Parameters), ranks };
        as_now.into_iter().chain(possible.last()).map(change).collect()
    }

    /// The numbers of micro-batches that divide a rank's samples, where there are so many times as
    /// many data ranks; those that keep the rule of a schedule.
    fn microbatches(&self, ranks: u64) -> Vec<u64> {
        let Some(batch) = self.spec.batch.as_ref().map(|batch| batch.value.size) else { return vec![] };
        let mesh = self.spec.mesh();
        let axes = self.spec.data_everywhere().map_or(&[][..], |data| &data.value.axes);
        let ranks = axes.iter().map(|axis| mesh.size(*axis)).product::<u64>() * ranks;
        if !batch.is_multiple_of(ranks) {
            return vec![];
        }
        let samples = batch / ranks;
        let now = self.spec.microbatches();
        let keeps_rule = |parts: &u64| match &self.spec.pipeline {
            Some(pipeline) if pipeline.value.custom.is_some() => *parts == now,
            Some(_) => parts.is_multiple_of(now),
            None => true,
        };
        (1..=samples.min(MOST_PARTS)).filter(|parts| samples.is_multiple_of(*parts)).filter(keeps_rule).collect()
    }

    /// The stages of `zero` above that of the spec.
    fn stages(&self) -> Vec<ZeroStage> {
        let now = self.spec.zero_everywhere().map_or(ZeroStage::Replicated, |zero| zero.value.stage);
        let is_split = self.spec.data_everywhere().is_some_and(|data| !data.value.axes.is_empty());
        STAGES.into_iter().filter(|stage| is_split && self.spec.trains() && *stage > now).collect()
    }

    /// The bytes that the changed job needs; `None` if it cannot be planned, or is another job as
    /// batch normalisation would have other groups.
    fn need(&self, change: Change) -> Option<u64> {
        let spec = self.changed(change);
        if spec.statistics_groups() != self.spec.statistics_groups() {
            return None;
        }
        let plan = |kind| -> Result<PlanSet, Diagnostics> {
            let cx = Context { spec: &spec, mode: mode_of(kind), verify: false };
            planning::plan(&run(self.imported.clone(), &cx)?, &cx)
        };
        let programs = Programs::try_new(spec.trains(), plan).ok()?;
        let fullest = programs.iter().map(|(_, set)| set.fullest()).max_by_key(|program| program.arena_bytes)?;
        let bytes = fullest.arena_bytes;
        let mut least = self.least.borrow_mut();
        if least.as_ref().is_none_or(|(_, known, _)| bytes < *known) {
            let largest = report(fullest).peak.kinds.first().map_or(String::new(), |part| part.name.clone());
            *least = Some((change, bytes, largest));
        }
        Some(bytes)
    }

    fn changed(&self, change: Change) -> Spec {
        let mut spec = self.spec.clone();
        if let Some(batch) = &mut spec.batch {
            batch.value.microbatches = change.microbatches;
        }
        if change.ranks > 1 {
            self.widen(&mut spec, change.ranks);
        }
        if let (Some(stage), Some(data)) = (change.stage, spec.data_everywhere().cloned()) {
            let axes = self.spec.zero_everywhere().map_or(data.value.axes, |zero| zero.value.axes.clone());
            spec.zero.retain(|zero| zero.value.on.is_some());
            spec.zero.push(Located { value: Zero { stage, axes, on: None }, source: data.source });
        }
        spec
    }

    /// Multiplies an axis over which `zero` cuts, or else the outermost of `data`; where there is
    /// none, a new one reads the samples.
    fn widen(&self, spec: &mut Spec, ranks: u64) {
        let cut = spec.zero_everywhere().and_then(|zero| zero.value.axes.first().copied());
        let axis = cut.or_else(|| spec.data_everywhere().and_then(|data| data.value.axes.first().copied()));
        let source = self.limit.source;
        let mesh = &mut spec.mesh.get_or_insert(Located { value: vec![], source }).value;
        match axis {
            Some(axis) => mesh[axis.index()].size *= ranks,
            None => {
                let name = ["dp", "data"].into_iter().find(|name| mesh.iter().all(|axis| axis.name != *name)).unwrap_or("zero");
                mesh.push(MeshAxis { name: name.to_string(), size: ranks });
                let axes = vec![AxisId(mesh.len() as u8 - 1)];
                spec.data.push(Located { value: Data { axes, on: None }, source });
            }
        }
    }

    /// The lines that change, and what the job then needs.
    fn text(&self, change: Change, bytes: u64) -> String {
        let spec = self.changed(change);
        let mesh = spec.mesh();
        let named = |axes: &[AxisId]| match axes {
            [axis] => mesh.name(*axis).to_string(),
            axes => format!("({})", axes.iter().map(|axis| mesh.name(*axis)).collect::<Vec<_>>().join(",")),
        };
        let mut lines = vec![];
        if change.ranks > 1 {
            let axes = mesh.rank_axes().iter().map(|axis| format!(" {}={}", axis.name, axis.size));
            lines.push(format!("`mesh{}`", axes.collect::<String>()));
            let data = spec.data_everywhere().filter(|_| self.spec.data_everywhere().is_none());
            lines.extend(data.map(|data| format!("`data axis={}`", named(&data.value.axes))));
        }
        if let Some(batch) = spec.batch.as_ref().filter(|_| change.microbatches != self.spec.microbatches()) {
            lines.push(format!("`batch {} microbatches={}`", batch.value.size, change.microbatches));
        }
        if let Some(zero) = spec.zero_everywhere().filter(|_| change.stage.is_some()) {
            lines.push(format!("`zero stage={} axis={}`", zero.value.stage as u8, named(&zero.value.axes)));
        }
        format!("{} with {}", lines.join(" and "), bytes_text(bytes))
    }
}
