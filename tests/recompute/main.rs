//! Recomputation as people run it: the bits of the same job without it, on every kind of mesh, what
//! ranks hold and send, and mistakes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../support/job.rs"]
mod job;
#[path = "../support/mod.rs"]
mod support;

mod mistakes;
mod size;

use job::{Job, bits, holds, spec};
use serde_json::Value;
use shardc_testkit::parallel;
use std::thread;
use support::shardc;

/// Each model with the line for its blocks.
const MODELS: [(&str, &str); 8] = [
    ("bert", "recompute \"*.layer.*\"\n"),
    ("gpt2", "recompute \"*.h.*\"\n"),
    ("gpt2-folded", "recompute \"*.h.*\"\n"),
    ("inception", "recompute \"mix.*\"\n"),
    ("llama", "recompute \"*.layers.*\"\n"),
    ("mlp", "recompute \"1\"\nrecompute \"3\"\n"),
    ("resnet", "recompute \"layers.*\"\n"),
    ("vit", "recompute \"*.layers.*\"\n"),
];

/// Meshes, micro-batches and lines that split up a job.
const MESHES: [(&str, u64, &str); 12] = [
    ("dp=1", 1, ""),
    ("dp=1", 4, ""),
    ("dp=2", 2, ""),
    ("tp=2", 1, "replicate axis=tp\n"),
    ("dp=2 tp=2", 2, "replicate axis=tp\n"),
    ("dp=2", 1, "zero stage=1 axis=dp\n"),
    ("dp=2", 2, "zero stage=2 axis=dp\n"),
    ("dp=2", 2, "zero stage=3 axis=dp\n"),
    ("pp=2", 2, "pipeline axis=pp schedule=gpipe\n"),
    ("pp=2", 4, "pipeline axis=pp schedule=1f1b\n"),
    ("pp=2", 4, "pipeline axis=pp schedule=zb-h1\n"),
    ("dp=2 pp=2", 2, "pipeline axis=pp schedule=interleaved(chunks=2)\nzero stage=3 axis=dp\n"),
];

/// The job of a model with these lines.
fn job(model: &str, (mesh, microbatches, lines): (&str, u64, &str), more: &str) -> Job {
    // Tests that run at the same time may have the same job.
    let test = thread::current().name().unwrap_or_default().to_string();
    let name = format!("{test}-{model}-{mesh}-{microbatches}-{lines}-{more}");
    let name = name.replace([' ', '=', '\n', '(', ')', ',', '"', '*', '.', ':'], "");
    let groups = if model == "resnet" && microbatches > 1 { "batchnorm statistics=microbatch\n" } else { "" };
    Job::new(&name, model, &spec(model, mesh, microbatches, &format!("{lines}{groups}{more}")))
}

#[test]
fn what_is_computed_again_has_the_bits_of_what_is_kept() {
    // Each model on some of the meshes, each mesh under some of the models.
    let is_tried = |i: usize, k: usize| (i + k).is_multiple_of(3) || MODELS[i].0 == "gpt2";
    let tried = |i: usize| (0..MESHES.len()).filter(move |k| is_tried(i, *k)).map(move |k| (MODELS[i], MESHES[k]));
    let cases: Vec<_> = (0..MODELS.len()).flat_map(tried).collect();
    parallel::map(cases.len(), |at| {
        let ((model, scopes), mesh) = cases[at];
        let kept = job(model, mesh, "").trained(2, &[]);
        for lines in [scopes, "recompute selective\n"] {
            let again = job(model, mesh, lines).trained(2, &[]);
            assert!(bits(&again) == bits(&kept), "{model} {mesh:?} {lines}");
        }
    });
}

#[test]
fn it_trains_as_pytorch_does() {
    for (model, scopes) in [("gpt2", "recompute \"*.h.*\"\n"), ("llama", "recompute selective\n")] {
        let (metrics, _) = job(model, ("dp=2", 2, "zero stage=3 axis=dp\n"), scopes).trained(12, &[]);
        holds(model, &metrics, model);
    }
}

/// The bytes that ranks hold are those of the plan, and their steps in one thread have its bits.
#[test]
fn ranks_hold_what_the_plan_says() {
    for (model, scopes) in [MODELS[1], MODELS[6]] {
        for mesh in [MESHES[2], MESHES[7], MESHES[10]] {
            let job = job(model, mesh, scopes);
            job.compiled();
            shardc(&job.here, &["verify", "plan"]).expect(0);
            let check = shardc(&job.here, &["check", "plan", "--data", &job.data, "--replay"]).expect(0).out;
            assert!(check.contains("the same bits"), "{check}");
        }
    }
}

/// Steps of a plan that are computed again, by task.
fn again(report: &Value) -> Vec<(String, Value)> {
    let mut all = vec![];
    for task in report["programs"].as_array().unwrap().iter().flat_map(|program| program["tasks"].as_array().unwrap()) {
        let steps = task["steps"].as_array().unwrap().iter().filter(|step| step["reason"] == "computed again");
        all.extend(steps.map(|step| (task["name"].as_str().unwrap().to_string(), step.clone())));
    }
    all
}
