//! Tensor parallelism of the small models: what PyTorch trained is what they train under `shard`
//! and `tensor` lines, with and without `sequence`; each block costs two reductions each way; the
//! split that `tensor` finds sends no more than the one written by hand.

use crate::support::{folder, shardc};
use serde_json::Value;
use shardc::Options;
use shardc_ir::kernel::{Collective, CollectiveKind, Kernel};
use shardc_ir::plan::{Program, Step};
use std::fs;
use std::path::{Path, PathBuf};

/// The models, whether `sequence` can split their tokens, and the lines that split their blocks by
/// hand.
const MODELS: [(&str, bool, &[&str]); 5] = [
    ("gpt2", true, GPT2),
    ("gpt2-folded", true, GPT2),
    (
        "llama",
        true,
        &[
            "shard \"*.q_proj.weight\" [tp, -]",
            "shard \"*.k_proj.weight\" [tp, -]",
            "shard \"*.v_proj.weight\" [tp, -]",
            "shard \"*.o_proj.weight\" [-, tp]",
            "shard \"*.gate_proj.weight\" [tp, -]",
            "shard \"*.up_proj.weight\" [tp, -]",
            "shard \"*.down_proj.weight\" [-, tp]",
            "shard \"*lm_head.weight\" [tp, -]",
        ],
    ),
    (
        "bert",
        true,
        &[
            "shard \"*.self.query.weight\" [-, tp]",
            "shard \"*.self.key.weight\" [-, tp]",
            "shard \"*.self.value.weight\" [-, tp]",
            "shard \"*.attention.output.dense.weight\" [tp, -]",
            "shard \"*.intermediate.dense.weight\" [-, tp]",
            "shard \"*.layer.*.output.dense.weight\" [tp, -]",
        ],
    ),
    (
        "vit",
        false,
        &[
            "shard \"*.q_proj.weight\" [tp, -]",
            "shard \"*.k_proj.weight\" [tp, -]",
            "shard \"*.v_proj.weight\" [tp, -]",
            "shard \"*.o_proj.weight\" [-, tp]",
            "shard \"*.mlp.fc1.weight\" [tp, -]",
            "shard \"*.mlp.fc2.weight\" [-, tp]",
        ],
    ),
];

const GPT2: &[&str] = &[
    "shard \"*.c_attn.weight\" [-, 3*tp]",
    "shard \"*.attn.c_proj.weight\" [tp, -]",
    "shard \"*.c_fc.weight\" [-, tp]",
    "shard \"*.mlp.c_proj.weight\" [tp, -]",
    "shard \"*lm_head.weight\" [tp, -]",
];

const FOUND: &[&str] = &["tensor axis=tp"];

fn spec(model: &str, mesh: &str, microbatches: u64, lines: &[&str]) -> String {
    let data = if mesh.contains("dp") { "data axis=dp\n" } else { "" };
    let clip = if model == "vit" { "" } else { "clip norm=1.0\n" };
    format!(
        "mesh {mesh}\nbatch 8 microbatches={microbatches}\nloss cross_entropy logits=logits labels=y\n\
         optimizer adamw lr=1e-3 beta1=0.9 beta2=0.95 eps=1e-8 weight_decay=0.1 decay=matrices\n{clip}{data}{}\n",
        lines.join("\n")
    )
}

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name)
}

fn compiled(name: &str, text: &str) -> Result<Program, String> {
    let spec = shardc_frontend::spec::parse(Path::new("job.shard"), text).expect("the spec is good");
    let options = Options { weights: false, ..Options::default() };
    let compiled = shardc::compile(&model(name).join("model.onnx"), &spec, &options);
    let compiled = compiled.map_err(|errors| errors.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("\n"))?;
    Ok(compiled.plans.training.expect("the job trains").programs.first().clone())
}

/// Every call over `tp` alone in the tasks of that name.
fn calls<'p>(program: &'p Program, task: &'p str) -> impl Iterator<Item = (&'p Step, &'p Collective)> {
    let tp = program.mesh.axis("tp").expect("an axis");
    let steps = program.tasks.iter().filter(move |t| t.name == task).flat_map(|t| &t.steps);
    steps.filter_map(move |step| match &step.kernel {
        Kernel::Collective(call) if call.axes == [tp] => Some((step, call)),
        _ => None,
    })
}

#[test]
fn every_split_trains_as_pytorch_did() {
    for (name, has_even_tokens, lines) in MODELS {
        for (mesh, microbatches) in [("tp=2", 1), ("tp=4", 1), ("dp=2 tp=2", 2)] {
            for lines in [lines, FOUND] {
                holds(name, &spec(name, mesh, microbatches, lines));
                let sequence = spec(name, mesh, microbatches, &[lines, &["sequence axis=tp"]].concat());
                if has_even_tokens {
                    holds(name, &sequence);
                } else {
                    let error = compiled(name, &sequence).expect_err("17 tokens are refused");
                    assert!(error.contains("which do not divide the 17 tokens"), "{error}");
                }
            }
        }
    }
}

