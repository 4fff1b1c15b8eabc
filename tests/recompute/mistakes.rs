//! Mistakes in what a spec says of `recompute`: one message each, with its line and a way out.

use super::{Job, spec};

#[test]
fn specs_that_recompute_nothing_right() {
    let cases = [
        ("absent", "recompute \"*.h.9\"", "job.shard:7", "no module of the model matches `*.h.9`"),
        ("near", "recompute \"transformer.h.*\"", "job.shard:7", "no module of the model matches `transformer.h.*`"),
        ("both", "recompute selective\nrecompute \"*.h.*\"", "job.shard:8", "`recompute` says two things"),
        ("twice", "recompute budget=1GiB\nrecompute budget=2GiB", "job.shard:8", "`recompute` says two things"),
        ("small", "recompute budget=1MiB", "job.shard:7", "the least that was found is"),
        ("none", "recompute", "job.shard:7", "`recompute` needs a pattern, `selective` or `budget=`"),
        ("word", "recompute selectiv", "job.shard:7", "`recompute` must be `selective`"),
        ("unit", "recompute budget=8", "job.shard:7", "`budget` must be a size"),
        ("more", "recompute budget=8GiB selective", "job.shard:7", "unexpected `selective`"),
    ];
    for (name, lines, place, words) in cases {
        let text = spec("gpt2", "dp=1", 1, &format!("{lines}\n"));
        Job::new(&format!("mistake-{name}"), "gpt2", &text).refused(place, words);
    }
}
