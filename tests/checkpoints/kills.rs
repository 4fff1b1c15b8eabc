//! Runs that are killed at random instants, of which many are inside a save.

use crate::faulty::{Fault, Faulty};
use crate::{MESHES, command, done, folder, losses, state, train, wanted};
use shardc_testkit::random::Random;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

/// A step in three is saved, and the latest two checkpoints stay.
const EVERY: u64 = 3;
const ARGUMENTS: [&str; 6] = ["--steps", "12", "--every", "3", "--keep", "2"];

/// A run that nothing disturbs.
struct Whole {
    /// The files of each of its checkpoints, by step.
    checkpoints: BTreeMap<u64, Vec<(String, Vec<u8>)>>,
    losses: Vec<(serde_json::Value, serde_json::Value)>,
    /// How long it takes.
    time: Duration,
    /// The calls on files that are made while it saves.
    saving: Vec<u64>,
}

impl Whole {
    fn new(here: &Path, mesh: &str) -> Whole {
        let all = [&ARGUMENTS[..4], &["--keep", "100", "--metrics", "whole.jsonl"]].concat();
        let start = Instant::now();
        done(&train(here, mesh, &format!("whole-{mesh}"), &all));
        let time = start.elapsed();
        let checkpoints = checkpoints(&here.join(format!("whole-{mesh}")));
        let checkpoints = checkpoints.into_iter().map(|(step, at)| (step, state(&at))).collect();
        let losses = losses(&here.join("whole.jsonl"));
        let counting = Faulty::new(&here.join("counted"), here);
        let mut run = command(here, mesh, "counted", &ARGUMENTS);
        counting.apply(&mut run, None);
        done(&run.output().unwrap());
        let number = |line: &String| line.split_whitespace().next()?.parse().ok();
        let saving = counting.trace().iter().filter(|line| line.contains("/.step-")).filter_map(number).collect();
        fs::remove_dir_all(here.join("counted")).unwrap();
        Whole { checkpoints, losses, time, saving }
    }
}

/// The checkpoints that have a name.
fn checkpoints(folder: &Path) -> BTreeMap<u64, PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let step = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok();
    entries.filter_map(|path| Some((step(&path)?, path))).collect()
}

/// Every checkpoint that a killed run leaves is one of the run that nothing disturbs, none is lost
/// that was there, and what goes on from it has the same losses and the same state.
#[test]
fn a_killed_run_goes_on_to_the_bit() {
    let here = folder("kills");
    let wholes = MESHES.map(|(mesh, _)| (mesh, Whole::new(&here, mesh)));
    let (mut random, times, (mut killed, mut saving)) = (Random(5), wanted().unwrap_or(16), (0, 0));
    while killed < times {
        let (mesh, whole) = &wholes[(killed % 4) as usize];
        for left in ["cut", "cut.jsonl"] {
            let _ = fs::remove_dir_all(here.join(left)).or_else(|_| fs::remove_file(here.join(left)));
        }
        let mut run = command(&here, mesh, "cut", &[&ARGUMENTS[..], &["--metrics", "cut.jsonl"]].concat());
        let inside = killed / 4 % 2 == 0;
        if inside {
            let at = whole.saving[random.below(whole.saving.len())];
            let how = ["kill", "kill-within", "kill-after"][random.below(3)];
            Faulty::new(&here.join("cut"), &here).apply(&mut run, Some(Fault { at, forever: false, how }));
        }
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        if !inside {
            thread::sleep(whole.time.mul_f64(random.below(1000) as f64 / 1000.0));
            run.kill().unwrap();
        }
        if run.wait().unwrap().code().is_some() {
            continue;
        }
        killed += 1;
        saving += u64::from(inside);
        let left = checkpoints(&here.join("cut"));
        for (step, at) in &left {
            assert!(state(at) == whole.checkpoints[step], "{mesh}: the checkpoint of step {step} is another one");
        }
        // The one before the last that was begun was there when that was begun.
        let steps = losses(&here.join("cut.jsonl")).len() as u64;
        let sure = (steps.saturating_sub(1) / EVERY).saturating_sub(1) * EVERY;
        assert!(left.last_key_value().map_or(0, |(step, _)| *step) >= sure, "{mesh}: lost after {steps} steps: {left:?}");
        let again = [&ARGUMENTS[..], &["--metrics", "cut.jsonl", "--resume"]].concat();
        done(&train(&here, mesh, "cut", &again));
        let last = checkpoints(&here.join("cut")).last_key_value().map(|(step, at)| (*step, state(at)));
        assert!(last == whole.checkpoints.last_key_value().map(|(step, files)| (*step, files.clone())), "{mesh}");
        assert_eq!(losses(&here.join("cut.jsonl")), whole.losses, "{mesh}");
    }
    println!("{killed} kills, {saving} of them inside a save: no checkpoint is lost or wrong, and all go on to the bit");
    assert!(saving * 4 >= killed);
}
