//! A job of a search: planned as a candidate says, and simulated.

use super::Wish;
use super::candidate::{Base, Candidate};
use crate::error::Error;
use crate::simulation::Simulation;
use crate::training::tokens;
use shardc_frontend::spec;
use shardc_ir::graph::{Graph, State, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::plan::StateRole;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::spec::Spec;
use shardc_passes::repeats::{Repeats, repeats};
use shardc_passes::{Context, Mode, check_axes, planning};
use shardc_simulator::cluster::Cluster;
use shardc_simulator::model;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The blocks of the shorter and of the longer model that estimates are made of.
const SHORT: [usize; 2] = [1, 2];

/// A job of a search.
#[derive(Debug)]
pub struct Job {
    /// The lines of all candidates.
    pub base: Base,
    /// The model.
    pub whole: Model,
    /// The model with fewer blocks, twice; both times all of it where it has no equal ones.
    pub short: [Model; 2],
    /// Elements of what goes from block to block, in bytes.
    between: u64,
    /// Ranks.
    pub ranks: u64,
    /// The bytes of a rank.
    pub memory: u64,
    /// What it would run on.
    pub cluster: Cluster,
    /// Tokens of a step, where the model reads rows of them.
    tokens: Option<u64>,
    /// What the model's products compute in a step.
    model_flops: f64,
}

impl Job {
    /// The job of `graph`, as imported, whose labels are so called; it must compile on one rank.
    ///
    /// # Errors
    /// Why it does not.
    pub fn new(mut base: Base, graph: Graph, labels: Option<&str>, memory: u64, wish: &Wish) -> Result<Job, Error> {
        let repeats = repeats(&graph);
        base.blocks = repeats.as_ref().and_then(|repeats| repeats.scopes(&graph));
        base.tables = tables(&graph);
        let bytes = |value: ValueId| graph.ty(value).elements() * graph.ty(value).dtype.bytes();
        let between = repeats.as_ref().map_or(0, |repeats| bytes(repeats.between()));
        let count = repeats.as_ref().map_or(1, Repeats::count);
        let counts = if count > SHORT[1] { SHORT } else { [count; 2] };
        let short = counts.map(|count| {
            let shortened = repeats.as_ref().map(|repeats| repeats.shortened(&graph, count));
            Model::new(shortened.unwrap_or_else(|| graph.clone()), count)
        });
        let text = Candidate::ONE_RANK.spec(&Base { memory: None, ..base.clone() });
        let spec = spec::parse(Path::new("one-rank.shard"), &text)?;
        let one = shardc_passes::run(graph.clone(), &context(&spec, Mode::Train))?;
        let tokens = short[0].planned(&text).and_then(|set| tokens(&set, |name| Some(name) == labels));
        let model_flops = model::flops(&one);
        let (ranks, cluster, whole) = (wish.ranks, wish.cluster.clone(), Model::new(graph, count));
        Ok(Job { base, whole, short, between, ranks, memory, cluster, tokens, model_flops })
    }

    /// Bytes of a message between two stages.
    pub fn message_bytes(&self, candidate: &Candidate) -> u64 {
        self.between / candidate.replicas() / candidate.microbatches
    }

    /// The whole job as a candidate says, planned and simulated; `None` where there is no such
    /// plan.
    pub fn simulated(&self, candidate: &Candidate) -> Option<(PlanSet, Simulation)> {
        let set = self.whole.planned(&candidate.spec(&self.base))?;
        let simulation = Simulation::of_programs(&set, self.tokens, Some(self.model_flops), &self.cluster).ok()?;
        Some((set, simulation))
    }

    /// Whether the programs of evaluation, which a plan has too, fit a rank.
    pub fn evaluation_fits(&self, candidate: &Candidate) -> bool {
        let Some(spec) = parsed(&candidate.spec(&self.base)) else { return false };
        let set = shardc_passes::compile(self.whole.graph.clone(), &context(&spec, Mode::Evaluate));
        set.is_ok_and(|set| set.fullest().arena_bytes <= self.memory)
    }
}

/// A table of embeddings is split with the layers if it has at least this part of all parameters.
const LARGE: f64 = 0.001;

/// The large tables that indices are looked up in, with their rows.
fn tables(graph: &Graph) -> Vec<(String, u64)> {
    let elements = |state: &State| state.ty.elements() as f64;
    let all: f64 = graph.states.iter().filter(|state| state.role == StateRole::Parameter).map(elements).sum();
    let read = graph.nodes().filter(|(_, node)| matches!(node.op, Op::Gather(_))).filter_map(|(_, node)| {
        match &graph.def(*node.operands.first()?).op {
            Op::State(read) => Some(read.state.index()),
            _ => None,
        }
    });
    let is_large = |state: &usize| elements(&graph.states[*state]) >= LARGE * all;
    let states: BTreeSet<usize> = read.filter(is_large).collect();
    states.into_iter().map(|state| &graph.states[state]).map(|state| (state.name.clone(), state.ty.shape[0])).collect()
}

fn parsed(text: &str) -> Option<Spec> {
    spec::parse(Path::new("candidate.shard"), text).ok()
}

fn context(spec: &Spec, mode: Mode) -> Context<'_> {
    Context { spec, mode, verify: false }
}

/// A model, and what it is recognised as: once for each batch that it is asked for, and each set of
/// lines that name its values.
#[derive(Debug)]
pub struct Model {
    graph: Graph,
    /// Its equal blocks; 1 where there are none.
    pub blocks: u64,
    recognised: Mutex<BTreeMap<Asked, Option<Arc<Graph>>>>,
}

/// A batch, and the lines that name values.
type Asked = (u64, String);

impl Model {
    fn new(graph: Graph, blocks: usize) -> Model {
        Model { graph, blocks: blocks as u64, recognised: Mutex::default() }
    }

    /// The programs of a step of training over the ranks of a spec; `None` where the passes refuse
    /// it.
    pub fn planned(&self, text: &str) -> Option<PlanSet> {
        let spec = parsed(text)?;
        let cx = context(&spec, Mode::Train);
        let graph = shardc_passes::spread(Graph::clone(&*self.recognised(text, &cx)?), &cx).ok()?;
        check_axes(&graph, &spec).ok()?;
        planning::plan(&graph, &cx).ok()
    }

    fn recognised(&self, text: &str, cx: &Context<'_>) -> Option<Arc<Graph>> {
        let names: String = text.lines().filter(|line| line.starts_with("shard")).collect();
        let asked = (cx.spec.batch.as_ref()?.value.size, names);
        let all = || self.recognised.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all().get(&asked).cloned();
        known.unwrap_or_else(|| {
            let made = shardc_passes::recognise(self.graph.clone(), cx).ok().map(Arc::new);
            all().insert(asked, made.clone());
            made
        })
    }
}
