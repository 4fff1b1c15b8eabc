//! `shardc launch`: ranks as processes train with the bits of ranks as threads, and end together,
//! whatever happens to one of them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "support/hosts.rs"]
mod hosts;
#[path = "support/job.rs"]
mod job;
#[path = "support/mod.rs"]
mod support;

use hosts::{FIRST, Hosts};
use job::{Job, bits, holds, spec};
use serde_json::Value;
use shardc_testkit::parallel;
use shardc_testkit::random::Random;
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use support::{Ran, command, example, folder, program, ran, shardc};

/// Longer than any of this takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn four_processes_give_the_bits_of_four_threads() {
    let job = Job::new("dp2-pp2", "gpt2", &spec("gpt2", "dp=2 pp=2", 2, "pipeline axis=pp\n"));
    let threads = job.trained(12, &[]);
    let (metrics, export) = ("processes.jsonl", "processes.onnx");
    let train = ["train", &job.model, "--spec", "job.shard", "--data", &job.data, "--steps", "12"];
    let outputs = ["--metrics", metrics, "--export", export];
    let ran = shardc(&job.here, &[&["launch", "-n", "4", "--"], &train[..], &outputs].concat()).expect(0);
    assert!(ran.err.contains("12 steps in ") && !ran.err.contains("rank "), "{}", ran.err);
    let text = fs::read_to_string(job.here.join(metrics)).expect("metrics");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    holds("gpt2", &lines, "processes");
    let processes = (lines, fs::read(job.here.join(export)).expect("an export"));
    assert!(bits(&threads) == bits(&processes), "losses, norms and weights are the same to the bit");
    let rest = |line: &Value| (line["step"].clone(), line["lr"].clone());
    assert!(threads.0.iter().map(rest).eq(processes.0.iter().map(rest)));
}

/// Two launchers, each on a host of its own with two of the ranks.
#[test]
fn two_hosts_give_the_bits_of_one() {
    let Some(hosts) = Hosts::new("cpu") else { return };
    let spec = spec("gpt2", "dp=2 pp=2", 2, "pipeline axis=pp\n");
    let jobs = ["first-host", "second-host"].map(|host| Job::new(host, "gpt2", &spec));
    let threads = Job::new("one-host", "gpt2", &spec).trained(6, &[]);
    let launchers = [0, 1].map(|host| {
        let (job, first) = (&jobs[host], (2 * host).to_string());
        let mut launcher = hosts.command(host, &program());
        let meet = format!("{FIRST}:29400");
        launcher.args(["launch", "-n", "2", "--world-size", "4", "--first-rank", &first, "--rendezvous", &meet, "--"]);
        launcher.args(["train", &job.model, "--spec", "job.shard", "--data", &job.data, "--steps", "6"]);
        launcher.args(["--metrics", "metrics.jsonl", "--export", "trained.onnx"]).current_dir(&job.here);
        launcher.env("SHARDC_RENDEZVOUS_KEY", "a text of two hosts").stdin(Stdio::null());
        launcher.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    });
    for launcher in launchers {
        ran(launcher.wait_with_output().expect("it ends"), LONG).expect(0);
    }
    assert!(bits(&threads) == bits(&jobs[0].results()), "losses, norms and weights are the same to the bit");
    assert!(!jobs[1].here.join("metrics.jsonl").exists(), "only rank 0 writes");
}

#[test]
fn one_process_tells_where_numbers_are_not_finite() {
    let here = folder("processes-not-finite");
    let spec = "mesh dp=2\nbatch 64\nloss cross_entropy logits=logits labels=y\noptimizer sgd lr=1e30\ndata axis=dp\n";
    fs::write(here.join("job.shard"), spec).unwrap();
    let (model, data) = (example("digits/model.onnx"), example("digits/train.npz"));
    let launch = ["launch", "-n", "2", "--", "train", &model, "--spec", "job.shard", "--data", &data, "--steps", "5"];
    let ran = shardc(&here, &[&launch[..], &["--export", "t.onnx"]].concat()).expect(1);
    assert_eq!(ran.err.matches("not a finite number").count(), 1, "{}", ran.err);
    assert!(ran.err.contains("the first value with inf, on rank 0, in `fc2`"), "{}", ran.err);
    assert!(!here.join("t.onnx").exists());
}

