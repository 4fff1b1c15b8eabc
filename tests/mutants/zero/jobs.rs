//! The good plans of ZeRO: every stage over two to four ranks that lines do and do not divide by,
//! in groups, over two axes, beside split tensors and in pipelines.

use crate::jobs::{Model, compiled, language};
use crate::sets::Job;
use shardc_ir::dtype::DType;
use shardc_ir::graph::Graph;
use shardc_ir::ops::contract::Contract;
use shardc_ir::ops::elementwise::UnaryFn;
use shardc_ir::ops::norm::LayerNorm;

/// Its name, the model, mesh, batch, and the rest of its spec.
type Row = (&'static str, fn() -> Graph, &'static str, &'static str, [&'static str; 3]);

const MSE: &str = "loss mse prediction=y labels=t\n";
const CLASSES: &str = "loss cross_entropy logits=y labels=t ignore_index=1\n";
const ADAM: &str = "optimizer adam lr=0.01\n";
const ADAMW: &str = "optimizer adamw lr=0.01\nclip norm=0.5\n";
const LAMB: &str = "optimizer lamb lr=0.01\nclip norm=0.5\n";
const MOMENTUM: &str = "optimizer sgd lr=0.1 momentum=0.9\n";

const JOBS: &[Row] = &[
    ("1 of two", layers, "dp=2", "12", [MSE, ADAM, "data axis=dp\nzero stage=1 axis=dp\n"]),
    ("1 of three", layers, "dp=3", "12 microbatches=2", [MSE, ADAMW, "data axis=dp\nzero stage=1 axis=dp\n"]),
    ("1 of four", layers, "dp=4", "24 microbatches=2", [MSE, LAMB, "data axis=dp\nzero stage=1 axis=dp\n"]),
    ("2 of two", layers, "dp=2", "12 microbatches=2", [MSE, LAMB, "data axis=dp\nzero stage=2 axis=dp\n"]),
    ("2 of three", layers, "dp=3", "12", [MSE, MOMENTUM, "data axis=dp\nzero stage=2 axis=dp\n"]),
    ("2 of four", layers, "dp=4", "24 microbatches=2", [MSE, ADAMW, "data axis=dp\nzero stage=2 axis=dp\n"]),
    ("3 of two", layers, "dp=2", "12 microbatches=2", [MSE, ADAMW, "data axis=dp\nzero stage=3 axis=dp\n"]),
    ("3 of three", layers, "dp=3", "12 microbatches=2", [MSE, LAMB, "data axis=dp\nzero stage=3 axis=dp\n"]),
    ("3 of four", layers, "dp=4", "12", [MSE, ADAM, "data axis=dp\nzero stage=3 axis=dp\n"]),
    ("language", language, "dp=2", "8 microbatches=2", [CLASSES, ADAMW, "data axis=dp\nzero stage=3 axis=dp\n"]),
    ("groups, 1", layers, "dp=2 fsdp=2", "12", [MSE, ADAMW, "data axis=(dp,fsdp)\nzero stage=1 axis=fsdp\n"]),
    ("groups, 2", layers, "dp=2 fsdp=2", "24 microbatches=2", [MSE, ADAM, "data axis=(dp,fsdp)\nzero stage=2 axis=fsdp\n"]),
    ("groups, 3", layers, "dp=2 fsdp=2", "24 microbatches=2", [MSE, ADAMW, "data axis=(dp,fsdp)\nzero stage=3 axis=fsdp\n"]),
    ("groups outside", layers, "fsdp=2 dp=2", "12", [MSE, LAMB, "data axis=(fsdp,dp)\nzero stage=3 axis=fsdp\n"]),
    ("two axes", layers, "a=2 b=2", "12", [MSE, ADAMW, "data axis=(a,b)\nzero stage=3 axis=(b,a)\n"]),
    (
        "columns and rows, 1",
        layers,
        "dp=3 tp=2",
        "12",
        [MSE, LAMB, "data axis=dp\nzero stage=1 axis=dp\nshard \"w0\" [-, tp]\nshard \"w1\" [tp, -]\n"],
    ),
    (
        "columns and rows, 3",
        layers,
        "dp=2 tp=2",
        "12 microbatches=2",
        [MSE, ADAMW, "data axis=dp\nzero stage=3 axis=dp\nshard \"w0\" [-, tp]\nshard \"w1\" [tp, -]\n"],
    ),
    (
        "frozen, in part",
        layers,
        "dp=2",
        "12",
        [MSE, ADAMW, "data axis=dp\nfreeze \"w1\"\nzero stage=3 axis=dp\nzero stage=1 axis=dp on=\"h.2\"\n"],
    ),
    (
        "pipeline, 1",
        layers,
        "pp=2 dp=2",
        "12 microbatches=2",
        [MSE, ADAMW, "data axis=dp\npipeline axis=pp schedule=gpipe\nzero stage=1 axis=dp\n"],
    ),
    (
        "pipeline, 2",
        layers,
        "dp=2 pp=2",
        "12 microbatches=2",
        [MSE, LAMB, "data axis=dp\npipeline axis=pp schedule=1f1b\nzero stage=2 axis=dp\n"],
    ),
    (
        "pipeline, 3",
        layers,
        "dp=2 pp=2",
        "12 microbatches=2",
        [MSE, ADAMW, "data axis=dp\npipeline axis=pp schedule=1f1b\nzero stage=3 axis=dp\n"],
    ),
];

/// All of them.
pub fn all() -> Vec<Job> {
    let job = |(name, model, mesh, batch, [loss, optimizer, more]): &Row| {
        let spec = format!("mesh {mesh}\nbatch {batch}\n{loss}{optimizer}{more}");
        let plans = compiled(&model(), &spec).unwrap_or_else(|why| panic!("{name}: {why}"));
        Job { name, plans }
    };
    JOBS.iter().map(job).collect()
}

/// Four layers of odd sizes between which there is a norm, and a factor that is a single number.
fn layers() -> Graph {
    let mut m = Model::new("layers");
    let mut x = m.input("x", DType::F64, &[12, 3]);
    let sizes = [3, 6, 3, 5, 3];
    for i in 0..4 {
        m.0.origin.scope = Some(format!("h.{i}").into());
        let (w, b) = (m.parameter(&format!("w{i}"), &[sizes[i], sizes[i + 1]]), m.parameter(&format!("b{i}"), &[sizes[i + 1]]));
        let h = m.0.op(Contract::new("bk,kn->bn"), &[x, w]);
        let h = m.0.add(h, b);
        x = match i {
            1 => {
                let (scale, bias) = (m.parameter("scale", &[3]), m.parameter("bias", &[3]));
                m.0.op(LayerNorm { eps: 0.1, dtype: None }, &[h, scale, bias])
            }
            3 => h,
            _ => m.0.unary(UnaryFn::GeluTanh, h),
        };
    }
    let factor = m.parameter("factor", &[]);
    let y = m.0.mul(x, factor);
    m.finish(y)
}
