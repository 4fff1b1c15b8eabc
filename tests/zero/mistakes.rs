//! Mistakes in what a spec says of `zero`: one message each, with its line and a way out.

use super::{Job, spec};

#[test]
fn specs_that_cut_nothing_right() {
    let on = |mesh: &str, lines: &str| spec("gpt2", mesh, 1, &format!("{lines}\n"));
    let cases = [
        ("axis", on("dp=2 tp=2", "zero stage=1 axis=tp"), "job.shard:8", "`tp`, which does not split the batch"),
        ("split", on("dp=2", "shard \"*.c_fc.weight\" [-, dp]\nzero stage=1 axis=dp"), "job.shard:8", "`dp` splits"),
        (
            "shared",
            on("dp=2", "zero stage=1 axis=dp on=\"*.wte\"\nzero stage=3 axis=dp on=\"*.lm_head\""),
            "job.shard:8",
            "two things about \"model.lm_head.weight\"",
        ),
        (
            "inner",
            on("dp=2", "zero stage=3 axis=dp on=\"*.h.0.mlp\"\nzero stage=1 axis=dp on=\"*.h.0\""),
            "job.shard:8",
            "two things about \"model.transformer.h.0.mlp.c_fc.weight\" and 3 more",
        ),
        ("twice", on("dp=2", "zero stage=1 axis=dp\nzero stage=2 axis=dp"), "job.shard:8", "`zero` is given twice"),
        ("absent", on("dp=2", "zero stage=1 axis=dp on=\"*.h.9\""), "job.shard:7", "`*.h.9`"),
        ("stage", on("dp=2", "zero stage=4 axis=dp"), "job.shard:7", "`stage` cannot be `4`"),
        ("batch", on("dp=3", "zero stage=1 axis=dp"), "job.shard:2", "does not divide by 3"),
        (
            "eps",
            on("dp=3", "zero stage=1 axis=dp").replace("batch 8", "batch 9").replace("eps=1e-8", "eps=1e-50"),
            "job.shard:7",
            "divides the zeros that fill them up by eps=1e-50",
        ),
    ];
    for (name, spec, place, words) in cases {
        Job::new(&format!("mistake-{name}"), "gpt2", &spec).refused(place, words);
    }
}

/// What cannot be cut is said, not refused.
#[test]
fn sgd_has_nothing_to_cut_at_stage_1() {
    let spec = "mesh dp=2\nbatch 8\nloss cross_entropy logits=logits labels=y\noptimizer sgd lr=0.1\ndata axis=dp\n";
    let compiled =
        |stage: u64| Job::new(&format!("sgd-{stage}"), "gpt2", &format!("{spec}zero stage={stage} axis=dp\n")).compiled();
    let words = "zero          stage 1 over dp: nothing is cut, as the optimizer has no moments";
    assert!(compiled(1).contains(words), "{}", compiled(1));
    assert!(compiled(3).contains("zero          stage 3 over dp; 0.00 % of the shares is padding"), "{}", compiled(3));
}
