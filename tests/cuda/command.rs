//! `shardc compile --target cuda`, as people run it.

use super::job::spec;
use super::support::{folder, shardc};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn model(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name).join("model.onnx").to_str().unwrap().to_owned()
}

/// The texts in a plan's folder of kernels, by name.
fn texts(folder: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.filter(|path| path.extension().is_some_and(|end| end == "cu"));
    texts.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())).collect()
}

fn list(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("kernels.json")).unwrap()).unwrap()
}

#[test]
fn kernels_are_written_beside_the_plan() {
    let here = folder("cuda-command");
    fs::write(here.join("gpt2.shard"), spec("gpt2", "tp=2", 1, "")).unwrap();
    fs::write(here.join("mlp.shard"), spec("mlp", "dp=2", 1, "")).unwrap();
    let gpt2 = ["compile", &model("gpt2"), "--spec", "gpt2.shard", "-o", "plan", "--target", "cuda"];
    let ran = shardc(&here, &gpt2).expect(0);
    assert!(ran.out.contains("cuda") && ran.out.contains("kernels for"), "{}", ran.out);
    assert!(!ran.err.contains("cannot run on a GPU"), "{}", ran.err);
    let cuda = here.join("plan/cuda");
    let (first, kernels) = (texts(&cuda), list(&cuda));
    let named: Vec<&str> = kernels["kernels"].as_array().unwrap().iter().map(|k| k["name"].as_str().unwrap()).collect();
    assert_eq!(first.len(), named.len());
    for name in named {
        let text = &first[name];
        assert!(text.contains("//@ ") && text.contains(&format!("{name}_0(")), "{text}");
    }
    shardc(&here, &["verify", "plan"]).expect(0);
    shardc(&here, &gpt2).expect(0);
    assert_eq!(texts(&cuda), first, "the same job has the same texts");
    let ran = shardc(&here, &["compile", &model("mlp"), "--spec", "mlp.shard", "-o", "plan", "--target", "cuda"]).expect(0);
    assert!(!ran.err.contains("cannot run on a GPU"), "{}", ran.err);
    let second = texts(&cuda);
    assert_eq!(second.len(), list(&cuda)["kernels"].as_array().unwrap().len(), "texts of the older plan are gone");
}

#[test]
fn kernels_are_inspected() {
    let here = folder("cuda-inspected");
    fs::write(here.join("job.shard"), spec("mlp", "dp=1", 1, "")).unwrap();
    let model = model("mlp");
    let job = ["compile", &model, "--spec", "job.shard", "-o", "plan"];
    let inspect = ["inspect", "plan", "--kernels", "--width", "100"];
    shardc(&here, &job).expect(0);
    let ran = shardc(&here, &inspect).expect(1);
    assert!(ran.err.contains("no list of CUDA kernels") && ran.err.contains("--target cuda"), "{}", ran.err);
    shardc(&here, &[&job[..], &["--target", "cuda"]].concat()).expect(0);
    let ran = shardc(&here, &inspect).expect(0);
    let kernels = list(&here.join("plan/cuda"));
    let launches: usize = kernels["kernels"].as_array().unwrap().iter().map(|k| k["launches"].as_array().unwrap().len()).sum();
    assert_eq!(ran.out.lines().count(), launches + 2, "{}", ran.out);
    assert!(ran.out.lines().all(|line| line.chars().count() <= 100), "{}", ran.out);
    assert!(ran.out.contains("registers") && ran.out.contains("bundle_") && ran.out.contains("256"), "{}", ran.out);
    let ran = shardc(&here, &["inspect", "plan", "--kernels", "--format", "json"]).expect(0);
    assert_eq!(serde_json::from_str::<Value>(&ran.out).unwrap(), kernels);
    let ran = shardc(&here, &[&inspect[..], &["-o", "plan/cuda/kernels.json"]].concat()).expect(1);
    assert!(ran.err.contains("the list of kernels"), "{}", ran.err);
    assert_eq!(list(&here.join("plan/cuda")), kernels, "the list is written over");
    fs::write(here.join("job.shard"), spec("mlp", "dp=2", 1, "")).unwrap();
    shardc(&here, &job).expect(0);
    let ran = shardc(&here, &inspect).expect(1);
    assert!(ran.err.contains("is of another plan"), "{}", ran.err);
    fs::write(here.join("plan/cuda/kernels.json"), "{\"plan\": 3").unwrap();
    let ran = shardc(&here, &inspect).expect(1);
    assert!(ran.err.contains("this is no list of CUDA kernels"), "{}", ran.err);
    fs::File::create(here.join("plan/cuda/kernels.json")).unwrap().set_len(1 << 40).unwrap();
    let ran = shardc(&here, &inspect).expect(1);
    assert!(ran.err.contains("larger than any list"), "{}", ran.err);
}

#[test]
fn layers_share_their_kernels() {
    let here = folder("cuda-layers");
    fs::write(here.join("job.shard"), spec("llama", "dp=1", 1, "")).unwrap();
    shardc(&here, &["compile", &model("llama"), "--spec", "job.shard", "-o", "plan", "--target", "cuda"]).expect(0);
    let kernels = list(&here.join("plan/cuda"));
    let kernels = kernels["kernels"].as_array().unwrap();
    let steps: u64 = kernels.iter().map(|kernel| kernel["steps"].as_u64().unwrap()).sum();
    assert!(steps > 3 * kernels.len() as u64, "{steps} steps have {} texts", kernels.len());
}

#[test]
fn mistakes_are_told() {
    let here = folder("cuda-mistakes");
    fs::write(here.join("job.shard"), spec("mlp", "dp=2", 1, "")).unwrap();
    let model = model("mlp");
    let job = ["compile", &model, "--spec", "job.shard", "-o", "plan"];
    let ran = shardc(&here, &[&job[..], &["--target", "cuda", "--arch", "sm_60"]].concat()).expect(2);
    assert!(ran.err.contains("an architecture is `sm_80` or a later one"), "{}", ran.err);
    shardc(&here, &[&job[..], &["--arch", "sm_90"]].concat()).expect(2);
    shardc(&here, &[&job[..], &["--target", "rocm"]].concat()).expect(2);
    assert!(!here.join("plan").exists(), "a plan is left");
    fs::create_dir_all(here.join("plan")).unwrap();
    shardc(&here, &job).expect(0);
    fs::write(here.join("plan/cuda"), "a file of the user's").unwrap();
    let ran = shardc(&here, &[&job[..], &["--target", "cuda"]].concat()).expect(1);
    assert!(ran.err.contains("plan/cuda"), "{}", ran.err);
    assert_eq!(fs::read_to_string(here.join("plan/cuda")).unwrap(), "a file of the user's");
}
