//! What pipelines hold and send, by formulas.

use super::replay::{replayed, unit};
use super::{Job, holds, spec};
use serde_json::Value;
use std::fs;
use support::shardc;

use super::support;

fn sum(report: &Value, what: &str) -> u64 {
    report["ranks"].as_array().unwrap().iter().map(|rank| rank[what].as_u64().unwrap()).sum()
}

#[test]
fn stages_share_out_parameters_and_their_state() {
    for model in ["gpt2", "llama", "bert", "vit"] {
        let report = |mesh: &str| {
            let job = Job::new(&format!("state-{model}-{mesh}"), model, &spec(model, mesh, 2, "pipeline axis=pp\n"));
            job.compiled();
            job.inspected()
        };
        let [one, two] = ["pp=1", "pp=2"].map(report);
        for what in ["parameter_bytes", "gradient_bytes", "optimizer_bytes"] {
            assert_eq!(sum(&two, what), sum(&one, what), "{what} of {model}");
        }
    }
}

#[test]
fn memory_does_not_grow_with_micro_batches() {
    let held = |microbatches: u64| {
        let text = spec("llama", "pp=4", microbatches, "pipeline axis=pp\n");
        let text = text.replace("batch 8", &format!("batch {}", 2 * microbatches));
        let job = Job::new(&format!("memory-{microbatches}"), "llama", &text);
        job.compiled();
        let report = job.inspected();
        let of = |(rank, program): (&Value, &Value)| {
            let inputs = program["buffers"].as_array().unwrap().iter().filter(|buffer| buffer["kind"] == "input");
            let bytes = |buffer: &Value| buffer["bytes"].as_u64().unwrap() * buffer["slots"].as_u64().unwrap();
            rank["peak_bytes"].as_u64().unwrap() - inputs.map(bytes).sum::<u64>()
        };
        let (ranks, programs) = (report["ranks"].as_array().unwrap(), report["programs"].as_array().unwrap());
        ranks.iter().zip(programs).map(of).collect::<Vec<u64>>()
    };
    assert_eq!(held(8), held(64));
}

/// The bytes that each message of a plan has in a step, by sender, receiver and value.
fn messages(report: &Value) -> Vec<(u64, u64, String, u64, u64)> {
    let mut all: Vec<(u64, u64, String, u64, u64)> = vec![];
    for program in report["programs"].as_array().unwrap() {
        let from = program["positions"][0]["pp"].as_u64().unwrap();
        for message in program["rows"].as_array().unwrap().iter().filter_map(|row| row["exchange"].as_array()).flatten() {
            let Some(to) = message["to"].as_u64() else { continue };
            let (value, bytes) = (message["value"].as_str().unwrap(), message["bytes"].as_u64().unwrap());
            match all.iter_mut().find(|(a, b, name, ..)| (*a, *b, name.as_str()) == (from, to, value)) {
                Some((.., times, _)) => *times += 1,
                None => all.push((from, to, value.to_string(), 1, bytes)),
            }
        }
    }
    all
}

#[test]
fn a_border_costs_an_activation_each_way() {
    for microbatches in [2, 4] {
        let lines = "pipeline axis=pp cut=after(\"*.h.0\", \"*.h.1\", \"*.h.2\")\n";
        let job = Job::new(&format!("border-{microbatches}"), "gpt2", &spec("gpt2", "pp=4", microbatches, lines));
        job.compiled();
        // 8 samples of 32 tokens, 64 wide; the table of 256 tokens is the head's too.
        let (activation, table) = (8 / microbatches * 32 * 64 * 4, 256 * 64 * 4);
        let found = messages(&job.inspected());
        for s in 0..3 {
            for (from, to) in [(s, s + 1), (s + 1, s)] {
                let there = found.iter().filter(|(a, b, _, _, bytes)| (*a, *b) == (from, to) && *bytes == activation);
                assert_eq!(there.map(|(.., times, _)| *times).collect::<Vec<u64>>(), [microbatches], "{from} to {to}");
            }
        }
        let tables: Vec<_> =
            found.iter().filter(|(.., bytes)| *bytes == table).map(|(a, b, _, times, _)| (*a, *b, *times)).collect();
        assert_eq!(tables, [(0, 3, 1), (3, 0, 1)]);
        let rest: Vec<_> = found.iter().filter(|(.., bytes)| *bytes != activation && *bytes != table).collect();
        assert!(rest.iter().all(|(.., times, bytes)| *times == 1 && *bytes == 8), "the norm's: {rest:?}");
        let check = shardc(&job.here, &["check", "plan", "--data", &job.data]).expect(0).out;
        for line in check.lines().filter(|line| line.contains(" send ")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[words.len() - 2], words[words.len() - 1], "{line}");
        }
        assert_eq!(check.lines().filter(|line| line.contains(" send ")).count(), 4, "{check}");
    }
}

#[test]
fn branches_run_side_by_side() {
    let place = "pipeline axis=pp\nplace \"*\" stage=0\nplace \"mix.0.2\" stage=1\nplace \"mix.1.2\" stage=1\n";
    let job = Job::new("branches", "inception", &spec("inception", "pp=2", 1, place));
    let (metrics, _) = job.trained(12, &[]);
    holds("inception", &metrics, "branches");
    job.compiled();
    let report = job.inspected();
    let flops = |row: &Value| {
        let tasks = report["programs"].as_array().unwrap().iter().flat_map(|program| program["tasks"].as_array().unwrap());
        let mut own = tasks.filter(|task| task["name"] == row["run"] && task["stage"] == row["stage"]);
        own.next().unwrap()["flops"].as_f64().unwrap()
    };
    let (end, _) = replayed(&report, &flops, false).expect("no position waits for ever");
    let rows = report["programs"].as_array().unwrap().iter().flat_map(|program| program["rows"].as_array().unwrap());
    let all: f64 = rows.filter(|row| row["run"].is_string()).map(flops).sum();
    assert!(end < 0.9 * all, "{end} of {all}");
}

/// The cells of 1F1B on two positions.
const TABLE: &str = "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3\nF1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3\n";

#[test]
fn a_table_of_ones_own_is_a_schedule() {
    let hash = |name: &str, option: &str, table: &str| {
        let job = Job::new(name, "llama", &spec("llama", "pp=2", 4, &format!("pipeline axis=pp {option}\n")));
        fs::write(job.here.join("table.txt"), table).unwrap();
        job.compiled();
        let report = job.inspected();
        assert!(replayed(&report, &unit(false), true).is_some());
        report["plan_hash"].clone()
    };
    let rule = hash("table-rule", "schedule=1f1b", "");
    assert_eq!(hash("table-same", "custom=\"table.txt\"", TABLE), rule);
    let all_forward = "F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3\nF1.0 F1.1 F1.2 F1.3 B1.0 B1.1 B1.2 B1.3\n";
    assert_eq!(hash("table-gpipe", "custom=\"table.txt\"", all_forward), hash("table-gpipe-rule", "schedule=gpipe", ""));
    assert_ne!(hash("table-gpipe", "custom=\"table.txt\"", all_forward), rule);
}
