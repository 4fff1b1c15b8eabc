//! What `inspect` shows of plans: the JSON has all that the listing has, fits its schema, and every
//! message has its line and its reason; the listing is short and within its width.

mod redraw;
mod schema;
#[path = "../support/mod.rs"]
mod support;

use redraw::{redrawn, words};
use schema::Schema;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use support::{folder, shardc};

const CLIPPED: &str = "optimizer adamw lr=0.001\nclip norm=1.0\n";

/// A model of `tests/models` with PyTorch's truth.
fn model(name: &str) -> String {
    format!("{}/tests/models/{name}/model.onnx", env!("CARGO_MANIFEST_DIR"))
}

/// A plan of `model` under `spec`, in the folder `p` of one of its own.
fn plan(name: &str, model: &str, spec: &str) -> PathBuf {
    let here = folder(&format!("inspect-{name}"));
    fs::write(here.join("job.shard"), spec).expect("the spec is written");
    shardc(&here, &["compile", model, "--spec", "job.shard", "-o", "p"]).expect(0);
    here
}

fn text(here: &Path, options: &[&str]) -> String {
    shardc(here, &[&["inspect", "p"], options].concat()).expect(0).out
}

fn json(here: &Path, options: &[&str]) -> Value {
    serde_json::from_str(&text(here, &[&["--format", "json"], options].concat())).expect("JSON")
}

/// The specs of `mesh` lines and what follows, for a model that has logits and labels.
fn spec(mesh: &str, microbatches: u64, lines: &str) -> String {
    format!("mesh {mesh}\nbatch 8 microbatches={microbatches}\nloss cross_entropy logits=logits labels=y\n{lines}{CLIPPED}")
}

const DP_TP: &str = "data axis=dp\ntensor axis=tp\n";

#[test]
fn the_json_alone_redraws_the_listing() {
    let jobs = [
        ("gpt2", "dp=2 tp=2", 2, DP_TP.to_string()),
        ("gpt2", "dp=2 tp=2", 2, format!("{DP_TP}sequence axis=tp\n")),
        ("llama", "tp=2 dp=2", 1, DP_TP.to_string()),
        ("bert", "dp=4", 2, "data axis=dp\n".to_string()),
        ("bert", "dp=4", 2, "data axis=dp\nzero stage=3 axis=dp\n".to_string()),
    ];
    for (i, (name, mesh, microbatches, lines)) in jobs.into_iter().enumerate() {
        let here = plan(&format!("redraw-{i}"), &model(name), &spec(mesh, microbatches, &lines));
        for rank in ["0", "3"] {
            let drawn = text(&here, &["--all", "--width", "100000", "--rank", rank]);
            let again = redrawn(&json(&here, &[]), rank.parse().expect("a number"));
            for (line, again) in drawn.lines().zip(again.lines()) {
                assert_eq!(words(line), words(again), "{name} on {mesh}");
            }
            assert_eq!(drawn.lines().count(), again.lines().count());
        }
    }
}

