//! The good plans of mixed precision: every format, with a loss scale that is constant or follows
//! the gradients, on one rank and on several.

use crate::jobs::{Model, compiled};
use crate::sets::Job;
use shardc_ir::dtype::DType;
use shardc_ir::graph::Graph;
use shardc_ir::ops::batch_norm::BatchNorm;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::ops::norm::LayerNorm;
use shardc_ir::plan::StateRole;

/// Its name, the model, mesh and batch, the optimizer, and what the line of precision says.
type Row = (&'static str, fn() -> Graph, &'static str, &'static str, &'static str);

const ADAMW: &str = "optimizer adamw lr=0.01\nclip norm=0.5\n";
const MOMENTUM: &str = "optimizer sgd lr=0.1 momentum=0.9\n";
const LAMB: &str = "optimizer lamb lr=0.01\nclip norm=0.5\n";
const ONE: &str = "mesh dp=1\nbatch 8\n";
const TWO: &str = "mesh dp=2\nbatch 8 microbatches=2\ndata axis=dp\n";
const COLUMNS: &str = "mesh tp=2\nbatch 8\nshard \"w0\" [-, tp]\nshard \"w1\" [tp, -]\n";
const PIPELINE: &str = "mesh pp=2\nbatch 8 microbatches=2\npipeline axis=pp schedule=1f1b\n";
const ZERO: [&str; 3] = [
    "mesh dp=2\nbatch 8 microbatches=2\ndata axis=dp\nzero stage=1 axis=dp\n",
    "mesh dp=2\nbatch 8 microbatches=2\ndata axis=dp\nzero stage=2 axis=dp\n",
    "mesh dp=2\nbatch 8 microbatches=2\ndata axis=dp\nzero stage=3 axis=dp\n",
];
const BF16: &str = "compute=bf16";
const NARROW: &str = "compute=bf16 gradients=bf16";
const TF32: &str = "compute=tf32";
const CONSTANT: &str = "compute=f16 loss_scale=64";
const DYNAMIC: &str = "compute=f16 loss_scale=dynamic(initial=1024, interval=2)";

const JOBS: &[Row] = &[
    ("bf16", layers, ONE, ADAMW, BF16),
    ("bf16, replicas", layers, TWO, MOMENTUM, BF16),
    ("bf16, columns and rows", layers, COLUMNS, LAMB, BF16),
    ("bf16, 3", layers, ZERO[2], ADAMW, BF16),
    ("narrow gradients", layers, TWO, ADAMW, NARROW),
    ("narrow gradients, 1", layers, ZERO[0], LAMB, NARROW),
    ("narrow gradients, 2", layers, ZERO[1], MOMENTUM, NARROW),
    ("narrow gradients, pipeline", layers, PIPELINE, ADAMW, NARROW),
    ("tf32", layers, TWO, ADAMW, TF32),
    ("f16", layers, TWO, MOMENTUM, CONSTANT),
    ("f16, columns and rows", layers, COLUMNS, ADAMW, CONSTANT),
    ("f16, 2", layers, ZERO[1], LAMB, CONSTANT),
    ("dynamic", images, ONE, MOMENTUM, DYNAMIC),
    (
        "dynamic, replicas",
        images,
        "mesh dp=2\nbatch 8 microbatches=2\ndata axis=dp\nbatchnorm statistics=microbatch\n",
        ADAMW,
        DYNAMIC,
    ),
    ("dynamic, columns and rows", layers, COLUMNS, LAMB, DYNAMIC),
    ("dynamic, 1", layers, ZERO[0], ADAMW, DYNAMIC),
    ("dynamic, 2", layers, ZERO[1], MOMENTUM, DYNAMIC),
    ("dynamic, 3", layers, ZERO[2], LAMB, DYNAMIC),
    ("dynamic, pipeline", layers, PIPELINE, ADAMW, DYNAMIC),
];

/// All of them.
pub fn all() -> Vec<Job> {
    let job = |(name, model, mesh, optimizer, precision): &Row| {
        let spec = format!("{mesh}loss mse prediction=y labels=t\n{optimizer}precision {precision}\n");
        let plans = compiled(&model(), &spec).unwrap_or_else(|why| panic!("{name}: {why}"));
        Job { name, plans }
    };
    JOBS.iter().map(job).collect()
}

/// Layers with biases and a norm between them.
fn layers() -> Graph {
    let mut m = Model::new("layers");
    let mut x = m.input("x", DType::F32, &[8, 4]);
    for i in 0..4 {
        m.0.origin.scope = Some(format!("h.{i}").into());
        let w = m.state(&format!("w{i}"), DType::F32, &[4, 4], StateRole::Parameter);
        let b = m.state(&format!("b{i}"), DType::F32, &[4], StateRole::Parameter);
        let h = m.0.op(Contract::new("bk,kn->bn"), &[x, w]);
        let h = m.0.add(h, b);
        x = match i {
            1 => {
                let [scale, bias] = ["scale", "bias"].map(|name| m.state(name, DType::F32, &[4], StateRole::Parameter));
                m.0.op(LayerNorm { eps: 0.1, dtype: None }, &[h, scale, bias])
            }
            3 => h,
            _ => m.0.unary(UnaryFn::GeluTanh, h),
        };
    }
    m.finish(x)
}

/// A batch normalisation between products, which has running statistics.
fn images() -> Graph {
    let mut m = Model::new("images");
    let x = m.input("x", DType::F32, &[8, 4]);
    let [first, last] = ["w0", "w1"].map(|name| m.state(name, DType::F32, &[4, 4], StateRole::Parameter));
    let h = m.0.op(Contract::new("bk,kn->bn"), &[x, first]);
    let h = m.0.reshape(h, &[8, 4, 1, 1]);
    let vectors = ["scale", "bias", "mean", "variance"].map(|name| {
        let role = if ["mean", "variance"].contains(&name) { StateRole::Statistic } else { StateRole::Parameter };
        let vector = m.state(name, DType::F32, &[4], role);
        m.0.reshape(vector, &[4, 1, 1])
    });
    let h = m.0.op(BatchNorm { eps: 0.1, momentum: 0.7 }, &[&[h], &vectors[..]].concat());
    let h = m.0.unary(UnaryFn::Relu, h);
    let h = m.0.reshape(h, &[8, 4]);
    let y = m.0.op(Contract::new("bk,kn->bn"), &[h, last]);
    m.finish(y)
}
