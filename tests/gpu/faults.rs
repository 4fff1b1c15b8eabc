//! What people meet on a machine with GPUs: a library that is missing or too old, memory that
//! lacks, a GPU or a network that fails. Each ends soon, in one message that says what to do.

use super::fake::library;
use super::job::{Job, spec};
use super::support::objects;
use super::support::program;
use shardc_cuda_testing::host::Host;
use shardc_fakecuda::folder::Installation;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// No fault takes longer to be told.
const LIMIT: Duration = Duration::from_secs(10);

/// Training on two ranks in a process with some installation of CUDA.
struct Machine {
    job: Job,
    libraries: PathBuf,
    variables: Vec<(&'static str, String)>,
}

impl Machine {
    fn new(name: &str, installation: &Installation) -> Machine {
        let job = Job::new(name, "mlp", &spec("mlp", "dp=2", 1, ""));
        let libraries = installation.make(&library(), &job.here.join("cuda")).unwrap();
        Machine { job, libraries, variables: vec![] }
    }

    fn with(mut self, name: &'static str, value: &str) -> Machine {
        self.variables.push((name, value.to_string()));
        self
    }

    fn run(&self, flags: &[&str]) -> (Output, Duration) {
        let mut command = Command::new(program());
        command.args(["train", &self.job.model, "--spec", "job.shard", "--data", &self.job.data, "--steps", "3"]);
        command.args(["--device", "cuda", "--export", "trained.onnx"]).args(flags).current_dir(&self.job.here);
        command.env("LD_LIBRARY_PATH", &self.libraries).env("FAKE_CUDA_FOLDER", objects()).env("FAKE_CUDA_PATIENCE", "3000");
        command.envs(self.variables.iter().map(|(name, value)| (name, value.as_str())));
        command.stdin(Stdio::null());
        let began = Instant::now();
        (command.output().unwrap(), began.elapsed())
    }

