//! The programs of `examples/` run to their end, and leave what they say.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../examples/plan.rs"]
mod plan;
#[path = "../examples/resume.rs"]
mod resume;
#[path = "../examples/train.rs"]
mod train;
#[path = "../examples/validate.rs"]
mod validate;

use shardc::checkpoint::read::Checkpoint;
use std::fs;
use std::path::Path;

/// A file that the run has to leave, and no earlier one has left.
fn left_by(file: &str, run: impl FnOnce()) {
    let _ = fs::remove_file(file);
    run();
    assert!(Path::new(file).is_file(), "{file}");
}

/// The step of the latest checkpoint.
fn latest(folder: &str) -> u64 {
    Checkpoint::find(folder.as_ref()).unwrap().unwrap().manifest.position.step
}

#[test]
fn a_job_is_trained_step_by_step() {
    left_by("target/digits.onnx", || train::main().unwrap());
}

#[test]
fn a_job_goes_on_under_another_mesh() {
    left_by("target/resumed.onnx", || resume::main().unwrap());
    assert_eq!(latest("target/resume"), 200);
}

#[test]
fn a_plan_says_what_ranks_hold() {
    plan::main().unwrap();
}

#[test]
fn a_job_is_validated_and_evaluated() {
    left_by("target/validated.onnx", || validate::main().unwrap());
    assert!(latest("target/best") > 0);
}
