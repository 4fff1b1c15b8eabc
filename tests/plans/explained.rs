//! `shardc explain` and `shardc diff`: each claim is held against what `inspect` says of the plans.

use crate::job::{Job, spec};
use crate::support::{example, folder, shardc};
use serde_json::Value;
use shardc::explanation::Explanation;
use shardc::plan_dir::{Trust, read};
use shardc_ir::programs::ProgramKind;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const MODELS: [&str; 8] = ["bert", "gpt2", "gpt2-folded", "inception", "llama", "mlp", "resnet", "vit"];

const MESHES: [(&str, u64, &str); 6] = [
    ("dp=2", 1, ""),
    ("tp=2", 1, ""),
    ("dp=2 tp=2", 2, ""),
    ("pp=2", 4, "pipeline axis=pp schedule=1f1b\n"),
    ("dp=2", 1, "zero axis=dp stage=3\n"),
    ("dp=4", 1, "zero axis=dp stage=1\n"),
];

/// A plan directory, and what `inspect` says of it.
struct Plan {
    path: PathBuf,
    told: Value,
}

/// Each model under each mesh that takes it.
fn plans() -> &'static [Vec<Plan>] {
    static PLANS: OnceLock<Vec<Vec<Plan>>> = OnceLock::new();
    PLANS.get_or_init(|| MODELS.map(plans_of).into())
}

fn plans_of(model: &str) -> Vec<Plan> {
    let plan = |(number, (mesh, microbatches, lines)): (usize, &(&str, u64, &str))| {
        let job = Job::new(&format!("{model}-{number}"), model, &spec(model, mesh, *microbatches, lines));
        let compile = ["compile", &job.model, "--spec", "job.shard", "-o", "plan", "--no-certificate", "--no-weights"];
        let ran = shardc(&job.here, &compile);
        if ran.code != 0 {
            assert_eq!(ran.code, 1, "{}", ran.err);
            println!("{model} does not take {mesh}: {}", ran.err);
            return None;
        }
        let told = json(&job.here, &["inspect", "plan", "--format", "json"]);
        Some(Plan { path: job.here.join("plan"), told })
    };
    MESHES.iter().enumerate().filter_map(plan).collect()
}

fn json(here: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&shardc(here, arguments).expect(0).out).unwrap()
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// The calls and the bytes of a rank by kind, axis and what they carry.
fn communication(rank: &Value) -> BTreeMap<[String; 3], [u64; 2]> {
    let text = |call: &Value, name: &str| call[name].as_str().unwrap().to_string();
    let number = |call: &Value, name: &str| call[name].as_u64().unwrap();
    let call = |call: &Value| {
        let key = ["kind", "axis", "carries"].map(|name| text(call, name));
        (key, ["calls", "bytes_sent"].map(|name| number(call, name)))
    };
    list(rank, "communication").iter().map(call).collect()
}

