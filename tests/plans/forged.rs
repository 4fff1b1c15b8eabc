//! Plan directories that somebody else has made: nothing of them leads out of the directory, and
//! all of them is proven.
#![cfg(unix)]

use crate::support::{example, folder, shardc};
use prost::Message;
use serde_json::{Value, json};
use shardc_executor::data::{read_safetensors, write_safetensors};
use shardc_ir::packed::{pack, unpack};
use shardc_ir::plan_file::{self, hash};
use shardc_testkit::onnx::{initializer, input, int, model, node, output, raw};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

fn plan(name: &str) -> PathBuf {
    let here = folder(name);
    let arguments = ["compile", &example("digits/model.onnx"), "--spec", &example("digits/one.shard"), "-o", "plan"];
    shardc(&here, &arguments).expect(0);
    here
}

/// Puts `bytes` in the place of a file of the plan in `here`, and its hash into the manifest.
fn forge(here: &Path, file: &str, bytes: &[u8]) {
    fs::write(here.join("plan").join(file), bytes).expect("a file can be written");
    manifest(here, |manifest| {
        manifest["files"][file] = json!(hash(bytes));
        if file == "job.shard" {
            manifest["spec"]["sha256"] = json!(hash(bytes));
        }
    });
}

fn manifest(here: &Path, change: impl FnOnce(&mut Value)) {
    let path = here.join("plan/manifest.json");
    let mut value = serde_json::from_slice(&fs::read(&path).expect("a manifest")).expect("JSON");
    change(&mut value);
    fs::write(&path, value.to_string()).expect("a file can be written");
}

#[test]
fn files_of_a_manifest_are_in_its_directory() {
    let here = plan("manifest-names");
    fs::write(here.join("secret"), "secret").expect("a file can be written");
    fs::create_dir(here.join("plan/sub")).expect("a folder");
    fs::write(here.join("plan/sub/file"), "secret").expect("a file can be written");
    std::os::unix::fs::symlink(here.join("secret"), here.join("plan/link")).expect("a link");
    let absolute = here.join("secret").display().to_string();
    for name in [&absolute, "/proc/kmsg", "../secret", "sub/file", "sub/../../secret", "link", "sub", ".", "..", "", "sub/"] {
        let good = fs::read(here.join("plan/manifest.json")).expect("a manifest");
        manifest(&here, |manifest| manifest["files"][name] = json!(hash(b"secret")));
        let ran = shardc(&here, &["verify", "plan"]).expect(1);
        assert!(ran.err.contains("this plan directory is damaged: cannot read"), "{name}: {}", ran.err);
        fs::write(here.join("plan/manifest.json"), good).expect("a file can be written");
    }
    shardc(&here, &["verify", "plan"]).expect(0);
}

#[test]
fn weights_are_those_of_the_plan() {
    let here = plan("forged-weights");
    let path = here.join("plan/weights.safetensors");
    let good = fs::read(&path).expect("weights");
    let weights = read_safetensors(&good).expect("weights");
    let (first, array) = weights.first_key_value().expect("a weight");
    let (mut fewer, mut more, mut shaped, mut typed) = (weights.clone(), weights.clone(), weights.clone(), weights.clone());
    fewer.remove(first);
    more.insert("other".to_string(), array.clone());
    shaped.get_mut(first).expect("a weight").shape.insert(0, 1);
    let integers = shardc_ir::types::Tensor::from_i64(array.shape.clone(), &vec![1; array.bytes.len() / 4]);
    typed.insert(first.clone(), integers.into());
    for (forged, words) in
        [(fewer, "has no `"), (more, "has `other`, which the plan does not know"), (shaped, ", not f32["), (typed, " as i64[")]
    {
        forge(&here, "weights.safetensors", &write_safetensors(&forged).expect("bytes"));
        let ran = shardc(&here, &["verify", "plan"]).expect(1);
        assert!(ran.err.contains("`weights.safetensors`") && ran.err.contains(words), "{words}: {}", ran.err);
    }
    forge(&here, "weights.safetensors", &good);
    shardc(&here, &["verify", "plan"]).expect(0);
}

