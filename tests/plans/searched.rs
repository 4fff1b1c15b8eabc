//! `shardc plan`: what a search finds is the best of all that it compares, each planned and
//! simulated without its estimates.

use crate::job::{Job, spec};
use crate::support::shardc;
use shardc::import::import;
use shardc::search::{Wish, search, specs};
use shardc::simulation::{Simulation, cluster};
use shardc_ir::graph::Graph;
use shardc_passes::{Context, Mode, check_axes};
use shardc_testkit::parallel;
use std::path::Path;

/// A model, its ranks, the memory of each, the cluster, and further lines of its spec.
const JOBS: [(&str, u64, &str, &str, &str); 20] = [
    ("mlp", 1, "1GB", "a100", ""),
    ("mlp", 2, "1GB", "a100", ""),
    ("mlp", 2, "1200KB", "h100", ""),
    ("mlp", 4, "1GB", "h100", ""),
    ("mlp", 8, "1GB", "h200", ""),
    ("mlp", 4, "700KB", "a100", ""),
    ("gpt2", 1, "1GB", "a100", ""),
    ("gpt2", 2, "1GB", "a100", ""),
    ("gpt2", 4, "1GB", "h100", ""),
    ("gpt2", 2, "2MB", "a100", ""),
    ("gpt2", 4, "1500KB", "h100", ""),
    ("gpt2", 2, "1GB", "h200", "precision compute=bf16\n"),
    ("llama", 4, "1GB", "h100", ""),
    ("llama", 2, "1GB", "a100", ""),
    ("llama", 2, "1GB", "h100", "precision compute=bf16 gradients=bf16\n"),
    ("bert", 2, "1GB", "a100", ""),
    ("bert", 4, "1GB", "h100", ""),
    ("vit", 2, "1GB", "a100", ""),
    ("resnet", 2, "1GB", "h100", ""),
    ("inception", 2, "1GB", "a100", ""),
];

/// The simulated seconds of the step that a spec asks for, if it can be planned and fits.
fn seconds(graph: &Graph, text: &str, memory: u64, wish: &Wish) -> Option<f64> {
    let spec = shardc_frontend::spec::parse(Path::new("one.shard"), text).ok()?;
    let cx = Context { spec: &spec, mode: Mode::Train, verify: false };
    let explicit = shardc_passes::run(graph.clone(), &cx).ok()?;
    check_axes(&explicit, &spec).ok()?;
    let set = shardc_passes::planning::plan(&explicit, &cx).ok()?;
    let simulation = Simulation::of_programs(&set, None, None, &wish.cluster).unwrap();
    (simulation.peak_bytes <= memory).then_some(simulation.seconds)
}

#[test]
fn the_best_of_all_is_found() {
    let estimated = parallel::map(JOBS.len(), |number| {
        let (model, ranks, memory, name, lines) = JOBS[number];
        let text = spec(model, "", 1, lines).replace("mesh \n", "");
        let job = Job::new(&format!("searched-{number}"), model, &text);
        let wish = Wish { ranks, memory: Some(memory.to_string()), cluster: cluster(name).unwrap(), threads: 2 };
        let (path, model) = (Path::new("job.shard"), Path::new(&job.model));
        let parsed = shardc_frontend::spec::parse(path, &text).unwrap();
        let graph = import(model, &parsed, true, false).unwrap().graph;
        let all = specs(model, path, &text, &wish).unwrap();
        let limit = shardc_frontend::spec::parse(path, &all[0]).unwrap().device_memory.unwrap().value;
        let times = all.iter().filter_map(|text| Some((seconds(&graph, text, limit, &wish)?, text)));
        let best = times.min_by(|a, b| a.0.total_cmp(&b.0));
        match (search(model, path, &text, &wish, |_| ()), best) {
            (Ok(found), Some((least, text))) => {
                let first = &found.best[0];
                println!("job {number}: {} ways, {} planned, {:.1} us", all.len(), found.planned, least * 1e6);
                assert_eq!(first.simulation.seconds, least, "job {number}: found\n{}\nbut there is\n{text}", first.spec);
                assert!(first.simulation.peak_bytes <= limit);
                assert!(found.best.windows(2).all(|pair| pair[0].simulation.seconds <= pair[1].simulation.seconds));
                found.planned < found.fitting
            }
            (found, best) => panic!("job {number}: {found:?} and {best:?}"),
        }
    });
    let estimated = estimated.into_iter().filter(|is_estimated| *is_estimated).count();
    assert!(estimated * 2 >= JOBS.len(), "estimates left something out in {estimated} of {} jobs only", JOBS.len());
}

#[test]
fn the_best_spec_compiles_to_what_was_promised() {
    let job = Job::new("searched-spec", "gpt2", &spec("gpt2", "", 1, "").replace("mesh \n", ""));
    let plan = ["plan", &job.model, "--spec", "job.shard", "--ranks", "4", "--memory", "1GB", "--cluster", "a100"];
    let ran = shardc(&job.here, &[&plan[..], &["-o", "best.shard", "--format", "json"]].concat()).expect(0);
    let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    shardc(&job.here, &["compile", &job.model, "--spec", "best.shard", "-o", "best", "--no-certificate"]).expect(0);
    let simulated = shardc(&job.here, &["simulate", "best", "--cluster", "a100", "--format", "json"]).expect(0);
    let simulated: serde_json::Value = serde_json::from_str(&simulated.out).unwrap();
    for name in ["seconds", "peak_bytes"] {
        assert_eq!(told["best"][0][name], simulated[name], "{name}");
    }
    let text = shardc(&job.here, &plan).expect(0).out;
    assert!(text.contains("the best as a spec:") && text.contains("mesh "), "{text}");
}

#[test]
fn a_spec_that_spreads_the_job_already_is_no_hindrance() {
    let lines = "shard \"*.c_fc.weight\" [tp, -]\n";
    let job = Job::new("searched-spread", "gpt2", &spec("gpt2", "dp=2 tp=2", 2, lines));
    let arguments = ["plan", &job.model, "--spec", "job.shard", "--ranks", "2", "--memory", "1GB", "-o", "best.shard"];
    shardc(&job.here, &arguments).expect(0);
    let best = std::fs::read_to_string(job.here.join("best.shard")).unwrap();
    assert!(best.contains("optimizer adamw") && !best.contains("c_fc"), "{best}");
}

#[test]
fn what_cannot_be_searched_is_told() {
    let job = Job::new("searched-wrong", "mlp", &spec("mlp", "", 1, "").replace("mesh \n", ""));
    let plan = |more: &[&str]| shardc(&job.here, &[&["plan", &job.model, "--spec", "job.shard", "--ranks", "2"], more].concat());
    let told = |more: &[&str], words: &str| {
        let ran = plan(more).expect(1);
        assert!(ran.err.contains(words), "{}", ran.err);
    };
    told(&["--memory", "1KB"], "nothing that was tried fits 2 ranks of 1000 B");
    told(&["--memory", "1KB"], "the least that was found is about");
    told(&["--memory", "much"], "must be a size");
    told(&["--cluster", "none.toml"], "the cluster cannot be read");
    std::fs::write(job.here.join("odd.toml"), "name = 1").unwrap();
    told(&["--cluster", "odd.toml"], "this is no cluster");
}
