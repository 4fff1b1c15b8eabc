//! `shardc simulate`: what it says adds up, and follows from the cluster's numbers.

use crate::job::{Job, spec};
use crate::support::shardc;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

const MESHES: [(&str, u64, &str); 5] = [
    ("", 1, ""),
    ("dp=2", 1, ""),
    ("tp=2", 1, ""),
    ("pp=2", 4, "pipeline axis=pp schedule=1f1b\n"),
    ("dp=2", 1, "zero axis=dp stage=3\n"),
];

/// A cluster whose kernels take a second each, and whose calls take what `link` says.
fn cluster(overlap: bool, link: &str) -> String {
    format!(
        "name = \"made up\"\n[[device]]\noverlap = {overlap}\npeak = {{ f32 = 1e12 }}\n[[device.kernel]]\nstart = 1.0\n\
         flops = 1e30\nbytes = 1e30\n[[device.link]]\nname = \"cable\"\n{link}\n"
    )
}

const FREE: &str = "hop = 0.0\nbandwidth = 1e30";

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("no number `{name}` in {value}"))
}

#[test]
fn times_of_gpt2_add_up() {
    times_add_up("gpt2");
}

#[test]
fn times_of_resnet_add_up() {
    times_add_up("resnet");
}

#[test]
fn times_of_llama_add_up() {
    times_add_up("llama");
}

fn times_add_up(model: &str) {
    for (at, (mesh, microbatches, lines)) in MESHES.iter().enumerate() {
        let lines = if model == "resnet" { format!("batchnorm statistics=microbatch\n{lines}") } else { lines.to_string() };
        let job =
            Job::new(&format!("simulated-{model}-{at}"), model, &spec(model, mesh, *microbatches, &lines).replace("mesh \n", ""));
        shardc(&job.here, &["compile", &job.model, "--spec", "job.shard", "-o", "plan", "--no-certificate"]).expect(0);
        fs::write(job.here.join("one.toml"), cluster(false, FREE)).unwrap();
        fs::write(job.here.join("two.toml"), cluster(true, FREE)).unwrap();
        fs::write(job.here.join("slow.toml"), cluster(true, "hop = 0.0\nbandwidth = 1e3")).unwrap();
        let simulate = |cluster: &str| -> Value {
            let arguments = ["simulate", "plan", "--cluster", cluster, "--format", "json", "--trace", "trace.json"];
            serde_json::from_str(&shardc(&job.here, &arguments).expect(0).out).unwrap()
        };
        let told: Value =
            serde_json::from_str(&shardc(&job.here, &["inspect", "plan", "--format", "json"]).expect(0).out).unwrap();
        for cluster in ["one.toml", "two.toml", "slow.toml", "a100"] {
            let simulated = simulate(cluster);
            let seconds = number(&simulated, "seconds");
            for place in simulated["places"].as_array().unwrap().iter().chain([&simulated["mean"]]) {
                let sum: f64 = ["computing", "exposed", "idle"].iter().map(|name| number(place, name)).sum();
                assert!((sum / seconds - 1.0).abs() < 1e-6, "{model} {mesh} {cluster}: {sum} of {seconds}");
                assert!(number(place, "communicating") + 1e-9 >= number(place, "exposed"));
            }
            assert_eq!(number(&simulated, "world_size"), number(&told, "world_size"));
            in_order(&fs::read_to_string(job.here.join("trace.json")).unwrap(), seconds);
        }
        let (one, two, slow) = (simulate("one.toml"), simulate("two.toml"), simulate("slow.toml"));
        let launches: f64 =
            one["kinds"].as_array().unwrap().iter().filter(|kind| is_kernel(kind)).map(|k| number(k, "seconds")).sum();
        // Of kernels that take a second each the mean rank computes as long as it has launches.
        assert!((launches / number(&one["mean"], "computing") - 1.0).abs() < 1e-6, "{model} {mesh}");
        assert!(number(&two, "seconds") <= number(&one, "seconds") + 1e-6, "what overlaps takes no longer");
        assert!(number(&slow, "seconds") >= number(&two, "seconds"), "slow links make no step shorter");
    }
}