/// A file that takes no room on its disk may claim any length.
#[test]
fn files_are_not_read_beyond_what_they_may_be() {
    let here = plan("forged-lengths");
    for file in ["train.plan", "train.shir.gz", "job.shard", "model.onnx", "weights.safetensors"] {
        let path = here.join("plan").join(file);
        let good = fs::read(&path).expect("a file of the plan");
        fs::File::options().write(true).open(&path).and_then(|file| file.set_len(256 << 30)).expect("a sparse file");
        let ran = shardc(&here, &["verify", "plan"]).expect(1);
        assert!(ran.err.contains(&format!("cannot read `{file}`: it has 274877906944 bytes, more than")), "{}", ran.err);
        assert!(ran.took < Duration::from_secs(10), "{file} took {:?}", ran.took);
        fs::write(&path, good).expect("a file can be written");
    }
    shardc(&here, &["verify", "plan"]).expect(0);
}

#[test]
fn the_spec_is_the_one_that_the_manifest_names() {
    let here = plan("forged-spec");
    manifest(&here, |manifest| manifest["spec"]["sha256"] = json!(hash(b"batch 64")));
    let ran = shardc(&here, &["verify", "plan"]).expect(1);
    assert!(ran.err.contains("`manifest.json` is of another plan"), "{}", ran.err);
}

/// What a plan directory trains is its own model under its own spec.
#[test]
fn graphs_are_those_of_the_model_and_the_spec() {
    let here = plan("forged-jobs");
    let train = ["train", "plan", "--data", &example("digits/train.npz"), "--steps", "1"];
    let refused = |words: &str| {
        for arguments in [&["verify", "plan"][..], &train] {
            let ran = shardc(&here, arguments).expect(1);
            assert!(ran.err.contains(words) && ran.err.matches("error: ").count() == 1, "{words}: {}", ran.err);
        }
    };
    let [model, spec] =
        ["model.onnx", "job.shard"].map(|file| fs::read(here.join("plan").join(file)).expect("a file of the plan"));
    for (garbage, words) in [(b"garbage".to_vec(), "model.onnx"), (vec![], "model.onnx")] {
        forge(&here, "model.onnx", &garbage);
        refused(words);
    }
    forge(&here, "model.onnx", &fs::read(example("towers/model.onnx")).expect("another model"));
    shardc(&here, &["verify", "plan"]).expect(1);
    forge(&here, "model.onnx", &model);
    fs::remove_file(here.join("plan/model.onnx")).expect("a file can be removed");
    refused("cannot read `model.onnx`");
    forge(&here, "model.onnx", &model);
    let text = String::from_utf8(spec.clone()).expect("a spec");
    let changed = text
        .lines()
        .map(|line| if line.starts_with("optimizer") { format!("{line} weight_decay=0.5\n") } else { format!("{line}\n") });
    forge(&here, "job.shard", changed.collect::<String>().as_bytes());
    refused("is not the graph of `model.onnx` under `job.shard`: line ");
    shardc(&here, &["verify", "plan", "--trust-graphs"]).expect(0);
    forge(&here, "job.shard", format!("{text}zero stage=1 axis=dp\n").as_bytes());
    shardc(&here, &["verify", "plan"]).expect(1);
    forge(&here, "job.shard", &spec);
    shardc(&here, &["verify", "plan"]).expect(0);
    let both = ["train", &example("digits/model.onnx"), "--spec", &example("digits/one.shard"), "--trust-graphs"];
    let ran = shardc(&here, &[&both[..], &["--data", &example("digits/train.npz")]].concat()).expect(2);
    assert!(ran.err.contains("`--trust-graphs` is about plan directories"), "{}", ran.err);
}

