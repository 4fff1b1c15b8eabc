//! The good plans: small programs over meshes of several axes, which between them have every kind
//! of collective, micro-batches, prologues, buckets, tables, positions and masks.

use shardc_ir::builder::Builder;
use shardc_ir::diagnostic::Diagnostics;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Output, Phase, State, StateId, ValueId};
use shardc_ir::mesh::Mesh;
use shardc_ir::ops::attention::{Attention, HeadLayout, MaskKind};
use shardc_ir::ops::batch_norm::BatchNorm;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::conv::Conv;
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::ops::index::Gather;
use shardc_ir::ops::leaf::Input;
use shardc_ir::ops::norm::{LayerNorm, RmsNorm};
use shardc_ir::ops::pool::MaxPool;
use shardc_ir::ops::random::Dropout;
use shardc_ir::ops::window::Window;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, StateRole};
use shardc_ir::spec::Spec;
use shardc_ir::train::StateInit;
use shardc_ir::types::Type;
use shardc_passes::{Context, Mode};
use shardc_testkit::random_graphs::{self, Choices};
use shardc_testkit::random_specs;
use std::path::Path;

/// A good plan, and the graph that it carries out.
pub struct Job {
    /// Its name in the report.
    pub name: String,
    /// The plan of a step of training.
    pub program: Program,
    /// Its explicit graph.
    pub graph: Graph,
    /// The explicit graph of its reference.
    pub reference: Graph,
    /// Its spec.
    pub spec: Spec,
}

impl Job {
    /// The plan of another explicit graph under the same spec.
    pub fn plan(&self, graph: &Graph) -> Result<Program, Diagnostics> {
        shardc_passes::planning::plan(graph, &Context { spec: &self.spec, mode: Mode::Train, verify: true })
            .map(PlanSet::into_first)
    }
}