fn is_kernel(kind: &Value) -> bool {
    !["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "exchange"].contains(&kind["name"].as_str().unwrap())
}

/// In each row of a trace, events follow one another and end with the step.
fn in_order(trace: &str, seconds: f64) {
    let trace: Value = serde_json::from_str(trace).unwrap();
    let mut ends: BTreeMap<u64, f64> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X") {
        let (start, time) = (number(event, "ts"), number(event, "dur"));
        let end = ends.entry(event["tid"].as_u64().unwrap()).or_default();
        assert!(start >= *end - 1e-3, "an event begins at {start}, before the one ahead of it ends at {end}");
        *end = start + time;
    }
    let last = ends.values().copied().fold(0.0, f64::max);
    assert!((last / 1e6 / seconds - 1.0).abs() < 1e-6, "{last} us of {seconds} s");
}

#[test]
fn a_profile_stands_beside_the_simulation() {
    let job = Job::new("simulated-beside", "mlp", &spec("mlp", "dp=2", 1, ""));
    shardc(&job.here, &["compile", &job.model, "--spec", "job.shard", "-o", "plan", "--no-certificate"]).expect(0);
    let data = job.data.clone();
    let train = ["train", "plan", "--data", &data, "--steps", "5", "--profile", "profile.json", "--export", "out.onnx"];
    shardc(&job.here, &train).expect(0);
    let arguments = ["simulate", "plan", "--cluster", "h100", "--measured", "profile.json"];
    let text = shardc(&job.here, &arguments).expect(0).out;
    assert!(text.contains("measured") && text.contains("the step"), "{text}");
    fs::write(job.here.join("profile.json"), "{}").unwrap();
    let ran = shardc(&job.here, &arguments).expect(1);
    assert!(ran.err.contains("this is no profile"), "{}", ran.err);
}

#[test]
fn this_machine_is_a_cluster() {
    let job = Job::new("simulated-calibrated", "mlp", &spec("mlp", "dp=2", 1, ""));
    shardc(&job.here, &["compile", &job.model, "--spec", "job.shard", "-o", "plan", "--no-certificate"]).expect(0);
    shardc(&job.here, &["calibrate", "plan", "--ranks", "2", "--threads", "2", "-o", "here.toml"]).expect(0);
    let simulate =
        |format: &str| shardc(&job.here, &["simulate", "plan", "--cluster", "here.toml", "--format", format]).expect(0).out;
    let simulated: Value = serde_json::from_str(&simulate("json")).unwrap();
    assert!(number(&simulated, "seconds") > 0.0 && number(&simulated, "share_of_peak") < 1.0, "{simulated}");
    assert!(simulate("text").contains("this machine with 2 threads"));
}

#[test]
fn more_ranks_than_the_models_of_a_calibration_have_heads_are_measured() {
    let job = Job::new("simulated-wide", "mlp", "");
    let ran = shardc(&job.here, &["calibrate", "--ranks", "3", "--threads", "2", "-o", "here.toml"]).expect(0);
    assert!(ran.err.contains("left out: `tp` has 3 ranks"), "{}", ran.err);
    assert!(fs::read_to_string(job.here.join("here.toml")).unwrap().contains("ranks = 3"));
}

#[test]
fn a_wrong_cluster_is_told() {
    let job = Job::new("simulated-wrong", "mlp", &spec("mlp", "dp=2", 1, ""));
    shardc(&job.here, &["compile", &job.model, "--spec", "job.shard", "-o", "plan", "--no-certificate"]).expect(0);
    for (text, words) in [
        ("name = \"x\"\n", "missing field `device`"),
        ("name = \"x\"\ndevice = []\n", "it has no [[device]]"),
        (&*cluster(true, "hop = -1.0\nbandwidth = 1e9"), "`hop` of link `cable` is -1"),
        (&*cluster(true, "hop = 0.0\nbandwidth = 0.0"), "`bandwidth` of link `cable` is 0"),
        (&*cluster(true, "hop = 0.0\nbandwidth = 1.0\nranks = 1"), "must be a multiple of 1 above it"),
        (&*cluster(true, "hop = 0.0\nbandwidth = 1.0\nspeed = 1"), "unknown field `speed`"),
        (
            &*cluster(true, FREE).replace("[[device.kernel]]", "[[device.kernel]]\nforms = [\"kontract\"]"),
            "unknown variant `kontract`",
        ),
        (&*cluster(true, FREE).replace("overlap = true", "overlap = true\nranks = 3"), "it knows this machine with 3 ranks"),
    ] {
        fs::write(job.here.join("odd.toml"), text).unwrap();
        let ran = shardc(&job.here, &["simulate", "plan", "--cluster", "odd.toml"]).expect(1);
        assert!(ran.err.contains(words), "{words}: {}", ran.err);
    }
}