/// A few lines of a graph's text cannot ask for gigabytes.
#[test]
fn constants_of_a_text_are_bounded() {
    let here = plan("forged-text");
    let lines: String = (0..20).map(|i| format!("  %c{i} = constant fill {i}.5 : f64[67108864]\n")).collect();
    let packed = fs::read(here.join("plan/eval.shir.gz")).expect("a graph");
    let text = String::from_utf8(unpack(&packed).expect("it is packed")).expect("graphs are text");
    let (header, rest) = text.split_once('\n').expect("lines");
    let packed = pack(format!("{header}\n{lines}{rest}").as_bytes()).expect("text can be packed");
    forge(&here, "eval.shir.gz", &packed);
    let ran = shardc(&here, &["verify", "plan"]).expect(1);
    assert!(ran.err.contains("too large for a text of this size"), "{}", ran.err);
}

/// A group of 2^40 ranks is not laid out.
#[test]
fn an_axis_is_named_once() {
    let here = plan("forged-axes");
    shardc(&here, &["compile", &example("digits/model.onnx"), "--spec", &example("digits/dp2-tp2.shard"), "-o", "plan"])
        .expect(0);
    let packed = fs::read(here.join("plan/train.shir.gz")).expect("a graph");
    let text = String::from_utf8(unpack(&packed).expect("it is packed")).expect("graphs are text");
    let often = format!("all_reduce axes=[{}]", ["tp"; 40].join(", "));
    let packed = pack(text.replacen("all_reduce axes=[tp]", &often, 1).as_bytes()).expect("text can be packed");
    forge(&here, "train.shir.gz", &packed);
    let ran = shardc(&here, &["verify", "plan"]).expect(1);
    assert!(ran.err.contains("all_reduce axes=[tp, tp") && ran.took < Duration::from_secs(10), "{} took {:?}", ran.err, ran.took);
}

/// An export would write one tensor under another's name.
#[test]
fn copies_are_those_of_the_model() {
    let here = plan("forged-copies");
    manifest(&here, |manifest| manifest["copies"] = json!([{"name": "fc2.bias", "of": "fc1.bias", "transposed": false}]));
    let ran = shardc(&here, &["verify", "plan"]).expect(1);
    assert!(ran.err.contains("says of copies of initializers what `model.onnx` does not"), "{}", ran.err);
}

/// Control codes in a name are shown, and not obeyed by the terminal.
#[test]
fn control_codes_of_names_are_escaped() {
    let here = plan("forged-names");
    let code = "\u{1b}]0;title\u{7}\u{1b}[2J\u{202e}";
    manifest(&here, |manifest| manifest["files"][code] = json!("none"));
    let ran = shardc(&here, &["verify", "plan"]).expect(1);
    assert!(!ran.err.contains(['\u{1b}', '\u{7}', '\u{202e}']) && ran.err.contains(r"\u{1b}]0;title\u{7}"), "{}", ran.err);
    fs::write(here.join("job.shard"), "batch 8\nshard \"\u{1b}[2J\" [-]\n").expect("a spec");
    let ran = shardc(&here, &["compile", &example("digits/model.onnx"), "--spec", "job.shard", "-o", "other"]).expect(1);
    assert!(!ran.err.contains('\u{1b}'), "{}", ran.err);
}

/// External data of a plan's model is in the plan directory, not beside it.
#[test]
fn external_data_does_not_lead_out_of_the_plan() {
    let here = plan("forged-external");
    fs::write(here.join("secret"), [1; 24]).expect("a file can be written");
    let bytes = fs::read(here.join("plan/model.onnx")).expect("a model");
    let mut model = pb::ModelProto::decode(&bytes[..]).expect("a model");
    let entry = pb::StringStringEntryProto { key: "location".into(), value: "secret".into() };
    model.graph.as_mut().expect("a graph").initializer.push(pb::TensorProto {
        name: "leak".into(),
        dims: vec![6],
        data_type: 1,
        data_location: Some(1),
        external_data: vec![entry],
        ..pb::TensorProto::default()
    });
    forge(&here, "model.onnx", &model.encode_to_vec());
    let data = example("digits/train.npz");
    let ran = shardc(&here, &["train", "plan", "--data", &data, "--steps", "1", "--export", "out.onnx"]).expect(1);
    assert!(ran.err.contains("cannot be read from `secret`"), "{}", ran.err);
    assert!(!here.join("out.onnx").exists() && !here.join("out.onnx.data").exists());
}