/// All of them.
pub fn all() -> Vec<Job> {
    const ADAMW: &str = "optimizer adamw lr=0.01\nclip norm=0.5\n";
    const MSE: &str = "loss mse prediction=y labels=t\n";
    const CLASSES: &str = "loss cross_entropy logits=y labels=t ignore_index=1\n";
    type Row = (&'static str, fn() -> Graph, String);
    let specs: [Row; 10] = [
        ("replicas", layers, format!("mesh dp=4\nbatch 8\ndata axis=dp\n{MSE}optimizer sgd lr=0.1 momentum=0.9\n")),
        (
            "columns and rows",
            layers,
            format!(
                "mesh dp=2 tp=2\nbatch 8 microbatches=2\ndata axis=dp\n{MSE}{ADAMW}shard \"w1\" [-, tp]\nshard \"w2\" [tp, -]\n"
            ),
        ),
        (
            "three axes",
            layers,
            format!(
                "mesh dp=2 tp=2 up=2\nbatch 8\ndata axis=dp\n{MSE}optimizer lamb lr=0.01\nclip norm=0.5\n\
                 shard \"w1\" [up, tp]\nshard \"w2\" [tp, up]\n"
            ),
        ),
        (
            "blocks",
            layers,
            format!("mesh dp=2 tp=2\nbatch 8\ndata axis=dp\n{MSE}{ADAMW}shard \"w1\" [-, (6|2)*tp]\nshard \"w2\" [tp, -]\n"),
        ),
        ("four micro-batches", language, format!("mesh dp=2\nbatch 8 microbatches=4\ndata axis=dp\n{CLASSES}{ADAMW}")),
        (
            "moved splits",
            layers,
            format!(
                "mesh dp=2 tp=2\nbatch 8 microbatches=2\ndata axis=dp\n{MSE}optimizer sgd lr=0.1\n\
                 shard \"w1\" [tp, -]\nshard \"h\" [?, tp]\nshard \"w2\" [-, tp]\nshard \"b1\" [tp]\n"
            ),
        ),
        (
            "vocabulary",
            language,
            format!(
                "mesh dp=2 tp=2\nbatch 8 microbatches=2\ndata axis=dp\n{CLASSES}{ADAMW}\
                 shard \"table\" [tp, -]\nshard \"q\" [-, tp]\nshard \"k\" [-, tp]\nshard \"v\" [-, tp]\nshard \"head\" [-, tp]\n"
            ),
        ),
        (
            "images",
            images,
            format!(
                "mesh dp=2 tp=2\nbatch 8\ndata axis=dp\n{CLASSES}optimizer sgd lr=0.1 momentum=0.9\nshard \"w\" [tp, -, -, -]\n"
            ),
        ),
        (
            "groups",
            images,
            format!("mesh dp=2\nbatch 8 microbatches=2\ndata axis=dp\n{CLASSES}{ADAMW}batchnorm statistics=microbatch\n"),
        ),
        ("masks", masks, format!("mesh a=2 b=2\nbatch 8 microbatches=2\ndata axis=(a,b)\n{MSE}{ADAMW}")),
    ];
    let named =
        specs.into_iter().map(|(name, graph, spec)| job(name, &graph(), &spec).unwrap_or_else(|why| panic!("{name}: {why}")));
    named.chain(drawn(8)).collect()
}

/// Random models under random specs.
fn drawn(count: usize) -> Vec<Job> {
    let mut random = shardc_testkit::random::Random(5);
    let mut jobs = vec![];
    while jobs.len() < count {
        let mut choices = Choices::new((0..100).map(|_| random.below(1 << 30) as u32).collect());
        let model = random_graphs::draw(&mut choices, DType::F64);
        let spec = format!("{}loss {}\n", random_specs::draw(&mut choices, &model), model.loss);
        // Pipelines have tests of their own. A refused job has no good plan; one of many ranks
        // takes the interpreter long.
        if spec.contains("\npipeline ") {
            continue;
        }
        let drawn = job(&format!("drawn {}", jobs.len()), &model.graph, &spec);
        jobs.extend(drawn.into_iter().filter(|job| job.program.mesh.world_size() <= 8));
    }
    jobs
}

/// What a compiler makes of a model and a spec.
pub struct Compiled {
    /// The plans of a step of training.
    pub set: PlanSet,
    /// Their explicit graph.
    pub graph: Graph,
    /// The explicit graph of the reference.
    pub reference: Graph,
    /// The spec.
    pub spec: Spec,
}

fn job(name: &str, model: &Graph, spec: &str) -> Result<Job, String> {
    let Compiled { set, graph, reference, spec } = compiled(model, spec)?;
    Ok(Job { name: name.to_string(), program: set.into_first(), graph, reference, spec })
}

/// Compiles a model under a spec.
pub fn compiled(model: &Graph, spec: &str) -> Result<Compiled, String> {
    let first = |d: Diagnostics| d.first().map_or_else(String::new, ToString::to_string);
    let spec = shardc_frontend::spec::parse(Path::new("job.shard"), spec).map_err(first)?;
    let explicit = |spec: &Spec| {
        let cx = Context { spec, mode: Mode::Train, verify: true };
        shardc_passes::run(model.clone(), &cx).map_err(first)
    };
    let (graph, reference) = (explicit(&spec)?, explicit(&spec.reference())?);
    let cx = Context { spec: &spec, mode: Mode::Train, verify: true };
    let set = shardc_passes::planning::plan(&graph, &cx).map_err(first)?;
    Ok(Compiled { set, graph, reference, spec })
}

/// A model that is being written.
pub struct Model(pub Builder);

impl Model {
    /// An empty one.
    pub fn new(name: &str) -> Model {
        Model(Builder::new(name, Phase::Imported, Mesh::single()))
    }

    /// An input.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[u64]) -> ValueId {
        self.0.op(Input { name: name.into(), ty: Type::new(dtype, shape), label: false }, &[])
    }

    /// An initializer.
    pub fn state(&mut self, name: &str, dtype: DType, shape: &[u64], role: StateRole) -> ValueId {
        let states = &mut self.0.graph_mut().states;
        states.push(State::new(name, Type::new(dtype, shape), role, StateInit::Model));
        let id = StateId(states.len() as u32 - 1);
        self.0.state(id)
    }

    /// A trained initializer.
    pub fn parameter(&mut self, name: &str, shape: &[u64]) -> ValueId {
        self.state(name, DType::F64, shape, StateRole::Parameter)
    }

    /// The model, whose output `y` is.
    pub fn finish(mut self, y: ValueId) -> Graph {
        self.0.rename(y, "y");
        self.0.graph_mut().outputs.push(Output { name: "y".into(), value: y });
        self.0.finish()
    }
}

