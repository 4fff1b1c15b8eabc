//! `train --profile`: what it prints and writes.

use crate::support::{example, folder, shardc};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

#[test]
fn a_profile_has_every_launch_of_every_rank() {
    let here = folder("profile");
    let (model, spec, data) = (example("digits/model.onnx"), example("digits/dp2-tp2.shard"), example("digits/train.npz"));
    shardc(&here, &["compile", &model, "--spec", &spec, "-o", "p"]).expect(0);
    let train = |steps: &str, options: &[&str]| {
        shardc(&here, &[&["train", "p", "--data", &data, "--steps", steps, "--export", "t.onnx"], options].concat())
    };
    let plain = train("3", &[]).expect(0).out;
    assert_eq!(plain, "");
    let exported = fs::read(here.join("t.onnx")).expect("an export");
    let ran = train("3", &["--profile", "trace.json"]).expect(0);
    assert_eq!(exported, fs::read(here.join("t.onnx")).expect("an export"), "timing changes no bit");
    assert!(ran.out.contains("(means of 2 steps and 4 ranks); the peaks are "), "{}", ran.out);
    for word in ["form", "contract", "all_reduce", "GFLOP/s", "of peak", "ms waited", "scope", "fc2"] {
        assert!(ran.out.contains(word), "`{word}` in\n{}", ran.out);
    }
    shardc(&here, &["inspect", "p", "--format", "json", "-o", "p.json"]).expect(0);
    let json = |name: &str| -> Value { serde_json::from_slice(&fs::read(here.join(name)).expect("a file")).expect("JSON") };
    let trace = json("trace.json");
    let mut of_rank = BTreeMap::<u64, Vec<&Value>>::new();
    for event in trace["traceEvents"].as_array().expect("events") {
        of_rank.entry(event["tid"].as_u64().expect("a rank")).or_default().push(event);
    }
    assert_eq!(of_rank.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3]);
    let planned = json("p.json")["ranks"][0]["communication"].as_array().expect("calls").clone();
    let calls: u64 = planned.iter().map(|call| call["calls"].as_u64().expect("a number")).sum();
    for events in of_rank.values() {
        assert_eq!(events.iter().filter(|event| event["cat"] == "all_reduce").count() as u64, calls);
        assert!(events.iter().any(|event| event["args"]["flops"] == 2 * 32 * 64 * 64), "fc1 of 32 samples, half of 128 outputs");
        let number = |event: &Value, key: &str| event[key].as_f64().expect("a time");
        let in_order = |pair: &[&Value]| number(pair[0], "ts") + number(pair[0], "dur") <= number(pair[1], "ts") + 1e-3;
        assert!(events.windows(2).all(in_order), "one after another");
    }
    let ran = train("1", &["--profile", "t.onnx"]).expect(1);
    assert!(ran.err.contains("--profile"), "{}", ran.err);
}
