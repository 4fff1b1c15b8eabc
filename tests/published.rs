//! Published trainings, planned here and simulated: the throughput that was measured beside the one
//! that is predicted.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod support;

use prost::Message;
use shardc::import::import;
use shardc::simulation::{Simulation, cluster};
use shardc_passes::{Context, Mode, compile};
use shardc_testkit::gpt::Gpt;
use std::path::Path;
use support::folder;

/// A row of table 1 of Narayanan et al., Efficient Large-Scale Language Model Training on GPU
/// Clusters Using Megatron-LM (SC'21), with micro-batches and chunks from the authors' script
/// `examples/sc21/run_table_1.sh`.
struct Row {
    billions: f64,
    heads: i64,
    width: i64,
    layers: i64,
    tp: u64,
    pp: u64,
    gpus: u64,
    batch: u64,
    /// Samples of a micro-batch.
    samples: u64,
    chunks: u64,
    /// TFLOP/s of each GPU, as measured.
    measured: f64,
}

#[rustfmt::skip]
const MEGATRON: [Row; 10] = [
    Row { billions: 1.7,    heads: 24,  width: 2304,  layers: 24,  tp: 1, pp: 1,  gpus: 32,   batch: 512,  samples: 16, chunks: 1, measured: 137.0 },
    Row { billions: 3.6,    heads: 32,  width: 3072,  layers: 30,  tp: 2, pp: 1,  gpus: 64,   batch: 512,  samples: 16, chunks: 1, measured: 138.0 },
    Row { billions: 7.5,    heads: 32,  width: 4096,  layers: 36,  tp: 4, pp: 1,  gpus: 128,  batch: 512,  samples: 16, chunks: 1, measured: 142.0 },
    Row { billions: 18.4,   heads: 48,  width: 6144,  layers: 40,  tp: 8, pp: 1,  gpus: 256,  batch: 1024, samples: 8,  chunks: 1, measured: 135.0 },
    Row { billions: 39.1,   heads: 64,  width: 8192,  layers: 48,  tp: 8, pp: 2,  gpus: 512,  batch: 1536, samples: 4,  chunks: 1, measured: 138.0 },
    Row { billions: 76.1,   heads: 80,  width: 10240, layers: 60,  tp: 8, pp: 4,  gpus: 1024, batch: 1792, samples: 2,  chunks: 3, measured: 140.0 },
    Row { billions: 145.6,  heads: 96,  width: 12288, layers: 80,  tp: 8, pp: 8,  gpus: 1536, batch: 2304, samples: 2,  chunks: 2, measured: 148.0 },
    Row { billions: 310.1,  heads: 128, width: 16384, layers: 96,  tp: 8, pp: 16, gpus: 1920, batch: 2160, samples: 1,  chunks: 2, measured: 155.0 },
    Row { billions: 529.6,  heads: 128, width: 20480, layers: 105, tp: 8, pp: 35, gpus: 2520, batch: 2520, samples: 1,  chunks: 3, measured: 163.0 },
    Row { billions: 1008.0, heads: 160, width: 25600, layers: 128, tp: 8, pp: 64, gpus: 3072, batch: 3072, samples: 1,  chunks: 1, measured: 163.0 },
];

const TOKENS: i64 = 2048;
const VOCABULARY: i64 = 51200;

impl Row {
    fn spec(&self) -> String {
        let replicas = self.gpus / self.tp / self.pp;
        let axes = [("pp", self.pp), ("dp", replicas), ("tp", self.tp)].into_iter().filter(|(_, size)| *size > 1);
        let axes: Vec<String> = axes.map(|(name, size)| format!("{name}={size}")).collect();
        let microbatches = self.batch / replicas / self.samples;
        let mut text = format!(
            "mesh {}\nbatch {} microbatches={microbatches}\nloss cross_entropy logits=logits labels=y\noptimizer adamw lr=1e-4\n\
             clip norm=1.0\nprecision compute=f16 gradients=f16 reduce=f16\ndata axis=dp\nrecompute \"h.*\"\n",
            axes.join(" "),
            self.batch,
        );
        if self.tp > 1 {
            text += "tensor axis=tp\nshard \"wte.weight\" [tp, -]\n";
        }
        match (self.pp, self.chunks) {
            (1, _) => {}
            (_, 1) => text += "pipeline axis=pp schedule=1f1b\n",
            (_, chunks) => text += &format!("pipeline axis=pp schedule=interleaved(chunks={chunks})\n"),
        }
        text
    }

    /// Operations of a step as the paper counts them, with activations computed twice.
    fn flops(&self) -> f64 {
        let (s, h, l, v) = (TOKENS as f64, self.width as f64, self.layers as f64, VOCABULARY as f64);
        96.0 * self.batch as f64 * s * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h))
    }

    /// TFLOP/s of each GPU, as predicted.
    fn predicted(&self) -> f64 {
        let here = folder(&format!("published-{}", self.billions));
        let gpt = Gpt {
            layers: self.layers,
            width: self.width,
            heads: self.heads,
            vocabulary: VOCABULARY,
            tokens: TOKENS,
            batch: self.batch as i64,
        };
        let path = here.join("model.onnx");
        std::fs::write(&path, gpt.model().encode_to_vec()).unwrap();
        let spec = shardc_frontend::spec::parse(Path::new("job.shard"), &self.spec()).unwrap();
        let graph = import(&path, &spec, true, false).unwrap().graph;
        let set = compile(graph, &Context { spec: &spec, mode: Mode::Train, verify: false }).unwrap();
        let seconds = Simulation::of_programs(&set, None, None, &cluster("a100").unwrap()).unwrap().seconds;
        self.flops() / seconds / self.gpus as f64 / 1e12
    }
}

#[test]
fn megatron_s_table_is_met() {
    let mut errors = vec![];
    for row in &MEGATRON {
        let (predicted, measured) = (row.predicted(), row.measured);
        let error = predicted / measured - 1.0;
        println!(
            "{:7.1}B on {:4} GPUs: {measured:.0} TFLOP/s measured, {predicted:5.1} predicted, {:+5.1} %",
            row.billions,
            row.gpus,
            100.0 * error
        );
        errors.push(error.abs());
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("mean error {:.1} %", 100.0 * mean);
    assert!(mean <= 0.1, "{mean}");
}
