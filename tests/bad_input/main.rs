//! The program over bad input: models, specs, data, plans and outputs that somebody thought of, and
//! mutants of good ones. Whatever it is, the program does its work or ends with the exit code and
//! in the few words that it promises, soon, in little memory, and all files are what they were;
//! under a limit of memory too. `SHARDC_PROGRAMS` is the number of cases, 250 without it.
#![cfg(target_os = "linux")]
#![allow(clippy::duplicate_mod, reason = "the attack is whole without what tests of the program share")]

#[path = "../attack/mod.rs"]
mod attack;
mod by_hand;
mod case;
mod costly;
mod crafted;
mod many;
mod messages;
mod models;
mod packed;
#[path = "../support/mod.rs"]
mod support;

use attack::seeds::{PLAN_HEADER, clear_away, layer, small_job};
use attack::{Attack, Random, Target};
use case::{Bench, Case};
use prost::Message;
use shardc_executor::data::{npz_bytes, write_safetensors};
use shardc_executor::tensor::Tensor;
use shardc_ir::packed::{pack, unpack};
use shardc_ir::plan_file::hash;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use support::shardc;

/// The folder of the repository.
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Commands that read a model.
const MODEL_COMMANDS: &[&str] = &[
    "init model.onnx",
    "compile model.onnx --spec job.shard -o p",
    "train model.onnx --spec job.shard --data data.npz --steps 1 --threads 1 --export t.onnx",
    "eval model.onnx --spec job.shard --data data.npz --threads 1 --outputs out.npz",
    "check model.onnx --spec job.shard --data data.npz --threads 1",
];

/// Commands that read data.
const DATA_COMMANDS: &[&str] = &[
    "data data.npz",
    "train model.onnx --spec job.shard --data data.npz --steps 1 --threads 1",
    "eval plan --data data.npz --threads 1",
    "check plan --data data.npz --threads 1",
];

/// Commands that read a plan directory.
const PLAN_COMMANDS: &[&str] = &[
    "inspect plan",
    "inspect plan --format json",
    "verify plan",
    "train plan --data data.npz --steps 1 --threads 1 --export t.onnx",
    "eval plan --data data.npz --threads 1",
    "check plan --data data.npz --threads 1",
];

/// The limits of the address space, in KiB: below the least the system may not even load the
/// program.
const LIMITS: std::ops::RangeInclusive<usize> = 205_000..=600_000;

/// Puts the good job into `folder`.
fn good(folder: &Path) {
    let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("a file can be written");
    write("model.onnx", &layer().encode_to_vec());
    write("job.shard", b"mesh dp=2\nbatch 4\ndata axis=dp\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n");
    let array = |sizes: [u64; 2]| Tensor::from_f32(&sizes, &vec![0.5; (sizes[0] * sizes[1]) as usize]);
    let arrays = BTreeMap::from([("x".to_string(), array([8, 3])), ("t".to_string(), array([8, 2]))]);
    write("data.npz", &npz_bytes(&arrays).expect("arrays"));
    write("data.safetensors", &write_safetensors(&arrays).expect("arrays"));
    write("text.txt", "to be or not to be\n".repeat(20).as_bytes());
    write("text.bin", &[1; 101]);
    write("weights.data", &[0; 24]);
    write("short.data", &[0; 3]);
    // Nothing is behind it: whatever follows it does no harm.
    std::os::unix::fs::symlink("../none.data", folder.join("link.data")).expect("a link");
    let locked = folder.join("locked");
    fs::create_dir(&locked).expect("a folder");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).expect("permissions can be set");
    fs::create_dir(folder.join("arrays")).expect("a folder");
    for (name, width) in [("x", 3), ("t", 2)] {
        let header = format!("{:<117}\n", format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (8, {width}), }}"));
        write(
            &format!("arrays/{name}.npy"),
            &[b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &[0; 32 * 3][..32 * width]].concat(),
        );
    }
    shardc(folder, &["compile", "model.onnx", "--spec", "job.shard", "-o", "plan"]).expect(0);
    write("wide.onnx", &messages::wide().encode_to_vec());
    for (plan, spec) in [("stages", messages::SPEC), ("many", messages::MANY)] {
        let name = format!("{plan}.shard");
        write(&name, spec.as_bytes());
        shardc(folder, &["compile", "wide.onnx", "--spec", &name, "-o", plan]).expect(0);
    }
}

/// The material of mutants: the attack on each kind of file, and the good file.
struct Mutants {
    attacks: Vec<(Attack, &'static str, Vec<u8>)>,
}

impl Mutants {
    fn of(folder: &Path) -> Mutants {
        let attacks = [
            (Target::Onnx, "model.onnx"),
            (Target::Spec, "job.shard"),
            (Target::Npz, "data.npz"),
            (Target::Safetensors, "data.safetensors"),
            (Target::Manifest, "plan/manifest.json"),
            (Target::Plan, "plan/train.plan"),
            (Target::Shir, "plan/train.shir.gz"),
            (Target::Safetensors, "plan/weights.safetensors"),
        ];
        let read = |name: &str| fs::read(folder.join(name)).expect("a file of the good job");
        Mutants { attacks: attacks.into_iter().map(|(target, name)| (Attack::on(target), name, read(name))).collect() }
    }