/// Tolerances as in `gold.rs`.
fn holds(name: &str, text: &str) {
    let folder = folder("tensor");
    let (job, metrics) = (folder.join("job.shard"), folder.join("metrics.jsonl"));
    fs::write(&job, text).expect("the spec is written");
    let path = |file: &str| model(name).join(file).to_string_lossy().into_owned();
    let (job, metrics_path) = (job.to_string_lossy(), metrics.to_string_lossy());
    let [onnx, data] = ["model.onnx", "data.npz"].map(path);
    let arguments = ["train", &onnx, "--spec", &job, "--data", &data, "--steps", "12", "--metrics", &metrics_path];
    shardc(&folder, &arguments).expect(0);
    let gold: Value = serde_json::from_str(&fs::read_to_string(path("gold.json")).expect("gold")).expect("gold is JSON");
    let lines = fs::read_to_string(&metrics).expect("metrics are written");
    assert_eq!(lines.lines().count(), 12, "{name}");
    for (i, line) in lines.lines().enumerate() {
        let line: Value = serde_json::from_str(line).expect("a line is JSON");
        let number = |v: &Value| v.as_f64().expect("a number");
        let (expected, truth) = (number(&gold["float32"]["loss"][i]), number(&gold["float64"]["loss"][i]));
        let (noise, norm) = ((expected - truth).abs(), number(&gold["float64"]["grad_norm"][i]));
        let (found, found_norm) = (number(&line["loss"]), number(&line["grad_norm"]));
        assert!((found - truth).abs() <= 2e-5 + 20.0 * noise, "{name} step {i}: loss {found}, PyTorch {truth}\n{text}");
        let off = (found_norm - norm).abs();
        assert!(off <= norm * (1e-3 + 50.0 * noise), "{name} step {i}: norm {found_norm}, PyTorch {norm}\n{text}");
    }
}

/// Four blocks of two layers; around them the embedding's sum and the gradient behind the head, and
/// the statistics of cross entropy.
#[test]
fn a_block_is_reduced_twice_each_way_and_logits_stay_split() {
    for name in ["gpt2", "gpt2-folded"] {
        let program = compiled(name, &spec(name, "dp=2 tp=2", 2, GPT2)).expect("it compiles");
        let activation = 2 * 32 * 64;
        for task in ["F", "B"] {
            let sums =
                calls(&program, task).filter(|(_, call)| call.kind == CollectiveKind::AllReduce && call.counts == [activation]);
            let (of_blocks, others): (Vec<&Step>, Vec<&Step>) =
                sums.map(|(step, _)| step).partition(|s| s.provenance.reason.as_ref().is_some_and(|r| r.contains(".h.")));
            assert_eq!((of_blocks.len(), others.len()), (2 * 4, 1), "{name} {task}");
            let whole = |step: &&Step| program.buffers[step.writes[0].buffer.index()].shape.len() == 3;
            assert!(of_blocks.iter().all(whole), "{name} {task}: batch and tokens are merged");
            assert!(calls(&program, task).all(|(_, call)| call.kind == CollectiveKind::AllReduce), "{name} {task}");
        }
        let lines = [GPT2, &["sequence axis=tp"]].concat();
        let program = compiled(name, &spec(name, "dp=2 tp=2", 2, &lines)).expect("it compiles");
        for task in ["F", "B"] {
            let of = |kind: CollectiveKind| calls(&program, task).filter(move |(_, call)| call.kind == kind).count();
            let found = (of(CollectiveKind::ReduceScatter), of(CollectiveKind::AllGather), of(CollectiveKind::AllToAll));
            assert_eq!(found, (2 * 4 + 1, 2 * 4 + 1, 0), "{name} {task}");
        }
    }
}

#[test]
fn what_tensor_finds_sends_no_more_than_lines_by_hand() {
    for (name, _, lines) in MODELS {
        let sent = |lines: &[&str]| {
            let program = compiled(name, &spec(name, "dp=2 tp=2", 2, lines)).expect("it compiles");
            let bytes =
                |task: &str, times: u64| -> u64 { calls(&program, task).map(|(_, call)| times * call.bytes_sent(2)).sum() };
            bytes("F", 2) + bytes("B", 2) + bytes("update", 1)
        };
        let (found, written) = (sent(FOUND), sent(lines));
        assert!(found > 0 && found <= written, "{name}: {found} bytes found, {written} written");
    }
}