/// Four ranks that train the digits for a long time, started by a launcher.
struct Run {
    here: PathBuf,
    launcher: Child,
    start: Instant,
}

impl Run {
    fn start(name: &str) -> Run {
        let here = folder(&format!("processes-{name}"));
        let (model, spec) = (example("digits/model.onnx"), example("digits/dp2-tp2.shard"));
        let data = example("digits/train.npz");
        let launch = ["launch", "-n", "4", "--rendezvous-timeout", "60", "--", "train", &model, "--spec", &spec, "--data", &data];
        let outputs = ["--steps", "100000000", "--metrics", "m.jsonl", "--export", "t.onnx"];
        let mut command = command(&here, &[&launch[..], &outputs].concat());
        let launcher = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let run = Run { here, launcher, start: Instant::now() };
        run.wait("training begins", || fs::metadata(run.here.join("m.jsonl")).is_ok_and(|m| m.len() > 0));
        run
    }

    fn wait(&self, what: &str, mut is: impl FnMut() -> bool) {
        while !is() {
            assert!(self.start.elapsed() < LONG, "{what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The process of each rank.
    fn ranks(&self) -> BTreeMap<u64, u32> {
        let own = self.launcher.id().to_string();
        let processes =
            fs::read_dir("/proc").expect("processes").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let child = |pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?;
            let environ = fs::read(format!("/proc/{pid}/environ")).ok().filter(|_| parent == own)?;
            let rank =
                environ.split(|byte| *byte == 0).find_map(|v| std::str::from_utf8(v).ok()?.strip_prefix("SHARDC_RANK="))?;
            Some((rank.parse().ok()?, pid))
        };
        processes.filter_map(child).collect()
    }

    fn end(self) -> Ran {
        ran(self.launcher.wait_with_output().expect("it ends"), self.start.elapsed())
    }
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args(["-s", name, &pid.to_string()]).status().expect("kill starts").success());
}

/// Whether a process is there and is more than its exit code.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}

fn all_are_gone(ranks: &BTreeMap<u64, u32>) {
    assert_eq!(ranks.len(), 4);
    let start = Instant::now();
    while ranks.values().any(|pid| lives(*pid)) {
        assert!(start.elapsed() < Duration::from_secs(5), "no process is left");
        thread::sleep(Duration::from_millis(10));
    }
}

fn stops_well(name: &str, code: i32) {
    let run = Run::start(&name.to_lowercase());
    let (here, ranks) = (run.here.clone(), run.ranks());
    signal(name, run.launcher.id());
    let ran = run.end().expect(code);
    all_are_gone(&ranks);
    assert!(ran.err.contains("stopped after") && ran.err.contains("model in `t.onnx`"), "{}", ran.err);
    // The export is that of the last step: as many steps in one process give the same bytes.
    let steps = fs::read_to_string(here.join("m.jsonl")).expect("metrics").lines().count().to_string();
    let (model, spec, data) = (example("digits/model.onnx"), example("digits/dp2-tp2.shard"), example("digits/train.npz"));
    let train = ["train", &model, "--spec", &spec, "--data", &data, "--steps", &steps, "--export", "again.onnx"];
    shardc(&here, &train).expect(0);
    let read = |file: &str| fs::read(here.join(file)).expect("a model");
    assert!(read("t.onnx") == read("again.onnx"), "after {steps} steps");
}

#[test]
fn ctrl_c_ends_all_ranks_after_the_same_step() {
    stops_well("INT", 130);
}

#[test]
fn so_does_the_signal_to_end() {
    stops_well("TERM", 143);
}

#[test]
fn a_killed_rank_ends_all_and_is_named() {
    for rank in [2, 0] {
        let run = Run::start(&format!("killed-{rank}"));
        let ranks = run.ranks();
        let start = Instant::now();
        signal("KILL", ranks[&rank]);
        let ran = run.end().expect(137);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        all_are_gone(&ranks);
        assert!(ran.err.contains(&format!("rank {rank} was ended by signal 9")), "{}", ran.err);
        names(&ran, rank, ENDED);
    }
}

#[test]
fn a_stopped_rank_ends_all_and_is_named() {
    let run = Run::start("stopped");
    let ranks = run.ranks();
    signal("STOP", ranks[&3]);
    let ran = run.end().expect(3);
    all_are_gone(&ranks);
    names(&ran, 3, STOPPED);
}

/// How many ranks fail at random instants, one of each two killed and one stopped: the number of
/// SHARDC_FAULTS.
fn faults() -> u64 {
    std::env::var("SHARDC_FAULTS").map_or(4, |count| count.parse().expect("SHARDC_FAULTS is a number"))
}

#[test]
fn ranks_that_fail_at_random_instants_end_all() {
    let mut random = Random(7);
    let drawn: Vec<_> = (0..faults()).map(|_| (random.below(4) as u64, random.below(300_000) as u64)).collect();
    parallel::map(drawn.len(), |fault| {
        let (rank, instant) = (drawn[fault].0, Duration::from_micros(drawn[fault].1));
        let run = Run::start(&format!("random-{fault}"));
        let ranks = run.ranks();
        thread::sleep(instant);
        let start = Instant::now();
        let (ran, what, limit) = if fault % 2 == 0 {
            signal("KILL", ranks[&rank]);
            (run.end().expect(137), ENDED, ENDS)
        } else {
            signal("STOP", ranks[&rank]);
            (run.end().expect(3), STOPPED, SEEN + ENDS)
        };
        assert!(start.elapsed() < limit, "fault {fault}: {:?}", start.elapsed());
        all_are_gone(&ranks);
        names(&ran, rank, what);
    });
    eprintln!(
        "{} faults of a rank among four, all ranks ended in time, and the rank, its step and its call were named",
        faults()
    );
}

/// What the others say of a rank whose process is gone, and of one whose process is stopped.
const ENDED: &str = "its process ended without a word";
const STOPPED: &str = "its process has stopped, or cannot be reached";

/// A process that says nothing for so long, and a little, is taken for stopped.
const SEEN: Duration = Duration::from_secs(5);
/// So long may it take until all others have ended.
const ENDS: Duration = Duration::from_secs(5);

/// A rank that is left names `rank`, the step, the call and what has happened.
fn names(ran: &Ran, rank: u64, what: &str) {
    let line = ran.err.lines().find(|line| line.contains("failure of the machine: ") && line.contains(what));
    let line = line.unwrap_or_else(|| panic!("{}", ran.err));
    let words = line.split(&format!("rank {rank}: step ")).nth(1).unwrap_or_else(|| panic!("{line}"));
    let (step, call) = words.split_once(": ").unwrap_or_else(|| panic!("{line}"));
    assert!(step.parse::<u64>().is_ok_and(|step| step > 0), "{line}");
    assert!(call.starts_with("between two calls: ") || call.contains("all_reduce"), "{line}");
}

#[test]
fn ranks_end_with_their_launcher() {
    let mut run = Run::start("orphans");
    let ranks = run.ranks();
    // A process that is stopped could not see by itself that the launcher is gone.
    signal("STOP", ranks[&1]);
    run.launcher.kill().expect("it runs");
    run.launcher.wait().expect("it ends");
    all_are_gone(&ranks);
}

#[test]
fn a_mistake_is_told_and_ends_all() {
    let here = folder("processes-mistakes");
    let (model, spec, data) = (example("digits/model.onnx"), example("digits/dp2-tp2.shard"), example("digits/train.npz"));
    let launch = |ranks: &str, data: &str| {
        let train = ["train", &model, "--spec", &spec, "--data", data, "--steps", "2"];
        shardc(&here, &[&["launch", "-n", ranks, "--rendezvous-timeout", "20", "--"], &train[..]].concat())
    };
    let two = launch("2", &data).expect(2);
    assert!(two.err.contains("the plan has 4 ranks, and shardc launch has started 2 processes"), "{}", two.err);
    assert!(launch("4", "no.npz").expect(1).err.contains("no.npz"));
    for (arguments, says) in [
        (&["launch", "-n", "2", "--", "inspect", "plan"][..], "`inspect` does not run as several processes; `train` does"),
        (&["launch", "-n", "0", "--", "train"], "0 is not in 1..=1024"),
        (&["launch", "-n", "2"], "required"),
        (&["launch", "-n", "2", "--rendezvous", "h:1", "--world-size", "3", "--first-rank", "2", "--", "train"], "ranks 2 to 3"),
    ] {
        let ran = shardc(&here, arguments).expect(2);
        assert!(ran.err.contains(says), "{}", ran.err);
    }
}

/// Ranks that were started with the variables of torchrun, with `flags` of their own.
fn by_torchrun(here: &Path, flags: [&[&str]; 4]) -> Vec<Ran> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let (model, spec, data) = (example("digits/model.onnx"), example("digits/dp2-tp2.shard"), example("digits/train.npz"));
    let children = flags.iter().enumerate().map(|(rank, flags)| {
        let train = ["train", &model, "--spec", &spec, "--data", &data, "--rendezvous-timeout", "8"];
        let mut command = command(here, &[&train[..], flags].concat());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "4").env("LOCAL_RANK", rank.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    });
    let children: Vec<Child> = children.collect();
    children.into_iter().map(|child| ran(child.wait_with_output().expect("it ends"), LONG)).collect()
}

