//! Published trainings, planned here and simulated: what was measured beside what is predicted.
//!
//! Models of up to [`USUAL`] billion parameters are tried; `SHARDC_PUBLISHED=all` tries all.

use crate::support::folder;
use prost::Message;
use shardc::import::import;
use shardc::simulation::{Simulation, cluster};
use shardc_passes::{Context, Mode, compile};
use shardc_testkit::gpt::Gpt;
use std::path::Path;

/// A training of a GPT on A100s.
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
    /// The lines of the spec that say what is computed again.
    again: &'static str,
    /// What was measured, in the unit of the table.
    measured: f64,
}

/// Billions of parameters: larger models take minutes.
const USUAL: f64 = 200.0;

const BLOCKS: &str = "recompute \"h.*\"\n";
const LEAST: &str = "recompute selective\nsequence axis=tp\n";

/// Table 1 of Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
/// Megatron-LM (SC'21), in TFLOP/s of each GPU, with micro-batches and chunks from the authors'
/// script `examples/sc21/run_table_1.sh`.
#[rustfmt::skip]
const MEGATRON: [Row; 10] = [
    Row { billions: 1.7,    heads: 24,  width: 2304,  layers: 24,  tp: 1, pp: 1,  gpus: 32,   batch: 512,  samples: 16, chunks: 1, again: BLOCKS, measured: 137.0 },
    Row { billions: 3.6,    heads: 32,  width: 3072,  layers: 30,  tp: 2, pp: 1,  gpus: 64,   batch: 512,  samples: 16, chunks: 1, again: BLOCKS, measured: 138.0 },
    Row { billions: 7.5,    heads: 32,  width: 4096,  layers: 36,  tp: 4, pp: 1,  gpus: 128,  batch: 512,  samples: 16, chunks: 1, again: BLOCKS, measured: 142.0 },
    Row { billions: 18.4,   heads: 48,  width: 6144,  layers: 40,  tp: 8, pp: 1,  gpus: 256,  batch: 1024, samples: 8,  chunks: 1, again: BLOCKS, measured: 135.0 },
    Row { billions: 39.1,   heads: 64,  width: 8192,  layers: 48,  tp: 8, pp: 2,  gpus: 512,  batch: 1536, samples: 4,  chunks: 1, again: BLOCKS, measured: 138.0 },
    Row { billions: 76.1,   heads: 80,  width: 10240, layers: 60,  tp: 8, pp: 4,  gpus: 1024, batch: 1792, samples: 2,  chunks: 3, again: BLOCKS, measured: 140.0 },
    Row { billions: 145.6,  heads: 96,  width: 12288, layers: 80,  tp: 8, pp: 8,  gpus: 1536, batch: 2304, samples: 2,  chunks: 2, again: BLOCKS, measured: 148.0 },
    Row { billions: 310.1,  heads: 128, width: 16384, layers: 96,  tp: 8, pp: 16, gpus: 1920, batch: 2160, samples: 1,  chunks: 2, again: BLOCKS, measured: 155.0 },
    Row { billions: 529.6,  heads: 128, width: 20480, layers: 105, tp: 8, pp: 35, gpus: 2520, batch: 2520, samples: 1,  chunks: 3, again: BLOCKS, measured: 163.0 },
    Row { billions: 1008.0, heads: 160, width: 25600, layers: 128, tp: 8, pp: 64, gpus: 3072, batch: 3072, samples: 1,  chunks: 1, again: BLOCKS, measured: 163.0 },
];

/// Table 5 of Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models
/// (2022), in seconds of a step, first with all computed again, then with what the paper proposes.
#[rustfmt::skip]
const KORTHIKANTI: [Row; 8] = [
    Row { billions: 22.0,   heads: 64,  width: 6144,  layers: 48,  tp: 8, pp: 1,  gpus: 8,    batch: 4,    samples: 4,  chunks: 1, again: BLOCKS, measured: 1.42 },
    Row { billions: 22.0,   heads: 64,  width: 6144,  layers: 48,  tp: 8, pp: 1,  gpus: 8,    batch: 4,    samples: 4,  chunks: 1, again: LEAST, measured: 1.10 },
    Row { billions: 175.0,  heads: 96,  width: 12288, layers: 96,  tp: 8, pp: 8,  gpus: 64,   batch: 64,   samples: 1,  chunks: 3, again: BLOCKS, measured: 18.13 },
    Row { billions: 175.0,  heads: 96,  width: 12288, layers: 96,  tp: 8, pp: 8,  gpus: 64,   batch: 64,   samples: 1,  chunks: 3, again: LEAST, measured: 13.75 },
    Row { billions: 530.0,  heads: 128, width: 20480, layers: 105, tp: 8, pp: 35, gpus: 280,  batch: 280,  samples: 1,  chunks: 3, again: BLOCKS, measured: 49.05 },
    Row { billions: 530.0,  heads: 128, width: 20480, layers: 105, tp: 8, pp: 35, gpus: 280,  batch: 280,  samples: 1,  chunks: 3, again: LEAST, measured: 37.83 },
    Row { billions: 1000.0, heads: 160, width: 25600, layers: 128, tp: 8, pp: 64, gpus: 512,  batch: 512,  samples: 1,  chunks: 1, again: BLOCKS, measured: 94.42 },
    Row { billions: 1000.0, heads: 160, width: 25600, layers: 128, tp: 8, pp: 64, gpus: 512,  batch: 512,  samples: 1,  chunks: 1, again: LEAST, measured: 71.49 },
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
             clip norm=1.0\nprecision compute=f16 gradients=f16 reduce=f16\n{}",
            axes.join(" "),
            self.batch,
            self.again,
        );
        if replicas > 1 {
            text += "data axis=dp\n";
        }
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

    /// Seconds of a step, as predicted.
    fn predicted(&self) -> f64 {
        let here = folder(&format!("published-{}-{}-{}", self.billions, self.gpus, self.again.len()));
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
        Simulation::of_programs(&set, None, None, &cluster("a100").unwrap()).unwrap().seconds
    }
}

/// Holds the mean error of a table to a tenth; `of` makes what it has of a row and its seconds.
fn is_met(rows: &[Row], unit: &str, of: impl Fn(&Row, f64) -> f64) {
    let all = match std::env::var("SHARDC_PUBLISHED").as_deref() {
        Err(_) => false,
        Ok("all") => true,
        Ok(other) => panic!("`SHARDC_PUBLISHED={other}`: it is `all`"),
    };
    let mut errors = vec![];
    for row in rows.iter().filter(|row| all || row.billions <= USUAL) {
        let (predicted, measured) = (of(row, row.predicted()), row.measured);
        let error = predicted / measured - 1.0;
        println!(
            "{:7.1}B on {:4} GPUs: {measured:6.2} {unit} measured, {predicted:6.2} predicted, {:+5.1} %",
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

#[test]
fn megatron_s_table_is_met() {
    is_met(&MEGATRON, "TFLOP/s", |row, seconds| row.flops() / seconds / row.gpus as f64 / 1e12);
}

#[test]
fn korthikanti_s_table_is_met() {
    is_met(&KORTHIKANTI, "s", |_, seconds| seconds);
}
