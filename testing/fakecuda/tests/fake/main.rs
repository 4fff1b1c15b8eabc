//! Unmodified cudarc over the fake: each scenario runs in a process of its own, whose loader finds
//! the four libraries in a folder of links, in one world after another.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod cuda;
mod faults;
mod parts;
mod processes;
mod products;
mod ranks;
mod right;
mod traces;
mod wrong;

use shardc_fakecuda::folder::Installation;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Worlds of a right program.
const RIGHT_SEEDS: u64 = 200;

/// Worlds of a scenario that ends with a report.
const SEEDS: u64 = 20;

/// Whether this process is one that a test started.
const CHILD: &str = "FAKE_TEST_CHILD";

/// The fake, which cargo builds beside the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libshardc_fakecuda.so")
}

/// A folder for one test, empty.
fn own_folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs `scenario` in a process that finds an installation: this test again, as a child.
fn with(installation: &Installation, test: &str, scenario: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        return scenario();
    }
    let folder = installation.make(&library(), &own_folder(&test.replace("::", "-"))).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, test).env("LD_LIBRARY_PATH", &folder);
    command.env("FAKE_CUDA_FOLDER", PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{test}: {}\n{out}\n{err}", output.status);
}

/// The same with all libraries.
fn whole(test: &str, scenario: impl FnOnce()) {
    with(&Installation::whole(), test, scenario);
}
