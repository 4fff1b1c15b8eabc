//! What the run refuses, and how it says so.

use super::{Access, bytes, job, operand};
use shardc_cuda_testing::job::{Job, Operand};
use shardc_cuda_testing::ptx::Module;

fn error(entry: &str, block: u32, shared: u32, operands: Vec<Operand>, numbers: &[i64]) -> String {
    outcome(&job(entry, 1, block, shared, operands, numbers)).expect_err("the launch is refused")
}

fn outcome(job: &Job) -> Result<Vec<Vec<u8>>, String> {
    Module::parse(include_str!("faults.ptx")).and_then(|m| m.run(job)).map(|ran| ran.operands)
}

fn says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "'{part}' is not in: {error}");
    }
}

fn floats(name: &str, access: Access, count: usize) -> Operand {
    operand(name, access, vec![0; 4 * count])
}

#[test]
fn accesses_outside() {
    let e = error("strided", 64, 0, vec![floats("a", Access::Read, 63), floats("b", Access::Write, 64)], &[1]);
    says(
        &e,
        &[
            "entry 'strided'",
            "block (0, 0, 0)",
            "warp 1, lane 31",
            "ld.global",
            "load of 4 bytes at 252 of operand 'a', which has 252",
        ],
    );
    let e = error("strided", 64, 0, vec![floats("a", Access::Read, 64), floats("b", Access::Write, 64)], &[-1]);
    says(&e, &["lane 1", "at -4 of operand 'a'"]);
    let e = error("banked", 32, 64, vec![floats("b", Access::Write, 32)], &[1]);
    says(&e, &["lane 16", "store of 4 bytes at 64 of shared memory, which has 64"]);
}

#[test]
fn accesses_in_a_wrong_direction() {
    let e = error("strided", 64, 0, vec![floats("a", Access::Write, 64), floats("b", Access::Write, 64)], &[1]);
    says(&e, &["load from operand 'a', whose access is Write"]);
    let e = error("strided", 64, 0, vec![floats("a", Access::Read, 64), floats("b", Access::Read, 64)], &[1]);
    says(&e, &["store from operand 'b', whose access is Read"]);
    let e = error("guarded", 64, 0, vec![floats("fault", Access::Fault, 1)], &[5]);
    says(&e, &["load from operand 'fault', whose access is Fault"]);
}

#[test]
fn a_fault_is_told_by_any_thread() {
    let mut a = [1i64; 32];
    let fault = |a: &[i64; 32]| {
        let operands = vec![floats("fault", Access::Fault, 1), operand("a", Access::Read, bytes!(a))];
        outcome(&job("faulty", 1, 32, 0, operands, &[])).expect("the launch goes well").swap_remove(0)
    };
    assert_eq!(fault(&a), [0; 4]);
    a[17] = -1;
    assert_eq!(fault(&a), [7, 0, 0, 0]);
}

#[test]
fn misaligned_accesses() {
    let e = error("misaligned", 32, 0, vec![floats("a", Access::Read, 16), floats("b", Access::Write, 32)], &[]);
    says(&e, &["lane 1", "is not a multiple of 4"]);
}

#[test]
fn barriers_that_are_not_reached() {
    let b = || vec![floats("b", Access::Write, 64)];
    says(&error("missing", 64, 256, b(), &[7]), &["warp 0, lane 0", "bar.sync", "the barrier is not reached by lanes 7,"]);
    says(&error("missing", 64, 256, b(), &[32]), &["warp 1", "another barrier"]);
    // Threads that have ended are not waited for.
    for n in [7, 32, 40] {
        let ran = outcome(&job("early", 1, 64, 256, b(), &[n])).expect("the launch goes well");
        assert_eq!(ran[0][..4], 1.0f32.to_le_bytes());
    }
}

#[test]
fn shuffles_without_some_lanes() {
    let b = || vec![floats("b", Access::Write, 32)];
    says(&error("partly", 32, 0, b(), &[20]), &["lane 0", "shfl.sync", "by lanes 20, 21,"]);
    says(&error("partly", 24, 0, b(), &[32]), &["by lanes 24, 25,"]);
    assert!(outcome(&job("partly", 1, 32, 0, b(), &[32])).is_ok());
}

#[test]
fn unknown_instructions_are_all_named() {
    let e = Module::parse(include_str!("inexact.ptx")).err().expect("the text is refused");
    says(&e, &["ex2.approx.f32 (not exact)", "rsqrt.approx.f32 (not exact)", "atom.global.add.f32"]);
}

#[test]
fn jobs_that_do_not_fit() {
    let operands = || vec![floats("a", Access::Read, 64), floats("b", Access::Write, 64)];
    says(&error("strided", 64, 0, operands(), &[]), &["3 parameters", "2"]);
    says(&error("stride", 64, 0, operands(), &[1]), &["there is no entry 'stride'"]);
}

#[test]
fn malformed_texts_are_errors() {
    let text = include_str!("warps.ptx");
    for end in (0..text.len()).step_by(5) {
        let _ = Module::parse(&text[..end]);
    }
    // Each byte in turn is lost, or becomes another.
    for at in (0..text.len()).step_by(13) {
        let _ = Module::parse(&format!("{}{}", &text[..at], &text[at + 1..]));
        for sign in ["{", "}", "[", "%", ",", ";", "9", "-", "."] {
            let _ = Module::parse(&format!("{}{sign}{}", &text[..at], &text[at + 1..]));
        }
    }
}

#[test]
fn a_launch_that_does_not_end() {
    let job = job("endless", 1, 32, 0, vec![operand("b", Access::Update, vec![0; 8])], &[]);
    let module = Module::parse(include_str!("faults.ptx")).expect("the text is right");
    let error = module.run_at_most(&job, 100_000).expect_err("the launch is stopped");
    says(&error, &["entry 'endless'", "does not end"]);
}
