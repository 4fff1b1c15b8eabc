//! `shardc reshard` and `shardc export`: checkpoints are written for other plans, and exported, as
//! runs do it.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod pairs;
#[path = "../support/mod.rs"]
mod support;

use prost::Message;
use shardc_executor::data::read_safetensors;
use shardc_executor::tensor::Tensor;
use shardc_testkit::onnx::{floats, initializer, input, model, node, output, raw};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use support::{Ran, example, folder, home, shardc};
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::DataType;

const LINES: &str = "batch 64\nloss cross_entropy logits=logits labels=y\n";
const ADAMW: &str = "optimizer adamw lr=0.01 weight_decay=0.1\n";

/// Jobs over the digits; the last two have state variables that the others have not.
const JOBS: [(&str, &str); 6] = [
    ("one", ADAMW),
    ("dp2-tp2", "mesh dp=2 tp=2\ndata axis=dp\ntensor axis=tp\noptimizer adamw lr=0.01 weight_decay=0.1\n"),
    ("zero", "mesh dp=2\ndata axis=dp\nzero axis=dp stage=3\noptimizer adamw lr=0.01 weight_decay=0.1\n"),
    ("pp", "mesh pp=2\npipeline axis=pp\noptimizer adamw lr=0.01 weight_decay=0.1\n"),
    ("half", "mesh dp=2\ndata axis=dp\nzero axis=dp stage=1\nprecision compute=f16\noptimizer adamw lr=0.01\n"),
    ("sgd", "mesh tp=2\ntensor axis=tp\noptimizer sgd lr=0.1 momentum=0.9\n"),
];

/// A folder with the specs of all jobs.
fn jobs(name: &str) -> std::path::PathBuf {
    let here = folder(name);
    JOBS.iter().for_each(|(name, lines)| fs::write(here.join(format!("{name}.shard")), format!("{lines}{LINES}")).unwrap());
    here
}

/// Trains the digits under a job.
fn train(here: &Path, job: &str, more: &[&str]) -> Ran {
    let (model, data, spec) = (example("digits/model.onnx"), example("digits/train.npz"), format!("{job}.shard"));
    shardc(here, &[&["train", &model, "--spec", &spec, "--data", &data, "--shuffle"], more].concat())
}

/// The names and bytes of what is in a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// A run that goes on from a checkpoint, and has nothing to do, saves what `reshard` writes.
#[test]
fn reshard_writes_what_a_run_that_does_nothing_saves() {
    let here = jobs("reshard-runs");
    let model = example("digits/model.onnx");
    for (from, _) in JOBS {
        train(&here, from, &["--steps", "35", "--checkpoint", from]).expect(0);
        for (to, _) in JOBS {
            let (spec, run, made) = (format!("{to}.shard"), format!("{from}-{to}-run"), format!("{from}-{to}"));
            let resumed = train(&here, to, &["--steps", "35", "--checkpoint", &run, "--resume", from]).expect(0);
            let ran = shardc(&here, &["reshard", from, &model, "--spec", &spec, "-o", &made]).expect(0);
            assert!(ran.out.starts_with(&format!("{made}/step-00000035: step 35 for ")), "{}", ran.out);
            let of = |folder: &str| files(&here.join(folder).join("step-00000035"));
            assert!(of(&run) == of(&made), "from {from} to {to}");
            for warning in ["the checkpoint lacks", "the plan has not"] {
                assert_eq!(ran.err.contains(warning), resumed.err.contains(warning), "{}", ran.err);
            }
        }
    }
    // The same from plan directories, one of them without weights, and from one checkpoint of many.
    for (name, more) in [("zero", &["--no-weights"][..]), ("pp", &[])] {
        let spec = format!("{name}.shard");
        shardc(&here, &[&["compile", &model, "--spec", &spec, "-o", "plan", "--no-certificate"], more].concat()).expect(0);
        let to = format!("planned-{name}");
        shardc(&here, &["reshard", "one/step-00000035", "plan", "-o", &to]).expect(0);
        let of = |folder: &str| files(&here.join(folder).join("step-00000035"));
        assert!(of(&to) == of(&format!("one-{name}")), "{name}");
    }
}

