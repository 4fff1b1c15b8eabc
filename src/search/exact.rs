//! A job of a search: planned as a candidate says, and simulated.

use super::candidate::{Base, Candidate};
use super::estimate::short_blocks;
use crate::simulation::Simulation;
use shardc_frontend::spec;
use shardc_ir::graph::{Graph, ValueId};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::spec::Spec;
use shardc_passes::repeats::{Repeats, repeats};
use shardc_passes::{Context, Mode, check_axes, planning};
use shardc_simulator::cluster::Cluster;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A job of a search.
#[derive(Debug)]
pub struct Job {
    /// The lines of all candidates.
    pub base: Base,
    /// The model's graph, as imported.
    pub graph: Graph,
    /// Its equal blocks.
    pub repeats: Option<Repeats>,
    /// How many they are; 1 where there are none.
    pub blocks: u64,
    /// The model with fewer blocks, twice.
    pub short: [Graph; 2],
    /// Both, and the whole model, as they are recognised.
    pub recognised: [Recognised; 3],
    /// The blocks of each.
    pub short_blocks: [f64; 2],
    /// Ranks.
    pub ranks: u64,
    /// The bytes of a rank.
    pub memory: u64,
    /// What it would run on.
    pub cluster: Cluster,
    /// Tokens of a step, where the model reads rows of them.
    pub tokens: Option<u64>,
    /// What the model's products compute in a step.
    pub model_flops: Option<f64>,
}

impl Job {
    /// The equal blocks of a graph, and the shorter models.
    pub fn shortened(graph: &Graph) -> (Option<Repeats>, [Graph; 2], [f64; 2]) {
        let repeats = repeats(graph);
        let counts = short_blocks(repeats.as_ref().map_or(1, Repeats::count));
        let short = counts.map(|count| repeats.as_ref().map_or_else(|| graph.clone(), |repeats| repeats.shortened(graph, count)));
        (repeats, short, counts.map(|count| count as f64))
    }

    /// Bytes of a message between two stages.
    pub fn between_bytes(&self, candidate: &Candidate) -> u64 {
        let of = |value: ValueId| {
            let ty = self.graph.ty(value);
            ty.elements() * ty.dtype.bytes() / candidate.replicas() / candidate.microbatches
        };
        self.repeats.as_ref().map_or(0, |repeats| of(repeats.between()))
    }

    /// The whole job as a candidate says, planned and simulated; `None` where there is no such
    /// plan.
    pub fn simulated(&self, candidate: &Candidate) -> Option<(PlanSet, Simulation)> {
        let set = self.recognised[2].planned(&self.graph, &candidate.spec(&self.base))?;
        let simulation = Simulation::of_programs(&set, self.tokens, self.model_flops, &self.cluster).ok()?;
        Some((set, simulation))
    }
}

/// The programs of a step of training over the ranks of a spec; `None` where the passes refuse it.
pub fn planned(graph: &Graph, text: &str) -> Option<PlanSet> {
    let spec = parsed(text)?;
    spread(shardc_passes::recognise(graph.clone(), &context(&spec)).ok()?, &spec)
}

fn parsed(text: &str) -> Option<Spec> {
    spec::parse(Path::new("candidate.shard"), text).ok()
}

fn context(spec: &Spec) -> Context<'_> {
    Context { spec, mode: Mode::Train, verify: false }
}

/// The programs of a recognised model.
fn spread(recognised: Graph, spec: &Spec) -> Option<PlanSet> {
    let cx = context(spec);
    let graph = shardc_passes::spread(recognised, &cx).ok()?;
    check_axes(&graph, spec).ok()?;
    planning::plan(&graph, &cx).ok()
}

/// A model as it is recognised, for each batch that it was asked for, and each set of lines that
/// name its values.
#[derive(Debug, Default)]
pub struct Recognised(Mutex<BTreeMap<Asked, Option<Arc<Graph>>>>);

/// A batch, and the lines that name values.
type Asked = (u64, String);

impl Recognised {
    /// The programs of `graph` over the ranks of a spec; `None` where the passes refuse it.
    pub fn planned(&self, graph: &Graph, text: &str) -> Option<PlanSet> {
        let spec = parsed(text)?;
        let names: String = text.lines().filter(|line| line.starts_with("shard")).collect();
        let key = (spec.batch.as_ref()?.value.size, names);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let recognised = match known {
            Some(known) => known,
            None => {
                let made = shardc_passes::recognise(graph.clone(), &context(&spec)).ok().map(Arc::new);
                self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, made.clone());
                made
            }
        };
        spread(Graph::clone(&*recognised?), &spec)
    }
}
