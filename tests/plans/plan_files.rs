//! Plan files: what is written is read back, the same job gives the same bytes, and no damage gets
//! through or panics.

use crate::support::{example, folder, shardc};
use shardc::Options;
use shardc_executor::run::Executor;
use shardc_ir::graph::Graph;
use shardc_ir::listing;
use shardc_ir::packed::{pack, unpack};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan_file::{decode, encode};
use shardc_ir::verify_plan::verify_set;
use shardc_testkit::random::Random;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Every program of the jobs of `examples/`, with its graph.
fn programs() -> Vec<(PlanSet, Graph)> {
    let mut out = vec![];
    for (model, spec) in [
        ("digits", "one"),
        ("digits", "dp2-tp2"),
        ("tiny-gpt", "one"),
        ("tiny-gpt", "dp2"),
        ("tiny-gpt", "pp2"),
        ("tiny-gpt", "zero3"),
        ("tiny-gpt", "recompute"),
        ("tiny-gpt", "bf16"),
    ] {
        let spec = shardc_frontend::spec::load(Path::new(&example(&format!("{model}/{spec}.shard")))).expect("the spec is good");
        let path = example(&format!("{model}/model.onnx"));
        let compiled = shardc::compile(Path::new(&path), &spec, &Options::default()).expect("the job compiles");
        out.extend(compiled.plans.iter().map(|(_, plan)| (plan.programs.clone(), plan.graph.clone())));
    }
    out
}

#[test]
fn programs_are_read_back() {
    for (program, _) in programs() {
        let bytes = encode(&program).expect("programs can be written");
        assert_eq!(decode(&bytes).expect("what was written can be read"), program);
        assert_eq!(encode(&program).expect("programs can be written"), bytes);
    }
}

#[test]
fn damage_is_an_error() {
    let (program, _) = &programs()[2];
    let bytes = encode(program).expect("programs can be written");
    let mut random = Random(1);
    for case in 0..2000 {
        let mut damaged = bytes.clone();
        match case % 4 {
            0 => damaged.truncate(random.below(bytes.len())),
            1 => damaged.push(random.below(256) as u8),
            2 => damaged[random.below(bytes.len().min(60))] ^= 1 << random.below(8),
            _ => damaged[random.below(bytes.len())] ^= 1 << random.below(8),
        }
        let error = decode(&damaged).expect_err("damage is found");
        assert!(error.message.contains("plan file"), "{error}");
    }
}

/// Someone who forges a plan can make its hash fit. Its contents are wrong or right, never a panic.
#[test]
fn forged_plans_do_not_panic() {
    let (program, graph) = &programs()[2];
    let bytes = encode(program).expect("programs can be written");
    let header = bytes.len() - payload(&bytes).len();
    let good = unpack(payload(&bytes)).expect("a payload is packed");
    let mut random = Random(2);
    let (mut refused, mut disproved, mut unloadable) = (0, 0, 0);
    std::panic::set_hook(Box::new(|_| {}));
    for case in 0..2000 {
        let mut payload = good.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(payload.len());
            payload[at] = if random.below(2) == 0 { random.below(256) as u8 } else { payload[at] ^ (1 << random.below(8)) };
        }
        if case % 10 == 0 {
            payload.truncate(random.below(payload.len()));
        }
        let forged = signed(&bytes[..header], &pack(&payload).expect("bytes can be packed"));
        let checked = catch_unwind(AssertUnwindSafe(|| {
            let Ok(program) = decode(&forged) else {
                refused += 1;
                return;
            };
            for (all, expand) in
                [(true, listing::Expand::Nothing), (false, listing::Expand::Nothing), (false, listing::Expand::All)]
            {
                listing::text(&program, 0, &[], "job.shard", &listing::Options { width: 100, all, expand });
            }
            disproved += usize::from(verify_set(&program.as_ref(), graph).is_err());
            if program.fullest().arena_bytes < 1 << 24 && program.mesh().world_size() < 16 {
                unloadable += usize::from(Executor::new(program, 1).is_err());
            }
        }));
        assert!(checked.is_ok(), "case {case} panics");
    }
    let _ = std::panic::take_hook();
    println!("of 2000 forged plans {refused} are refused, {disproved} disproved, {unloadable} cannot be loaded");
    assert!(refused > 200 && disproved > 50 && unloadable > 50, "{refused} {disproved} {unloadable}");
}

