//! What ranks hold and send under ZeRO, by formulas.

use super::support::shardc;
use super::{Job, spec, zero};
use serde_json::Value;

/// The elements of gpt2's parameters.
const PARAMETERS: u64 = 218_496;

fn compiled(name: &str, mesh: &str, microbatches: u64, lines: &str) -> (Job, Value) {
    let job = Job::new(name, "gpt2", &spec("gpt2", mesh, microbatches, lines));
    job.compiled();
    let report = job.inspected();
    (job, report)
}

fn number(rank: &Value, what: &str) -> u64 {
    rank[what].as_u64().unwrap()
}

/// Per parameter 4 bytes of itself, 4 of its gradient and 8 of the optimizer; what is cut has a
/// part of each, and a rank that sums up whole gradients over micro-batches has its share of them
/// besides.
#[test]
fn state_is_shared_out() {
    let ranks = 4;
    for (stage, bytes) in [(0, 16 * ranks), (1, 8 * ranks + 12), (2, 4 * ranks + 12), (3, 16)] {
        let (_, report) = compiled(&format!("state-{stage}"), "dp=4", 2, &zero(stage, "dp"));
        for rank in report["ranks"].as_array().unwrap() {
            let held = ["parameter_bytes", "gradient_bytes", "optimizer_bytes"].map(|what| number(rank, what));
            assert_eq!(held.iter().sum::<u64>() * ranks, PARAMETERS * bytes, "stage {stage}: {held:?}");
        }
    }
}

/// The bytes that each rank sends for parameters or gradients over an axis, the least beside them.
fn sent(report: &Value, axis: &str, kind: &str, carries: &str) -> (u64, u64) {
    let of_rank = |rank: &Value| {
        let calls = rank["communication"].as_array().unwrap().iter();
        let own = calls.filter(|call| call["axis"] == axis && call["kind"] == kind && call["carries"] == carries);
        own.fold((0, 0), |(sent, least), call| (sent + number(call, "bytes_sent"), least + number(call, "least_bytes")))
    };
    let all: Vec<(u64, u64)> = report["ranks"].as_array().unwrap().iter().map(of_rank).collect();
    assert!(all.iter().all(|sent| *sent == all[0]));
    all[0]
}

/// Bytes of the parameters that the backward pass reads: matrices but the table of positions, and
/// what norms are scaled by.
fn read_backward(report: &Value) -> u64 {
    let buffers = report["programs"][0]["buffers"].as_array().unwrap().iter();
    let is_read = |buffer: &&Value| {
        let name = buffer["name"].as_str().unwrap();
        buffer["kind"] == "parameter" && name.ends_with(".weight") && !name.ends_with(".wpe.weight")
    };
    let elements = |buffer: &Value| buffer["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product::<u64>();
    buffers.filter(is_read).map(|buffer| 4 * elements(buffer)).sum()
}

#[test]
fn parameters_and_gradients_cost_what_the_formulas_say() {
    let all = 4 * PARAMETERS;
    for microbatches in [1, 2, 4] {
        for stage in 1..=3 {
            let name = format!("bytes-{stage}-{microbatches}");
            // Two ranks send half of what there is.
            let (job, report) = compiled(&name, "dp=2", microbatches, &zero(stage, "dp"));
            let gradients = if stage == 1 { all } else { microbatches * all };
            let parameters = if stage == 3 { microbatches * (all + read_backward(&report)) } else { all };
            let scattered = sent(&report, "dp", "reduce_scatter", "gradients");
            assert_eq!(scattered, (gradients / 2, gradients / 2), "{name}");
            let gathered = sent(&report, "dp", "all_gather", "parameters");
            assert_eq!(gathered, (parameters / 2, parameters / 2), "{name}");
            // What ranks count is what the plan says: a disagreement is an error.
            let check = shardc(&job.here, &["check", "plan", "--data", &job.data]).expect(0).out;
            let row = |kind: &str| check.lines().find(|line| line.contains(kind)).map(|line| line.split_whitespace().rev());
            for kind in [" all_gather ", " reduce_scatter "] {
                let numbers: Vec<u64> = row(kind).unwrap().take(2).map(|word| word.parse().unwrap()).collect();
                assert_eq!(numbers[0], numbers[1], "{check}");
            }
        }
    }
}

/// Gradients are scattered in a group, and their shares summed up over the groups.
#[test]
fn groups_sum_up_their_shares() {
    let (all, groups, ranks) = (4 * PARAMETERS, 2, 2);
    for stage in 1..=3 {
        let (_, report) = compiled(&format!("groups-{stage}"), "dp=2 fsdp=2", 2, &zero(stage, "fsdp"));
        let over_groups = sent(&report, "dp", "all_reduce", "gradients");
        let expected = 2 * (groups - 1) * (all / ranks) / groups;
        assert_eq!(over_groups, (expected, expected), "stage {stage}");
    }
}

/// Memory is what the plan says on every rank, and stage 3 has no more than its share of the state
/// and, of what is whole, two units of parameters and the gradients of a call.
#[test]
fn ranks_hold_their_share() {
    let of = |stage: u64| compiled(&format!("live-{stage}"), "dp=4", 1, &zero(stage, "dp"));
    let [(_, whole), (job, cut)] = [0, 3].map(of);
    let (whole, cut) = (&whole["ranks"][0], &cut["ranks"][0]);
    let state: u64 = ["parameter_bytes", "gradient_bytes", "optimizer_bytes"].map(|what| number(whole, what)).iter().sum();
    // A table of 256 tokens and a layer, 64 wide; all gradients fit one call.
    let (table, layer) = (256 * 64 * 4, 4 * (12 * 64 * 64 + 13 * 64));
    let bound = state / 4 + number(whole, "activation_bytes") + (table + layer) + 4 * PARAMETERS + table;
    assert!(number(cut, "peak_bytes") <= bound, "{cut} within {bound}");
    let check = shardc(&job.here, &["check", "plan", "--data", &job.data]).expect(0).out;
    let row = check.lines().skip_while(|line| !line.contains("held")).nth(1).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words[..2], ["4", "ranks"], "{check}");
    assert!(words[2..].iter().all(|bytes| *bytes == number(cut, "peak_bytes").to_string()), "{check}");
}
