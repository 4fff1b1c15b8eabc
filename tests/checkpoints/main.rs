//! Checkpoints: a run that is killed, stopped or moved to another mesh goes on as if nothing had
//! been, and no damaged checkpoint is used.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod damage;
mod faults;
#[path = "../support/faulty.rs"]
mod faulty;
mod kills;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MESHES: [(&str, &str); 4] = [
    ("one", ""),
    ("dp", "mesh dp=2\ndata axis=dp\n"),
    ("zero", "mesh dp=2\ndata axis=dp\nzero axis=dp stage=3\n"),
    ("pp", "mesh pp=2\npipeline axis=pp\n"),
];

/// A job with state variables that the others have not, those of its loss scale.
const HALF: (&str, &str) = ("half", "mesh dp=2\ndata axis=dp\nzero axis=dp stage=1\nprecision compute=f16\n");

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits").join(name)
}

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkpoints").join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    for (name, mesh) in MESHES.into_iter().chain([HALF]) {
        let rest = "batch 64\nloss cross_entropy logits=logits labels=y\noptimizer adamw lr=0.01 weight_decay=0.1\n";
        fs::write(path.join(format!("{name}.shard")), format!("{mesh}{rest}")).unwrap();
    }
    path
}

/// A run of training that keeps checkpoints in the folder `to`.
fn command(here: &Path, spec: &str, to: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardc"));
    command.current_dir(here).arg("train").arg(example("model.onnx")).args(["--spec", &format!("{spec}.shard")]);
    command.arg("--data").arg(example("train.npz")).args(["--shuffle", "--checkpoint", to]).args(more);
    command
}

fn train(here: &Path, spec: &str, to: &str, more: &[&str]) -> Output {
    command(here, spec, to, more).output().unwrap()
}

fn done(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// How many faults are wanted instead of the share of every run: 2000 is the full count.
fn wanted() -> Option<u64> {
    std::env::var("SHARDC_FAULTS").ok().map(|count| count.parse().expect("SHARDC_FAULTS is a number"))
}

/// The bytes of all files of a checkpoint, by name.
fn state(checkpoint: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    files.iter().map(|file| (file.file_name().unwrap().to_string_lossy().into_owned(), fs::read(file).unwrap())).collect()
}

/// The steps and losses of a file of metrics; of what is cut off, as by a kill, nothing.
fn losses(path: &Path) -> Vec<(Value, Value)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|line| (line["step"].clone(), line["loss"].clone())).collect()
}

/// Ranks that are processes save what ranks as threads do, and go on from it.
#[test]
fn processes_go_on_to_the_bit() {
    let here = folder("processes");
    for (spec, _) in MESHES.into_iter().skip(1) {
        let (whole, cut) = (format!("{spec}-whole"), format!("{spec}-cut"));
        done(&train(&here, spec, &whole, &["--steps", "21"]));
        for steps in [["--steps", "13"], ["--steps", "21"]] {
            let mut launch = Command::new(env!("CARGO_BIN_EXE_shardc"));
            launch.current_dir(&here).args(["launch", "-n", "2", "--"]);
            launch.args(command(&here, spec, &cut, &[&steps[..], &["--resume"]].concat()).get_args());
            done(&launch.output().unwrap());
        }
        let last = |of: &str| state(&here.join(of).join("step-00000021"));
        assert!(last(&whole) == last(&cut), "{spec}");
    }
}

#[test]
fn a_run_that_stops_goes_on_to_the_bit() {
    let here = folder("stops");
    for (spec, _) in MESHES.into_iter().chain([HALF]) {
        let (whole, cut) = (format!("{spec}-whole"), format!("{spec}-cut"));
        done(&train(&here, spec, &whole, &["--steps", "21", "--every", "10", "--metrics", "whole.jsonl"]));
        done(&train(&here, spec, &cut, &["--steps", "13", "--metrics", "cut.jsonl"]));
        let again = train(&here, spec, &cut, &["--steps", "21"]);
        assert_eq!(again.status.code(), Some(1), "a run mixes its checkpoints with those of another");
        done(&train(&here, spec, &cut, &["--steps", "21", "--resume", "--metrics", "cut.jsonl"]));
        let last = |of: &str| state(&here.join(of).join("step-00000021"));
        assert!(last(&whole) == last(&cut), "{spec}");
        assert_eq!(losses(&here.join("whole.jsonl")), losses(&here.join("cut.jsonl")));
    }
}

/// The state of every mesh is that of every other, so what is saved by a run that does nothing is
/// too.
#[test]
fn any_mesh_goes_on_from_any_checkpoint() {
    let here = folder("meshes");
    for (from, _) in MESHES {
        done(&train(&here, from, from, &["--steps", "8"]));
        for (to, _) in MESHES.iter().filter(|(to, _)| *to != from) {
            let (there, back) = (format!("{from}-{to}"), format!("{from}-{to}-{from}"));
            let of = |folder: &str| format!("{folder}/step-00000008");
            done(&train(&here, to, &there, &["--steps", "8", "--resume", &of(from)]));
            done(&train(&here, from, &back, &["--steps", "8", "--resume", &of(&there)]));
            assert!(state(&here.join(of(from))) == state(&here.join(of(&back))), "{from} by way of {to}");
        }
    }
}

/// Ctrl-C saves where training is.
#[test]
fn an_interrupted_run_goes_on() {
    let here = folder("interrupted");
    let mut run = command(&here, "dp", "cut", &["--steps", "100000", "--every", "5"]).spawn().unwrap();
    while !here.join("cut/step-00000005").exists() && run.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let kill = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(kill.success() && run.wait().unwrap().code() == Some(130));
    let mut saved: Vec<String> =
        fs::read_dir(here.join("cut")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    saved.sort();
    let last = saved.pop().unwrap();
    let steps = last.strip_prefix("step-").unwrap().parse::<u64>().unwrap().to_string();
    done(&train(&here, "dp", "whole", &["--steps", &steps]));
    assert!(state(&here.join("cut").join(&last)) == state(&here.join("whole").join(&last)), "{last}");
}

/// A loss that is no number ends a run, but not the checkpoint that it had begun.
#[test]
fn a_run_that_fails_keeps_what_it_has_saved() {
    let here = folder("fails");
    let flip = "flip:rank=1,step=7,state=fc3.bias,bit=3";
    let output = train(&here, "dp", "c", &["--steps", "9", "--every", "7", "--check-replicas", "8", "--inject", flip]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && said.contains("on rank"), "{said}");
    assert!(here.join("c/step-00000007").exists(), "{said}");
    let again = train(&here, "dp", "other", &["--steps", "9", "--every", "7", "--inject", "disk-full:bytes=999"]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.code() == Some(3) && said.contains("warning: no checkpoint of step 7"), "{said}");
    assert!(said.contains("no checkpoint of step 9"), "{said}");
}

#[test]
fn a_checkpoint_of_another_model_is_refused_in_one_message() {
    let here = folder("another");
    done(&train(&here, "one", "c", &["--steps", "1"]));
    let gpt = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny-gpt");
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardc"));
    command.current_dir(&here).arg("train").arg(gpt.join("model.onnx")).arg("--spec").arg(gpt.join("one.shard"));
    command.arg("--data").arg(gpt.join("corpus.txt")).args([
        "--context",
        "64",
        "--steps",
        "2",
        "--shuffle",
        "--checkpoint",
        "c",
        "--resume",
    ]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
    assert!(said.contains("the checkpoint has no `") && said.contains(", and lacks 39 more"), "{said}");
}
