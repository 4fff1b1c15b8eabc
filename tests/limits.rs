//! What a process may have at most: addresses, and bytes of a file. Within these small jobs run, or
//! end with words and lose nothing.
#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use support::{Ran, example, folder, program, ran};

/// The program, with such a limit of the shell.
fn limited(here: &Path, limit: &str, arguments: &str) -> Ran {
    let start = Instant::now();
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit {limit}; exec \"$0\" {arguments}")).arg(program());
    command.current_dir(here).env("NO_COLOR", "1").env_remove("RUST_BACKTRACE");
    ran(command.output().expect("a shell starts"), start.elapsed())
}

/// A folder with the job of digits, on one rank and on four.
fn digits(name: &str) -> std::path::PathBuf {
    let here = folder(name);
    for file in ["model.onnx", "one.shard", "dp2-tp2.shard", "train.npz"] {
        fs::copy(example(&format!("digits/{file}")), here.join(file)).expect("an example can be copied");
    }
    here
}

const TRAIN: &str = "train model.onnx --spec one.shard --data train.npz --steps 2 --export trained.onnx";

/// Threads come and go, and each wants room of its own.
#[test]
fn small_jobs_run_in_few_addresses() {
    let here = digits("few-addresses");
    for mebibytes in [200, 300, 400, 600] {
        let limit = format!("-v {}", mebibytes << 10);
        for arguments in [
            "compile model.onnx --spec one.shard -o plan",
            "verify plan",
            TRAIN,
            "check model.onnx --spec dp2-tp2.shard --data train.npz",
            "eval trained.onnx --spec one.shard --data train.npz",
        ] {
            limited(&here, &limit, arguments).expect(0);
        }
    }
}

/// The fewest MiB of addresses in which the program runs: below that, there is no room for itself.
fn least(here: &Path) -> usize {
    let runs = |mebibytes: &usize| limited(here, &format!("-v {}", mebibytes << 10), "--version").code == 0;
    (10..500).step_by(2).find(runs).expect("the program runs")
}

/// Runs a command in so many KiB of addresses; who has too few is told in words.
fn told(here: &Path, kibibytes: usize, arguments: &str) -> Ran {
    let ran = limited(here, &format!("-v {kibibytes}"), arguments);
    assert!([0, 3].contains(&ran.code), "{ran:?}");
    let lines = ran.err.lines().count();
    let is_short = (1..=4).contains(&lines) && ran.err.len() < 4096;
    assert!(ran.code == 0 || is_short && !ran.err.contains("panicked"), "{ran:?}");
    ran
}

#[test]
fn who_has_no_addresses_is_told() {
    let here = digits("no-addresses");
    let least = least(&here);
    let tried = (least..least + 60).map(|mebibytes| told(&here, mebibytes << 10, "compile model.onnx --spec one.shard -o plan"));
    let lacked =
        |ran: Ran| -> Option<u64> { ran.err.strip_prefix("error: there is no memory for ")?.split(' ').next()?.parse().ok() };
    let small = tried.filter_map(lacked).filter(|bytes| *bytes < 1 << 20).count();
    assert!(small > 0, "none of them lacks memory for a small piece");
}

/// What a thread takes before its work begins is a few KiB, so the limits lie close together.
#[test]
fn who_has_no_addresses_for_a_thread_is_told() {
    let here = digits("no-addresses-for-a-thread");
    let least = least(&here) << 10;
    let tried = (least..least + (4 << 10))
        .step_by(8)
        .map(|kibibytes| told(&here, kibibytes, "compile model.onnx --spec one.shard -o plan"));
    let ended = tried.filter(|ran| ran.code == 0).count();
    assert!((1..512).contains(&ended), "{ended} of 512 had enough, so none was near its least");
}

/// A piece that is larger than all other memory together.
#[test]
fn who_has_no_addresses_for_much_is_told() {
    let here = digits("no-addresses-for-much");
    let data = fs::File::create(here.join("long.txt")).expect("a file can be made");
    data.set_len(300 << 20).expect("a file without content takes no room");
    let mebibytes = least(&here) + 100;
    let ran = told(&here, mebibytes << 10, "compile long.txt --spec one.shard -o plan");
    let said = format!("error: there is no memory for {} more bytes", 300 << 20);
    assert!(ran.code == 3 && ran.err.starts_with(&said) && ran.err.contains("help: "), "{ran:?}");
}

#[test]
fn a_file_that_may_not_grow_is_an_error() {
    let here = digits("no-growth");
    limited(&here, "-f unlimited", TRAIN).expect(0);
    fs::write(here.join("found.shard"), "older").expect("a file can be written");
    let before = fs::read(here.join("trained.onnx")).expect("it was exported");
    for (limit, arguments) in [
        ("-f 40", TRAIN),
        ("-f 40", "compile model.onnx --spec one.shard -o plan"),
        ("-f 0", "plan model.onnx --spec one.shard --ranks 2 --memory 1GiB -o found.shard"),
    ] {
        let ran = limited(&here, limit, arguments).expect(3);
        assert!(ran.err.contains("File too large"), "{arguments}: {}", ran.err);
    }
    assert_eq!(fs::read(here.join("trained.onnx")).expect("it is there"), before);
    assert_eq!(fs::read_to_string(here.join("found.shard")).expect("it is there"), "older");
    let left =
        fs::read_dir(&here).expect("a folder").flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
    assert_eq!(left.count(), 0, "something is left over");
}
