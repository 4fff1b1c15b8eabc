//! ZeRO and its hybrids as people run them: the numbers of PyTorch, the bits of one rank, what
//! ranks hold and send by their formulas, and mistakes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../support/job.rs"]
mod job;
#[path = "../support/mod.rs"]
mod support;

mod mistakes;
mod size;

use job::{Job, bits, holds, spec};
use support::shardc;

const MODELS: [&str; 8] = ["bert", "gpt2", "gpt2-folded", "inception", "llama", "mlp", "resnet", "vit"];

/// The line that cuts over an axis.
fn zero(stage: u64, axis: &str) -> String {
    format!("zero stage={stage} axis={axis}\n")
}

/// Trains as PyTorch does.
fn trains(model: &str, mesh: &str, microbatches: u64, lines: &str) {
    let name = format!("{model}-{mesh}-{microbatches}-{lines}").replace([' ', '=', '\n', '(', ')', ','], "");
    let (metrics, _) = Job::new(&name, model, &spec(model, mesh, microbatches, lines)).trained(12, &[]);
    holds(model, &metrics, &name);
}

#[test]
fn every_stage_trains_as_pytorch_does() {
    for (i, model) in MODELS.into_iter().enumerate() {
        for stage in 1..=3 {
            let ranks = if (i as u64 + stage).is_multiple_of(2) { 2 } else { 4 };
            trains(model, &format!("dp={ranks}"), 1, &zero(stage, "dp"));
        }
    }
}

#[test]
fn hybrids_train_as_pytorch_does() {
    for model in ["gpt2", "llama"] {
        for (stage, microbatches) in [(1, 4), (2, 2), (3, 1)] {
            trains(model, "dp=2 tp=2", microbatches, &zero(stage, "dp"));
        }
        for (stage, microbatches) in [(1, 2), (2, 4), (3, 2)] {
            trains(model, "dp=2 pp=2", microbatches, &format!("pipeline axis=pp\n{}", zero(stage, "dp")));
        }
        for (stage, schedule) in [(2, "interleaved(chunks=2)"), (3, "zb-h1")] {
            trains(model, "dp=2 pp=2 tp=2", 4, &format!("pipeline axis=pp schedule={schedule}\n{}", zero(stage, "dp")));
        }
        for stage in 1..=3 {
            trains(model, "dp=2 fsdp=2", 2, &zero(stage, "fsdp"));
        }
        trains(model, "dp=2 fsdp=2", 1, &zero(3, "(dp,fsdp)"));
        trains(model, "dp=2 tp=2", 2, &format!("sequence axis=tp\n{}", zero(3, "dp")));
        let parts =
            format!("zero stage=1 axis=dp on=\"*.{}\"\n{}", if model == "gpt2" { "mlp" } else { "self_attn" }, zero(3, "dp"));
        trains(model, "dp=2", 2, &parts);
    }
}

/// Nothing divides by three, and yet every number is that of plain data parallelism.
#[test]
fn ranges_that_do_not_divide_have_the_bits_of_whole_ones() {
    let job = |stage: u64| {
        let text = spec("bert", "dp=3", 1, &zero(stage, "dp")).replace("batch 8", "batch 12").replace("clip norm=1.0\n", "");
        Job::new(&format!("bits-{stage}"), "bert", &text).trained(6, &[])
    };
    let whole = job(0);
    let ((losses, export), norms) = (bits(&whole), |job: &(Vec<serde_json::Value>, Vec<u8>)| {
        job.0.iter().map(|line| line["grad_norm"].as_f64().unwrap()).collect::<Vec<f64>>()
    });
    for stage in 1..=3 {
        let cut = job(stage);
        let (own, bytes) = bits(&cut);
        assert!(own.iter().zip(&losses).all(|(own, whole)| own[0] == whole[0]), "the losses of stage {stage}");
        assert!(bytes == export, "the export of stage {stage}");
        let is_near = |(own, whole): (&f64, &f64)| (own - whole).abs() <= 1e-6 * whole;
        assert!(norms(&cut).iter().zip(&norms(&whole)).all(is_near), "the norms of stage {stage}");
    }
}

#[test]
fn plans_are_checked_replayed_and_evaluated() {
    let lines = |stage| format!("pipeline axis=pp\n{}", zero(stage, "dp"));
    let job = |stage: u64| {
        let job = Job::new(&format!("plan-{stage}"), "llama", &spec("llama", "dp=2 pp=2", 2, &lines(stage)));
        job.compiled();
        shardc(&job.here, &["verify", "plan"]).expect(0);
        let check = shardc(&job.here, &["check", "plan", "--data", &job.data, "--replay"]).expect(0).out;
        assert!(check.contains("the same bits") && check.ends_with("the plan computes what its reference computes\n"), "{check}");
        shardc(&job.here, &["eval", "plan", "--data", &job.data, "--json"]).expect(0).out
    };
    let whole = job(0);
    assert!((1..=3).all(|stage| job(stage) == whole));
}
