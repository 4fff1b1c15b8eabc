//! Launch tables on the command line: written, printed, proven, and refused where they are damaged.

use super::job;
use super::support::{folder, shardc};
use serde_json::Value;
use shardc_testkit::random::{Random, damaged};
use std::fs;
use std::path::{Path, PathBuf};

/// Damaged files that are tried.
const DAMAGES: u64 = 60;

/// A plan with its tables: its folder is `plan` there.
fn compiled(name: &str, mesh: &str, lines: &str) -> PathBuf {
    let here = folder(name);
    fs::write(here.join("job.shard"), job::spec("mlp", mesh, 2, lines)).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/mlp/model.onnx");
    let job = ["compile", model.to_str().unwrap(), "--spec", "job.shard", "-o", "plan", "--target", "cuda", "--no-certificate"];
    shardc(&here, &job).expect(0);
    here
}

fn table(here: &Path) -> Value {
    serde_json::from_slice(&fs::read(here.join("plan/cuda/train.launches.json")).unwrap()).unwrap()
}

#[test]
fn tables_are_printed_and_proven() {
    let here = compiled("launches-printed", "dp=2 pp=2", "pipeline axis=pp\n");
    let all = table(&here);
    for rank in 0..4 {
        let ran = shardc(&here, &["inspect", "plan", "--launches", "--rank", &rank.to_string(), "--width", "120"]).expect(0);
        let sections = all["programs"]["programs"][rank % 2]["sections"].as_array().unwrap();
        let rows: usize = sections.iter().map(|section| section["rows"].as_array().unwrap().len()).sum();
        assert_eq!(ran.out.lines().count(), 2 + rows + sections.len(), "{}", ran.out);
        assert!(ran.out.lines().all(|line| line.chars().count() <= 120), "{}", ran.out);
        for what in [
            "cublaslt ",
            "copy in ",
            "send to pp=",
            "receive from pp=",
            "all_reduce sum over dp",
            "behind the step, once",
            "2 times",
        ] {
            assert!(ran.out.contains(what), "{what} of rank {rank}:\n{}", ran.out);
        }
    }
    let ran = shardc(&here, &["inspect", "plan", "--launches", "--format", "json"]).expect(0);
    assert_eq!(serde_json::from_str::<Value>(&ran.out).unwrap(), all);
    let ran = shardc(&here, &["inspect", "plan", "--launches", "--program", "eval"]).expect(0);
    assert!(!ran.out.contains("update"), "{}", ran.out);
    let ran = shardc(&here, &["inspect", "plan", "--launches", "--program", "reference"]).expect(1);
    assert!(ran.err.contains("the reference has no launch table"), "{}", ran.err);
    let ran = shardc(&here, &["inspect", "plan", "--launches", "-o", "plan/cuda/train.launches.json"]).expect(1);
    assert!(ran.err.contains("a launch table"), "{}", ran.err);
    let ran = shardc(&here, &["verify", "plan"]).expect(0);
    assert!(ran.out.contains("cuda train: proven of 2 launch tables") && ran.out.contains("cuda eval"), "{}", ran.out);
}

#[test]
fn a_plan_without_tables_has_none_to_prove() {
    let here = folder("launches-none");
    fs::write(here.join("job.shard"), job::spec("mlp", "dp=1", 1, "")).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/mlp/model.onnx");
    shardc(&here, &["compile", model.to_str().unwrap(), "--spec", "job.shard", "-o", "plan", "--no-certificate"]).expect(0);
    assert!(!shardc(&here, &["verify", "plan"]).expect(0).out.contains("cuda"));
    let ran = shardc(&here, &["inspect", "plan", "--launches"]).expect(1);
    assert!(ran.err.contains("the plan has no launch table") && ran.err.contains("--target cuda"), "{}", ran.err);
}

#[test]
fn what_is_beside_the_tables_is_held_too() {
    let here = compiled("launches-beside", "dp=1", "");
    let cuda = here.join("plan/cuda");
    let names: Vec<String> =
        fs::read_dir(&cuda).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let text = cuda.join(names.iter().find(|name| name.starts_with("map_")).expect("a map"));
    let sound = fs::read_to_string(&text).unwrap();
    fs::write(&text, sound.replacen('+', "-", 1)).unwrap();
    let ran = shardc(&here, &["verify", "plan"]).expect(1);
    assert!(ran.err.contains("this is not the kernel of") && ran.err.contains("map_"), "{}", ran.err);
    fs::write(&text, &sound).unwrap();
    let list = fs::read_to_string(cuda.join("kernels.json")).unwrap();
    fs::write(cuda.join("kernels.json"), list.replacen("\"block\": 256", "\"block\": 128", 1)).unwrap();
    let ran = shardc(&here, &["verify", "plan"]).expect(1);
    assert!(ran.err.contains("is not the kernel of"), "{}", ran.err);
    fs::write(cuda.join("kernels.json"), list).unwrap();
    shardc(&here, &["verify", "plan"]).expect(0);
    fs::remove_file(cuda.join("eval.launches.json")).unwrap();
    let ran = shardc(&here, &["verify", "plan"]).expect(1);
    assert!(ran.err.contains("the plan has no launch table") && ran.err.contains("eval.launches.json"), "{}", ran.err);
}

/// A table without its waits, of which there may be others that order the same.
fn without_waits(mut table: Value) -> Value {
    match &mut table {
        Value::Object(fields) => {
            fields.remove("waits");
            fields.values_mut().for_each(|value| *value = without_waits(value.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| *value = without_waits(value.take())),
        _ => {}
    }
    table
}

/// Whatever a file of tables has, it is proven only where it says the same.
#[test]
fn damaged_tables_are_refused() {
    let here = compiled("launches-damaged", "dp=2", "zero stage=1 axis=dp\n");
    let path = here.join("plan/cuda/train.launches.json");
    let (sound, same) = (fs::read(&path).unwrap(), without_waits(table(&here)));
    for number in 0..DAMAGES {
        let mut random = Random(number);
        let bytes = damaged(&sound, &mut random);
        fs::write(&path, &bytes).unwrap();
        let says_the_same = serde_json::from_slice::<Value>(&bytes).is_ok_and(|value| without_waits(value) == same);
        for command in [&["verify", "plan"][..], &["inspect", "plan", "--launches"]] {
            let ran = shardc(&here, command);
            let is_verify = command[0] == "verify";
            assert!(matches!(ran.code, 0 | 1), "{number}: {command:?} {:?} {}", ran.code, ran.err);
            assert!(!is_verify || ran.code == 1 || says_the_same, "{number}: {}", ran.out);
            if ran.code == 1 {
                assert_eq!(ran.err.matches("error:").count(), 1, "{number}: {}", ran.err);
                assert!(
                    ran.err.contains("train.launches.json") && ran.err.contains("help:") && ran.err.len() < 4096,
                    "{}",
                    ran.err
                );
            }
        }
    }
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(shardc(&here, &["verify", "plan"]).expect(1).err.contains("larger than any launch table"));
}