    /// A case with a mutant of one file; where a plan's own hashes would tell it, they are made to
    /// fit, half of the time.
    fn case(&self, random: &mut Random) -> Case {
        let (attack, file, good) = &self.attacks[random.below(self.attacks.len())];
        let part = file.strip_prefix("plan/").filter(|name| *name != "manifest.json");
        let (is_plan, is_packed) = (file.ends_with(".plan"), file.ends_with(".gz"));
        let is_forged = part.is_some() && random.below(2) == 0;
        let unpacked = |packed: &[u8]| unpack(packed).expect("it is packed");
        let start = match *file {
            "model.onnx" if random.below(2) == 0 => attack.seed(random).to_vec(),
            _ if is_plan && is_forged => unpacked(&good[PLAN_HEADER..]),
            _ if is_packed && is_forged => unpacked(good),
            _ => good.clone(),
        };
        let mut bytes = attack.mutant(&start, random);
        for _ in 0..random.below(3) {
            bytes = attack.mutant(&bytes, random);
        }
        let commands = match *file {
            "model.onnx" => MODEL_COMMANDS,
            "job.shard" => &MODEL_COMMANDS[1..],
            "data.npz" | "data.safetensors" => DATA_COMMANDS,
            _ => PLAN_COMMANDS,
        };
        let command = commands[random.below(commands.len())]
            .replace("data.npz", if file.starts_with("data.s") { file } else { "data.npz" });
        let mut files = vec![];
        if is_forged {
            bytes = match (is_plan, is_packed) {
                (true, _) => attack::checks::sealed(&bytes),
                (_, true) => pack(&bytes).expect("bytes can be packed"),
                _ => bytes,
            };
            let (_, manifest, text) =
                self.attacks.iter().find(|(_, file, _)| *file == "plan/manifest.json").expect("it is listed");
            files.push((*manifest, Some(forged(text, good, &bytes).into())));
        }
        files.push((*file, Some(bytes.into())));
        Case::with(format!("a mutant of {file}"), files, &command)
    }
}

/// A manifest in which the hash of a file's `good` bytes is that of `bytes`.
fn forged(manifest: &[u8], good: &[u8], bytes: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(manifest).replace(&hash(good), &hash(bytes)).into_bytes()
}

/// The most memory that this process has had, in bytes; 0 where the system does not say.
fn most_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    most.map_or(0, |kilobytes: u64| kilobytes << 10)
}

#[test]
fn bad_input_is_told_in_time() {
    let count: usize = std::env::var("SHARDC_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(250);
    small_job();
    let mut bench = Bench::new("bad-input", good);
    for command in [MODEL_COMMANDS, DATA_COMMANDS, PLAN_COMMANDS].concat() {
        bench.measure(command);
    }
    // First those that are made with the most memory.
    let mut by_hand = packed::cases(bench.folder());
    by_hand.extend(messages::cases(bench.folder()));
    by_hand.extend(crafted::cases());
    by_hand.extend(by_hand::cases());
    by_hand.extend(costly::cases());
    by_hand.extend(many::cases());
    let mutants = Mutants::of(bench.folder());
    // Memory that this process had counts for those that it starts.
    let had = most_memory();
    assert!(had < bench.least(), "the test itself takes {} MiB", had >> 20);
    let (mut random, mut limits) = (Random(7), Random(8));
    // With fewer cases, of those by hand each time as many as of mutants, evenly; cases come in
    // pairs.
    let every = (2 * by_hand.len()).div_ceil(count.max(1)).max(1) | 1;
    let by_hand: Vec<Case> = by_hand.into_iter().step_by(every).collect();
    let rest = count.saturating_sub(by_hand.len());
    let cases = by_hand.len() + rest;
    let mut tally: BTreeMap<(bool, Option<i32>), usize> = BTreeMap::new();
    let mut slowest = [(Duration::ZERO, String::new()), (Duration::ZERO, String::new())];
    let (mut largest, mut bad) = ([0; 2], vec![]);
    for (number, case) in by_hand.into_iter().chain((0..rest).map(|_| mutants.case(&mut random))).enumerate() {
        for limit in [None, Some((LIMITS.start() + limits.below(LIMITS.end() - LIMITS.start())) as u64)] {
            let (outcome, wrong) = bench.run(&case, limit);
            let i = usize::from(limit.is_some());
            *tally.entry((limit.is_some(), outcome.code)).or_default() += 1;
            if outcome.took > slowest[i].0 {
                slowest[i] = (outcome.took, case.name.clone());
            }
            largest[i] = largest[i].max(outcome.peak);
            if !wrong.is_empty() {
                let said: String = outcome.said.chars().take(600).collect();
                let (name, arguments) = (&case.name, case.arguments.join(" "));
                bad.push(format!("{number} {name} under {limit:?}: `{arguments}` {}: {said}", wrong.join(", ")));
            }
        }
    }
    clear_away();
    println!("{cases} cases, each without and with a limit of memory: {tally:?}");
    println!("the slowest take {slowest:?}, the largest {} and {} MiB", largest[0] >> 20, largest[1] >> 20);
    assert!(bad.is_empty(), "{} of {cases}:\n{}", bad.len(), bad.join("\n"));
    let refused: usize = tally.iter().filter(|((_, code), _)| *code == Some(1)).map(|(_, n)| n).sum();
    assert!(refused > cases, "{refused} are refused");
}
