//! Checkpoints: a run that is killed, stopped or moved to another mesh goes on as if nothing had
//! been, and no damaged checkpoint is used.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "support/faulty.rs"]
mod faulty;

use faulty::{Fault, Faulty};
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

/// The bytes of all tensors of a checkpoint.
fn state(checkpoint: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    files.iter().map(|file| (file.file_name().unwrap().to_string_lossy().into_owned(), fs::read(file).unwrap())).collect()
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
        let losses = |name: &str| {
            let text = fs::read_to_string(here.join(name)).unwrap();
            let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
            text.lines().map(line).map(|line| (line["step"].clone(), line["loss"].clone())).collect::<Vec<_>>()
        };
        assert_eq!(losses("whole.jsonl"), losses("cut.jsonl"));
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

#[test]
fn damaged_checkpoints_are_refused() {
    let here = folder("damaged");
    done(&train(&here, "zero", "c", &["--steps", "2"]));
    let at = here.join("c/step-00000002");
    for (name, sound) in state(&at) {
        for cut in 0..40 {
            let mut bytes = sound.clone();
            let place = cut * 7919 * (sound.len() / 40 + 1) % sound.len();
            match cut % 4 {
                0 => bytes.truncate(place),
                _ => bytes[place] ^= 1 << (cut % 8),
            }
            fs::write(at.join(&name), &bytes).unwrap();
            let output = train(&here, "zero", "c", &["--steps", "3", "--resume"]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{name} at {place}: {said}");
            let is_named = said.contains(&name) || said.contains("manifest");
            assert!(is_named && said.len() < 4096, "{name} at {place}: {said}");
        }
        fs::write(at.join(&name), &sound).unwrap();
    }
    done(&train(&here, "zero", "c", &["--steps", "3", "--resume"]));
}

/// Whatever call on a file fails, or is the last of a killed process, a sound checkpoint is there,
/// and training goes on from it to the bits of a run without a fault.
#[test]
fn a_fault_while_saving_loses_nothing() {
    let here = folder("faults");
    let steps = ["--steps", "12", "--every", "4", "--keep", "1"];
    done(&train(&here, "dp", "whole", &steps));
    let wanted = state(&here.join("whole/step-00000012"));
    done(&train(&here, "dp", "begun", &["--steps", "4"]));
    let others = ["kill-after", "kill-within", "enospc", "eio", "eintr", "short"];
    let counting = Faulty::new(&here.join("counted"), &here);
    let copy = |to: &str| {
        let _ = fs::remove_dir_all(here.join(to));
        fs::create_dir_all(here.join(to).join("step-00000004")).unwrap();
        for (name, bytes) in state(&here.join("begun/step-00000004")) {
            fs::write(here.join(to).join("step-00000004").join(name), bytes).unwrap();
        }
    };
    let resumed = [&steps[..], &["--resume"]].concat();
    copy("counted");
    let mut run = command(&here, "dp", "counted", &resumed);
    counting.apply(&mut run, None);
    done(&run.output().unwrap());
    let calls = counting.count();
    assert!(calls > 20, "{calls} calls");
    let faults = (1..=calls).flat_map(|at| [(at, "kill"), (at, others[at as usize % others.len()])]);
    for (at, how) in faults {
        copy("faulty");
        let faulty = Faulty::new(&here.join("faulty"), &here);
        let mut run = command(&here, "dp", "faulty", &resumed);
        faulty.apply(&mut run, Some(Fault { at, forever: false, how }));
        let output = run.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            None => assert!(how.starts_with("kill"), "{how} at call {at}: {said}"),
            Some(0) => assert!(!how.starts_with("kill"), "{how} at call {at}: {said}"),
            Some(code) => {
                let cause = if how == "eio" { "Input/output error" } else { "No space left" };
                let is_told = said.contains(cause) && said.contains("`faulty");
                assert!([1, 3].contains(&code) && is_told, "{how} at call {at}: {code}: {said}");
            }
        }
        let again = train(&here, "dp", "faulty", &resumed);
        done(&again);
        let told = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(told.contains("going on after step "), "{how} at call {at} has lost all: {told}");
        assert!(state(&here.join("faulty/step-00000012")) == wanted, "{how} at call {at}: {said}");
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