const HELD: [&str; 5] = ["peak_bytes", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes"];

/// Holds what is said of a rank of each plan against what `inspect` says of it.
fn rank_differs(told: &Value, ranks: [&Value; 2]) {
    let calls = ranks.map(communication);
    for (side, (rank, calls)) in ["a", "b"].into_iter().zip(ranks.iter().zip(&calls)) {
        HELD.iter().for_each(|name| assert_eq!(told[side][name], rank[name], "{side} {name}"));
        assert_eq!(told[side]["bytes_sent"], calls.values().map(|[_, bytes]| bytes).sum::<u64>(), "{side}");
    }
    let keys: BTreeSet<&[String; 3]> = calls.iter().flat_map(BTreeMap::keys).collect();
    let of = |side: usize, key: &[String; 3]| calls[side].get(key).copied().unwrap_or_default();
    let wanted: BTreeSet<([String; 3], [u64; 2], [u64; 2])> =
        keys.into_iter().map(|key| (key.clone(), of(0, key), of(1, key))).filter(|(_, a, b)| a != b).collect();
    let found = list(told, "calls").iter().map(|call| {
        let sent = |side: &str| ["calls", "bytes_sent"].map(|name| call[side][name].as_u64().unwrap());
        (["kind", "axis", "carries"].map(|name| call[name].as_str().unwrap().to_string()), sent("a"), sent("b"))
    });
    assert_eq!(found.collect::<BTreeSet<_>>(), wanted);
}

#[test]
fn differences_are_those_of_the_listings() {
    let mut compared = 0;
    for (model, plans) in MODELS.iter().zip(plans()) {
        for (a, b) in plans.iter().zip(plans.iter().skip(1)) {
            let paths = [&a.path, &b.path].map(|path| path.to_str().unwrap());
            let told = json(Path::new("."), &["diff", paths[0], paths[1], "--format", "json"]);
            assert_eq!(told["same"], a.told["plan_hash"] == b.told["plan_hash"]);
            let rank = |plan: &Plan, number: &Value| plan.told["ranks"][number.as_u64().unwrap() as usize].clone();
            for (side, plan) in [("a", a), ("b", b)] {
                let [own, its] = [&told[side], &plan.told];
                ["mesh", "world_size", "microbatches", "fullest_rank"].iter().for_each(|name| assert_eq!(own[name], its[name]));
                assert_eq!(own["peak_bytes"], rank(plan, &its["fullest_rank"])["peak_bytes"]);
                let sent = |rank: &Value| communication(rank).values().map(|[_, bytes]| bytes).sum::<u64>();
                assert_eq!(own["bytes_sent"], list(its, "ranks").iter().map(sent).sum::<u64>());
                let listing = shardc(Path::new("."), &["inspect", plan.path.to_str().unwrap()]).expect(0).out;
                let idle = format!("idle {:.1} % of a step", 100.0 * own["idle_share"].as_f64().unwrap());
                assert!(listing.contains(&idle) || own["idle_share"] == 0.0, "{idle}");
            }
            let mut seen = BTreeSet::new();
            for ranks in list(&told, "ranks") {
                for (of_a, of_b) in list(ranks, "of_a").iter().zip(list(ranks, "of_b")) {
                    rank_differs(ranks, [&rank(a, of_a), &rank(b, of_b)]);
                    seen.insert(of_a.as_u64().unwrap());
                }
            }
            // Of ranks that are not told of, nothing differs.
            if a.told["world_size"] == b.told["world_size"] {
                for (number, (one, other)) in list(&a.told, "ranks").iter().zip(list(&b.told, "ranks")).enumerate() {
                    let is_same = HELD.iter().all(|name| one[name] == other[name]) && communication(one) == communication(other);
                    assert_eq!(is_same, !seen.contains(&(number as u64)), "{model}: rank {number}");
                }
            }
            compared += 1;
        }
    }
    assert!(compared >= 36, "{compared} pairs");
}

/// Holds an explanation against the listing of its plan.
fn holds(plan: &Plan, explained: &Explanation) {
    let name = &explained.name;
    let programs = list(&plan.told, "programs");
    let steps = |program: &Value| list(program, "tasks").iter().flat_map(|task| list(task, "steps").to_vec()).collect::<Vec<_>>();
    let has = |operand: &Value| operand["value"] == name.as_str();
    for program in programs {
        if let Some(buffer) = list(program, "buffers").iter().find(|buffer| buffer["name"] == name.as_str()) {
            let count = |of: &str| list(buffer, of).iter().map(|size| size.as_u64().unwrap()).product::<u64>();
            let (dtype, sizes) = (buffer["dtype"].as_str().unwrap(), &buffer["shape"]);
            let shape: Vec<u64> = serde_json::from_value(sizes.clone()).unwrap();
            assert!(explained.tensor.starts_with(&format!("{dtype}{shape:?}")), "{name}: {}", explained.tensor);
            let size = match dtype {
                "f64" | "i64" => 8,
                "bool" => 1,
                _ => 4,
            };
            assert_eq!((explained.bytes, explained.local_bytes), (count("shape") * size, count("local") * size), "{name}");
        }
        // No call that reads or writes it is left out.
        for step in steps(program).iter().filter(|step| !step["message"].is_null()) {
            let touches = list(step, "reads").iter().chain(list(step, "writes")).any(has);
            let is_told = explained.calls.iter().any(|call| call.step == step["number"].as_u64().map(|number| number as usize));
            assert!(is_told || !touches, "{name}: step {} is not told", step["number"]);
        }
    }
    for call in explained.calls.iter().filter(|call| call.step.is_some()) {
        let found = programs.iter().flat_map(steps).find(|step| {
            let message = serde_json::json!({ "kind": call.kind, "axes": call.axes, "bytes_sent": call.bytes_sent });
            step["number"].as_u64().map(|number| number as usize) == call.step && step["message"] == message
        });
        let step = found.unwrap_or_else(|| panic!("{name}: {call:?} is in no listing"));
        assert_eq!(
            (step["reason"].as_str(), step["spec_line"].as_u64()),
            (call.reason.as_deref(), call.spec_line.map(u64::from))
        );
    }
    let text = fs::read_to_string(plan.path.join("job.shard")).unwrap();
    for axis in explained.axes.iter().filter(|axis| !axis.chain.is_empty()) {
        let line = axis.spec_line.unwrap_or_else(|| panic!("{name}: no line has asked for {axis:?}"));
        assert_eq!(axis.spec.as_deref(), text.lines().nth(line as usize - 1), "{name}");
        let first = &axis.chain[0];
        assert!(first.value == *name || first.op == format!("state {name:?}"), "{name}: {first:?}");
    }
}

#[test]
fn explanations_are_what_the_listings_say() {
    let mut explained = 0;
    for plans in plans() {
        for plan in plans {
            let opened = read(&plan.path, Trust::Graphs).unwrap();
            let graph = opened.graph(ProgramKind::Train).unwrap();
            let states = graph.states.iter().map(|state| state.name.clone());
            let values = graph.values().map(|(_, value)| value.name.to_string()).collect::<Vec<_>>();
            for name in states.step_by(4).chain(values.into_iter().step_by(67)) {
                let found = Explanation::of(&opened, ProgramKind::Train, &name).unwrap();
                assert_eq!(found.name, name);
                holds(plan, &found);
                explained += 1;
            }
        }
    }
    assert!(explained > 500, "{explained} tensors");
}

/// A split is explained by the line that asked for it, and goes with that line.
#[test]
fn lines_are_what_calls_go_with() {
    let here = folder("explained-lines");
    let text = fs::read_to_string(example("digits/dp2-tp2.shard")).unwrap();
    let explained = |name: &str, without: &[u64], axis: &str| {
        let kept = (1..).zip(text.lines()).filter(|(number, _)| !without.contains(number));
        let mut kept: String = kept.map(|(_, line)| format!("{line}\n")).collect();
        if !without.is_empty() {
            kept.push_str(&format!("replicate axis={axis}\n"));
        }
        fs::write(here.join("job.shard"), kept).unwrap();
        let compile = ["compile", &example("digits/model.onnx"), "--spec", "job.shard", "-o", "plan"];
        shardc(&here, &compile).expect(0);
        json(&here, &["explain", "plan", name, "--format", "json"])
    };
    for (name, axis, spec) in [
        ("fc2.weight", "tp", "shard \"fc2.weight\" [-, tp]"),
        ("/fc2/Gemm_output_0.contract", "tp", "shard \"fc2.weight\" [-, tp]"),
        ("/relu1/Relu_output_0", "tp", "shard \"fc1.weight\" [tp, -]"),
        ("/relu1/Relu_output_0", "dp", "data axis=dp"),
    ] {
        let told = explained(name, &[], "");
        let on = list(&told, "axes").iter().find(|on| on["axis"] == axis).unwrap();
        assert_eq!(on["spec"], spec, "{name}: {on}");
    }
    for name in ["fc2.weight", "/fc2/Gemm_output_0.contract"] {
        let calls = |told: &Value| list(told, "calls").iter().map(|call| call["axes"][0].to_string()).collect::<Vec<_>>();
        let told = explained(name, &[], "");
        let [call] = list(&told, "calls") else { panic!("{name}: {told}") };
        let lines: Vec<u64> = list(call, "lines").iter().map(|line| line.as_u64().unwrap()).collect();
        assert!(lines.contains(&call["spec_line"].as_u64().unwrap()) && !call["remedy"].is_null(), "{call}");
        let axis = call["axes"][0].as_str().unwrap();
        let without = explained(name, &lines, axis);
        assert!(!calls(&without).contains(&format!("{axis:?}")), "{name} without lines {lines:?}: {without}");
    }
    // Whatever kind of line asked for a call, without it there is none of its kind.
    let rest = "batch 64 microbatches=2\nloss cross_entropy logits=logits labels=y\noptimizer adamw lr=0.01\n";
    for (lines, line, without, name, kind) in [
        ("mesh dp=2\ndata axis=dp\nzero axis=dp stage=3\n", 3, "", "fc2.weight", "all_gather"),
        ("mesh pp=2\npipeline axis=pp cut=after(\"*.relu1\")\n", 2, "replicate axis=pp\n", "/relu1/Relu_output_0", "send"),
    ] {
        let told = |lines: &str| {
            fs::write(here.join("job.shard"), format!("{lines}{rest}")).unwrap();
            shardc(&here, &["compile", &example("digits/model.onnx"), "--spec", "job.shard", "-o", "plan"]).expect(0);
            json(&here, &["explain", "plan", name, "--format", "json"])
        };
        let of_kind = |told: &Value| list(told, "calls").iter().filter(|call| call["kind"] == kind).cloned().collect::<Vec<_>>();
        let calls = of_kind(&told(lines));
        assert!(!calls.is_empty(), "{name}: no {kind}");
        assert!(calls.iter().all(|call| call["spec_line"] == line && !call["remedy"].is_null()), "{calls:?}");
        let kept = lines.lines().enumerate().filter(|(at, _)| at + 1 != line).map(|(_, line)| format!("{line}\n"));
        assert!(of_kind(&told(&(kept.collect::<String>() + without))).is_empty(), "{name} without line {line}");
    }
    let unknown = shardc(&here, &["explain", "plan", "fc2.wait"]).expect(1);
    assert!(unknown.err.contains("no tensor `fc2.wait`") && unknown.err.contains("`fc2.weight`"), "{}", unknown.err);
}