/// Every name that a step reads is that of one step's result, written before, or of a buffer that
/// no step has written; no two things have the same name.
#[test]
fn every_operand_leads_to_what_wrote_it() {
    let jobs = [
        ("gpt2", spec("dp=2 tp=2", 2, &format!("{DP_TP}sequence axis=tp\n"))),
        ("llama", spec("dp=2 tp=2", 2, DP_TP)),
        ("vit", spec("dp=2", 1, "data axis=dp\n")),
    ];
    for (name, spec) in jobs {
        let here = plan(&format!("operands-{name}"), &model(name), &spec);
        let report = json(&here, &[]);
        for program in list(&report["programs"]) {
            let buffers = list(&program["buffers"]);
            let mut written: BTreeMap<String, (u64, u64)> = BTreeMap::new();
            let mut leaves: BTreeMap<String, u64> = BTreeMap::new();
            let steps: Vec<&Value> = list(&program["tasks"]).iter().flat_map(|task| list(&task["steps"])).collect();
            for step in &steps {
                for write in list(&step["writes"]) {
                    let (value, place) = (string(&write["value"]), (number(&step["number"]), number(&write["buffer"])));
                    assert!(written.insert(value.clone(), place).is_none(), "{name}: two results are `{value}`");
                }
            }
            for step in &steps {
                for read in list(&step["reads"]) {
                    let (value, buffer) = (string(&read["value"]), number(&read["buffer"]));
                    match written.get(&value) {
                        // A sum of gradients is read after the last micro-batch, in a later task.
                        Some((writer, at)) => {
                            assert_eq!(*at, buffer, "{name}: `{value}` is read where it is");
                            assert!(*writer < number(&step["number"]), "{name}: `{value}` is read before it is written");
                        }
                        None => {
                            let leaf = &buffers[buffer as usize];
                            let kinds = ["parameter", "frozen", "moment", "statistic", "input", "constant", "scalar"];
                            assert!(kinds.contains(&string(&leaf["kind"]).as_str()), "{name}: `{value}` comes from nowhere");
                            assert_eq!(string(&leaf["name"]), value);
                            let other = leaves.insert(value.clone(), buffer);
                            assert!(other.is_none_or(|other| other == buffer), "{name}: two leaves are `{value}`");
                        }
                    }
                }
            }
            assert!(leaves.len() > 20 && written.len() > 200, "{name}: {} leaves, {} results", leaves.len(), written.len());
        }
    }
}

#[test]
fn the_json_of_every_gold_plan_fits_its_schema() {
    let schema = Schema::read(include_str!("../../docs/inspect.schema.json"));
    let sequence = format!("{DP_TP}sequence axis=tp\n");
    let jobs = [
        ("mlp", spec("dp=2", 2, "data axis=dp\n")),
        ("batchnorm", spec("dp=2", 1, "data axis=dp\n")),
        ("resnet", spec("dp=2", 1, "data axis=dp\n")),
        ("gpt2", spec("dp=2 tp=2", 2, &sequence)),
        ("gpt2-folded", spec("dp=2 tp=2", 1, DP_TP)),
        ("llama", spec("dp=2 tp=2", 2, DP_TP)),
        ("inception", spec("dp=2", 2, "data axis=dp\n")),
        ("vit", spec("dp=2 tp=2", 2, DP_TP)),
        ("bert", spec("dp=2 tp=2", 2, &sequence)),
        ("grouped", spec("dp=2", 1, "data axis=dp\n")),
        ("gpt2", spec("pp=2", 2, "pipeline axis=pp\n")),
        ("llama", spec("pp=2 tp=2", 4, "tensor axis=tp\npipeline axis=pp schedule=zb-h1\n")),
    ];
    for (i, (name, spec)) in jobs.into_iter().enumerate() {
        let here = plan(&format!("schema-{name}-{i}"), &model(name), &spec);
        for options in [&[][..], &["--program", "eval"], &["--program", "reference"], &["--rank", "1"]] {
            schema.check(&json(&here, options)).unwrap_or_else(|why| panic!("{name} {options:?}: {why}"));
        }
    }
    // It refuses what it should.
    let here = plan("schema-teeth", &model("mlp"), &spec("dp=2", 2, "data axis=dp\n"));
    let good = json(&here, &[]);
    let places =
        ["/world_size", "/ranks/0/peak_bytes", "/programs/0/tasks/0/steps/0/op", "/programs/0/rows/0/micro_batch", "/plan_hash"];
    for place in places {
        let mut bad = good.clone();
        *bad.pointer_mut(place).unwrap_or_else(|| panic!("{place} is there")) = Value::Bool(true);
        assert!(schema.check(&bad).is_err(), "{place}");
    }
    let mut bad = good.clone();
    bad["programs"][0]["rows"][0].as_object_mut().expect("an object").remove("run");
    assert!(schema.check(&bad).is_err(), "a row without `run`");
    bad = good;
    bad["more"] = Value::Null;
    assert!(schema.check(&bad).is_err(), "a key that nobody knows");
}

