//! Mistakes in what a spec says of pipelines: one message each, with its line and a way out.

use super::{Job, spec};
use std::fs;

/// Refused with these words at this place, and some help.
fn refused(name: &str, model: &str, spec: &str, table: &str, place: &str, words: &str) {
    let job = Job::new(&format!("mistake-{name}"), model, spec);
    fs::write(job.here.join("table.txt"), table).unwrap();
    job.refused(place, words);
}

#[test]
fn specs_that_no_pipeline_can_carry_out() {
    let on = |mesh: &str, microbatches: u64, line: &str| spec("gpt2", mesh, microbatches, &format!("{line}\n"));
    let cases = [
        ("unknown", on("pp=2", 4, "pipeline axis=pp cut=after(\"*.h.9\")"), "job.shard:6", "`*.h.9`"),
        ("order", on("pp=3", 4, "pipeline axis=pp cut=after(\"*.h.2\", \"*.h.1\")"), "job.shard:6", "does not end after"),
        ("number", on("pp=4", 4, "pipeline axis=pp cut=after(\"*.h.1\")"), "job.shard:6", "not 4"),
        ("many", on("pp=2", 4, "pipeline axis=pp schedule=interleaved(chunks=5000)"), "job.shard:6", "10000 stages"),
        ("groups", on("pp=2", 1, "pipeline axis=pp schedule=interleaved(chunks=2)"), "job.shard:2", "groups of 2"),
        ("one", on("pp=2", 1, "pipeline axis=pp schedule=zb-h1"), "job.shard:2", "several micro-batches"),
        ("data", on("dp=2", 4, "pipeline axis=dp"), "job.shard:6", "both `pipeline` and `data`"),
        ("tensor", on("tp=2", 4, "pipeline axis=tp"), "job.shard:6", "both `pipeline` and `tensor`"),
        ("zero", on("pp=2", 4, "pipeline axis=pp\nzero stage=1 axis=pp"), "job.shard:7", "both `pipeline` and `zero`"),
        (
            "shard",
            on("pp=2", 4, "pipeline axis=pp\nshard \"*.wte.weight\" [pp, -]"),
            "job.shard:7",
            "both `pipeline` and `shard`",
        ),
        ("beyond", on("pp=2", 4, "pipeline axis=pp\nplace \"*.h.1\" stage=2"), "job.shard:7", "no stage 2"),
        ("alone", on("pp=2", 4, "replicate axis=pp\nplace \"*.h.1\" stage=1"), "job.shard:7", "needs a `pipeline` line"),
        ("inside", on("pp=2", 4, "pipeline axis=pp\nplace \"*.h.1.attn.softmax\" stage=1"), "job.shard:7", "inside a form"),
        ("file", on("pp=2", 4, "pipeline axis=pp custom=\"absent.txt\""), "job.shard:6", "absent.txt"),
    ];
    for (name, spec, place, words) in cases {
        refused(name, "gpt2", &spec, "", place, words);
    }
    let statistics = spec("resnet", "pp=2", 2, "pipeline axis=pp\n");
    refused("statistics", "resnet", &statistics, "", "job.shard:2", "micro-batches");
}

#[test]
fn tables_that_are_none() {
    let good = ["F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.1"];
    let with = |first: &str, second: &str| format!("{first}\n{second}\n");
    let cases = [
        (
            "circle",
            with("F0.0 B0.0 F0.1 B0.1", "F1.1 B1.1 F1.0 B1.0").replace("F1.1 B1.1 F1.0 B1.0", "F1.0 F1.1 B1.0 B1.1"),
            "table.txt",
            "waits",
        ),
        ("descending", with("F0.0 F0.1 B0.1 B0.0", good[1]), "table.txt:1", "stands before"),
        ("lacks", with("F0.0 F0.1 B0.0", good[1]), "table.txt:1", "lacks `B0.1`"),
        ("cell", with("F0.0 F0.1 B0.0 G0.1", good[1]), "table.txt:1", "no cell"),
        ("short", format!("{}\n", good[0]), "table.txt:1", "1 line for 2 positions"),
        ("empty", String::new(), "table.txt", "0 lines for 2 positions"),
    ];
    for (name, table, place, words) in cases {
        let spec = spec("gpt2", "pp=2", 2, "pipeline axis=pp custom=\"table.txt\"\n");
        refused(&format!("table-{name}"), "gpt2", &spec, &table, place, words);
    }
}
