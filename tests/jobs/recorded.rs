//! Exports that carry PyTorch's record of their parameters, `tests/recorded`: without the
//! exporter's optimizer each net trains as in PyTorch, by the record alone; behind it each trains
//! so too, or is refused with the names of what it has lost.

use crate::support::{Ran, folder, shardc};
use serde_json::Value;
use shardc_frontend::initializers::Decision;
use shardc_frontend::onnx::{ImportOptions, import};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const NETS: [&str; 10] = ["gpt2", "batchnorm", "affine-free", "towers", "encoder", "lstm", "vit", "buffers", "parts", "padding"];

/// Relative differences of f32 from f64.
const TOLERANCE: f64 = 1e-5;

/// An export of a net.
struct Net {
    name: &'static str,
    /// `plain`, `default` or `random`.
    export: &'static str,
    gold: Value,
}

impl Net {
    fn new(name: &'static str, export: &'static str) -> Net {
        let gold = fs::read_to_string(home().join(name).join("gold.json")).expect("the truth");
        Net { name, export, gold: serde_json::from_str(&gold).expect("JSON") }
    }

    fn path(&self) -> PathBuf {
        home().join(self.name).join(format!("{}.onnx", self.export))
    }

    fn data(&self) -> PathBuf {
        home().join(self.name).join("data.npz")
    }

    /// The parameters that it lacks.
    fn lost(&self) -> Vec<&str> {
        let lost = self.gold["lost"][self.export].as_array();
        assert!(lost.is_some() || self.export == "plain");
        lost.into_iter().flatten().map(|name| name.as_str().expect("a name")).collect()
    }

    fn spec(&self, lines: &str) -> String {
        format!("batch 8\n{}\noptimizer adamw lr=1e-3\n{lines}", self.gold["loss"].as_str().expect("a line"))
    }

    /// Runs `shardc` with `command`, the model at `path`, a spec and `more`.
    fn run(&self, here: &Path, command: &str, path: &Path, spec: &str, more: &[&str]) -> Ran {
        fs::write(here.join("job.shard"), spec).expect("a spec");
        shardc(here, &[&[command, &text(path), "--spec", "job.shard"], more].concat())
    }

    fn train(&self, here: &Path, spec: &str) -> Ran {
        let more =
            ["--data", &text(&self.data()), "--steps", "5", "--threads", "2", "--metrics", "m.jsonl", "--export", "trained.onnx"];
        self.run(here, "train", &self.path(), spec, &more)
    }

    fn loss(&self, here: &Path, path: &Path, spec: &str) -> f64 {
        let ran = self.run(here, "eval", path, spec, &["--data", &text(&self.data()), "--json"]).expect(0);
        number(&serde_json::from_str::<Value>(&ran.out).expect("JSON")["loss"])
    }

    /// Trains as PyTorch does.
    fn holds(&self, here: &Path, lines: &str) {
        let spec = self.spec(lines);
        let at = format!("{}/{}.onnx under\n{spec}", self.name, self.export);
        let ran = self.train(here, &spec);
        assert_eq!(ran.code, 0, "{at}\n{}", ran.err);
        let truth = &self.gold[if self.export == "random" { "random" } else { "fresh" }];
        let metrics = fs::read_to_string(here.join("m.jsonl")).expect("metrics");
        assert_eq!(metrics.lines().count(), 5, "{at}");
        for (step, line) in metrics.lines().enumerate() {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let (rounded, loss) = (number(&truth["float32"]["loss"][step]), number(&truth["float64"]["loss"][step]));
            let norm = number(&truth["float64"]["grad_norm"][step]);
            let (found, found_norm) = (number(&line["loss"]), number(&line["grad_norm"]));
            // A batch normalisation's gradient is a small difference of large terms.
            let noise = (rounded - loss).abs();
            let (near, near_norm) = match self.name {
                "batchnorm" | "affine-free" => (2e-5 + 20.0 * noise, norm * (1e-3 + 50.0 * noise)),
                _ => (TOLERANCE * loss.abs(), TOLERANCE * norm),
            };
            assert!((found - loss).abs() <= near, "{at}: loss {found} at step {step}, PyTorch {loss}");
            assert!((found_norm - norm).abs() <= near_norm, "{at}: gradient norm {found_norm} at step {step}, PyTorch {norm}");
        }
    }
}

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// The decision about each initializer of the model at `path`.
fn decisions(path: &Path) -> Vec<Decision> {
    import(path, &ImportOptions { batch: Some(8), ..ImportOptions::default() }).expect("a model").decisions
}

const MESHES: [&str; 2] = ["", "mesh dp=2\ndata axis=dp\n"];

/// Lost parameters that a refusal names.
const LISTED: usize = 20;

#[test]
fn without_the_exporters_optimizer_every_net_trains_as_in_pytorch() {
    for name in NETS {
        let net = Net::new(name, "plain");
        let decisions = decisions(&net.path());
        let trained: BTreeSet<&str> = decisions.iter().filter(|d| d.trained).map(|d| d.name.as_str()).collect();
        let names = net.gold["parameters"].as_array().expect("names").iter().map(|name| name.as_str().expect("a name"));
        // The exporter calls a tied parameter by its last name.
        let tied = |name| match name {
            "model.transformer.wte.weight" => "model.lm_head.weight",
            "table.weight" => "head.weight",
            _ => name,
        };
        assert_eq!(trained, names.map(tied).collect(), "{name}");
        for mesh in MESHES {
            net.holds(&folder(&format!("recorded-plain-{name}")), mesh);
        }
    }
}