#[test]
fn every_message_has_its_line_and_its_reason() {
    let sequence = "tensor axis=tp\nsequence axis=tp\n";
    let specs = [
        ("dp", spec("dp=2", 2, "data axis=dp\n")),
        ("tp", spec("tp=2", 2, "tensor axis=tp\n")),
        ("sequence", spec("tp=2", 2, sequence)),
        ("all", spec("dp=2 tp=2", 1, &format!("data axis=dp\n{sequence}"))),
        ("no-clip", spec("dp=2 tp=2", 2, DP_TP).replace("clip norm=1.0\n", "")),
    ];
    for name in ["gpt2", "llama", "bert"] {
        for (kind, spec) in &specs {
            let here = plan(&format!("reasons-{name}-{kind}"), &model(name), spec);
            for program in [&[][..], &["--program", "eval"]] {
                let report = json(&here, program);
                let steps = list(&report["programs"][0]["tasks"]).iter().flat_map(|task| list(&task["steps"]));
                for step in steps.filter(|step| !step["message"].is_null()) {
                    let at = format!("{name} {kind} {program:?}: step {} {} {}", step["number"], step["op"], step["reason"]);
                    let line = step["spec_line"].as_u64().unwrap_or_else(|| panic!("{at} has no line"));
                    let asked = spec.lines().nth(line as usize - 1).unwrap_or_else(|| panic!("{at}: no line {line}"));
                    let reason = step["reason"].as_str().unwrap_or_else(|| panic!("{at}"));
                    let statement = asked.split(' ').next().expect("a word");
                    let fits = match reason {
                        "for the norm of all gradients (clip)" => statement == "clip",
                        "for the norm of all gradients" => ["tensor", "data"].contains(&statement),
                        "for the mean loss" | "for the sum of the loss" | "for the number of labels" | "for the loss" => {
                            ["data", "sequence", "tensor"].contains(&statement)
                        }
                        _ if reason.ends_with(" gradients") || reason.starts_with("gradient of \"") => {
                            ["data", "sequence"].contains(&statement)
                        }
                        _ => reason.starts_with("for \"") && ["data", "tensor", "sequence"].contains(&statement),
                    };
                    assert!(fits, "{at}, for the line `{asked}`");
                }
            }
        }
    }
}

#[test]
fn a_listing_is_short_and_loses_nothing() {
    let here = plan("short", &model("gpt2"), &spec("dp=2 tp=2", 2, DP_TP));
    let (short, all) = (text(&here, &[]), text(&here, &["--all"]));
    assert!(short.lines().count() <= 120, "{} lines\n{short}", short.lines().count());
    for width in ["80", "100", "160", "300"] {
        for options in [&["--width", width][..], &["--width", width, "--all"], &["--width", width, "--expand"]] {
            let widest = text(&here, options).lines().map(|line| line.chars().count()).max();
            assert!(widest <= width.parse().ok(), "{widest:?} columns of {options:?}");
        }
    }
    let widest = short.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(160), "{widest:?} columns");
    // Folds and groups cover each step once: the numbers of a listing are those of all steps.
    let report = json(&here, &[]);
    let steps = list(&report["programs"][0]["tasks"]).iter().map(|task| list(&task["steps"]).len()).sum::<usize>();
    assert_eq!(covered(&short), (0..steps).collect::<BTreeSet<usize>>());
    assert_eq!(covered(&text(&here, &["--expand"])), (0..steps).collect::<BTreeSet<usize>>());
    assert!(all.lines().count() > steps);
    assert!(short.contains(" 4 times the same 16 steps, model.transformer.h.0 to model.transformer.h.3; "), "{short}");
    let expanded = text(&here, &["--expand", "model.transformer.h.2"]);
    assert!(!expanded.contains("times the same") && expanded.lines().count() > short.lines().count() + 60, "{expanded}");
    let unknown = shardc(&here, &["inspect", "p", "--expand", "model.transformer.h.9"]).expect(1);
    assert!(unknown.err.contains("no module `model.transformer.h.9`"), "{}", unknown.err);
}

