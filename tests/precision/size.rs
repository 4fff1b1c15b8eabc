//! What ranks hold of a model that computes in bf16, by formulas.

use super::{Job, spec};
use serde_json::Value;

/// The elements of gpt2's matrices, and of the biases of rounded sums, of which rounded copies are
/// read, and of its other vectors, which are read as they are.
const MATRICES: u64 = 215_040 + 1_792;
const VECTORS: u64 = 3_456 - 1_792;

/// The elements of the table of positions: it is looked up once a step, and a whole copy is gone
/// then.
const POSITIONS: u64 = 2_048;

/// Source of the formulas: Rajbhandari et al., ZeRO (2020), where masters and moments are 12 bytes
/// of a parameter, and its copy and its gradient 2 each. A rank that sums up whole gradients over
/// micro-batches has its share of them besides.
#[test]
fn state_has_the_bytes_of_the_zero_paper() {
    let ranks = 4;
    for (stage, matrix, vector) in
        [(0, 16 * ranks, 14 * ranks), (1, 4 * ranks + 14, 6 * ranks + 10), (2, 2 * ranks + 14, 4 * ranks + 10), (3, 16, 14)]
    {
        let lines = format!("zero stage={stage} axis=dp\nprecision compute=bf16 gradients=bf16 master=f32\n");
        let job = Job::new(&format!("state-{stage}"), "gpt2", &spec("gpt2", "dp=4", 2, &lines));
        job.compiled();
        for rank in job.inspected()["ranks"].as_array().unwrap() {
            let held = ["parameter_bytes", "gradient_bytes", "optimizer_bytes"].map(|what: &str| number(rank, what));
            let copy = if stage == 3 { 0 } else { 2 * ranks };
            let expected = MATRICES * matrix + VECTORS * vector - POSITIONS * copy;
            assert_eq!(held.iter().sum::<u64>() * ranks, expected, "stage {stage}: {held:?}");
        }
    }
}

/// Copies are gathered once a step at stages 1 and 2, two bytes an element, and what is sent is the
/// least.
#[test]
fn copies_are_gathered_once_in_16_bits() {
    for stage in [1, 2] {
        let lines = format!("zero stage={stage} axis=dp\nprecision compute=bf16 gradients=bf16\n");
        let job = Job::new(&format!("sent-{stage}"), "gpt2", &spec("gpt2", "dp=2", 4, &lines));
        job.compiled();
        let report = job.inspected();
        let calls = report["ranks"][0]["communication"].as_array().unwrap();
        let gathered = calls.iter().find(|call| call["kind"] == "all_gather" && call["carries"] == "parameters").unwrap();
        // Two ranks send half of what there is; vectors are gathered as they were updated.
        let expected = (2 * MATRICES + 4 * VECTORS) / 2;
        assert_eq!(["bytes_sent", "least_bytes"].map(|what| number(gathered, what)), [expected; 2], "stage {stage}");
    }
}

fn number(rank: &Value, what: &str) -> u64 {
    rank[what].as_u64().unwrap()
}