/// Two layers.
fn layers() -> Graph {
    let mut m = Model::new("layers");
    let x = m.input("x", DType::F64, &[8, 4]);
    let (w1, b1) = (m.parameter("w1", &[4, 8]), m.parameter("b1", &[8]));
    let (w2, b2) = (m.parameter("w2", &[8, 4]), m.parameter("b2", &[4]));
    let h = m.0.op(Contract::new("bk,kn->bn"), &[x, w1]);
    m.0.rename(h, "h");
    let h = m.0.add(h, b1);
    let h = m.0.unary(UnaryFn::GeluTanh, h);
    let y = m.0.op(Contract::new("bk,kn->bn"), &[h, w2]);
    let y = m.0.add(y, b2);
    m.finish(y)
}

/// An embedding, a norm, causal attention and a head over classes.
pub fn language() -> Graph {
    let mut m = Model::new("language");
    let tokens = m.input("tokens", DType::I64, &[8, 3]);
    let table = m.parameter("table", &[8, 4]);
    let x = m.0.op(Gather::along(0), &[table, tokens]);
    let (scale, bias) = (m.parameter("scale", &[4]), m.parameter("bias", &[4]));
    let n = m.0.op(LayerNorm { eps: 0.1, dtype: None }, &[x, scale, bias]);
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let w = m.parameter(name, &[4, 4]);
        let p = m.0.op(Contract::new("btk,kn->btn"), &[n, w]);
        m.0.reshape(p, &[8, 3, 2, 2])
    });
    let token = HeadLayout::TokenMajor;
    let o = m.0.op(Attention { scale: 0.7, mask: MaskKind::Causal, q: token, k: token, v: token, o: token }, &[q, k, v]);
    let o = m.0.reshape(o, &[8, 3, 4]);
    let x = m.0.add(x, o);
    let head = m.parameter("head", &[4, 6]);
    let y = m.0.op(Contract::new("btk,kn->btn"), &[x, head]);
    m.finish(y)
}

/// A convolution with batch normalisation, a pool and a linear layer.
fn images() -> Graph {
    let mut m = Model::new("images");
    let x = m.input("x", DType::F64, &[8, 1, 4, 4]);
    let window = |stride, pad| Window { strides: vec![stride; 2], dilations: vec![1; 2], pads: vec![[pad, pad]; 2] };
    let w = m.parameter("w", &[2, 1, 3, 3]);
    let h = m.0.op(Conv { window: window(1, 1), groups: 1 }, &[x, w]);
    let vectors = ["scale", "bias", "mean", "variance"].map(|name| {
        let role = if ["mean", "variance"].contains(&name) { StateRole::Statistic } else { StateRole::Parameter };
        let vector = m.state(name, DType::F64, &[2], role);
        m.0.reshape(vector, &[2, 1, 1])
    });
    let h = m.0.op(BatchNorm { eps: 0.1, momentum: 0.7 }, &[&[h], &vectors[..]].concat());
    let h = m.0.unary(UnaryFn::Relu, h);
    let h = m.0.op(MaxPool { kernel: vec![2, 2], window: window(2, 0) }, &[h]);
    let h = m.0.reshape(h, &[8, 8]);
    let w = m.parameter("classes", &[8, 4]);
    let y = m.0.op(Contract::new("bk,kn->bn"), &[h, w]);
    m.finish(y)
}

/// Dropout between norms.
fn masks() -> Graph {
    let mut m = Model::new("masks");
    let x = m.input("x", DType::F64, &[8, 3, 4]);
    let scale = m.parameter("scale", &[4]);
    let x = m.0.op(RmsNorm { eps: 0.1, dtype: None }, &[x, scale]);
    let w = m.parameter("w", &[4, 4]);
    let h = m.0.op(Contract::new("btk,kn->btn"), &[x, w]);
    let h = m.0.op(Dropout { ratio: 0.5, stream: 1 }, &[h]);
    let h = m.0.unary(UnaryFn::Silu, h);
    let h = m.0.op(Dropout { ratio: 0.1, stream: 2 }, &[h]);
    let y = m.0.add(h, x);
    m.finish(y)
}