/// The numbers of steps that a listing has a line for, or a fold over.
fn covered(listing: &str) -> BTreeSet<usize> {
    let mut steps = BTreeSet::new();
    for line in listing.lines() {
        let range = line.split_whitespace().next();
        let Some(range) = range.filter(|_| line.starts_with("    ")) else { continue };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse(), last.parse::<usize>()) {
            steps.extend::<std::ops::RangeInclusive<usize>>(first..=last);
        }
    }
    steps
}

#[test]
fn layers_that_differ_are_not_one() {
    let folds = |name: &str, lines: &str| -> Vec<String> {
        let here = plan(name, &model("gpt2"), &spec("dp=2 tp=2", 2, lines));
        let folds = text(&here, &[]);
        let heads =
            folds.lines().filter_map(|line| line.trim().split_once(' ').filter(|(_, rest)| rest.contains(" times the same ")));
        heads.map(|(_, head)| head.split(';').next().expect("a head").to_string()).collect()
    };
    let fold = |times: u64, steps: u64, from: u64, to: u64| {
        format!("{times} times the same {steps} steps, model.transformer.h.{from} to model.transformer.h.{to}")
    };
    assert_eq!(folds("differ-none", DP_TP), [fold(4, 16, 0, 3), fold(4, 39, 3, 0)]);
    // A parameter of one layer is not trained.
    let lines = format!("{DP_TP}freeze \"model.transformer.h.1.mlp.c_fc.weight\"\n");
    assert_eq!(folds("differ-frozen", &lines), [fold(2, 16, 2, 3), fold(2, 39, 3, 2)]);
    // Two layers are split, two are whole.
    let whole = folds("differ-split", "data axis=dp\ntensor axis=tp on=\"*.h.0\"\ntensor axis=tp on=\"*.h.1\"\n");
    // Lines of the spec differ between the two that are split.
    assert_eq!(whole, [fold(2, 14, 2, 3), fold(2, 37, 3, 2)]);
}

#[test]
fn the_peak_is_told_by_kind_and_by_module() {
    let here = plan("peak", &model("gpt2"), &spec("dp=2 tp=2", 2, DP_TP));
    let report = json(&here, &[]);
    let (program, rank) = (&report["programs"][0], &report["ranks"][0]);
    let peak = &program["peak"];
    let sum = |key: &str| list(&peak[key]).iter().map(|part| number(&part["bytes"])).sum::<u64>();
    let bytes = number(&peak["bytes"]);
    assert_eq!((sum("kinds"), sum("scopes")), (bytes, bytes));
    assert!(bytes <= number(&rank["peak_bytes"]) && bytes > number(&rank["peak_bytes"]) * 9 / 10, "{bytes} bytes");
    let kind = |name: &str| {
        let part = list(&peak["kinds"]).iter().find(|part| part["name"] == name);
        part.map_or(0, |part| number(&part["bytes"]))
    };
    let held = |name: &str| number(&rank[name]);
    // Slots are padded to 64 bytes.
    assert!(kind("parameters") - held("parameter_bytes") < 64 * 60 && kind("optimizer") - held("optimizer_bytes") < 64 * 120);
    let layers: Vec<u64> = (0..4)
        .map(|layer| {
            let name = format!("model.transformer.h.{layer}");
            list(&peak["scopes"]).iter().find(|part| part["name"] == name).map_or(0, |part| number(&part["bytes"]))
        })
        .collect();
    assert!(layers.iter().all(|bytes| *bytes > 100 << 10), "{layers:?}");
    let step = number(&peak["step"]);
    let summary = shardc(&here, &["compile", &model("gpt2"), "--spec", "job.shard", "-o", "p"]).expect(0).out;
    let value = string(&peak["value"]);
    for part in [format!("most is live at step {step} (%{value} in "), "by kind: optimizer ".into(), "by module: model.".into()] {
        assert!(summary.contains(&part), "`{part}` in\n{summary}");
    }
    assert!(text(&here, &[]).contains(&format!("most is live at step {step} (%{value} in ")));
}