#[test]
fn behind_the_exporters_optimizer_a_net_trains_as_in_pytorch_or_names_what_it_lost() {
    let mut trained = vec![];
    for name in NETS {
        for export in ["default", "random"] {
            let net = Net::new(name, export);
            let here = folder(&format!("recorded-{export}-{name}"));
            let lost = net.lost();
            if lost.is_empty() {
                MESHES.iter().for_each(|mesh| net.holds(&here, mesh));
                trained.push((name, export));
                continue;
            }
            let ran = net.train(&here, &net.spec("")).expect(1);
            assert!(ran.err.contains(&format!("error: the export has lost {} of the ", lost.len())), "{}", ran.err);
            let names: Vec<&str> = ran.err.split("= help:").next().unwrap_or_default().split('`').skip(1).step_by(2).collect();
            assert_eq!(names, lost[..lost.len().min(LISTED)], "{name}/{export}.onnx");
            assert_eq!(ran.err.contains(&format!("… and {} more", lost.len().saturating_sub(LISTED))), lost.len() > LISTED);
            let (first, second) = (ran.err.find("optimize=False"), ran.err.find("accept lost=parameters"));
            assert!(first.is_some() && first < second, "{}", ran.err);
            assert_eq!(ran.err.matches("error").count(), 1, "{}", ran.err);
            // The class token, written once for each sample, can train in no batch.
            let frozen = if name == "vit" { "freeze \"expand\"\n" } else { "" };
            let accepting = net.spec(&format!("accept lost=parameters\n{frozen}"));
            net.run(&here, "compile", &net.path(), &accepting, &["-o", "plan"]).expect(0);
        }
    }
    let fresh = trained.iter().filter(|(_, export)| *export == "default").map(|(name, _)| *name);
    assert!(fresh.eq(["lstm", "padding"]));
    let random = trained.iter().filter(|(_, export)| *export == "random").map(|(name, _)| *name);
    assert!(random.eq(["gpt2", "encoder", "lstm", "buffers", "padding"]));
}

/// Tools that shrink a file leave out the calls. A tied parameter is still known by its second name
/// in a file that no optimizer has touched, and nothing lost is taken for one.
#[test]
fn a_record_without_calls_tells_ties_or_refuses() {
    let mut known = vec![];
    for name in NETS {
        for export in ["plain", "default", "random"] {
            let net = Net::new(name, export);
            let here = folder(&format!("recorded-silent-{name}-{export}"));
            let (key, gone) = (b"pkg.torch.onnx.fx_node", b"pkg.torch.onnx.fx_gone");
            let mut bytes = fs::read(net.path()).expect("a model");
            while let Some(at) = bytes.windows(key.len()).position(|part| part == key) {
                bytes[at..at + key.len()].copy_from_slice(gone);
            }
            fs::write(here.join("model.onnx"), bytes).expect("a model");
            let ran = net.run(&here, "compile", &here.join("model.onnx"), &net.spec(""), &["-o", "plan"]);
            if ran.code == 0 {
                assert!(net.lost().is_empty(), "{name}/{export}.onnx has lost {:?}", net.lost());
                known.push((name, export));
            } else {
                assert!(ran.err.contains("error: the export has lost "), "{}", ran.err);
            }
            if (ran.code, export) == (0, "plain") {
                assert_eq!(decisions(&here.join("model.onnx")), decisions(&net.path()), "{name}");
            }
        }
    }
    assert!(known.contains(&("gpt2", "plain")) && !known.contains(&("gpt2", "default")), "{known:?}");
}

#[test]
fn for_evaluation_nothing_is_lost() {
    for name in NETS {
        let (plain, default) = (Net::new(name, "plain"), Net::new(name, "default"));
        let here = folder(&format!("recorded-eval-{name}"));
        let [expected, found] = [&plain, &default].map(|net| net.loss(&here, &net.path(), &net.spec("")));
        assert!((found - expected).abs() <= TOLERANCE * expected.abs(), "{name}: {found}, and {expected} of the plain export");
    }
}

/// The record survives training, so that what was trained trains on: the same tensors, from where
/// they are.
#[test]
fn a_trained_model_is_accepted_again() {
    for (name, export) in NETS.map(|name| (name, "plain")).into_iter().chain([("gpt2", "random"), ("lstm", "default")]) {
        let net = Net::new(name, export);
        let here = folder(&format!("recorded-again-{name}-{export}"));
        let spec = net.spec("");
        net.train(&here, &spec).expect(0);
        let trained = here.join("trained.onnx");
        assert_eq!(decisions(&trained), decisions(&net.path()), "{name}/{export}.onnx");
        let (before, after) = (net.loss(&here, &net.path(), &spec), net.loss(&here, &trained, &spec));
        assert_ne!(before, after, "{name}/{export}.onnx has moved");
        let more = ["--data", &text(&net.data()), "--steps", "5", "--threads", "2", "--metrics", "m.jsonl"];
        net.run(&here, "train", &trained, &spec, &more).expect(0);
    }
}

/// Whether a tensor is a parameter's does not depend on the values that training begins from.
#[test]
fn first_values_of_the_spec_lose_nothing() {
    for (name, export) in [("gpt2", "random"), ("lstm", "random")] {
        let net = Net::new(name, export);
        let here = folder(&format!("recorded-init-{name}"));
        net.train(&here, &net.spec("init \"*\" auto\n")).expect(0);
        assert_eq!(decisions(&here.join("trained.onnx")), decisions(&net.path()), "{name}/{export}.onnx");
    }
}
