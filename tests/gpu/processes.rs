//! Ranks on GPUs as processes: what `shardc launch` starts has the bits of ranks in one process,
//! and what fails on one of them ends all.

use super::fake::library;
use super::faults::can_run;
use super::hosts::{FIRST, Hosts, SECOND};
use super::job::{Job, bits, spec};
use super::support::objects;
use super::support::program;
use shardc_fakecuda::folder::Installation;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// No fault takes longer to be told, whatever the machine does besides.
const LIMIT: Duration = Duration::from_secs(10);

struct Launched {
    job: Job,
    cuda: PathBuf,
}

impl Launched {
    fn new(name: &str, model: &str, mesh: &str, microbatches: u64, lines: &str) -> Launched {
        let job = Job::new(name, model, &spec(model, mesh, microbatches, lines));
        let cuda = Installation::whole().make(&library(), &job.here.join("cuda")).unwrap();
        Launched { job, cuda }
    }

    /// A command of the program on GPUs, with `before` in front of `train`.
    fn command(&self, before: &[&str], steps: &str) -> Command {
        self.command_on("cuda", before, steps)
    }

    fn command_on(&self, device: &str, before: &[&str], steps: &str) -> Command {
        self.command_of(Command::new(program()), device, before, steps)
    }

    /// `command` starts the program.
    fn command_of(&self, mut command: Command, device: &str, before: &[&str], steps: &str) -> Command {
        command.args(before).args(["train", &self.job.model, "--spec", "job.shard", "--data", &self.job.data, "--steps", steps]);
        command.args(["--device", device, "--metrics", "metrics.jsonl", "--export", "trained.onnx"]);
        command.current_dir(&self.job.here).stdin(Stdio::null()).env("NO_COLOR", "1");
        command
            .env("LD_LIBRARY_PATH", &self.cuda)
            .env("FAKE_CUDA_FOLDER", objects())
            .env("FAKE_CUDA_DEVICES", "4")
            .env("FAKE_CUDA_NCCL", "tcp");
        command.env("FAKE_CUDA_PATIENCE", "5000");
        command
    }

    /// The metrics and the export of training.
    fn trained(&self, before: &[&str]) -> (Vec<serde_json::Value>, Vec<u8>) {
        let output = self.command(before, "3").args(["--validate", &self.job.data]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !told.contains("fake cuda"), "{told}");
        self.job.results()
    }

    fn launched(&self, ranks: &str, variables: &[(&str, &str)]) -> (Output, Duration) {
        let began = Instant::now();
        let mut command = self.command(&["launch", "-n", ranks, "--rendezvous-timeout", "5", "--"], "3");
        (command.envs(variables.iter().copied()).output().unwrap(), began.elapsed())
    }
}

#[test]
fn processes_have_the_bits_of_one_process() {
    if !can_run() {
        return;
    }
    for (model, mesh, ranks, microbatches, lines) in
        [("mlp", "dp=2", "2", 1, ""), ("gpt2", "dp=2 pp=2", "4", 2, "pipeline axis=pp schedule=1f1b\n")]
    {
        let launched = Launched::new(&format!("processes-{model}"), model, mesh, microbatches, lines);
        let threads = launched.trained(&[]);
        let processes = launched.trained(&["launch", "-n", ranks, "--"]);
        assert_eq!(bits(&threads).0, bits(&processes).0, "{model} {mesh}");
        let validated = |lines: &[serde_json::Value]| lines.last().unwrap()["validation_loss"].as_f64();
        assert!(validated(&threads.0).is_some(), "{model} {mesh}");
        assert_eq!(validated(&threads.0), validated(&processes.0), "{model} {mesh}");
        assert!(threads.1 == processes.1, "{model} {mesh}: the exports differ");
    }
}