#[test]
fn operations_are_counted_as_the_formulas_have_them() {
    // A step of training on one rank: a product forward, two backward, but none for the data.
    let here = plan("flops", &model("mlp"), "batch 8\nloss cross_entropy logits=logits labels=y\noptimizer sgd lr=0.1\n");
    let report = json(&here, &[]);
    let program = &report["programs"][0];
    let mut of_contractions = 0;
    for step in list(&program["tasks"]).iter().flat_map(|task| list(&task["steps"])) {
        let flops = number(&step["flops"]);
        match string(&step["form"]).as_str() {
            "contract" => of_contractions += flops,
            "move" | "fill" | "gather" | "collective" => assert_eq!(flops, 0),
            "reduce" | "rowwise" => assert!(flops > 0, "{step}"),
            _ => {}
        }
        let touched: u64 = list(&step["reads"]).iter().chain(list(&step["writes"])).map(|o| number(&o["bytes"])).sum();
        assert_eq!(number(&step["bytes_touched"]), touched);
    }
    let weights = list(&program["buffers"]).iter().filter(|b| b["kind"] == "parameter" && list(&b["shape"]).len() == 2);
    let sizes: Vec<u64> = weights.map(|b| list(&b["shape"]).iter().map(number).product()).collect();
    assert_eq!(of_contractions, 8 * 2 * (3 * sizes.iter().sum::<u64>() - sizes[0]), "{sizes:?}");
    for task in list(&program["tasks"]) {
        assert_eq!(number(&task["flops"]), list(&task["steps"]).iter().map(|step| number(&step["flops"])).sum::<u64>());
    }
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list, not {value}"))
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number, not {value}"))
}

pub(crate) fn string(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("a text, not {value}")).to_string()
}

/// What calls and messages carry follows from buffers and from the words of reasons: in jobs that
/// have nothing else to send, nothing is taken for an activation.
#[test]
fn calls_say_what_they_carry() {
    let carried = |name: &str, model: &str, text: &str| -> BTreeSet<String> {
        let report = json(&plan(name, &self::model(model), text), &[]);
        let calls =
            report["ranks"].as_array().expect("ranks").iter().flat_map(|rank| rank["communication"].as_array().expect("calls"));
        calls.map(|call| call["carries"].as_str().expect("words").to_string()).collect()
    };
    let set = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<BTreeSet<String>>();
    let lamb = "batch 16\nloss cross_entropy logits=logits labels=y\noptimizer lamb lr=0.1\nclip norm=1.0\ndata axis=dp\n";
    let data = carried("carried-data", "resnet", &format!("mesh dp=2\n{lamb}zero stage=2 axis=dp\n"));
    assert_eq!(data, set(&["gradients", "loss", "norm", "parameters", "statistics", "update"]));
    let staged = carried("carried-stages", "gpt2", &spec("pp=2", 2, "pipeline axis=pp\n"));
    assert_eq!(staged, set(&["activations", "gradients", "norm", "parameters"]));
}

/// The gradient of logits is where the logits were.
#[test]
fn results_are_written_over_what_nobody_reads_any_more() {
    let here = plan("in-place", &model("gpt2"), &spec("dp=1", 1, ""));
    let program = &json(&here, &[])["programs"][0];
    let mut steps = program["tasks"].as_array().expect("tasks").iter().flat_map(|task| task["steps"].as_array().expect("steps"));
    let is_cross_entropy =
        |step: &&Value| step["op"].as_str().is_some_and(|op| op.starts_with("rows(") && op.contains("one_hot"));
    let cross_entropy = steps.find(is_cross_entropy).expect("a bundle");
    let largest = |operands: &str| {
        let views = cross_entropy[operands].as_array().expect("operands").iter();
        views.max_by_key(|view| view["bytes"].as_u64()).expect("some").clone()
    };
    let [logits, gradient] = ["reads", "writes"].map(largest);
    assert_eq!(logits["buffer"], gradient["buffer"]);
}