    /// Fails with exit code 3 and these words, soon, and exports nothing.
    fn fails(&self, words: &[&str]) {
        let (output, took) = self.run(&[]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{told}");
        let failures: Vec<&str> = told.lines().filter(|line| line.starts_with("failure of the machine")).collect();
        assert_eq!(failures.len(), 1, "{told}");
        for word in words {
            assert!(told.contains(word), "`{word}` is not in:\n{told}");
        }
        assert!(took < LIMIT, "it took {took:?}:\n{told}");
        assert!(!self.job.here.join("trained.onnx").exists(), "something is exported:\n{told}");
    }
}

/// Whether there is what the software CUDA needs.
pub fn can_run() -> bool {
    if !Host::available() {
        eprintln!("skipped: no g++ for kernels on the host");
    }
    Host::available()
}

#[test]
fn training_works_from_the_command_line() {
    if can_run() {
        let machine = Machine::new("works", &Installation::whole());
        for flags in [&[][..], &["--no-graph"]] {
            let (output, _) = machine.run(flags);
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !told.contains("fake cuda"), "{told}");
            assert!(machine.job.here.join("trained.onnx").exists(), "{told}");
        }
    }
}

#[test]
fn missing_libraries_are_named() {
    for (library, words) in [
        ("libcuda.so", "the CUDA driver is not there"),
        ("libnvrtc.so", "NVRTC is not there"),
        ("libnccl.so", "NCCL is not there"),
        ("libcublasLt.so", "cuBLASLt is not there"),
    ] {
        let name = format!("without-{}", &library[3..library.len() - 3]);
        Machine::new(&name, &Installation::whole().without(library)).fails(&[words]);
    }
}

#[test]
fn everything_that_is_missing_is_named_at_once() {
    let none = Installation::whole().without("libcuda.so").without("libnccl.so").without("libcublasLt.so");
    Machine::new("without-all", &none).fails(&["the CUDA driver is not there", "NCCL is not there", "cuBLASLt is not there"]);
}

#[test]
fn old_libraries_are_named() {
    Machine::new("old-driver", &Installation::whole()).with("FAKE_CUDA_DRIVER_VERSION", "11040").fails(&["version 11.4", "12.0"]);
    Machine::new("older-driver", &Installation::whole())
        .with("FAKE_CUDA_DRIVER_VERSION", "12040")
        .fails(&["version 12.4", "does not load kernels of NVRTC 13"]);
    let lacking = Installation::whole().lacking("ncclCommSplit");
    Machine::new("old-nccl", &lacking).fails(&["lacks `ncclCommSplit`"]);
    let lacking = Installation::whole().lacking("cuGraphInstantiateWithFlags");
    Machine::new("lacking-driver", &lacking).fails(&["lacks `cuGraphInstantiateWithFlags`"]);
}

#[test]
fn too_few_gpus_are_told() {
    Machine::new("gpus", &Installation::whole()).with("FAKE_CUDA_DEVICES", "1").fails(&["2 GPUs", "has 1"]);
}

#[test]
fn too_little_memory_is_told_before_any_is_taken() {
    let machine = Machine::new("memory", &Installation::whole()).with("FAKE_CUDA_MEMORY", "1000000");
    machine.fails(&["the plan needs", "for its arena", "free of"]);
}

#[test]
fn failures_of_gpus_are_told() {
    if !can_run() {
        return;
    }
    for (name, fault, words) in [
        ("allocate", "alloc:1:2", "no memory left"),
        ("pinned", "host_alloc:2:2", "no memory left"),
        ("ecc", "launch:20:214", "cannot correct"),
        ("copy", "copy:9:719", "CUDA_ERROR_LAUNCH_FAILED"),
        ("matmul", "matmul:40:13", "cuBLASLt"),
        ("module", "module:2:209", "assembled for another GPU"),
        ("graph", "graph:1:999", "CUDA_ERROR_UNKNOWN"),
        ("nccl", "nccl:3:6", "a communicator failed"),
        ("nccl-init", "nccl_init:1:2", "NCCL fails"),
    ] {
        Machine::new(name, &Installation::whole()).with("FAKE_CUDA_FAULT", fault).fails(&[words, "rank "]);
    }
}

/// The first algorithm that the library proposes may not work on a GPU; then the next one is taken.
#[test]
fn an_algorithm_that_fails_is_passed_over() {
    if can_run() {
        let machine = Machine::new("algorithm", &Installation::whole()).with("FAKE_CUDA_FIRST_ALGO", "fails");
        for flags in [&[][..], &["--tune"]] {
            let (output, _) = machine.run(flags);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// A plan that was compiled where NVRTC is runs where it is not; what was chosen for products is
/// kept beside it, and taken again.
#[test]
fn a_plan_has_its_kernels_and_choices() {
    if !can_run() {
        return;
    }
    let whole = Machine::new("plan", &Installation::whole());
    let here = whole.job.here.clone();
    let program = |arguments: &[&str], libraries: &PathBuf| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardc"));
        command.args(arguments).current_dir(&here).env("LD_LIBRARY_PATH", libraries).env("FAKE_CUDA_FOLDER", objects());
        let output = command.stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !told.contains("fake cuda"), "{told}");
    };
    let compile = ["compile", &whole.job.model, "--spec", "job.shard", "-o", "plan", "--target", "cuda"];
    program(&compile, &whole.libraries);
    let train = ["train", "plan", "--device", "cuda", "--data", &whole.job.data, "--steps", "2", "--export"];
    program(&[&train[..], &["first.onnx"]].concat(), &whole.libraries);
    let choices = std::fs::read(here.join("plan/cuda/products.json")).unwrap();
    assert!(choices.len() > 100, "{} bytes of choices", choices.len());
    let without = Installation::whole().without("libnvrtc.so").make(&library(), &here.join("without")).unwrap();
    program(&[&train[..], &["second.onnx"]].concat(), &without);
    assert_eq!(std::fs::read(here.join("plan/cuda/products.json")).unwrap(), choices, "choices are made anew");
    let [first, second] = ["first.onnx", "second.onnx"].map(|file| std::fs::read(here.join(file)).unwrap());
    assert!(first == second, "the exports differ");
    program(&["check", "plan", "--device", "cuda", "--data", &whole.job.data], &whole.libraries);
    program(&["verify", "plan"], &whole.libraries);
}