/// The bytes after magic, version, length and hash.
fn payload(bytes: &[u8]) -> &[u8] {
    &bytes[8 + 4 + 8 + 32..]
}

/// `payload` under the magic and version of `header`, with the length and hash that fit.
fn signed(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let hash = shardc_ir::plan_file::hash(payload);
    let hash = (0..32).map(|i| u8::from_str_radix(&hash[2 * i..2 * i + 2], 16).expect("hexadecimal"));
    let length = (payload.len() as u64).to_le_bytes();
    header[..12].iter().copied().chain(length).chain(hash).chain(payload.iter().copied()).collect()
}

#[test]
fn the_same_job_gives_the_same_bytes() {
    let here = folder("same-bytes");
    for (name, copy) in [("a", "one"), ("b", "two")] {
        let copied = here.join(copy);
        fs::create_dir(&copied).expect("a folder can be made");
        for file in ["model.onnx", "dp2-tp2.shard"] {
            fs::copy(example(&format!("digits/{file}")), copied.join(file)).expect("files can be copied");
        }
        let (model, spec) = (format!("{copy}/model.onnx"), format!("{copy}/dp2-tp2.shard"));
        shardc(&here, &["compile", &model, "--spec", &spec, "-o", name]).expect(0);
    }
    let mut files: Vec<_> = fs::read_dir(here.join("a")).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    files.sort();
    let names: Vec<&str> = files.iter().filter_map(|f| f.to_str()).collect();
    assert_eq!(
        names,
        [
            "eval.plan",
            "eval.shir.gz",
            "job.shard",
            "manifest.json",
            "model.onnx",
            "reference.shir.gz",
            "train.plan",
            "train.shir.gz",
            "weights.safetensors"
        ]
    );
    for file in files {
        let read = |folder: &str| fs::read(here.join(folder).join(&file)).expect("a file");
        assert_eq!(read("a"), read("b"), "{}", file.display());
    }
}

#[test]
fn any_damaged_file_of_a_directory_is_told() {
    let here = folder("damaged-directory");
    let arguments = ["compile", &example("digits/model.onnx"), "--spec", &example("digits/one.shard"), "-o", "plan"];
    shardc(&here, &arguments).expect(0);
    let mut random = Random(3);
    for file in [
        "train.plan",
        "eval.plan",
        "train.shir.gz",
        "reference.shir.gz",
        "eval.shir.gz",
        "job.shard",
        "model.onnx",
        "weights.safetensors",
        "manifest.json",
    ] {
        let path = here.join("plan").join(file);
        let good = fs::read(&path).expect("a file");
        let mut bad = good.clone();
        let at = random.below(bad.len());
        bad[at] ^= 0x80;
        for bad in [Some(bad), Some(good[..good.len() / 2].to_vec()), Some(vec![]), None] {
            match bad {
                Some(bad) => fs::write(&path, bad).expect("a file can be written"),
                None => fs::remove_file(&path).expect("a file can be removed"),
            }
            let data = example("digits/train.npz");
            let ran = shardc(&here, &["train", "plan", "--data", &data, "--steps", "1"]).expect(1);
            assert!(ran.err.contains("plan directory") && ran.err.contains(file), "{file}: {}", ran.err);
        }
        fs::write(&path, good).expect("a file can be written");
    }
    shardc(&here, &["train", "plan", "--data", &example("digits/train.npz"), "--steps", "1"]).expect(0);
}

#[test]
fn a_plan_has_weights_only_of_what_the_spec_leaves_to_the_model() {
    let here = folder("plan-of-init-lines");
    let spec = fs::read_to_string(example("digits/one.shard")).expect("a file") + "init \"*bias\" zeros\n";
    fs::write(here.join("job.shard"), spec).expect("a file can be written");
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    shardc(&here, &["compile", &model, "--spec", "job.shard", "-o", "plan"]).expect(0);
    shardc(&here, &["verify", "plan"]).expect(0);
    let train = |source: &[&str]| {
        let options = ["--data", &data, "--steps", "3", "--export", "trained.onnx"];
        shardc(&here, &[&["train"], source, &options].concat()).expect(0);
        fs::read(here.join("trained.onnx")).expect("a file")
    };
    assert!(train(&["plan"]) == train(&[&model, "--spec", "job.shard"]), "the plan trains another model");
}