/// Two launchers, each on a host of its own with one of the ranks.
#[test]
fn two_hosts_have_the_bits_of_one_process() {
    let Some(hosts) = can_run().then(|| Hosts::new("cuda")).flatten() else { return };
    let zero = "zero stage=3 axis=dp\n";
    let [one, first, second] = ["one-host", "first-host", "second-host"].map(|name| Launched::new(name, "gpt2", "dp=2", 1, zero));
    let launchers = [(0, &first, FIRST), (1, &second, SECOND)].map(|(host, launched, address)| {
        let (rank, meet) = (host.to_string(), format!("{FIRST}:29400"));
        let launch = ["launch", "-n", "1", "--world-size", "2", "--first-rank", &rank, "--rendezvous", &meet, "--"];
        let mut command = launched.command_of(hosts.command(host, &program()), "cuda", &launch, "3");
        command.args(["--validate", &launched.job.data]).env("FAKE_CUDA_NCCL", format!("tcp:{address}"));
        command.env("SHARDC_RENDEZVOUS_KEY", "a text of two hosts").stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    for launcher in launchers {
        let output = launcher.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !told.contains("fake cuda"), "{told}");
    }
    assert!(bits(&one.trained(&[])) == bits(&first.job.results()), "losses, norms and weights are the same to the bit");
}

/// A run on GPUs goes on to the bit from its checkpoint, and one on the CPU takes it too.
#[test]
fn checkpoints_of_gpus_are_gone_on_from() {
    if !can_run() {
        return;
    }
    let zero = "zero stage=3 axis=dp\n";
    for (name, ranks, mesh, microbatches, lines) in
        [("one", None, "dp=1", 1, ""), ("zero", Some("2"), "dp=2", 1, zero), ("pp", None, "pp=2", 2, "pipeline axis=pp\n")]
    {
        let launched = Launched::new(&format!("checkpoints-{name}"), "mlp", mesh, microbatches, lines);
        let launch = ranks.map_or(vec![], |ranks| vec!["launch", "-n", ranks, "--"]);
        let run = |steps: &str, folder: &str, device: &str| {
            let mut command = launched.command_on(device, if device == "cuda" { &launch } else { &[] }, steps);
            let output = command.args(["--checkpoint", folder, "--resume"]).output().unwrap();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        };
        run("4", "whole", "cuda");
        run("2", "cut", "cuda");
        run("4", "cut", "cuda");
        let last = |folder: &str| {
            let entries = fs::read_dir(launched.job.here.join(folder).join("step-00000004")).unwrap();
            let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
            files.sort();
            files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>()
        };
        assert!(last("whole").len() >= 3 && last("whole") == last("cut"), "{name}");
        run("5", "cut", "cpu");
    }
}

#[test]
fn what_fails_on_one_rank_ends_all() {
    if !can_run() {
        return;
    }
    for (name, fault, words) in [
        ("memory", "alloc:1:2", "no memory left"),
        ("ecc", "launch:20:214", "cannot correct"),
        ("nccl", "nccl:2:6", "a communicator failed"),
    ] {
        let launched = Launched::new(&format!("processes-{name}"), "mlp", "dp=2", 1, "");
        let (output, took) = launched.launched("2", &[("FAKE_CUDA_FAULT", fault)]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{name}: {told}");
        assert!(told.contains(words) && told.contains("rank "), "{name}: {told}");
        assert!(took < LIMIT, "{name} took {took:?}: {told}");
        assert!(!launched.job.here.join("trained.onnx").exists(), "{name}: something is exported");
    }
}

/// A rank that is killed in the middle of training ends the others, which say who it was.
#[test]
fn a_rank_that_dies_ends_all() {
    if !can_run() {
        return;
    }
    let launched = Launched::new("processes-killed", "mlp", "dp=2", 1, "");
    let mut command = launched.command(&["launch", "-n", "2", "--"], "100000");
    let trace = launched.job.here.join("trace.jsonl");
    command.env("FAKE_CUDA_TRACE", &trace).stderr(Stdio::piped()).stdout(Stdio::null());
    let child = command.spawn().unwrap();
    let began = Instant::now();
    while !fs::read_to_string(&trace).is_ok_and(|rows| rows.matches("all_reduce").count() > 8) {
        assert!(began.elapsed() < Duration::from_secs(60), "no step comes");
        std::thread::sleep(Duration::from_millis(20));
    }
    let ranks = children(child.id());
    assert_eq!(ranks.len(), 2, "{ranks:?}");
    Command::new("kill").args(["-9", &ranks[1].to_string()]).status().unwrap();
    let killed = Instant::now();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(killed.elapsed() < LIMIT, "it took {:?}: {told}", killed.elapsed());
    assert!(!output.status.success() && told.contains("rank 1"), "{told}");
    assert!(ranks.iter().all(|rank| !PathBuf::from(format!("/proc/{rank}")).exists()), "a rank is left");
}

/// The processes that a process has started, in their order.
fn children(of: u32) -> Vec<u32> {
    let path = format!("/proc/{of}/task/{of}/children");
    fs::read_to_string(path).unwrap().split_whitespace().map(|child| child.parse().unwrap()).collect()
}
