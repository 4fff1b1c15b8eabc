//! The good plans of pipelines: chains, skips, tied parameters and branches under every schedule,
//! alone and beside replicas and split tensors.

use crate::jobs::{Model, compiled};
use crate::sets::Job;
use shardc_ir::dtype::DType;
use shardc_ir::graph::Graph;
use shardc_ir::ops::attention::{Attention, HeadLayout, MaskKind};
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::ops::index::Gather;
use shardc_ir::ops::norm::LayerNorm;

/// Samples in the batch: micro-batches of 2, 3 and 4 divide it.
const BATCH: u64 = 12;

const MSE: &str = "loss mse prediction=y labels=t\n";
const CLASSES: &str = "loss cross_entropy logits=y labels=t ignore_index=1\n";
const ADAMW: &str = "optimizer adamw lr=0.01\nclip norm=0.5\n";
const MOMENTUM: &str = "optimizer sgd lr=0.1 momentum=0.9\n";
const SGD: &str = "optimizer sgd lr=0.1\n";

/// Its name, the model, mesh, micro-batches, pipeline, and the rest of its spec.
type Row = (&'static str, fn() -> Graph, &'static str, u64, &'static str, [&'static str; 2], &'static str);

const JOBS: &[Row] = &[
    ("gpipe", chain, "pp=2", 3, "schedule=gpipe", [MSE, MOMENTUM], ""),
    ("1f1b", chain, "pp=2", 2, "schedule=1f1b", [MSE, ADAMW], ""),
    ("1f1b of four", chain, "pp=4", 4, "schedule=1f1b", [MSE, ADAMW], ""),
    ("gpipe of four", chain, "pp=4", 2, "schedule=gpipe", [MSE, SGD], ""),
    ("zb-h1", chain, "pp=2", 4, "schedule=zb-h1", [MSE, ADAMW], ""),
    ("zb-h1 of four", chain, "pp=4", 4, "schedule=zb-h1", [MSE, SGD], ""),
    ("interleaved", chain, "pp=2", 4, "schedule=interleaved(chunks=2)", [MSE, MOMENTUM], ""),
    ("one micro-batch", chain, "pp=2", 1, "schedule=1f1b", [MSE, ADAMW], ""),
    ("replicas", chain, "dp=2 pp=2", 2, "schedule=1f1b", [MSE, ADAMW], "data axis=dp\n"),
    ("stages outside", chain, "pp=2 dp=2", 3, "schedule=gpipe", [MSE, ADAMW], "data axis=dp\n"),
    (
        "columns and rows",
        chain,
        "pp=2 tp=2",
        3,
        "schedule=zb-h1",
        [MSE, ADAMW],
        "shard \"w0\" [-, tp]\nshard \"w1\" [tp, -]\nshard \"w2\" [-, tp]\nshard \"w3\" [tp, -]\n",
    ),
    ("skips", skips, "pp=4", 4, "schedule=1f1b", [MSE, MOMENTUM], ""),
    ("skips, interleaved", skips, "pp=2", 2, "schedule=interleaved(chunks=2)", [MSE, ADAMW], ""),
    ("tied", tied, "pp=2", 3, "schedule=1f1b cut=after(\"*h.0\")", [CLASSES, ADAMW], ""),
    ("tied and replicas", tied, "dp=2 pp=2", 2, "schedule=gpipe", [CLASSES, MOMENTUM], "data axis=dp\n"),
    ("tied of four", tied, "pp=4", 3, "schedule=zb-h1", [CLASSES, ADAMW], ""),
    ("placed", branches, "pp=2", 3, "schedule=1f1b", [MSE, ADAMW], "place \"right\" stage=1\nplace \"left\" stage=0\n"),
    ("placed of three", branches, "pp=3", 2, "schedule=gpipe", [MSE, SGD], "place \"right\" stage=2\n"),
];

