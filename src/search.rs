//! The best way to spread a job over ranks: meshes, stages of `zero`, numbers of micro-batches,
//! schedules and recomputation are estimated, and the best are planned and simulated whole.
//!
//! The objective is the simulated time of a step, among specs whose plan fits a rank's memory. What
//! is compared last are plans, as `compile` makes them: only which ones are made follows from
//! estimates. Where there are few candidates, all of them are planned.
//!
//! ```no_run
//! use shardc::search::{Wish, search};
//! use shardc::simulation::cluster;
//! use std::path::Path;
//!
//! let base = "batch 1536\nloss cross_entropy logits=logits labels=y\noptimizer adamw lr=1e-4\n";
//! let (memory, cluster) = (Some("80GB".to_string()), cluster("a100").unwrap());
//! let wish = Wish { ranks: 1024, memory, cluster, threads: 2 };
//! let (model, path) = (Path::new("gpt3.onnx"), Path::new("job.shard"));
//! let found = search(model, path, base, &wish, |_| ()).unwrap();
//! println!("{}", found.best[0].spec);
//! ```

mod candidate;
mod estimate;
mod exact;
mod space;

pub use candidate::{Again, Candidate, Order};
pub use estimate::Estimate;

use crate::error::Error;
use crate::import::import;
use crate::simulation::Simulation;
use candidate::Base;
use estimate::{Key, ROOM, estimate, pieces};
use exact::Job;
use shardc_frontend::spec;
use shardc_ir::diagnostic::{Diagnostic, counted};
use shardc_ir::listing::communication;
use shardc_ir::listing::units::bytes_text;
use shardc_ir::ops::Op;
use shardc_ir::plan::Program;
use shardc_ir::plan::set::PlanSet;
use shardc_simulator::cluster::Cluster;
use space::Space;
use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// So many are told.
const BEST: usize = 10;

/// So few candidates are all planned whole.
const FEW: usize = 64;

/// Of more so many are planned whole at most.
const MOST: usize = 24;

/// So many are planned at a time.
const WAVE: usize = 8;

/// Estimates may be so much too low or too high, as a part, before a better plan is missed.
const DOUBT: f64 = 0.15;

/// What is looked for.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Ranks.
    pub ranks: u64,
    /// The memory of a rank as a spec writes it: `80GB`; that of the cluster's device where absent.
    pub memory: Option<String>,
    /// The cluster.
    pub cluster: Cluster,
    /// Threads that search.
    pub threads: usize,
}

/// What was found.
#[derive(Debug)]
pub struct Search {
    /// The best, the first before all others.
    pub best: Vec<Found>,
    /// How many candidates were estimated.
    pub candidates: usize,
    /// How many of these fit, as far as estimates tell.
    pub fitting: usize,
    /// How many were planned whole.
    pub planned: usize,
}

/// One way to spread the job.
#[derive(Debug, Clone)]
pub struct Found {
    /// The way.
    pub candidate: Candidate,
    /// Its spec.
    pub spec: String,
    /// A step of its plan.
    pub simulation: Simulation,
    /// Bytes that all ranks send in a step.
    pub sent: u64,
    /// What was expected of it before it was planned.
    pub estimate: Estimate,
}

impl Found {
    /// Whether the plan takes, holds and sends as much as that of another way: two stages of `zero`
    /// are one where there are no micro-batches.
    fn is_like(&self, other: &Found) -> bool {
        let of = |found: &Found| (found.simulation.seconds.to_bits(), found.simulation.peak_bytes, found.sent);
        of(self) == of(other)
    }
}

/// The best ways to spread the model in `model` over ranks, whose spec is to have the lines of
/// `text`, the contents of `path`, but for those that spread it.
///
/// # Errors
/// All that is wrong with the model or the spec; if nothing fits.
pub fn search(model: &Path, path: &Path, text: &str, wish: &Wish, note: impl Fn(&str)) -> Result<Search, Error> {
    let (job, space) = prepare(model, path, text, wish)?;
    let candidates = space.candidates();
    note(&format!("{} to spread {} over {}", ways(candidates.len()), blocks(&job), counted(job.ranks, "rank")));
    let estimated = estimated(&job, &candidates, wish.threads);
    let mut fitting: Vec<(Candidate, Estimate)> = match candidates.len() <= FEW {
        true => estimated.clone(),
        false => estimated.iter().filter(|(_, estimate)| estimate.bytes <= job.memory as f64 * ROOM).copied().collect(),
    };
    fitting.sort_by(|(a, x), (b, y)| x.seconds.total_cmp(&y.seconds).then_with(|| a.cmp(b)));
    note(&format!("{} of them may fit; planning the best", fitting.len()));
    let (mut best, planned) = whole(&job, &fitting, wish.threads);
    let fits = in_parallel(&best, wish.threads, |found| job.evaluation_fits(&found.candidate));
    let mut fits = fits.into_iter();
    best.retain(|_| fits.next() == Some(true));
    if best.is_empty() {
        return Err(nothing_fits(&job, &estimated).into());
    }
    Ok(Search { best, candidates: candidates.len(), fitting: fitting.len(), planned })
}

fn ways(count: usize) -> String {
    counted(count as u64, "way")
}

fn blocks(job: &Job) -> String {
    match job.whole.blocks {
        1 => "a model without equal blocks".to_string(),
        blocks => format!("{blocks} equal blocks"),
    }
}

/// The candidates of which there is a plan, with what it should come to.
fn estimated(job: &Job, candidates: &[Candidate], threads: usize) -> Vec<(Candidate, Estimate)> {
    let keys: BTreeSet<Key> = candidates.iter().map(|candidate| Key::of(candidate, job.base.batch)).collect();
    let pieces = pieces(job, &keys, candidates.len() > FEW, threads);
    let of = |candidate: &Candidate| {
        let piece = pieces.get(&Key::of(candidate, job.base.batch))?;
        Some((*candidate, estimate(candidate, piece, job)))
    };
    candidates.iter().filter_map(of).collect()
}

