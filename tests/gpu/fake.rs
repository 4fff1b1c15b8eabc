//! Tests inside a process whose CUDA, cuBLASLt, NVRTC and NCCL are the software ones, or, where
//! `SHARDC_GPU_DEVICE` is `real`, those of this machine.

use super::support::{folder, objects};
use shardc_cuda_testing::host::Host;
use shardc_fakecuda::folder::Installation;
use std::path::PathBuf;
use std::process::Command;

/// Says that the libraries of this process are the software ones.
const INSIDE: &str = "SHARDC_TEST_IN_FAKE_CUDA";

/// Whether the test is for the GPUs of this machine, and not for software.
pub fn is_real() -> bool {
    match std::env::var("SHARDC_GPU_DEVICE").as_deref() {
        Err(_) | Ok("software") => false,
        Ok("real") => true,
        Ok(other) => panic!("`SHARDC_GPU_DEVICE={other}`: it is `real` or `software`"),
    }
}

/// Says what was done, in a line that `tests/gpu.sh` shows.
pub fn told(what: &str) {
    // The line of a test has begun already.
    eprintln!("\n# {what}");
}

/// Whether the test runs inside. Outside it runs the test of that name again, inside, with the
/// variables, and fails where that fails.
pub fn is_inside(test: &str, variables: &[(&str, &str)]) -> bool {
    if std::env::var_os(INSIDE).is_some() || is_real() {
        return true;
    }
    if !Host::available() {
        eprintln!("skipped: no g++ for kernels on the host");
        return false;
    }
    let folder = Installation::whole().make(&library(), &folder(&format!("gpu-{}", test.replace(':', "")))).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, "1");
    command.env("LD_LIBRARY_PATH", folder).env("FAKE_CUDA_FOLDER", objects()).env("FAKE_CUDA_DEVICES", "8");
    command.envs(variables.iter().copied());
    let status = command.status().unwrap();
    assert!(status.success(), "`{test}` inside the software CUDA: {status}");
    false
}

/// The same for what looks into the software, which a GPU has no part in.
pub fn is_inside_software(test: &str, variables: &[(&str, &str)]) -> bool {
    if is_real() {
        eprintln!("skipped: this is for the software CUDA");
        return false;
    }
    is_inside(test, variables)
}

/// The software libraries, which were built beside this test.
pub fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libshardc_fakecuda.so")
}

/// How many seeds of the order of work are tried. A GPU has no seed: these are runs.
pub fn seeds() -> u64 {
    match is_real() {
        true => 2,
        false if is_full() => 20,
        false => 4,
    }
}

/// Whether everything is tried: a GPU is quick.
pub fn is_full() -> bool {
    is_real() || std::env::var("SHARDC_GPU").is_ok_and(|value| value == "all")
}