/// All of them.
pub fn all() -> Vec<Job> {
    let job = |(name, model, mesh, microbatches, pipeline, [loss, optimizer], more): &Row| {
        let spec = format!(
            "mesh {mesh}\nbatch {BATCH} microbatches={microbatches}\npipeline axis=pp {pipeline}\n{loss}{optimizer}{more}"
        );
        let plans = compiled(&model(), &spec).unwrap_or_else(|why| panic!("{name}: {why}"));
        Job { name, plans }
    };
    JOBS.iter().map(job).collect()
}

/// Four layers.
fn chain() -> Graph {
    layers("chain", false)
}

/// Four layers, of which the last ones add what the first ones give.
fn skips() -> Graph {
    layers("skips", true)
}

fn layers(name: &str, skips: bool) -> Graph {
    let mut m = Model::new(name);
    let x = m.input("x", DType::F64, &[BATCH, 4]);
    let mut given = vec![x];
    for i in 0..4 {
        m.0.origin.scope = Some(format!("h.{i}").into());
        let (w, b) = (m.parameter(&format!("w{i}"), &[4, 4]), m.parameter(&format!("b{i}"), &[4]));
        let h = m.0.op(Contract::new("bk,kn->bn"), &[given[i], w]);
        let h = m.0.add(h, b);
        let h = if i < 3 { m.0.unary(UnaryFn::GeluTanh, h) } else { h };
        let next = if skips && i > 1 { m.0.add(h, given[4 - i]) } else { h };
        given.push(next);
    }
    let y = given[4];
    m.finish(y)
}

/// An embedding whose table is the head too, around a norm and attention.
fn tied() -> Graph {
    let mut m = Model::new("tied");
    let tokens = m.input("tokens", DType::I64, &[BATCH, 3]);
    m.0.origin.scope = Some("embedding".into());
    let table = m.parameter("table", &[8, 4]);
    let x = m.0.op(Gather::along(0), &[table, tokens]);
    m.0.origin.scope = Some("h.0".into());
    let (scale, bias) = (m.parameter("scale", &[4]), m.parameter("bias", &[4]));
    let n = m.0.op(LayerNorm { eps: 0.1, dtype: None }, &[x, scale, bias]);
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let w = m.parameter(name, &[4, 4]);
        let p = m.0.op(Contract::new("btk,kn->btn"), &[n, w]);
        m.0.reshape(p, &[BATCH, 3, 2, 2])
    });
    let token = HeadLayout::TokenMajor;
    let o = m.0.op(Attention { scale: 0.7, mask: MaskKind::Causal, q: token, k: token, v: token, o: token }, &[q, k, v]);
    let o = m.0.reshape(o, &[BATCH, 3, 4]);
    let x = m.0.add(x, o);
    m.0.origin.scope = Some("h.1".into());
    let w = m.parameter("w", &[4, 4]);
    let h = m.0.op(Contract::new("btk,kn->btn"), &[x, w]);
    let h = m.0.unary(UnaryFn::GeluTanh, h);
    let x = m.0.add(x, h);
    m.0.origin.scope = Some("head".into());
    let y = m.0.op(Contract::new("btk,vk->btv"), &[x, table]);
    m.finish(y)
}

/// Two branches side by side between two layers.
fn branches() -> Graph {
    let mut m = Model::new("branches");
    let mut x = m.input("x", DType::F64, &[BATCH, 4]);
    let layer = |m: &mut Model, name: &str, x| {
        m.0.origin.scope = Some(name.into());
        let (w, b) = (m.parameter(&format!("{name}.w"), &[4, 4]), m.parameter(&format!("{name}.b"), &[4]));
        let h = m.0.op(Contract::new("bk,kn->bn"), &[x, w]);
        let h = m.0.add(h, b);
        m.0.unary(UnaryFn::GeluTanh, h)
    };
    x = layer(&mut m, "stem", x);
    let (left, right) = (layer(&mut m, "left", x), layer(&mut m, "right", x));
    m.0.origin.scope = Some("join".into());
    x = m.0.add(left, right);
    let y = layer(&mut m, "top", x);
    m.finish(y)
}