/// What only a checkpoint knows is there afterwards: the loss of a validation.
#[test]
fn the_position_is_kept() {
    let here = jobs("reshard-position");
    let test = example("digits/test.npz");
    train(&here, "dp2-tp2", &["--steps", "40", "--every", "40", "--validate", &test, "--checkpoint", "c", "--seed", "9"])
        .expect(0);
    shardc(&here, &["reshard", "c", &example("digits/model.onnx"), "--spec", "pp.shard", "-o", "d"]).expect(0);
    let position = |of: &str| {
        let text = fs::read_to_string(here.join(of).join("step-00000040/manifest.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["position"].clone()
    };
    assert!(position("c") == position("d") && position("d")["validation_loss"].is_f64(), "{}", position("d"));
    assert_eq!((&position("d")["seed"], &position("d")["data"]["epoch"]), (&9.into(), &1.into()));
}

/// The elements of an initializer in the file of an exported model.
fn in_model(path: &Path) -> BTreeMap<String, (Vec<u64>, Vec<u8>)> {
    let graph = pb::ModelProto::decode(&fs::read(path).unwrap()[..]).unwrap().graph.unwrap();
    let bytes = |t: &pb::TensorProto| match t.raw_data.is_empty() {
        true => t.float_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        false => t.raw_data.clone(),
    };
    let entry = |t: &pb::TensorProto| (t.name.clone(), (t.dims.iter().map(|d| *d as u64).collect(), bytes(t)));
    graph.initializer.iter().map(entry).collect()
}

/// Trains a job, and exports its checkpoint: the model that the run exports, under its own plan and
/// under that of `other`. Gives the weights alone.
fn exported(here: &Path, model: &str, data: &str, spec: &str, other: &str) -> BTreeMap<String, Tensor> {
    fs::create_dir(here.join("run")).unwrap();
    let job = ["train", model, "--spec", spec, "--data", data, "--steps", "3", "--checkpoint", "c", "--export", "run/t.onnx"];
    shardc(here, &job).expect(0);
    shardc(here, &["compile", model, "--spec", other, "-o", "plan", "--no-certificate"]).expect(0);
    for (number, source) in [&[model, "--spec", spec][..], &["plan"]].into_iter().enumerate() {
        let to = format!("export{number}");
        fs::create_dir(here.join(&to)).unwrap();
        shardc(here, &[&["export", "c"], source, &["-o", &format!("{to}/t.onnx")]].concat()).expect(0);
        assert!(files(&here.join(&to)) == files(&here.join("run")), "{model} under {spec}: {source:?}");
    }
    shardc(here, &["export", "c", "-o", "weights.safetensors"]).expect(0);
    read_safetensors(&fs::read(here.join("weights.safetensors")).unwrap()).unwrap()
}

/// Holds weights against the model that the run has exported: all that differ from the first model
/// are there, and all that are there are the model's.
fn are_those_of_the_model(here: &Path, first: &Path, weights: &BTreeMap<String, Tensor>) {
    let (before, after) = (in_model(first), in_model(&here.join("run/t.onnx")));
    for (name, tensor) in weights {
        assert!(after[name] == (tensor.shape.clone(), tensor.bytes.clone()), "{name}");
    }
    let moved: Vec<&String> = after.iter().filter(|(name, now)| before[*name] != **now).map(|(name, _)| name).collect();
    assert!(moved.len() > 2 && moved.iter().all(|name| weights.contains_key(*name)), "{moved:?}");
}

#[test]
fn an_export_is_what_the_run_exports() {
    for (name, _) in JOBS {
        let here = jobs(&format!("export-{name}"));
        let spec = format!("{name}.shard");
        let other = if name == "pp" { "dp2-tp2.shard" } else { "pp.shard" };
        let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
        let weights = exported(&here, &model, &data, &spec, other);
        are_those_of_the_model(&here, Path::new(&model), &weights);
    }
    // Running statistics, and parameters in blocks of different sizes.
    let blocks = "shard \"qkv.weight\" [(32|16|16)*tp, -]\nshard \"proj.weight\" [-, tp]\nshard \"up.weight\" [(64|32)*tp, -]\n";
    for (name, batch, mesh, lines) in [("resnet", 16, "mesh dp=2\ndata axis=dp\n", ""), ("grouped", 8, "mesh tp=2\n", blocks)] {
        let here = folder(&format!("export-{name}"));
        let rest = format!("batch {batch}\nloss cross_entropy labels=y\noptimizer adamw lr=0.01\n{lines}");
        fs::write(here.join("many.shard"), format!("{mesh}{rest}")).unwrap();
        fs::write(here.join("one.shard"), format!("mesh tp=1\n{rest}")).unwrap();
        let file = |file: &str| home().join("tests/models").join(name).join(file).to_str().unwrap().to_string();
        let weights = exported(&here, &file("model.onnx"), &file("data.npz"), "many.shard", "one.shard");
        are_those_of_the_model(&here, Path::new(&file("model.onnx")), &weights);
    }
}

/// A model with weights of 16 bits, and others in a file beside it.
#[test]
fn weights_have_the_type_that_they_are_trained_in() {
    let here = folder("export-types");
    let mut m = model(20);
    input(&mut m, "x", DataType::Float16, &[-1, 6]);
    initializer(&mut m, raw("a", DataType::Float16, &[6, 6], [0x00, 0x34, 0x00, 0x38].repeat(18)));
    node(&mut m, "MatMul", "x a", "h", vec![]);
    output(&mut m, "h");
    fs::write(here.join("model.onnx"), m.encode_to_vec()).unwrap();
    let x: Vec<f32> = (0..48).map(|i| i as f32 / 48.0).collect();
    let array = Tensor::from_f32(&[8, 6], &x);
    let arrays = [("x".to_string(), array.cast(shardc_ir::dtype::DType::F16)), ("t".to_string(), array)].into();
    shardc_executor::data::write_npz(&here.join("data.npz"), &arrays).unwrap();
    fs::write(here.join("job.shard"), "mesh dp=2\ndata axis=dp\nbatch 4\nloss mse prediction=h labels=t\noptimizer sgd lr=0.1\n")
        .unwrap();
    let weights = exported(&here, "model.onnx", "data.npz", "job.shard", "job.shard");
    let (held, stored) = (&weights["a"], &in_model(&here.join("run/t.onnx"))["a"]);
    assert_eq!(held.dtype, shardc_ir::dtype::DType::F32);
    assert_eq!(held.cast(shardc_ir::dtype::DType::F16).bytes, stored.1);
}

/// Each mistake ends in one message of these words, and all files are what they were.
#[test]
fn mistakes_are_told() {
    let here = jobs("reshard-mistakes");
    let model = example("digits/model.onnx");
    train(&here, "zero", &["--steps", "4", "--every", "2", "--checkpoint", "c"]).expect(0);
    shardc(&here, &["compile", &model, "--spec", "pp.shard", "-o", "plan", "--no-certificate"]).expect(0);
    shardc(&here, &["reshard", "c", "plan", "-o", "later"]).expect(0);
    fs::create_dir(here.join("empty")).unwrap();
    fs::write(here.join("file"), "text").unwrap();
    // Another model, of which a layer has another size.
    let mut other = shardc_testkit::onnx::model(20);
    input(&mut other, "x", DataType::Float, &[-1, 64]);
    initializer(&mut other, floats("fc1.weight", &[64, 10], &[0.1; 640]));
    node(&mut other, "MatMul", "x fc1.weight", "logits", vec![]);
    output(&mut other, "logits");
    fs::write(here.join("other.onnx"), other.encode_to_vec()).unwrap();
    fs::write(here.join("eval.shard"), "batch 64\n").unwrap();
    let whole = |folder: &Path| -> BTreeMap<String, BTreeMap<String, Vec<u8>>> {
        let folders = ["c/step-00000002", "c/step-00000004", "plan", "later/step-00000004"];
        folders.map(|name| (name.to_string(), files(&folder.join(name)))).into()
    };
    let before = whole(&here);
    let both = ".onnx` for the model, or `.safetensors`";
    let cases: [(&str, i32, &str); 27] = [
        ("export c -o w", 2, both),
        ("export c -o w.npz", 2, both),
        ("export c plan -o w.bin", 2, both),
        ("export c -o w.onnx", 2, "needs the model"),
        ("export c plan -o w.safetensors", 2, "leave the plan or model out"),
        ("export c model.onnx -o w.onnx", 2, "--spec JOB.shard"),
        ("export c --spec pp.shard -o w.onnx", 2, "<PLAN|MODEL.onnx>"),
        ("export c", 2, "--output"),
        ("reshard c plan", 2, "--output"),
        ("reshard c -o o", 2, "<PLAN|MODEL.onnx>"),
        ("export nowhere -o w.safetensors", 1, "there is no checkpoint"),
        ("reshard empty plan -o o", 1, "there is no checkpoint"),
        ("reshard file plan -o o", 1, "cannot read the checkpoints in `file`"),
        ("reshard c nowhere -o o", 1, "there is no plan directory"),
        ("reshard c other.onnx --spec one.shard -o o", 1, "`fc1.weight` is "),
        ("export c other.onnx --spec one.shard -o w.onnx", 1, "`fc1.weight` is "),
        ("export c plan -o nowhere/w.onnx", 1, "cannot write `nowhere/w.onnx`"),
        ("export c -o nowhere/w.safetensors", 1, "cannot write `nowhere/w.safetensors`"),
        ("reshard c plan -o file", 1, "cannot read the checkpoints in `file`"),
        ("reshard c plan -o later", 1, "the folder has a checkpoint of step 4"),
        ("reshard c/step-00000002 plan -o later", 1, "the folder has a checkpoint of step 4"),
        ("reshard c plan -o c", 1, "would overwrite the checkpoint"),
        ("reshard c/step-00000002 plan -o c", 1, "would overwrite the checkpoint"),
        ("reshard c plan -o c/step-00000002", 1, "this is a checkpoint"),
        ("export c -o c/step-00000004/rank-00001.safetensors", 1, "would overwrite a file of the checkpoint"),
        ("export c plan -o plan/model.onnx", 1, "would overwrite a file of the plan"),
        ("reshard c MODEL --spec eval.shard -o o", 1, "help:"),
    ];
    for (arguments, code, words) in cases {
        let arguments: Vec<&str> = arguments.split(' ').map(|word| if word == "MODEL" { &model } else { word }).collect();
        let ran = shardc(&here, &arguments).expect(code);
        assert!(ran.err.contains(words) && ran.out.is_empty(), "{arguments:?}: {}", ran.err);
        assert!(ran.err.matches("error:").count() >= 1 && ran.err.len() < 2048, "{arguments:?}: {}", ran.err);
        assert!(whole(&here) == before, "{arguments:?} has changed a file");
        for made in ["o", "w", "w.npz", "w.bin", "w.onnx", "w.safetensors"] {
            assert!(!here.join(made).exists(), "{arguments:?} has made `{made}`");
        }
    }
}

/// Whatever byte of a checkpoint is another one, it is refused, or no part of what is exported.
#[test]
fn damaged_checkpoints_are_refused() {
    let here = jobs("reshard-damaged");
    train(&here, "zero", &["--steps", "2", "--checkpoint", "c"]).expect(0);
    let model = example("digits/model.onnx");
    let at = here.join("c/step-00000002");
    let export = |to: &str| shardc(&here, &["export", "c", &model, "--spec", "pp.shard", "-o", to]);
    export("sound.onnx").expect(0);
    for (name, sound) in files(&at) {
        for cut in 0..8 {
            let mut bytes = sound.clone();
            let place = cut * 7919 * (sound.len() / 8 + 1) % sound.len();
            match cut % 4 {
                0 => bytes.truncate(place),
                _ => bytes[place] ^= 1 << cut,
            }
            fs::write(at.join(&name), &bytes).unwrap();
            let told = |ran: Ran| {
                let is_named = ran.err.contains(&name) || ran.err.contains("manifest");
                assert!(ran.code == 1 && is_named, "{name} at {place}: {}", ran.err);
            };
            told(shardc(&here, &["reshard", "c", &model, "--spec", "pp.shard", "-o", "o"]));
            match export("w.onnx") {
                Ran { code: 0, .. } => {
                    let read = |file: &str| fs::read(here.join(file)).unwrap();
                    assert!(read("w.onnx") == read("sound.onnx"), "{name} at {place}");
                    fs::remove_file(here.join("w.onnx")).unwrap();
                }
                ran => told(ran),
            }
            assert!(!here.join("w.onnx").exists());
            let made = fs::read_dir(here.join("o")).into_iter().flatten().flatten();
            let made: Vec<_> = made.map(|entry| entry.file_name()).filter(|name| name != ".lock").collect();
            assert!(made.is_empty(), "{name} at {place}: {made:?}");
        }
        fs::write(at.join(&name), &sound).unwrap();
    }
}
