//! Specs that fit a device where the one asked for does not: the same job with more micro-batches,
//! a higher stage of `zero`, both, or more ranks, each planned to say what it needs.

use crate::mode_of;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::graph::Graph;
use shardc_ir::listing::units::bytes_text;
use shardc_ir::mesh::{AxisId, MeshAxis};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::programs::Programs;
use shardc_ir::spec::{Data, Located, Spec, Zero, ZeroStage};
use shardc_passes::{Context, planning, run};

/// So many specs are named.
const NAMED: usize = 2;

/// The data ranks are multiplied by up to this.
const MOST_RANKS: u64 = 64;

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

/// A job that needs more bytes than `limit`, and the graph that it begins with.
struct Job<'j> {
    imported: &'j Graph,
    spec: &'j Spec,
    limit: &'j Located<u64>,
}

/// The bytes of the fullest rank, and what takes most of them.
type Need = (u64, String);

/// Help for whoever needs more than the `limit` of `device memory=`: two specs that would fit, or
/// why none does.
pub fn help(imported: &Graph, spec: &Spec, limit: &Located<u64>) -> String {
    let job = Job { imported, spec, limit };
    let now = Change { microbatches: spec.microbatches(), stage: None, ranks: 1 };
    let mut fitting: Vec<(Change, u64)> = vec![];
    let most = job.microbatches(now).last().copied().unwrap_or(now.microbatches);
    let last = job.stages().last().copied();
    let split = Change { microbatches: most, ..now };
    let both = Change { stage: last, ..split };
    let parts = || job.microbatches(now).into_iter().map(|microbatches| Change { microbatches, ..now });
    let stages = |from: Change| job.stages().into_iter().map(move |stage| Change { stage: Some(stage), ..from });
    fitting.extend(job.first(split, parts()));
    fitting.extend(job.first(Change { stage: last, ..now }, stages(now)));
    if fitting.len() < NAMED {
        fitting.extend(job.first(both, stages(split)));
    }
    let mut ranks = 2;
    while fitting.len() < NAMED && ranks <= MOST_RANKS {
        let wide = Change { ranks, stage: Some(ZeroStage::Parameters), ..now };
        let parts = job.microbatches(wide).last().map(|parts| Change { microbatches: *parts, ..wide });
        let mut needs = [Some(wide), parts].into_iter().flatten().filter_map(|change| Some((change, job.need(change)?.0)));
        fitting.extend(needs.find(|(_, bytes)| *bytes <= limit.value));
        ranks *= 2;
    }
    let texts: Vec<String> = fitting.iter().take(NAMED).map(|(change, bytes)| job.text(*change, *bytes)).collect();
    if !texts.is_empty() {
        return format!("these would fit: {}", texts.join("; or "));
    }
    let split = "split the model with `tensor`, `shard` or `pipeline`";
    match job.need(both) {
        Some((bytes, what)) if both != now => {
            let (text, most) = (job.text(both, bytes), "even with more data ranks");
            format!("nothing fits {most}: {text} is the least here, {what} the largest part of it; {split}")
        }
        _ => format!("nothing fits with more data ranks; {split}"),
    }
}

impl Job<'_> {
    /// The first of `changes` that fits, if `best`, which should need least, does.
    fn first(&self, best: Change, changes: impl Iterator<Item = Change>) -> Option<(Change, u64)> {
        self.need(best).filter(|(bytes, _)| *bytes <= self.limit.value)?;
        let mut needs = changes.filter_map(|change| Some((change, self.need(change)?.0)));
        needs.find(|(_, bytes)| *bytes <= self.limit.value)
    }

    /// More micro-batches than the spec has, each twice as many as the last, that divide a rank's
    /// samples.
    fn microbatches(&self, change: Change) -> Vec<u64> {
        let Some(batch) = self.spec.batch.as_ref().map(|batch| &batch.value) else { return vec![] };
        let mesh = self.spec.mesh();
        let axes = self.spec.data_everywhere().map_or(&[][..], |data| &data.value.axes);
        let ranks = axes.iter().map(|axis| mesh.size(*axis)).product::<u64>() * change.ranks;
        let mut parts = std::iter::successors(batch.microbatches.checked_mul(2), |parts| parts.checked_mul(2));
        let samples = batch.size / ranks.max(1);
        std::iter::from_fn(|| parts.next().filter(|parts| samples >= *parts && samples.is_multiple_of(*parts))).collect()
    }

    /// The stages of `zero` above that of the spec, if it has one for all parameters or none.
    fn stages(&self) -> Vec<ZeroStage> {
        let now = match &self.spec.zero[..] {
            [] => ZeroStage::Replicated,
            [zero] if zero.value.on.is_none() => zero.value.stage,
            _ => return vec![],
        };
        let is_split = self.spec.data_everywhere().is_some_and(|data| !data.value.axes.is_empty());
        STAGES.into_iter().filter(|stage| is_split && self.spec.trains() && *stage > now).collect()
    }

    /// What the changed job needs; `None` if it cannot be planned.
    fn need(&self, change: Change) -> Option<Need> {
        let spec = self.changed(change);
        let plan = |kind| -> Result<PlanSet, Diagnostics> {
            let cx = Context { spec: &spec, mode: mode_of(kind), verify: false };
            planning::plan(&run(self.imported.clone(), &cx)?, &cx)
        };
        let programs = Programs::try_new(spec.trains(), plan).ok()?;
        let fullest = programs.iter().map(|(_, set)| set.fullest()).max_by_key(|program| program.arena_bytes)?;
        let peak = shardc_ir::listing::report(fullest).peak;
        Some((fullest.arena_bytes, peak.kinds.first().map_or(String::new(), |part| part.name.clone())))
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
            let axes = self.spec.zero.first().map_or(data.value.axes, |zero| zero.value.axes.clone());
            spec.zero = vec![Located { value: Zero { stage, axes, on: None }, source: data.source }];
        }
        spec
    }

    /// Multiplies the outermost axis of `data`; where there is none, a new one reads the samples.
    fn widen(&self, spec: &mut Spec, ranks: u64) {
        let axis = spec.data_everywhere().and_then(|data| data.value.axes.first().copied());
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
        if let Some(zero) = spec.zero.first().filter(|_| change.stage.is_some()) {
            lines.push(format!("`zero stage={} axis={}`", zero.value.stage as u8, named(&zero.value.axes)));
        }
        format!("{} with {}", lines.join(" and "), bytes_text(bytes))
    }
}
