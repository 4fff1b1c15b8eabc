//! What ranks hold of a model that computes in bf16, by formulas.

use super::{Job, spec};
use serde_json::Value;

/// The elements of gpt2's matrices, of which products and lookups read rounded copies, and of its
/// vectors, which are read as they are.
const MATRICES: u64 = 215_040;
const VECTORS: u64 = 3_456;

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
            let expected = MATRICES * matrix + VECTORS * vector;
            assert_eq!(held.iter().sum::<u64>() * ranks, expected, "stage {stage}: {held:?}");
        }
    }
}

fn number(rank: &Value, what: &str) -> u64 {
    rank[what].as_u64().unwrap()
}