fn nothing_fits(job: &Job, estimated: &[(Candidate, Estimate)]) -> Diagnostic {
    let Job { ranks, memory, .. } = job;
    let error = Diagnostic::error(format!("nothing that was tried fits {} of {}", counted(*ranks, "rank"), bytes_text(*memory)));
    let least = estimated.iter().map(|(_, estimate)| estimate.bytes).fold(f64::INFINITY, f64::min);
    error.help(match least.is_finite() {
        true => format!("the least that was found is about {} on a rank; more ranks share more", bytes_text(least as u64)),
        false => "no plan of it was found for so many ranks".to_string(),
    })
}

/// Every way that [`search()`] compares, as a spec.
///
/// # Errors
/// All that is wrong with the model or the spec.
pub fn specs(model: &Path, path: &Path, text: &str, wish: &Wish) -> Result<Vec<String>, Error> {
    let (job, space) = prepare(model, path, text, wish)?;
    Ok(space.candidates().iter().map(|candidate| candidate.spec(&job.base)).collect())
}

/// Plans candidates whole, those that should be fast first, until no further one can be among the
/// best.
fn whole(job: &Job, fitting: &[(Candidate, Estimate)], threads: usize) -> (Vec<Found>, usize) {
    let mut best: Vec<Found> = vec![];
    let mut planned = 0;
    for wave in fitting.chunks(WAVE) {
        let worst = best.get(BEST - 1).map_or(f64::INFINITY, |found| found.simulation.seconds);
        let is_hopeless = wave[0].1.seconds * (1.0 - DOUBT) > worst;
        let is_enough = planned >= if best.len() < BEST { 2 * MOST } else { MOST };
        if fitting.len() > FEW && (is_enough || is_hopeless) {
            break;
        }
        planned += wave.len();
        best.extend(in_parallel(wave, threads, |(candidate, estimate)| found(job, candidate, estimate)).into_iter().flatten());
        best.sort_by(|a, b| a.simulation.seconds.total_cmp(&b.simulation.seconds).then_with(|| a.candidate.cmp(&b.candidate)));
        best.dedup_by(|next, first| next.is_like(first));
        best.truncate(BEST);
    }
    (best, planned)
}

/// A candidate as it is planned; `None` where it cannot be, or does not fit.
fn found(job: &Job, candidate: &Candidate, estimate: &Estimate) -> Option<Found> {
    let (set, simulation) = job.simulated(candidate)?;
    let (spec, sent) = (candidate.spec(&job.base), sent(&set));
    (simulation.peak_bytes <= job.memory).then_some(Found { candidate: *candidate, spec, simulation, sent, estimate: *estimate })
}

/// What `work` makes of each item, by so many threads, in the order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let share = || {
        let mut made = vec![];
        while let Some((at, item)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, items.get(at)?))) {
            made.push((at, work(item)));
        }
        made
    };
    let mut made: Vec<(usize, R)> = thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(share)).collect();
        started.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|bug| resume_unwind(bug))).collect()
    });
    made.sort_by_key(|(at, _)| *at);
    made.into_iter().map(|(_, made)| made).collect()
}

/// Bytes that all ranks send in a step.
fn sent(set: &PlanSet) -> u64 {
    let each = set.mesh().world_size() / set.of.len() as u64;
    let of = |program: &Program| communication(program).iter().map(|calls| calls.bytes_sent).sum::<u64>();
    let sums: Vec<u64> = set.programs.iter().map(of).collect();
    set.of.iter().map(|program| sums[*program] * each).sum()
}

/// The job of a search, and the space of its candidates.
fn prepare(model: &Path, path: &Path, text: &str, wish: &Wish) -> Result<(Job, Space), Error> {
    // What is wrong with the user's own text is told with its places.
    let spec = spec::parse(path, text)?;
    spec.require_training()?;
    let batch = spec.batch.as_ref().map_or(1, |batch| batch.value.size);
    let device = wish.cluster.device(wish.ranks).map_err(|why| Diagnostic::error(format!("the cluster does not fit: {why}")))?;
    let memory = match (&wish.memory, device.memory) {
        (Some(memory), _) => bytes(memory)?,
        (None, Some(memory)) => memory,
        (None, None) => {
            let error = Diagnostic::error("the memory of a rank is not known");
            return Err(error.help("`--memory 80GB` says it").into());
        }
    };
    let near = device.links.first().and_then(|link| link.ranks).unwrap_or(wish.ranks);
    let mut base = Base::new(text, batch);
    base.memory.clone_from(&wish.memory);
    let graph = import(model, &spec, true, false)?.graph;
    let whole_batch = graph.nodes().any(|(_, node)| matches!(node.op, Op::BatchNorm(_))) && spec.batchnorm.is_none();
    let job = Job::new(base, graph, spec.labels().map(|labels| labels.value.as_str()), memory, wish)?;
    let (blocks, has_scopes) = (job.whole.blocks, job.base.blocks.is_some());
    let space = Space { ranks: wish.ranks, near, batch, blocks, has_scopes, whole_batch };
    Ok((job, space))
}

/// The bytes that a size in a spec is.
fn bytes(text: &str) -> Result<u64, Error> {
    let spec = spec::parse(Path::new("--memory"), &format!("device memory={text}\n"))?;
    spec.device_memory.map(|memory| memory.value).ok_or_else(|| Diagnostic::error("`--memory` names no size").into())
}
