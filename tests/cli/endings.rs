//! How a run ends early: signals, readers that leave, full disks, folders that are not plans.

use crate::mistakes::{all_told, mistake};
use crate::support::{command, example, folder, ran, shardc};
use crate::{SPEC, metrics, write};
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn only_plan_directories_are_replaced() {
    let here = folder("replace");
    let (model, spec) = (example("digits/model.onnx"), example("digits/one.shard"));
    fs::create_dir(here.join("papers")).expect("a folder");
    write(&here, "papers/thesis.tex", "years of work");
    write(&here, "file", "a file");
    std::os::unix::fs::symlink("papers", here.join("link")).expect("a link can be made");
    let onto = |to: &'static str| ["compile", &model, "--spec", &spec, "-o", to].map(str::to_string);
    for (to, says) in [
        ("papers", "no plan directory"),
        ("file", "no folder"),
        ("link", "a symbolic link"),
        (".", "no folder of its own"),
        ("file/p", "file/p"),
    ] {
        let arguments = onto(to);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        all_told(&here, vec![mistake(&arguments, 1, &[says])]);
    }
    assert_eq!(fs::read_to_string(here.join("papers/thesis.tex")).expect("still there"), "years of work");
    fs::create_dir(here.join("empty")).expect("a folder");
    for to in ["empty", "empty", "deep/in/folders"] {
        let arguments = onto(to);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        shardc(&here, &arguments).expect(0);
        shardc(&here, &["verify", to]).expect(0);
    }
    let left: Vec<_> = fs::read_dir(&here).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}

#[test]
fn the_first_ctrl_c_finishes_the_step() {
    let here = folder("ctrl-c");
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    let spec = write(&here, "job.shard", SPEC);
    let arguments =
        ["train", &model, "--spec", &spec, "--data", &data, "--steps", "100000000", "--metrics", "m.jsonl", "--export", "t.onnx"];
    let start = Instant::now();
    let child = command(&here, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    while fs::metadata(here.join("m.jsonl")).map_or(0, |m| m.len()) == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "training begins");
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("a signal can be sent");
    assert!(sent.success());
    let ran = ran(child.wait_with_output().expect("it ends"), start.elapsed()).expect(130);
    assert!(ran.err.contains("stopped after") && ran.err.contains("t.onnx"), "{}", ran.err);
    assert!(!metrics(&here.join("m.jsonl")).is_empty());
    shardc(&here, &["eval", "t.onnx", "--spec", &spec, "--data", &data]).expect(0);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let here = folder("pipe");
    let mut child = command(&here, &["ops"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(said, "");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_the_machines_failure() {
    let here = folder("full");
    let (model, data, spec) = (example("digits/model.onnx"), example("digits/train.npz"), example("digits/one.shard"));
    shardc(&here, &["compile", &model, "--spec", &spec, "-o", "p"]).expect(0);
    let ran = shardc(&here, &["inspect", "p", "-o", "/dev/full"]).expect(3);
    assert!(ran.err.contains("/dev/full"), "{}", ran.err);
    let ran = shardc(&here, &["train", "p", "--data", &data, "--steps", "2", "--metrics", "/dev/full"]).expect(3);
    assert!(ran.err.contains("metrics to `/dev/full`"), "{}", ran.err);
    let ran = shardc(&here, &["train", "p", "--data", &data, "--steps", "2", "--export", "/dev/full"]).expect(3);
    assert!(ran.err.contains("cannot write `/dev/full`"), "{}", ran.err);
    let ran = shardc(&here, &["eval", "p", "--data", &data, "--outputs", "/dev/full"]).expect(3);
    assert!(ran.err.contains("cannot write `/dev/full`"), "{}", ran.err);
    assert!(!fs::metadata("/dev/full").expect("it is still there").is_file());
}
