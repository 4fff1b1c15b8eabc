//! Pipelines as people run them: the numbers of PyTorch, the bits of one rank, the order of tasks
//! as an outside program replays it, memory and messages by their formulas, branches side by side,
//! tables of one's own, and mistakes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../support/job.rs"]
mod job;
#[path = "../support/mod.rs"]
mod support;

mod given_up;
mod mistakes;
mod replay;
mod sent_first;
mod size;

use job::{Job, bits, holds, spec};
use serde_json::Value;
use std::fs;
use support::shardc;

/// The program's, with which graphs are compiled twice as fast.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[test]
fn pipelines_train_as_pytorch_does() {
    let mut jobs: Vec<(&str, &str, u64, &str)> = vec![("resnet", "pp=2", 1, "1f1b")];
    for model in ["gpt2", "llama"] {
        for schedule in ["gpipe", "1f1b", "zb-h1", "interleaved(chunks=2)"] {
            jobs.push((model, "pp=2", 4, schedule));
        }
        jobs.extend([(model, "pp=4", 8, "1f1b"), (model, "dp=2 pp=2 tp=2", 2, "1f1b")]);
    }
    for model in ["bert", "vit", "mlp", "inception"] {
        jobs.extend([(model, "pp=2", 2, "1f1b"), (model, "dp=2 pp=2", 2, "zb-h1")]);
    }
    for (model, mesh, microbatches, schedule) in jobs {
        let name = format!("{model}-{mesh}-{microbatches}-{schedule}").replace([' ', '='], "");
        let lines = format!("pipeline axis=pp schedule={schedule}\n");
        let (metrics, _) = Job::new(&name, model, &spec(model, mesh, microbatches, &lines)).trained(12, &[]);
        holds(model, &metrics, &name);
    }
}

#[test]
fn every_schedule_has_the_bits_of_one_position() {
    let job = |mesh: &str, schedule: &str, flags: &[&str]| {
        let name = format!("bits-{mesh}-{schedule}-{}", flags.concat()).replace('=', "");
        let spec = spec("llama", mesh, 4, &format!("pipeline axis=pp schedule={schedule}\n"));
        Job::new(&name, "llama", &spec).trained(8, &[&["--threads", "1"], flags].concat())
    };
    let one = job("pp=1", "1f1b", &[]);
    for (mesh, schedule) in
        [("pp=4", "gpipe"), ("pp=4", "1f1b"), ("pp=4", "zb-h1"), ("pp=2", "interleaved(chunks=2)"), ("pp=2", "1f1b")]
    {
        for flags in [&[][..], &["--strict"], &["--delays", "1ms", "--delay-seed", "3"]] {
            let many = job(mesh, schedule, flags);
            assert!(bits(&many) == bits(&one), "{mesh} {schedule} {flags:?}");
        }
    }
}

#[test]
fn evaluation_and_plans_agree_with_one_position() {
    let job = |mesh: &str| {
        let job = Job::new(&format!("plan-{mesh}"), "gpt2", &spec("gpt2", mesh, 4, "pipeline axis=pp\n"));
        job.compiled();
        let eval = shardc(&job.here, &["eval", "plan", "--data", &job.data, "--json"]).expect(0).out;
        let train = ["train", "plan", "--data", &job.data, "--steps", "12", "--metrics", "metrics.jsonl"];
        shardc(&job.here, &train).expect(0);
        let check = shardc(&job.here, &["check", "plan", "--data", &job.data, "--replay"]).expect(0).out;
        assert!(check.contains("the same bits") && check.ends_with("the plan computes what its reference computes\n"), "{check}");
        (serde_json::from_str::<Value>(&eval).unwrap(), fs::read_to_string(job.here.join("metrics.jsonl")).unwrap())
    };
    let [(one, _), (two, metrics)] = ["pp=1", "pp=2"].map(job);
    assert_eq!((&one["loss"], &one["labels"]), (&two["loss"], &two["labels"]));
    let metrics: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    holds("gpt2", &metrics, "train plan");
}