/// A model that gathers by a table of 2,000 places, which stays in its graphs.
fn plan_of_places(here: &Path) {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 4]);
    let elements = |count: u32| (0..count).flat_map(|at| ((at % 7) as f32 / 4.0).to_le_bytes()).collect();
    initializer(&mut m, raw("w", DataType::Float, &[4, 8], elements(32)));
    let places = (0..2000_i64).flat_map(|at| (at * 5 % 8).to_le_bytes()).collect();
    initializer(&mut m, raw("places", DataType::Int64, &[2000], places));
    node(&mut m, "MatMul", "x w", "h", vec![]);
    node(&mut m, "Gather", "h places", "y", vec![int("axis", 1)]);
    output(&mut m, "y");
    fs::write(here.join("model.onnx"), m.encode_to_vec()).expect("a file can be written");
    let spec = "mesh dp=2\nbatch 4\ndata axis=dp\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";
    fs::write(here.join("job.shard"), spec).expect("a file can be written");
    shardc(here, &["compile", "model.onnx", "--spec", "job.shard", "-o", "plan"]).expect(0);
}

/// Graphs name a large constant by its hash; programs have its bytes.
#[test]
fn large_constants_of_graphs_are_those_of_programs() {
    let here = folder("forged-places");
    plan_of_places(&here);
    let path = |file: &str| here.join("plan").join(file);
    let text = |file: &str| String::from_utf8(unpack(&fs::read(path(file)).expect("a graph")).expect("packed")).expect("UTF-8");
    for graph in ["train.shir.gz", "eval.shir.gz", "reference.shir.gz"] {
        let (text, name) = (text(graph), "constant sha256 \"");
        assert_eq!(text.matches(name).count(), 1, "{graph}");
        assert!(text.lines().all(|line| line.len() < 400), "{graph} has bytes of a constant");
    }
    for arguments in [&["verify", "plan"][..], &["verify", "--trust-graphs", "plan"], &["inspect", "plan"]] {
        shardc(&here, arguments).expect(0);
    }
    // Another hash: trusted graphs name what no program has, others are not those of the model.
    let good: Vec<Vec<u8>> = ["train.shir.gz", "train.plan"].map(|file| fs::read(path(file)).expect("a file")).into();
    let train = text("train.shir.gz");
    let at = train.find("sha256 \"").expect("a hash") + 8;
    let digit = if train.as_bytes()[at] == b'0' { "1" } else { "0" };
    let other = format!("{}{digit}{}", &train[..at], &train[at + 1..]);
    forge(&here, "train.shir.gz", &pack(other.as_bytes()).expect("packed"));
    let ran = shardc(&here, &["verify", "--trust-graphs", "plan"]).expect(1);
    assert!(ran.err.contains("no program holds a constant of hash"), "{}", ran.err);
    shardc(&here, &["verify", "plan"]).expect(1);
    forge(&here, "train.shir.gz", &good[0]);
    // Other bytes in the programs of training: graphs mean a constant that these have not.
    let mut programs = plan_file::decode(&good[1]).expect("a plan");
    for constant in programs.programs.iter_mut().flat_map(|program| &mut program.constants) {
        if constant.bytes.len() > 4096 {
            Arc::make_mut(&mut constant.bytes)[0] ^= 1;
        }
    }
    forge(&here, "train.plan", &plan_file::encode(&programs).expect("a plan"));
    shardc(&here, &["verify", "--trust-graphs", "plan"]).expect(1);
    shardc(&here, &["verify", "plan"]).expect(1);
}