#[test]
fn ranks_of_torchrun_meet_and_only_rank_0_speaks() {
    let here = folder("processes-torchrun");
    let flags: &[&str] = &["--steps", "3", "--export", "t.onnx"];
    let all = by_torchrun(&here, [flags; 4]);
    for (rank, ran) in all.into_iter().enumerate() {
        let ran = ran.expect(0);
        assert_eq!(ran.err.is_empty(), rank > 0, "{}", ran.err);
    }
    assert!(here.join("t.onnx").exists());
}

#[test]
fn ranks_that_want_different_things_are_named() {
    let here = folder("processes-different");
    let (three, four): (&[&str], &[&str]) = (&["--steps", "3"], &["--steps", "4"]);
    let all = by_torchrun(&here, [three, three, four, three]);
    assert!(all[2].err.contains("rank 2 has plans ") && all[2].err.contains(": all ranks run the same job"), "{}", all[2].err);
    for rank in [0, 1, 3] {
        let says = &all[rank].err;
        assert!(says.contains("rank 2 did not come within 8 s; rank 2 came with plans "), "rank {rank}: {says}");
        assert_eq!(all[rank].code, 3);
    }
}

#[test]
fn variables_that_make_no_sense_are_told() {
    let here = folder("processes-variables");
    let train = ["train", "model.onnx", "--data", "x.npz"];
    let said = |variables: &[(&str, &str)]| {
        let output = command(&here, &train).envs(variables.iter().copied()).output().expect("it starts");
        ran(output, LONG).expect(2).err
    };
    assert!(said(&[("RANK", "0")]).contains("RANK is set and WORLD_SIZE is not"));
    let three = |rank| [("SHARDC_RANK", rank), ("SHARDC_WORLD_SIZE", "2"), ("SHARDC_LOCAL_RANK", "0")];
    assert!(said(&three("2")).contains("SHARDC_RANK=2 and SHARDC_WORLD_SIZE=2"));
    assert!(said(&three("one")).contains("SHARDC_RANK is `one`"));
}
