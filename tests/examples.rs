//! The programs of `examples/` run to their end.

#[path = "../examples/plan.rs"]
mod plan;
#[path = "../examples/resume.rs"]
mod resume;
#[path = "../examples/train.rs"]
mod train;
#[path = "../examples/validate.rs"]
mod validate;

use std::path::Path;

#[test]
fn a_job_is_trained_step_by_step() {
    train::main().unwrap();
    assert!(Path::new("target/digits.onnx").is_file());
}

#[test]
fn a_job_goes_on_under_another_mesh() {
    resume::main().unwrap();
    assert!(Path::new("target/resumed.onnx").is_file());
}

#[test]
fn a_plan_says_what_ranks_hold() {
    plan::main().unwrap();
}

#[test]
fn training_ends_when_validation_gets_no_better() {
    validate::main().unwrap();
    assert!(Path::new("target/validated.onnx").is_file());
}
